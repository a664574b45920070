"""`lmtool finetune`: train a model on a labelled table."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lmtool.cli.arguments import START_OR_RESUME_HELP, Labels, Overrides, Quiet, label_settings, reads_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lmtool.recipe.load import Setting
    from lmtool.training.events import Event

_data, _training, _evaluation, _output = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Data", "Training", "Evaluation", "Output")
)


@reads_tables()
def finetune(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="A .csv, .tsv, .jsonl, .parquet, .conll or SQuAD .json file, or hf:NAME.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="The run, or published model, to fine-tune.",
            show_default="last, if pretrained",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", metavar="NAME", help="Train from scratch with this recipe.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    reading: "Sequence[Setting]" = (),
    task: Annotated[
        list[str] | None,
        _data(
            metavar="NAME:FILE[:WEIGHT]",
            help="Instead of TABLE: one of several tasks, trained jointly as text-to-text. May be repeated.",
            show_default=False,
        ),
    ] = None,
    task_test: Annotated[
        list[str] | None,
        _data(metavar="NAME:FILE", help="Like --test, for one of the tasks. May be repeated.", show_default=False),
    ] = None,
    labels: Labels = "auto",
    valid: Annotated[
        str | None,
        _data(metavar="FILE", help="Validation table, to choose the best checkpoint; else part of TABLE is held out."),
    ] = None,
    test: Annotated[
        str | None, _data(metavar="FILE", help="Test table, evaluated once at the end.", show_default=False)
    ] = None,
    epochs: Annotated[
        float | None, _training(metavar="N", help="Epochs, passes over the table.", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None,
        _training(metavar="N", help="Train so many steps that the run takes N minutes here.", show_default=False),
    ] = None,
    metric: Annotated[
        Literal["loss", "accuracy", "macro-f1", "correlation", "f1", "exact"] | None,
        _evaluation(help="Metric to choose the best checkpoint by.", show_default=False),
    ] = None,
    patience: Annotated[
        int | None,
        _evaluation(metavar="N", min=1, help="Stop early after N validations without improvement.", show_default=False),
    ] = None,
    class_weights: Annotated[
        Literal["balanced"] | None,
        _training(help="Weight the loss by inverse class frequency.", show_default=False),
    ] = None,
    freeze: Annotated[
        Literal["body"] | None, _training(help="Train the head only, on a frozen body.", show_default=False)
    ] = None,
    lora_rank: Annotated[
        int | None,
        _training(
            metavar="N",
            min=1,
            help="Train LoRA adapters of this rank and the head, and save only these.",
            show_default=False,
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        _training(
            metavar="RUN", help="Learn the probabilities of this run, of the same labels, too.", show_default=False
        ),
    ] = None,
    merge: Annotated[
        bool, _output("--merge", metavar="", help="At the end, also make a run with the adapters merged.")
    ] = False,
    seeds: Annotated[
        int, _training(metavar="N", min=1, help="Train N runs with different seeds, and report mean and deviation.")
    ] = 1,
    output: Annotated[
        Path | None,
        _output("--output", "-o", metavar="DIR", help="Run directory; a new one in runs/ by default."),
    ] = None,
    start_or_resume: Annotated[bool, _output("--start-or-resume", metavar="", help=START_OR_RESUME_HELP)] = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune a model on a table with labels or target texts, tagged sentences, or questions, and evaluate it.

    Without a pretrained run, --from and --recipe, a linear model of words and word pairs is trained.
    Columns and the kind of labels are inferred and reported. Prints the results and the run directory at the end.
    Ctrl-C saves and stops; `lmtool resume` continues.
    """
    from lmtool.errors import UsageError
    from lmtool.recipe.load import Setting, load

    if start_or_resume and (merge or seeds > 1):
        raise UsageError(
            "--start-or-resume is for one run",
            fix="lmtool runs merge merges its adapters" if merge else "start one for each seed: -s seed=N -o DIR",
        )
    if start_or_resume:
        from lmtool.cli.training import continued

        if continued(output, quiet):
            return
    given: list[tuple[str, object, str]] = [
        ("data.train", table and [table], "TABLE"),
        ("data.valid", valid and [valid], "--valid"),
        ("data.test", test, "--test"),
        ("data.tasks", task, "--task"),
        ("data.task_tests", task_test, "--task-test"),
        ("training.epochs", epochs, "--epochs"),
        ("training.minutes", minutes, "--minutes"),
        ("evaluation.metric", metric, "--metric"),
        ("evaluation.patience", patience, "--patience"),
        ("objective.class_weights", class_weights, "--class-weights"),
        ("tuning.freeze", freeze, "--freeze"),
        ("tuning.lora.rank", lora_rank, "--lora-rank"),
        ("distillation.teacher", teacher, "--teacher"),
    ]
    flags = [
        *reading,
        *label_settings(labels),
        *(Setting(key, value, flag) for key, value, flag in given if value is not None),
    ]
    if table and task:
        raise UsageError("--task is used instead of TABLE", fix="give only one of them")
    if recipe is not None and source is not None:
        raise UsageError("--from fine-tunes a run, --recipe trains from scratch", fix="give only one of them")
    if seeds > 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--seeds trains one run after the other in one process", fix="start torchrun for each -s seed=N"
        )
    scratch = None if recipe is None else load(recipe, overrides or (), flags)

    from lmtool.cli.training import follow
    from lmtool.compute.processes import is_main
    from lmtool.inference.merging import merge as make_merged
    from lmtool.interop.reference import run_of, with_runs
    from lmtool.printable import plain
    from lmtool.tables.results import spread
    from lmtool.training.start import plan_finetuning

    plan = plan_finetuning(None if source is None else run_of(source), scratch, overrides or (), flags)
    known = None if plan.base is None else plan.base.recipe
    plan = replace(plan, resolved=with_runs(plan.resolved, known))
    if merge and plan.resolved.recipe.tuning.lora is None:
        raise UsageError("--merge is for adapters, and there are none", fix="add --lora-rank 8, or omit --merge")
    if plan.choice and is_main() and not quiet:
        typer.echo(plain(plan.choice), err=True)
    first = plan.resolved.recipe.seed
    measured = []
    for seed in range(first, first + seeds):
        folder = output / f"seed-{seed}" if output is not None and seeds > 1 else output
        run, results = follow(
            partial(_with_form, partial(plan.with_seed(seed).run, output=folder, retry=start_or_resume)),
            quiet,
            brief=seeds > 1,
        )
        if run is not None:
            measured.append(results)
            if merge:
                merged = None if folder is None else folder.with_name(f"{folder.name}-merged")
                made, _ = make_merged(str(run), merged, ["lmtool", *sys.argv[1:]])
                typer.echo(plain(str(made)))
    for line in spread(measured) if seeds > 1 else []:
        typer.echo(plain(line))


def _with_form(start: "Callable[..., Iterator[Event]]", **session: Any) -> "Iterator[Event]":
    """The events of a session, and before its first step the form in which the run can be exported."""
    from lmtool.interop.forms import export_line
    from lmtool.training.events import Noted, Started

    for event in start(**session):
        yield event
        if isinstance(event, Started):
            yield Noted(export_line(event.recipe, event.tokenizer))
