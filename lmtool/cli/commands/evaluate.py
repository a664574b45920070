"""`lmtool eval`: evaluate a model on text, on labelled tables, or on tasks of lm-eval."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.arguments import (
    TASKS_HELP,
    TEXT_HELP,
    Device,
    Json,
    NumBeams,
    Precision,
    Quiet,
    RunName,
    TaskName,
    TypedText,
)
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import (
    check_new,
    describe,
    eprint,
    load_model,
    print_result,
    warn,
    warn_of_leaks,
    warn_of_skipped,
)
from lmtool.cli.progress import Display
from lmtool.cli.settings import READ_OPTIONS, Column, key_options, to_data, to_settings
from lmtool.errors import NumericalError, UsageError

if TYPE_CHECKING:
    from lmtool.runs.load import LoadedModel


@key_options(READ_OPTIONS)
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
    calibrate: bool = flag("With --prompt: divide by the probabilities for prompts without content.", "--calibrate"),
    tasks: str | None = option("NAME,...", TASKS_HELP),
    shots: int | None = option("N", "With --tasks: examples before each prompt; by default what a task says.", min=0),
    limit: int | None = option("N", "With --tasks: the first rows of each task, so many.", min=1),
    rows: Path | None = option(
        "FILE", "With --tasks: a new .jsonl file with the results of each row.", parser=file_to_write
    ),
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

    With --tasks lm-eval measures the model (pip install 'lmtool[lmeval]'): its benchmarks by name, or tasks on rows of
    your own, which YAML files in its format describe.

    The text is divided into documents as the training text was. A stride below the context gives every token a longer
    left context, at the cost of overlapping windows.

    Examples:
    lmtool eval last book.txt --stride 64
    lmtool eval last --text "One day it rained."
    lmtool eval last@500 test.csv --json
    lmtool eval last --tasks bundled --limit 50
    """
    from lmtool.compute.processes import is_main_process
    from lmtool.data.stdin import temporary_table_files, temporary_text_files
    from lmtool.data.table import SkippedRowCounts
    from lmtool.evaluation.perplexity import measure_perplexity
    from lmtool.interop.references import is_published
    from lmtool.tasks.benchmarks import (
        evaluate_lm_eval_tasks,
        import_and_silence_lm_eval,
        iterate_row_names_and_answered_prompts,
        load_lm_eval_tasks,
    )
    from lmtool.tasks.predict import can_predict_tables, evaluate_tables
    from lmtool.tasks.prompting import PromptTemplate, evaluate_prompt_by_likelihood

    if tasks is not None:
        others = {"TEXT": text, "--text": typed, "--stride": stride, "--context": context, "--baseline": baseline}
        others |= {"--column": column, "--num-beams": num_beams, "--costs": costs, "--prompt": prompt, "--task": task}
        others |= {"--answers": answers, "--calibrate": calibrate}
        others |= {one.flag or one.key: True for one in to_settings(reading)}
        if ignored := [name for name, value in others.items() if value]:
            what = "this does not go with --tasks"
            raise UsageError(what, where=", ".join(ignored), fix="omit it, or write it into the YAML file of a task")
        check_new(rows, ".jsonl")
        import_and_silence_lm_eval()
        model = load_model(run, device, precision)
        of_lm_eval = load_lm_eval_tasks(tasks.split(","), [model], shots)
        describe(model, quiet)
        leaks = warn_of_leaks(model, list(iterate_row_names_and_answered_prompts(of_lm_eval, limit)))
        with Display(shown=is_main_process(), quiet=quiet) as display:
            found = evaluate_lm_eval_tasks(model, of_lm_eval, limit, display.report)
        if is_main_process():
            warn(found.truncation_notices())
            if rows is not None:
                found.write_rows(rows)
        print_result(found, as_json, leaks)
        return
    if rows or limit or shots is not None:
        fix = "add --tasks NAME; examples before a prompt are fewshot_split and num_fewshot of a task file"
        raise UsageError("--shots, --limit and --rows are for tasks", fix=fix)
    if not text and not typed:
        fix = "name a file, - for standard input, or --text TEXT"
        if os.path.isfile(run) and not is_published(run):
            fix = f"name the run before it: lmtool eval last {run}"
        raise UsageError("there is nothing to evaluate", fix=fix)
    if prompt is None and (answers or calibrate):
        raise UsageError("answers and calibration need a prompt", fix='add --prompt "... {text} ..."')
    if costs and (prompt or typed or not can_predict_tables(run)):
        raise UsageError(
            "costs need a table of classes, and a run that predicts them",
            where="--costs",
            fix="omit it, or name a table and its run",
        )
    if baseline is not None and (prompt is not None or can_predict_tables(run)):
        fix = f"lmtool eval {baseline} TABLE, or lmtool runs compare {run} {baseline} --test TABLE"
        raise UsageError("a baseline is for texts", where=f"--baseline {baseline}", fix=fix)
    settings = to_settings(reading)
    data, skipped = to_data(settings), SkippedRowCounts()
    if prompt is not None:
        if typed or not text:
            raise UsageError("a prompt needs a table, whose rows fill it", fix="name a table, or - for standard input")
        model = load_model(run, device, precision)
        with (
            Display(shown=is_main_process(), quiet=quiet) as display,
            temporary_table_files(text, data.encoding) as sources,
        ):
            labels = answers.split(",") if answers else ()
            prompting = PromptTemplate(prompt.replace("\\n", "\n"), labels, calibrate)
            for number, source in enumerate(sources):
                result = evaluate_prompt_by_likelihood(model, source, prompting, data, skipped, display.report)
                if not number:
                    describe(model, quiet)
                print_result(result, as_json, warn_of_leaks(model, (item.name_and_text for item in result.items)))
        warn_of_skipped(skipped)
        return
    if can_predict_tables(run):
        if typed:
            fix = "name a table, or - for standard input; lmtool predict takes --text"
            raise UsageError("this run needs labelled rows", where=run, fix=fix)
        if folder := next(filter(os.path.isdir, text or ()), None):
            fix = f"name the tables in it: lmtool eval {run} {os.path.join(folder, '*.csv')}"
            raise UsageError("a folder is not a table", where=folder, fix=fix)
        model = load_model(run, device, precision).with_evaluation_num_beams(num_beams)
        describe(model, quiet)
        with temporary_table_files(text or (), data.encoding) as sources:
            shows = is_main_process() and not quiet
            each = evaluate_tables(model, sources, task, data, skipped, costs, eprint if shows else lambda line: None)
            for source, results in zip(text or (), each, strict=True):
                leaks = warn_of_leaks(model, (item.name_and_text for item in results.items))
                if is_main_process() and costs is None:
                    _save_evaluation(model, [source], results.to_record())
                print_result(results, as_json, leaks)
                warn_of_skipped(skipped)
                skipped.kinds.clear()
                _check_loss(results.loss, run)
        return
    if settings:
        fix = "omit it (--column names the column of texts), or make prompts of the rows of a table: --prompt"
        raise UsageError(f"{settings[0].flag} is for tables, and this run is evaluated on texts", where=run, fix=fix)
    with (
        Display(shown=is_main_process(), quiet=quiet) as display,
        temporary_text_files(text or (), typed or ()) as sources,
    ):
        measured = measure_perplexity(
            run,
            sources,
            column=column,
            context=context,
            stride=stride,
            baseline=baseline,
            device=device,
            precision=precision,
            report=display.report,
        )
    describe(measured.loaded, quiet)
    if is_main_process() and not typed and context is None and stride is None:
        figures = {k: v for k, v in measured.perplexity.to_record().items() if k not in ("context", "stride")}
        _save_evaluation(measured.loaded, text or [], figures | {"step": measured.loaded.step})
    print_result(measured, as_json)
    _check_loss(measured.perplexity.loss, run)


def _save_evaluation(loaded: "LoadedModel", sources: list[str], figures: Mapping[str, object]) -> None:
    """Saves figures in the run, for `lmtool runs`, unless they are of standard input."""
    from lmtool.data.stdin import STDIN
    from lmtool.runs.listing import save_evaluation_unless_training_data

    data = loaded.recipe.data
    named = [text.partition(":")[2] for text in data.tasks]
    named += [text.rpartition(":")[0] for text in named if ":" in text]
    if STDIN not in sources:
        save_evaluation_unless_training_data(loaded.run_path, sources, [*data.sources, *data.valid, *named], figures)


def _check_loss(loss: float, run: str) -> None:
    """Raises NumericalError, after the results are printed, for a model whose loss is NaN."""
    if math.isnan(loss):
        fix = "name an earlier checkpoint, RUN@STEP, or train anew with a lower optimizer.lr"
        raise NumericalError("the loss is NaN: the weights of this model are useless", where=run, fix=fix)
