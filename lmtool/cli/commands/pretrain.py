"""`lmtool pretrain`: train a model on text."""

from typing import TYPE_CHECKING

from lmtool.cli.arguments import TEXT_HELP, OutputDir, Quiet, StartOrResume
from lmtool.cli.help import argument, option
from lmtool.cli.settings import Column, Epochs, Minutes, Overrides, Tokens, Valid, recipe_name, stated

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting


def pretrain(
    text: list[str] | None = argument("TEXT", f"{TEXT_HELP} Omit it for a recipe with data.mixture."),
    recipe: str | None = recipe_name(None),
    overrides: Overrides = None,
    valid: Valid = None,
    column: Column = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    tokens: Tokens = None,
    source: str | None = option(
        "RUN", "Continue training from this run's weights, with its model and tokenizer.", "--from"
    ),
    teacher: str | None = option("RUN", "Learn this run's probabilities beside the targets."),
    output: OutputDir = None,
    start_or_resume: StartOrResume = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on text, from scratch or from a run.

    Prints the run directory at the end. Ctrl-C saves and stops; `lmtool resume` continues.

    Examples:
    lmtool pretrain book.txt
    lmtool pretrain poems/*.txt --recipe lstm -s training.steps=500
    lmtool pretrain letters.txt --from last -o runs/letters
    """
    if start_or_resume:
        from lmtool.cli.training import continued

        if continued(output, quiet):
            return
    from lmtool.recipe.load import settings_of
    from lmtool.recipe.resolve import resolve

    flags = settings(text, valid, column, minutes=minutes, epochs=epochs, tokens=tokens, teacher=teacher)
    chosen = settings_of(overrides or (), flags)
    if source is None:
        resolve(recipe, chosen)  # mistakes are told before anything heavy is imported

    from lmtool.cli.training import follow
    from lmtool.inference.base import open_base
    from lmtool.training.start import Pretraining

    session = Pretraining(recipe, chosen, None if source is None else open_base(source))
    follow(session.run, quiet, output=output, retry=start_or_resume)


def settings(
    text: list[str] | None,
    valid: list[str] | None,
    column: str | None,
    teacher: str | None = None,
    **budget: float | None,
) -> "list[Setting]":
    """The settings of the options that say what is trained on, and for how long. budget: keys of `training`."""
    return [
        *stated(("data.train", text or None, "TEXT"), ("data.valid", valid or None, "--valid")),
        *stated(("data.column", column, "--column"), ("distillation.teacher", teacher, "--teacher")),
        *stated(*((f"training.{key}", value, f"--{key}") for key, value in budget.items())),
    ]
