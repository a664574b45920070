"""`lmtool pretrain`: train a model on text."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import DEFAULT_RECIPE, Column, Overrides, Quiet, RecipeName, Text


def pretrain(
    text: Text,
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation text, instead of a part of TEXT. May be repeated."),
    ] = None,
    column: Column = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Train this run's weights on, with its model and tokenizer.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The run directory; a new one in runs/ by default."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on text, from scratch or from a run.

    Prints the run directory at the end. Ctrl-C saves and stops; `lmtool resume` goes on.
    """
    from lmtool.recipe.load import Setting, load

    flags = [Setting("data.train", text, "TEXT")]
    if valid:
        flags.append(Setting("data.valid", valid, "--valid"))
    if column is not None:
        flags.append(Setting("data.column", column, "--column"))
    if source is None:
        resolved = load(recipe, overrides or (), flags)
    else:
        from lmtool.tables.finetuning import recipe_continued

        resolved = recipe_continued(source, None if recipe == DEFAULT_RECIPE else recipe, overrides or (), flags)

    from lmtool.cli.training import follow
    from lmtool.training.session import pretrain as start

    follow(partial(start, resolved, output=output, source=source), quiet)
