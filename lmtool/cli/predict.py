"""`lmtool predict`: answer the rows of a table with a fine-tuned model."""

from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import Device, Precision, Quiet, Run


def predict(
    run: Run,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A .csv, .tsv, .jsonl or .parquet file, or hf:NAME.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The .csv file to write; stdout by default."),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="NAME", help="One of the tasks that the run has learnt.", show_default=False)
    ] = "",
    num_beams: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Width of the beam search that writes answers.", show_default=False),
    ] = None,
    guard_formulas: Annotated[
        bool,
        typer.Option(
            "--guard-formulas", metavar="", help="Put an apostrophe before what a spreadsheet takes for a formula."
        ),
    ] = False,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", metavar="", help="Leave bad rows out and count them.")
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Answer every row of a table: its columns, then the predicted label and the probability of each, or the text.

    Tables of any size pass in bounded memory.
    """
    from lmtool.engine.build import load_packed
    from lmtool.engine.results import predict as answers
    from lmtool.printable import plain
    from lmtool.text.table import Skipped, table_lines, write_table

    loaded = load_packed(run, device=device, precision=precision)
    for warning in loaded.warnings:
        typer.echo(plain(f"warning: {warning}"), err=True)
    skipped = Skipped() if skip_bad_rows else None
    found = answers(loaded.with_beams(num_beams), table, skipped=skipped, task=task)
    if output is None:
        for line in table_lines(found.table, found.added, found.rows, guard_formulas=guard_formulas):
            typer.echo(line, nl=False)
    else:
        write_table(output, found.table, found.added, found.rows, guard_formulas=guard_formulas)
    if skipped is not None and skipped.count:
        typer.echo(plain(f"warning: {skipped}"), err=True)
    if not quiet:
        typer.echo(plain(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}"), err=True)
