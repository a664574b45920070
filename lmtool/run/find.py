"""Resolves a RUN argument to a run or a checkpoint."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from lmtool.errors import CheckpointError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.places import INFO, known_runs, runs_root


@dataclass(frozen=True)
class Found:
    """The run, or one checkpoint of it, named by a RUN argument."""

    run: Run
    named: Path | None

    def newest(self, *, optimizer: bool = True) -> tuple[Checkpoint, list[str]]:
        """The named checkpoint, or the newest complete one. Raises CheckpointError when there is none."""
        return (self._verify(optimizer), []) if self.named else self.run.newest(optimizer=optimizer)

    def best(self, *, optimizer: bool = True) -> tuple[Checkpoint, list[str]]:
        """The named checkpoint, or the best one. Raises CheckpointError when there is none."""
        return (self._verify(optimizer), []) if self.named else self.run.best(optimizer=optimizer)

    def _verify(self, optimizer: bool) -> Checkpoint:
        assert self.named is not None
        return checkpoints.verify(self.named, optimizer=optimizer)


def find(reference: str) -> Found:
    """Resolve a reference: path of a run or checkpoint directory, name of a run, or `last`.

    `last` is the run that was started or resumed most recently.
    Raises CheckpointError when there is none, naming the nearest.
    """
    if reference == "last":
        return Found(_last(), None)
    path = Path(reference)
    if os.path.exists(path / INFO):
        return Found(Run.open(path), None)
    resolved = Path(os.path.realpath(path))
    if resolved.parent.name == CHECKPOINTS and os.path.exists(resolved.parent.parent / INFO):
        if not os.path.isdir(resolved):
            kept = ", ".join(other.name for _, other in checkpoints.listed(resolved.parent)) or "none yet"
            raise CheckpointError(
                f"no checkpoint {resolved.name!r:.80} in this run",
                where=f"it has: {kept}",
                fix="name one of them, or the run to take the newest",
            )
        return Found(Run.open(resolved.parent.parent), resolved)
    known = known_runs()
    for directory in known:
        if directory.name == reference:
            return Found(Run.open(directory), None)
    if os.path.isdir(path):
        raise CheckpointError(
            f"this folder is not a run: it has no {INFO}", where=str(path), fix="lmtool runs ls shows the runs"
        )
    names = sorted({directory.name for directory in known}, reverse=True)
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    near += [name for name in names if path.name and path.name in name and name not in near]
    raise CheckpointError(
        f"no run called {reference!r:.80}",
        where=f"the nearest: {', '.join((near or names)[:3])}" if names else f"no runs in {runs_root()}",
        fix="lmtool runs ls shows all" if names else "train one: lmtool pretrain TEXT",
    )


def _last() -> Run:
    runs = []
    for path in known_runs():
        try:
            runs.append(Run.open(path))
        except CheckpointError:
            continue
    if not runs:
        raise CheckpointError(
            "there is no last run", where=f"no runs in {runs_root()}", fix="train one: lmtool pretrain TEXT"
        )
    return max(runs, key=lambda run: run.last_started)
