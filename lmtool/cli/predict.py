"""`lmtool predict`: predictions of a fine-tuned model for the rows of a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import (
    Device,
    NumBeams,
    Precision,
    Quiet,
    RunName,
    TaskName,
    TypedText,
    as_data,
    reads_tables,
)

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting


@reads_tables()
def predict(
    run: RunName,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="A .csv, .tsv, .jsonl, .parquet, .conll or SQuAD .json file, or hf:NAME; - is standard input, a table "
            "or a text per line.",
            show_default=False,
        ),
    ] = None,
    given: TypedText = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The .csv (or .conll) file to write; stdout by default."),
    ] = None,
    task: TaskName = "",
    num_beams: NumBeams = None,
    guard_formulas: Annotated[
        bool,
        typer.Option(
            "--guard-formulas",
            metavar="",
            help="Put an apostrophe before fields that a spreadsheet would read as formulas.",
        ),
    ] = False,
    reading: "Sequence[Setting]" = (),
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Predict every row of a table, or texts: the columns, then the label and the probability of each, or the answer.

    Memory is bounded, whatever the size of the table.
    """
    from lmtool.cli.output import describe
    from lmtool.compute.processes import is_main
    from lmtool.inference.load import load_packed
    from lmtool.interop.reference import run_of
    from lmtool.printable import plain
    from lmtool.tables.predict import predict as answers
    from lmtool.tables.predict import texts_of_a_row
    from lmtool.text.table import table_lines, write_table
    from lmtool.text.typed import table_of_texts

    loaded = load_packed(run_of(run), device=device, precision=precision)
    asked, trained = as_data(reading), loaded.recipe.data
    with table_of_texts(table, given or [], *texts_of_a_row(loaded, asked), trained, asked) as source:
        found = answers(loaded.with_beams(num_beams), source, task, asked)
        if not is_main():
            # its share of the rows must be computed as well
            for _ in found.rows:
                pass
            return
        if output is None:
            for line in table_lines(found.table, found.added, found.rows, guard_formulas=guard_formulas):
                typer.echo(line, nl=False)
        else:
            write_table(output, found.table, found.added, found.rows, guard_formulas=guard_formulas)
    if found.skipped is not None and found.skipped.count:
        typer.echo(plain(f"warning: {found.skipped}"), err=True)
    describe(loaded, quiet)
