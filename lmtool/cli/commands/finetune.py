"""`lmtool finetune`: train a model on a labelled table."""

import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from lmtool.cli.arguments import OUTPUT_HELP, PROFILE_HELP, START_OR_RESUME_HELP, UNTIL_HELP, Quiet
from lmtool.cli.help import argument, flag, folder_to_write, option
from lmtool.cli.output import eprint, print_lines, print_text
from lmtool.cli.progress import Display
from lmtool.cli.settings import LABEL_OPTIONS, READ_OPTIONS, KeyOptions, Overrides, key_options, to_settings, with_stdin
from lmtool.cli.training import resume_if_begun, run_training
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.runs.directory import Run
    from lmtool.training.events import Event
    from lmtool.training.job import SessionOptions
    from lmtool.training.plan import TrainingPlan

_data, _training, _evaluation = (partial(option, panel=panel) for panel in ("Data", "Training", "Evaluation"))
_TASK_HELP = "Instead of TABLE: one of several tasks, trained jointly as text-to-text. May be repeated."
_TASK_TEST_HELP = "Like --test, for one of the tasks. May be repeated."
_RANK_HELP = "Train LoRA adapters of this rank and the head, and save only these."
_VALID_HELP = "Validation table, to choose the best checkpoint; else part of TABLE is held out."
_Metric = Literal["loss", "accuracy", "macro-f1", "correlation", "f1", "exact", "spearman", "ndcg"]
OPTIONS: KeyOptions = {
    **READ_OPTIONS,
    "data.tasks": (list[str], _data("NAME:FILE[:WEIGHT]", _TASK_HELP, "--task")),
    "data.task_tests": (list[str], _data("NAME:FILE", _TASK_TEST_HELP, "--task-test")),
    **LABEL_OPTIONS,
    "data.valid": (str, _data("FILE", _VALID_HELP)),
    "data.test": (str, _data("FILE", "Test table, evaluated once at the end.")),
    "training.epochs": (float, _training("N", "Epochs, passes over the table.")),
    "training.minutes": (float, _training("N", "Train so many steps that the run takes N minutes here.")),
    "evaluation.metric": (_Metric, _evaluation("", "Metric to choose the best checkpoint by.")),
    "evaluation.patience": (int, _evaluation("N", "Stop early after N validations without improvement.", min=1)),
    "objective.class_weights": (Literal["balanced"], _training("", "Weight the loss by inverse class frequency.")),
    "tuning.freeze": (Literal["body"], _training("", "Train the head only, on a frozen body.")),
    "tuning.lora.rank": (int, _training("N", _RANK_HELP, "--lora-rank", min=1)),
    "distillation.teacher": (str, _training("RUN", "Learn the probabilities of this run, of the same labels, too.")),
}
"""The options that set keys of the recipe."""


@key_options(OPTIONS)
def finetune(
    table: str | None = argument(
        "TABLE", "A .csv, .tsv, .jsonl, .json, .parquet or .conll file, hf:NAME, or - for standard input."
    ),
    source: str | None = option("RUN", "The run, or published model, to fine-tune.", "--from"),
    recipe: str | None = option("NAME", "Train from scratch with this recipe.", "--recipe", "-r"),
    overrides: Overrides = None,
    *,
    merge: bool = flag("At the end, also make a run with the adapters merged.", "--merge", panel="Output"),
    seeds: int = _training("N", "Train N runs with different seeds, and report mean and deviation.", default=1, min=1),
    output: Path | None = option("DIR", OUTPUT_HELP, "--output", "-o", panel="Output", parser=folder_to_write),
    start_or_resume: bool = flag(START_OR_RESUME_HELP, "--start-or-resume", panel="Output"),
    until: float = _training("SHARE", UNTIL_HELP, default=1.0, shown=False, min=0.0, max=1.0),
    profile: bool = flag(PROFILE_HELP, "--profile", panel="Training"),
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Fine-tune a model on a table with labels or target texts, tagged sentences, or questions, and evaluate it.

    Without --from and --recipe a linear model is trained, of words alone or with characters: cross-validation tells.
    Columns and the kind of labels are inferred and reported. Prints the results and the run directory at the end.
    Ctrl-C saves and stops; `lmtool resume` continues.

    Examples:
    lmtool finetune reviews.csv --from last
    lmtool finetune reviews.csv --recipe dan --test test.csv
    lmtool finetune questions.tsv --from hf:sentence-transformers/all-MiniLM-L6-v2 --seeds 3
    lmtool finetune pairs.csv --from last --source-column de --target-column en --lora-rank 8
    """
    from lmtool.recipe.load import check_settings
    from lmtool.recipe.resolve import resolve

    if start_or_resume and (merge or seeds > 1):
        fix = "lmtool runs merge merges its adapters" if merge else "leave it out: with -o DIR the same command goes on"
        raise UsageError("--start-or-resume is for one run", fix=fix)
    if start_or_resume and resume_if_begun(output, quiet, until, profile):
        return
    table, options["valid"], options["test"] = with_stdin("table", table, options["valid"], options["test"])
    settings = to_settings(options, OPTIONS, ("data.train", table, "TABLE"), overrides=overrides)
    if table and options["task"]:
        raise UsageError("--task and TABLE cannot be combined", fix="give only one of them")
    if seeds > 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        fix = "start torchrun for each -s seed=N"
        raise UsageError("--seeds cannot be used in several processes", fix=fix)
    # mistakes are reported before anything heavy is imported
    check_settings(settings) if recipe is None else resolve(recipe, settings)

    from lmtool.compute.processes import is_main_process
    from lmtool.runs.creation import has_checkpoint
    from lmtool.runs.directory import Run
    from lmtool.runs.merging import merge_adapters_into_new_run as make_merged
    from lmtool.runs.reference import Reference
    from lmtool.tasks.results import summarize_runs
    from lmtool.training.finetuning import plan_finetuning
    from lmtool.training.resuming import resume

    begun = _find_begun_seeds(output) if seeds > 1 and output is not None else []
    if begun and source == "last" and (base := begun[0].info.base) is not None:
        source = f"{base.path}/checkpoints/{base.checkpoint}"  # by now another run is the last one
    with Display(is_main_process(), quiet) as display:
        plan = plan_finetuning(source, recipe, settings, display.report)
    for begun_run in begun:
        begun_base = begun_run.info.base
        digest = None if begun_base is None else begun_base.sha256
        if digest != (None if plan.base is None else plan.base.checkpoint.model_digest):
            before = "from scratch" if begun_base is None else f"from {begun_base.checkpoint} of {begun_base.run}"
            what = f"the seeds in the folder began {before}, and the others would begin with another model"
            fix = "choose another folder with -o"
            raise UsageError(what, where=str(begun_run.path), fix=fix, code="output_exists")
    if merge and plan.recipe.tuning.lora is None:
        raise UsageError("--merge needs adapters", fix="add --lora-rank 8, or omit --merge")
    if plan.choice and is_main_process() and not quiet:
        eprint(*plan.choice.splitlines())
    runs = []
    for seed in range(plan.recipe.seed, plan.recipe.seed + seeds):
        folder = output / f"seed-{seed}" if output is not None and seeds > 1 else output
        run_of = partial(_start_with_export_note, plan.with_seed(seed))
        if seeds > 1 and folder is not None and has_checkpoint(folder):
            run_of = partial(resume, str(folder), ())
        try:
            alone = seeds == 1 and until == 1.0 and not start_or_resume
            run = run_training(
                run_of,
                quiet,
                output=folder,
                replace_aborted=start_or_resume or seeds > 1,
                brief=seeds > 1,
                until=until,
                profiles=profile,
                stops_below_baseline=alone,
            )
        except typer.Exit:
            if seeds > 1 and output is not None and not quiet:
                eprint("the same command goes on with this seed and the others")
            raise
        if run is not None:
            runs.append(Run.open(run))
            if merge:
                merged = None if folder is None else folder.with_name(f"{folder.name}-merged")
                if merged is None or not (seeds > 1 and has_checkpoint(merged)):
                    merged = make_merged(Reference.from_name(str(run)), merged, ["lmtool", *sys.argv[1:]])
                print_text(merged)
    print_lines(*(summarize_runs([run.results_by_task for run in runs]) if seeds > 1 else ()))


def _find_begun_seeds(folder: Path) -> "list[Run]":
    """Finds the runs that an earlier call of the same command left in a folder, one for each seed.

    Raises UsageError for runs of another command.
    """
    from lmtool.runs.creation import has_checkpoint
    from lmtool.runs.directory import Run

    paths = [
        path for path in sorted(folder.glob("seed-*")) if re.fullmatch(r"seed-\d+", path.name) and has_checkpoint(path)
    ]
    runs = [Run.open(path) for path in paths]
    for run in runs:
        command = run.info.sessions[0].command if run.info.sessions else []
        if _strip_irrelevant_options(command) != _strip_irrelevant_options(["lmtool", *sys.argv[1:]]):
            where = f"{run.path}: {shlex.join(command)}"
            fix = "choose another folder with -o, or repeat that command, also with more --seeds, to go on"
            what = "the folder holds runs of another command"
            raise UsageError(what, where=where, fix=fix, code="output_exists")
    return runs


def _strip_irrelevant_options(command: "Sequence[str]") -> list[str]:
    """Returns the words of a command without options that change no run."""
    texts = iter(command)
    kept = []
    for text in texts:
        if text in ("--seeds", "--until"):
            next(texts, None)
        elif text not in ("-q", "--quiet", "--profile") and not text.startswith(("--seeds=", "--until=")):
            kept.append(text)
    return kept


def _start_with_export_note(plan: "TrainingPlan", options: "SessionOptions") -> "Iterator[Event]":
    """Yields the events of training, and before its first step a note on how the run can be exported."""
    from lmtool.interop.export.forms import describe_export
    from lmtool.training.events import Info, RunStarted
    from lmtool.training.train import train

    for event in train(plan, options):
        yield event
        if isinstance(event, RunStarted):
            yield Info(describe_export(event.recipe, event.tokenizer))
