"""`lmtool eval`: evaluate a model on text, or on labelled tables."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.arguments import (
    TEXT_HELP,
    Device,
    HtmlFile,
    Json,
    NumBeams,
    Precision,
    Quiet,
    RunName,
    TaskName,
    TypedText,
)
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import check_new, describe, describe_skipped, open_model, put_result, tell, warn, warn_of_leaks
from lmtool.cli.progress import Display
from lmtool.cli.settings import READING, Column, as_data, sets, settings_in
from lmtool.errors import NumericalError, UsageError

if TYPE_CHECKING:
    from lmtool.inference.load import LoadedModel


@sets(READING)
def evaluate(
    run: RunName,
    text: list[str] | None = argument("TEXT", TEXT_HELP),
    typed: TypedText = None,
    stride: int | None = option(
        "N", "Tokens from one window to the next; the context by default, so that none overlap.", min=1
    ),
    context: int | None = option("N", "Tokens read at once; the model's context by default.", min=1),
    baseline: str | None = option("RUN", "Another run to compare with, such as an n-gram model."),
    column: Column = None,
    task: TaskName = "",
    num_beams: NumBeams = None,
    costs: str | None = option("TABLE", "Costs of errors: predict the class of least expected cost."),
    prompt: str | None = option(
        "TEMPLATE", 'Choose answers to prompts, such as "Review: {text}\\nSentiment:", for the rows of a table.'
    ),
    answers: str | None = option(
        "A,B,...", "With --prompt: the labels that are answers, or LABEL=ANSWER; all labels by default."
    ),
    shots: int = option("N", "With --prompt: examples before each prompt.", default=0, min=0),
    train: str | None = option(
        "TABLE", "With --shots: the table of the examples; by default the one that the run was trained on."
    ),
    seed: int = option("N", "With --shots: the seed that draws them.", default=1, min=0),
    calibrate: bool = flag("With --prompt: divide by the probabilities for prompts without content.", "--calibrate"),
    suite: str | None = option("NAME", "Measure tasks: a suite that comes with lmtool, or a YAML file."),
    rows: Path | None = option(
        "FILE", "With --suite: a new .jsonl file with the scores of each row.", parser=file_to_write
    ),
    output: HtmlFile = None,
    *,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Evaluate a model on text: perplexity per token and per word, and bits per byte.

    A run that was fine-tuned on a table is evaluated on tables: accuracy, macro F1, BLEU and so on. With --prompt, any
    model that generates text is: the label of a row is the answer that is most probable after its prompt.

    With --suite tasks are, or the one that --task names: multiple choice, schemas, continuations, generated answers,
    perplexity of texts. Rows that are scored are kept in the run, so that an interrupted suite goes on.

    The text is divided into documents as the training text was. A stride below the context gives every token a longer
    left context, at the cost of overlapping windows.

    Examples:
    lmtool eval last book.txt --stride 64
    lmtool eval last --text "One day it rained."
    lmtool eval last@500 test.csv --json
    lmtool eval last --suite bundled
    """
    from lmtool.compute.processes import is_main
    from lmtool.data.stdin import open_table_sources, open_text_sources
    from lmtool.data.table import SkippedRows
    from lmtool.inference.perplexity import EvaluationText, measure
    from lmtool.interop.names import is_published
    from lmtool.tasks.predict import answers_tables, measure_tables
    from lmtool.tasks.prompting import Prompting, measure_prompts
    from lmtool.tasks.suite import measure_folder, runs_in, tables_in

    if suite is not None:
        others = {"TEXT": text, "--text": typed, "--stride": stride, "--context": context, "--baseline": baseline}
        others |= {"--column": column, "--num-beams": num_beams, "--costs": costs, "--prompt": prompt, "--train": train}
        others |= {"--answers": answers, "--shots": shots, "--calibrate": calibrate, "--seed": seed != 1}
        others |= {one.flag or one.key: True for one in settings_in(reading)}
        if ignored := [name for name, value in others.items() if value]:
            what = "a suite sets this itself"
            raise UsageError(what, where=", ".join(ignored), fix=f"omit it, or write it into the tasks of {suite}")
        _measure_suite(open_model(run, device, precision), (suite, task), rows, output, as_json, quiet)
        return
    if rows or output:
        raise UsageError("--rows and -o need a suite", fix="add --suite NAME")
    if not text and not typed:
        fix = "name a file, - for standard input, or --text TEXT"
        if os.path.isfile(run) and not is_published(run):
            fix = f"name the run before it: lmtool eval last {run}"
        raise UsageError("there is nothing to evaluate", fix=fix)
    if prompt is None and (answers or shots or train or calibrate):
        raise UsageError("answers, shots and calibration need a prompt", fix='add --prompt "... {text} ..."')
    if costs and (prompt or typed or any(map(os.path.isdir, text or ())) or runs_in(run) or not answers_tables(run)):
        raise UsageError(
            "costs need a table of classes, and a run that predicts them",
            where="--costs",
            fix="omit it, or name a table and its run",
        )
    settings = settings_in(reading)
    data, skipped = as_data(settings), SkippedRows()
    if prompt is not None:
        if typed or not text:
            raise UsageError("a prompt needs a table, whose rows fill it", fix="name a table, or - for standard input")
        model = open_model(run, device, precision)
        other = None if baseline is None else open_model(baseline, device, precision)
        with Display(shown=is_main(), quiet=quiet) as display, open_table_sources(text, data.encoding) as sources:
            labels = answers.split(",") if answers else ()
            prompting = Prompting(prompt.replace("\\n", "\n"), labels, shots, seed, train, calibrate)
            for number, source in enumerate(sources):
                result = measure_prompts(model, source, prompting, data, skipped, display.report)
                if other is not None:
                    result = result.compared_with(other, data)
                if not number:
                    describe(model, quiet)
                put_result(result, as_json, warn_of_leaks(model, (item.named for item in result.items)))
        describe_skipped(skipped)
        return

    def opened(name: str) -> "LoadedModel":
        return open_model(name, device, precision).with_beams(num_beams)

    runs = runs_in(run)
    if runs or answers_tables(run):
        folder = tables_in(text[0]) if text and len(text) == 1 and not typed else {}
        if runs and not folder:
            raise UsageError("a folder of runs needs a folder of tables", where=run, fix="name the folder")
        if folder:
            of_folder = measure_folder(folder, runs or {"": run}, opened, data, skipped)
            describe_skipped(skipped)
            put_result(of_folder, as_json)
            for results in of_folder.results.values():
                _refuse_undefined(results.loss, run)
            return
        if typed:
            fix = "name a table, or - for standard input; lmtool predict takes --text"
            raise UsageError("this run needs labelled rows", where=run, fix=fix)
        model = opened(run)
        describe(model, quiet)
        with open_table_sources(text or (), data.encoding) as sources:
            shows = is_main() and not quiet
            each = measure_tables(model, sources, task, data, skipped, costs, tell if shows else lambda line: None)
            for source, results in zip(text or (), each, strict=True):
                leaks = warn_of_leaks(model, (item.named for item in results.items))
                if is_main() and costs is None:
                    _keep(model, [source], results.record())
                put_result(results, as_json, leaks)
                describe_skipped(skipped)
                skipped.kinds.clear()
                _refuse_undefined(results.loss, run)
        return
    if settings:
        fix = "omit it (--column names the column of texts), or make prompts of the rows of a table: --prompt"
        raise UsageError(f"{settings[0].flag} is for tables, and this run is evaluated on texts", where=run, fix=fix)
    with Display(shown=is_main(), quiet=quiet) as display, open_text_sources(text or (), typed or ()) as sources:
        read = EvaluationText(sources, column, context, stride)
        measured = measure(run, read, baseline=baseline, device=device, precision=precision, report=display.report)
    describe(measured.loaded, quiet)
    if is_main() and not typed and context is None and stride is None:
        figures = {k: v for k, v in measured.perplexity.record().items() if k not in ("context", "stride")}
        _keep(measured.loaded, text or [], figures | {"step": measured.loaded.step})
    put_result(measured, as_json)
    _refuse_undefined(measured.perplexity.loss, run)


def _measure_suite(
    loaded: "LoadedModel", named: tuple[str, str], rows: Path | None, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Measure the tasks of a suite, or one, and write what is asked for."""
    from lmtool.compute.processes import is_main
    from lmtool.report.page import write_page
    from lmtool.report.suite import suite_page
    from lmtool.tasks.suites.measure import kept_rows, measure_suite, open_tasks, texts_of, write_rows
    from lmtool.tasks.suites.spec import read_suite

    check_new(rows, ".jsonl")
    check_new(output)
    tasks = open_tasks(loaded, read_suite(*named))
    describe(loaded, quiet)
    leaks = warn_of_leaks(loaded, texts_of(tasks))
    with Display(shown=is_main(), quiet=quiet) as display, kept_rows(loaded) as folder:
        results = measure_suite(loaded, named[0], tasks, folder, display.report)
        if is_main() and rows is not None:
            write_rows(rows, results)
    if is_main() and output is not None:
        write_page(output, suite_page(str(loaded.run_path), loaded.step, results))
    if is_main():
        warn(results.notices())
    put_result(results, as_json, leaks)


def _keep(loaded: "LoadedModel", sources: list[str], figures: Mapping[str, object]) -> None:
    """Keep figures in the run, for `lmtool runs`, unless they are of standard input."""
    from lmtool.data.stdin import STDIN
    from lmtool.run.listing import save_evaluation

    data = loaded.recipe.data
    named = [text.partition(":")[2] for text in data.tasks]
    named += [text.rpartition(":")[0] for text in named if ":" in text]
    if STDIN not in sources:
        save_evaluation(loaded.run_path, sources, [*data.sources, *data.valid, *named], figures)


def _refuse_undefined(loss: float, run: str) -> None:
    """Raise NumericalError, after the results are printed, for a model whose outputs are no numbers."""
    if math.isnan(loss):
        fix = "name an earlier checkpoint, RUN@STEP, or train anew with a lower optimizer.lr"
        raise NumericalError("the loss is NaN: the weights of this model are useless", where=run, fix=fix)
