"""`lmtool resume`: continue a run."""

from functools import partial
from typing import Annotated

import typer

from lmtool.cli.arguments import Overrides, Quiet


def resume(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or directory, RUN@STEP, a checkpoint directory, or last.")
    ] = "last",
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest intact checkpoint, exactly as if it had never been interrupted.

    `-s training.steps=+500` trains longer; where the run was finished, with new optimizer moments, unless it kept them
    (checkpoint.keep_optimizer). Name a checkpoint to continue from that instead of the newest.
    """
    from lmtool.cli.training import follow
    from lmtool.training.start import resume as start

    follow(partial(start, run, overrides or ()), quiet)
