"""`lmtool pretrain`: train a model on text."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

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
)

if TYPE_CHECKING:
    from lmtool.inference.base import Base
    from lmtool.recipe.load import Resolved, Setting
    from lmtool.recipe.pretraining import DefaultRecipe

Valid = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Validation text, instead of part of TEXT. May be repeated."),
]
Minutes = Annotated[
    float | None,
    typer.Option(metavar="N", help="Train so many steps that the run takes N minutes here.", show_default=False),
]
Epochs = Annotated[float | None, typer.Option(metavar="N", help="Passes over the training text.", show_default=False)]
Tokens = Annotated[int | None, typer.Option(metavar="N", help="Tokens to train on.", show_default=False)]


def pretrain(
    text: MixedText = None,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    overrides: Overrides = None,
    valid: Valid = None,
    column: Column = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    tokens: Tokens = None,
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
    if start_or_resume:
        from lmtool.cli.training import continued

        if continued(output, quiet):
            return
    from lmtool.recipe.load import settings_of

    flags = settings(text, valid, column, minutes=minutes, epochs=epochs, tokens=tokens, teacher=teacher)
    resolved, base = resolve(recipe, source, settings_of(overrides or (), flags))

    from lmtool.cli.training import follow
    from lmtool.training.start import pretrain as start

    follow(partial(start, resolved, base, output=output, retry=start_or_resume), quiet)


def settings(
    text: list[str] | None,
    valid: list[str] | None,
    column: str | None,
    teacher: str | None = None,
    **budget: float | None,
) -> "list[Setting]":
    """The settings of the options that say what is trained on, and for how long. budget: keys of `training`."""
    from lmtool.recipe.load import Setting

    given: list[tuple[str, object, str]] = [
        ("data.train", text or None, "TEXT"),
        ("data.valid", valid or None, "--valid"),
    ]
    given += [("data.column", column, "--column")]
    given += [("distillation.teacher", teacher, "--teacher")]
    given += [(f"training.{key}", value, f"--{key}") for key, value in budget.items()]
    return [Setting(key, value, flag) for key, value, flag in given if value is not None]


def resolve(
    recipe: str | None, source: str | None, settings: "list[Setting]"
) -> "tuple[Resolved | DefaultRecipe, Base | None]":
    """The recipe to train on a text with, and the run that training continues, if one is named by `source`."""
    from lmtool.interop.reference import run_of, with_runs
    from lmtool.recipe.load import load
    from lmtool.recipe.pretraining import DefaultRecipe

    if source is not None:
        from lmtool.training.start import to_continue

        # overrides apply once, to the resulting recipe
        resolved, base = to_continue(run_of(source), None if recipe is None else load(recipe), settings, ())
        return with_runs(resolved, base.recipe), base
    if recipe in (None, DEFAULT_RECIPE):
        return with_runs(DefaultRecipe.of(settings)), None
    return with_runs(load(str(recipe), settings)), None
