"""Verifies the files of a run directory."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from lmtool.errors import CheckpointError
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs import directory
from lmtool.runs.directory import CHECKPOINTS, FEATURES, NGRAMS, Run
from lmtool.runs.files import read_saved_state
from lmtool.runs.listing import read_evaluations
from lmtool.runs.paths import RUN_INFO_FILE


def find_damaged_run_files(run_folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields each damaged file of a run directory and of the runs inside it, and why.

    Does not check recipe.yaml, the tokenizer and the values of weights, which depend on each other. A run that is being
    trained may seem incomplete.
    """
    try:
        run = Run.open(run_folder)
    except CheckpointError as error:
        yield run_folder / RUN_INFO_FILE, error.what
        return
    for name, problem in find_damaged_record_files(run):
        yield run_folder / name, problem
    for _, folder in checkpoints.list_checkpoints(run_folder / CHECKPOINTS):
        try:
            # a finished run may have no optimizer state
            checkpoint = checkpoints.open_and_verify_checkpoint(
                folder, verify_optimizer=checkpoints.has_optimizer(folder)
            )
            read_saved_state(checkpoint)
        except CheckpointError as error:
            yield Path(error.where or folder), error.what
    for name in (FEATURES, NGRAMS):
        if (run_folder / name).exists():
            yield from find_damaged_run_files(run_folder / name)


def find_damaged_record_files(run: Run) -> Iterator[tuple[str, str]]:
    """Yields the name of each file of a run that is damaged or lacks records, and why."""
    readers: dict[str, Callable[[], object]] = {
        directory.VALIDATED: lambda: run.last_validation,
        directory.RESULTS: lambda: run.results_by_task,
        directory.EVALUATIONS: lambda: read_evaluations(run),
        directory.SPLIT: lambda: run.saved_split,
        directory.BASELINE: lambda: run.saved_baselines,
        directory.METRICS: lambda: deque(run.metrics.read_records(), 0),
        directory.SAMPLES: lambda: deque(run.samples.read_records(), 0),
    }
    damaged = set()
    for name, reader in readers.items():
        try:
            reader()
        except CheckpointError as error:
            damaged.add(name)
            yield name, error.what
    saved = checkpoints.list_checkpoints(run.path / CHECKPOINTS)
    if run.info.sessions and saved and not damaged & {directory.METRICS, directory.SAMPLES}:
        # the record of the last step comes after its checkpoint, unless it was validated
        noted = run.last_validation if directory.VALIDATED not in damaged else None
        last = noted.step if noted is not None else saved[-1][0] - 1
        for problem in run.check_logs(run.info.sessions[0].step, last):
            yield problem.partition(" ")[0].rstrip(":"), problem
