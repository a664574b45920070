"""`lmtool predict`: predictions of a fine-tuned model for the rows of a table."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmtool.cli.arguments import Device, Json, NumBeams, Precision, Quiet, RunName, TaskName, TypedText
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import describe, eprint, load_model, print_text, warn_of_cut_forms, warn_of_skipped
from lmtool.cli.settings import FORM_OPTIONS, READ_OPTIONS, key_options, pop_form, to_data, to_settings
from lmtool.errors import UsageError

DEFAULT_NEW_TOKENS = 64
"""Maximum new tokens after a prompt by default."""


@key_options(READ_OPTIONS, FORM_OPTIONS)
def predict(
    run: RunName,
    table: str | None = argument(
        "TABLE",
        "A .csv, .tsv, .jsonl, .parquet, .conll or SQuAD .json file, or hf:NAME; - is standard input, a table or a "
        "text per line.",
    ),
    texts: TypedText = None,
    output: Path | None = option(
        "FILE",
        "The .csv, .jsonl, .json (or .conll) file to write; CSV on stdout by default.",
        "--output",
        "-o",
        parser=file_to_write,
    ),
    task: TaskName = "",
    num_beams: NumBeams = None,
    min_probability: float | None = option("P", "Leave a prediction blank below this probability.", min=0, max=1),
    costs: str | None = option("TABLE", "Costs of errors: predict the class of least expected cost."),
    prompt: str | None = option(
        "TEMPLATE", "Let a language model write after this prompt, with {text} or {COLUMN} for the texts of the row."
    ),
    max_new_tokens: int | None = option(
        "N", "Maximum new tokens after a prompt.", shown=str(DEFAULT_NEW_TOKENS), min=1
    ),
    guard_formulas: bool = flag(
        "Put an apostrophe before fields that a spreadsheet would read as formulas.", "--guard-formulas"
    ),
    *,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Predict every row of a table, or texts: the columns, then the label and the probability of each, or the answer.

    Memory is bounded, whatever the size of the table. With --prompt any language model answers, greedily or by beams.

    Examples:
    lmtool predict last reviews.csv -o predictions.csv
    lmtool predict last reviews.csv --min-probability 0.9
    lmtool predict last reviews.csv --prompt "Review: {text} Good or bad? Answer:" --choices good,bad
    lmtool predict last --text "A film without a single dull minute."
    lmtool predict last reviews.csv --json
    lmtool predict last - < reviews.csv
    """
    from lmtool.compute.processes import is_main_process
    from lmtool.data.stdin import temporary_table_file
    from lmtool.data.table import format_csv_or_conll_rows, format_json_lines, format_json_list, write_new_table_file
    from lmtool.generation.generate import TextGenerator
    from lmtool.generation.params import SamplingParams
    from lmtool.tasks import predict as predicting
    from lmtool.tasks.classification import set_decision_rule
    from lmtool.tasks.prompting import PromptTemplate, generate_answers_lazily

    ending = "" if output is None else output.suffix.lower()
    if ending == ".parquet":
        raise UsageError(
            "predictions are written as text", where=str(output), fix="end its name with .csv, .jsonl or .json"
        )
    if as_json and ending not in ("", ".jsonl", ".json"):
        raise UsageError(f"--json contradicts a {ending} file", where=str(output), fix="end its name with .jsonl")
    as_json |= ending in (".jsonl", ".json")
    if as_json and guard_formulas:
        raise UsageError("--guard-formulas is for CSV, and this is JSON", fix="omit it")
    loaded = load_model(run, device, precision)
    form = pop_form(reading)
    data = to_data(to_settings(reading))
    if prompt is None and (form is not None or max_new_tokens is not None):
        raise UsageError("only what a language model writes after a prompt has a form and a length", fix="add --prompt")
    if prompt is not None and task:
        raise UsageError("a prompt says itself what the task is", where=f"--task {task}", fix="omit one of them")
    columns = predicting.get_text_columns(loaded, data) if prompt is None else ("text",)
    converses = prompt is None and predicting.reads_conversations(loaded, data)
    with temporary_table_file(table, texts or [], columns, converses, loaded.recipe.data, data) as source:
        if prompt is None:
            answers = predicting.predict_table_lazily(loaded.with_evaluation_num_beams(num_beams), source, task, data)
        else:
            limits: dict[str, Any] = {"max_new_tokens": max_new_tokens or DEFAULT_NEW_TOKENS, "form": form}
            params = SamplingParams("greedy", **limits)
            if num_beams is not None:
                params = SamplingParams("beam", **limits, num_beams=num_beams)
            answers = generate_answers_lazily(
                TextGenerator(loaded), source, PromptTemplate(prompt.replace("\\n", "\n")), params, data
            )
        if answers.columns and is_main_process() and not quiet:
            eprint(answers.columns)
        set_decision_rule(answers.task, costs, min_probability)
        if not is_main_process():
            # its share of the rows must be computed as well
            for _ in answers.rows:
                pass
            return
        blanks, reasons = Counter[bool](), Counter[str]()

        def counted() -> Iterator[tuple[Any, Any]]:
            for row, cells in answers.rows:
                blanks[cells[0] is None] += 1
                if prompt is not None:
                    reasons[str(cells[1])] += 1
                yield row, cells

        if as_json:
            lines = format_json_lines(answers.table, answers.output_columns, counted())
        else:
            lines = format_csv_or_conll_rows(
                answers.table, answers.output_columns, counted(), guard_formulas=guard_formulas
            )
        if ending == ".json":
            lines = format_json_list(lines)
        if output is None:
            for line in lines:
                print_text(line, end="")
        else:
            write_new_table_file(output, answers.table, lines)
    warn_of_skipped(answers.skipped)
    if prompt is not None:
        warn_of_cut_forms(params, reasons)
    if min_probability is not None:
        eprint(f"{blanks[True]:,} of {blanks.total():,} predictions are blank: below {min_probability:g}")
    describe(loaded, quiet)
