"""`lmtool pretrain`: train a model on text."""

from functools import partial
from typing import Annotated

import typer

from lmtool.cli.arguments import (
    DEFAULT_RECIPE,
    RECIPE_OPTION,
    START_OR_RESUME_HELP,
    Column,
    MixedText,
    OutputDir,
    Overrides,
    Quiet,
    teacher_setting,
)


def pretrain(
    text: MixedText = None,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    overrides: Overrides = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation text, instead of part of TEXT. May be repeated."),
    ] = None,
    column: Column = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Train so many steps that the run takes N minutes here.", show_default=False),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(metavar="N", help="Passes over the training text.", show_default=False)
    ] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens to train on.", show_default=False)] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Continue training from this run's weights, with its model and tokenizer.",
            show_default=False,
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Learn this run's probabilities beside the targets.", show_default=False),
    ] = None,
    output: OutputDir = None,
    start_or_resume: Annotated[bool, typer.Option("--start-or-resume", metavar="", help=START_OR_RESUME_HELP)] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on text, from scratch or from a run.

    Prints the run directory at the end. Ctrl-C saves and stops; `lmtool resume` continues.
    """
    from lmtool.recipe.load import Resolved, Setting, load
    from lmtool.recipe.pretraining import DefaultRecipe

    if start_or_resume:
        from lmtool.cli.training import continued

        if continued(output, quiet):
            return
    flags = [Setting("data.train", text, "TEXT")] if text else []
    if valid:
        flags.append(Setting("data.valid", valid, "--valid"))
    for key, value in (
        ("data.column", column),
        ("training.minutes", minutes),
        ("training.epochs", epochs),
        ("training.tokens", tokens),
    ):
        if value is not None:
            flags.append(Setting(key, value, f"--{key.partition('.')[2]}"))
    if teacher is not None:
        flags.append(teacher_setting(teacher))
    resolved: Resolved | DefaultRecipe
    base = None
    if source is None and recipe in (None, DEFAULT_RECIPE):
        resolved = DefaultRecipe.of(overrides or (), flags)
    elif source is None:
        resolved = load(str(recipe), overrides or (), flags)
    else:
        from lmtool.interop.reference import run_of
        from lmtool.training.start import to_continue

        # overrides apply once, to the resulting recipe
        resolved, base = to_continue(run_of(source), None if recipe is None else load(recipe), overrides or (), flags)

    from lmtool.cli.training import follow
    from lmtool.training.start import pretrain as start

    follow(partial(start, resolved, base, output=output, retry=start_or_resume), quiet)
