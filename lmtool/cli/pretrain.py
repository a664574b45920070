"""`lmtool pretrain`: train a model on text."""

from functools import partial
from typing import Annotated

import typer

from lmtool.cli.arguments import DEFAULT_RECIPE, RECIPE_OPTION, Column, OutputDir, Overrides, Quiet, Text


def pretrain(
    text: Text,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    overrides: Overrides = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation text, instead of part of TEXT. May be repeated."),
    ] = None,
    column: Column = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Continue training from this run's weights, with its model and tokenizer.",
            show_default=False,
        ),
    ] = None,
    output: OutputDir = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on text, from scratch or from a run.

    Prints the run directory at the end. Ctrl-C saves and stops; `lmtool resume` continues.
    """
    from lmtool.recipe.load import Setting, load

    flags = [Setting("data.train", text, "TEXT")]
    if valid:
        flags.append(Setting("data.valid", valid, "--valid"))
    if column is not None:
        flags.append(Setting("data.column", column, "--column"))
    if source is None:
        resolved, base = load(recipe or DEFAULT_RECIPE, overrides or (), flags), None
    else:
        from lmtool.interop.reference import run_of
        from lmtool.training.start import to_continue

        # overrides apply once, to the resulting recipe
        resolved, base = to_continue(run_of(source), None if recipe is None else load(recipe), overrides or (), flags)

    from lmtool.cli.training import follow
    from lmtool.training.start import pretrain as start

    follow(partial(start, resolved, base, output=output), quiet)
