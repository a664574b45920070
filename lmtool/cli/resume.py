"""`lmtool resume`: continue a run."""

from functools import partial
from typing import Annotated

import typer

from lmtool.cli.arguments import Overrides, Quiet


def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's name or directory, RUN@STEP, a checkpoint directory, or last.",
            show_default="the last that was stopped",
        ),
    ] = None,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest intact checkpoint, exactly as if it had never been interrupted.

    Without RUN, runs that are finished are passed over, and those without a checkpoint.

    `-s training.steps=+500` trains the last run longer; where it was finished, with new optimizer moments, unless it
    kept them (checkpoint.keep_optimizer). Name a checkpoint to continue from that instead of the newest.
    """
    from lmtool.cli.training import follow
    from lmtool.interop.reference import run_of
    from lmtool.training.start import resume as start

    follow(partial(start, None if run is None else run_of(run), overrides or ()), quiet)
