"""`lmtool eval`: evaluate a model on text, or on labelled tables."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import (
    TEXT_HELP,
    Column,
    Device,
    Json,
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
    from lmtool.inference.load import Loaded
    from lmtool.inference.perplexity import Measured
    from lmtool.recipe.load import Setting
    from lmtool.tables.prompting import Prompted
    from lmtool.tables.results import Results
    from lmtool.tables.suite import Suite
    from lmtool.text.table import Skipped


@reads_tables()
def evaluate(
    run: RunName,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help=f"{TEXT_HELP[:-1]}; - is standard input.", show_default=False),
    ] = None,
    given: TypedText = None,
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens from one window to the next; the context by default, so that none overlap."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens read at once; the model's context by default.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Another run to compare with, such as an n-gram model.",
            show_default=False,
        ),
    ] = None,
    column: Column = None,
    task: TaskName = "",
    num_beams: NumBeams = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help='Choose answers to prompts, such as "Review: {text}\\nSentiment:", for the rows of a table.',
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="With --prompt: the labels that are answers, or LABEL=ANSWER; all labels by default.",
            show_default=False,
        ),
    ] = None,
    shots: Annotated[int, typer.Option(metavar="N", min=0, help="With --prompt: examples before each prompt.")] = 0,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="With --shots: the table of the examples; by default the one that the run was trained on.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="With --shots: the seed that draws them.")] = 1,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", metavar="", help="With --prompt: divide by the probabilities for prompts without content."
        ),
    ] = False,
    reading: "Sequence[Setting]" = (),
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on text: perplexity per token and per word, and bits per byte.

    A run that was fine-tuned on a table is evaluated on tables: accuracy, macro F1, BLEU and so on. With --prompt, any
    model that generates text is: the label of a row is the answer that is most probable after its prompt.

    The text is divided into documents as the training text was. A stride below the context gives every token a longer
    left context, at the cost of overlapping windows.
    """
    from lmtool.cli.output import describe
    from lmtool.cli.progress import Display
    from lmtool.compute.processes import is_main
    from lmtool.errors import UsageError
    from lmtool.inference.load import load_packed
    from lmtool.inference.perplexity import measure
    from lmtool.interop.reference import is_published, run_of
    from lmtool.tables.predict import answers_tables, measure_tables
    from lmtool.tables.prompting import measure_prompts
    from lmtool.tables.suite import measure_folder, runs_in, tables_in
    from lmtool.text.table import Skipped
    from lmtool.text.typed import table_files, text_files

    if not text and not given:
        fix = "name a file, - for standard input, or --text TEXT"
        if os.path.isfile(run) and not is_published(run):
            fix = f"name the run before it: lmtool eval last {run}"
        raise UsageError("there is nothing to evaluate", fix=fix)
    if prompt is None and (answers or shots or train or calibrate):
        raise UsageError("answers, shots and calibration are of prompts", fix='add --prompt "... {text} ..."')
    run, baseline = run_of(run), None if baseline is None else run_of(baseline)
    asked, skipped = as_data(reading), Skipped()
    if prompt is not None:
        if given or not text:
            raise UsageError("prompts are made of the rows of a table", fix="name a table, or - for standard input")
        model = load_packed(run, device=device, precision=precision)
        other = None if baseline is None else load_packed(baseline, device=device, precision=precision)
        with Display(shown=is_main(), quiet=quiet) as display, table_files(text, asked.encoding) as sources:
            for number, source in enumerate(sources):
                found = measure_prompts(
                    model,
                    source,
                    prompt.replace("\\n", "\n"),
                    answers.split(",") if answers else (),
                    reading=asked,
                    skipped=skipped,
                    train=train,
                    shots=shots,
                    seed=seed,
                    calibrate=calibrate,
                    baseline=other,
                    report=display.report,
                )
                if is_main() and not number:
                    describe(model, quiet)
                if is_main():
                    _tell(found, as_json)
        _tell_skipped(skipped)
        return
    runs = runs_in(run)
    if runs or answers_tables(run):
        folder = tables_in(text[0]) if text and len(text) == 1 and not given else {}
        if runs and not folder:
            raise UsageError("a folder of runs is evaluated on a folder of tables", where=run, fix="name the folder")
        if folder:
            suite = measure_folder(
                folder,
                runs or {"": run},
                lambda name: load_packed(name, device=device, precision=precision).with_beams(num_beams),
                asked,
                skipped,
            )
            _tell_skipped(skipped)
            if is_main():
                _tell(suite, as_json)
            for results in suite.results.values():
                _refuse_undefined(results.loss, run)
            return
        if given:
            raise UsageError(
                "this run is evaluated on labelled rows",
                where=run,
                fix="name a table, or - for standard input; lmtool predict takes --text",
            )
        model = load_packed(run, device=device, precision=precision).with_beams(num_beams)
        if is_main():
            describe(model, quiet)
        with table_files(text or (), asked.encoding) as sources:
            each = measure_tables(model, sources, task, asked, skipped)
            for source, results in zip(text or (), each, strict=True):
                if is_main():
                    _keep(model, [source], results.record())
                    _tell(results, as_json)
                    _tell_skipped(skipped)
                    skipped.kinds.clear()
                _refuse_undefined(results.loss, run)
        return
    if reading:
        raise UsageError(
            f"{reading[0].flag} is for tables, and this run is evaluated on texts",
            where=run,
            fix="omit it (--column names the column of texts), or make prompts of the rows of a table: --prompt",
        )
    with Display(shown=is_main(), quiet=quiet) as display, text_files(text or (), given or ()) as sources:
        measured = measure(
            run,
            sources,
            context=context,
            stride=stride,
            baseline=baseline,
            column=column,
            device=device,
            precision=precision,
            report=display.report,
        )
    if is_main():
        describe(measured.loaded, quiet)
        if not given and context is None and stride is None:
            figures = {k: v for k, v in measured.perplexity.record().items() if k not in ("context", "stride")}
            _keep(measured.loaded, text or [], figures | {"step": measured.loaded.step})
        _tell(measured, as_json)
    _refuse_undefined(measured.perplexity.loss, run)


def _tell_skipped(skipped: "Skipped") -> None:
    from lmtool.compute.processes import is_main
    from lmtool.printable import plain

    if skipped.count and is_main():
        typer.echo(plain(f"warning: {skipped}"), err=True)


def _tell(found: "Measured | Prompted | Results | Suite", as_json: bool) -> None:
    """Print results; in JSON, NaN and infinities are null."""
    import json

    from lmtool.printable import plain
    from lmtool.records import finite

    for line in [json.dumps(finite(found.record()), allow_nan=False)] if as_json else found.lines():
        typer.echo(plain(line))


def _keep(loaded: "Loaded", sources: list[str], figures: Mapping[str, object]) -> None:
    """Keep figures in the run, for `lmtool runs`, unless they are of standard input."""
    from lmtool.run.evaluations import keep_evaluation
    from lmtool.text.typed import STDIN

    data = loaded.recipe.data
    named = [text.partition(":")[2] for text in data.tasks]
    named += [text.rpartition(":")[0] for text in named if ":" in text]
    if STDIN not in sources:
        keep_evaluation(loaded.run_path, sources, [*data.sources, *data.valid, *named], figures)


def _refuse_undefined(loss: float, run: str) -> None:
    """Raise NumericalError, after the results are printed, for a model whose outputs are no numbers."""
    import math

    from lmtool.errors import NumericalError

    if math.isnan(loss):
        raise NumericalError(
            "the loss is NaN: the weights of this model are useless",
            where=run,
            fix="name an earlier checkpoint, RUN@STEP, or train anew with a lower optimizer.lr",
        )
