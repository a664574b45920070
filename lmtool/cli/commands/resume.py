"""`lmtool resume`: continue a run."""

from functools import partial

from lmtool.cli.arguments import Quiet
from lmtool.cli.help import argument
from lmtool.cli.settings import Overrides


def resume(
    run: str | None = argument(
        "RUN",
        "A run's name or directory, RUN@STEP, a checkpoint directory, or last.",
        shown="the last that was stopped",
    ),
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest intact checkpoint, exactly as if it had never been interrupted.

    Without RUN, runs that are finished are passed over, and those without a checkpoint.

    `-s training.steps=+500` trains the last run longer; where it was finished, with new optimizer moments, unless it
    kept them (checkpoint.keep_optimizer). Name a checkpoint to continue from that instead of the newest.

    Examples:
    lmtool resume
    lmtool resume last -s training.steps=+500
    lmtool resume last@500
    """
    from lmtool.cli.training import follow
    from lmtool.recipe.load import settings_of
    from lmtool.training.resuming import resume as start

    follow(partial(start, run, settings_of(overrides or ())), quiet)
