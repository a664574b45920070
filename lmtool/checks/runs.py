"""Verifies the files of a run directory, one by one."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from lmtool.errors import CheckpointError
from lmtool.run import checkpoint as checkpoints
from lmtool.run import directory
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.files import saved_state
from lmtool.run.listing import evaluations_of
from lmtool.run.paths import INFO


def verify_run(path: Path) -> Iterator[tuple[Path, str]]:
    """Each file of a run directory that cannot be used or is not what was written, and why.

    Not recipe.yaml, the tokenizer and the values of weights, which depend on each other. A run that is being trained
    may be reported to be incomplete.
    """
    try:
        run = Run.open(path)
    except CheckpointError as error:
        yield path / INFO, error.what
        return
    for name, problem in damaged_records(run):
        yield path / name, problem
    for _, folder in checkpoints.listed(path / CHECKPOINTS):
        try:
            # that of a finished run may have been removed
            checkpoint = checkpoints.verify(folder, optimizer=checkpoints.has_optimizer(folder))
            saved_state(checkpoint)
        except CheckpointError as error:
            yield Path(error.where or folder), error.what


def damaged_records(run: Run) -> Iterator[tuple[str, str]]:
    """The name of each file of records of a run that cannot be used or lacks records, and why."""
    readers: dict[str, Callable[[], object]] = {
        directory.VALIDATED: lambda: run.validated,
        directory.RESULTS: lambda: run.all_results,
        directory.EVALUATIONS: lambda: evaluations_of(run),
        directory.SPLIT: lambda: run.saved_split,
        directory.BASELINE: lambda: run.saved_baselines,
        directory.METRICS: lambda: deque(run.metrics.read(), 0),
        directory.SAMPLES: lambda: deque(run.samples.read(), 0),
    }
    damaged = set()
    for name, reader in readers.items():
        try:
            reader()
        except CheckpointError as error:
            damaged.add(name)
            yield name, error.what
    saved = checkpoints.listed(run.path / CHECKPOINTS)
    if run.info.sessions and saved and not damaged & {directory.METRICS, directory.SAMPLES}:
        # the record of the last step comes after its checkpoint, unless it was validated
        noted = run.validated if directory.VALIDATED not in damaged else None
        last = noted.step if noted is not None else saved[-1][0] - 1
        for problem in run.check_logs(run.info.sessions[0].step, last):
            yield problem.partition(" ")[0].rstrip(":"), problem
