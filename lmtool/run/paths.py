"""Locations of runs: the runs directory, and an index there of runs elsewhere."""

import json
import os
import re
from pathlib import Path

from lmtool import __version__, durable, records
from lmtool.errors import CheckpointError

INFO = "run.json"
"""A folder is a run if and only if it has this file."""

ELSEWHERE = ".elsewhere"
"""In the runs directory: paths of runs outside it, one JSON string a line."""


def runs_root() -> Path:
    """The directory of new runs: $LMTOOL_RUNS, or `runs` in the working directory."""
    return Path(os.environ.get("LMTOOL_RUNS") or "runs")


def known_runs() -> list[Path]:
    """Directories of all runs in `runs_root()`, and of those recorded elsewhere, unsorted."""
    try:
        inside = [path for path in runs_root().iterdir() if os.path.exists(path / INFO)]
    except OSError:
        inside = []
    return inside + _elsewhere()


def remember(path: Path) -> None:
    """Record a run outside `runs_root()`, so that `last` and its name find it."""
    path = path.resolve()
    root = runs_root()
    others = [other for other in _elsewhere() if other != path]
    is_staged = path.parent.name.startswith(durable.TEMPORARY)  # it gets its name later
    if is_staged or path.parent == root.resolve():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(str(other)) for other in [*others, path]]
        durable.replace(root / ELSEWHERE, "".join(line + "\n" for line in lines).encode("ascii"))
    except OSError:
        # Not essential: the run can always be named by its path.
        return


def explained(run: Path, error: CheckpointError) -> CheckpointError:
    """An error in reading the files of a run; if another version of lmtool wrote them, it says which one to use."""
    try:
        version = records.parse(durable.read(run / INFO))["sessions"][-1]["environment"]["lmtool"]
        other = version if re.fullmatch(r"\d[\w.+-]{,30}", version, re.ASCII) and version != __version__ else None
    except (OSError, ValueError, LookupError, TypeError):
        other = None
    if other is None:
        return error
    what = f"lmtool {__version__} cannot read this run of lmtool {other}: {error.what.replace(' is damaged', '')}"
    return CheckpointError(what, where=error.where, fix=f"read it with that version: pip install 'lmtool=={other}'")


def _elsewhere() -> list[Path]:
    try:
        lines = durable.read(runs_root() / ELSEWHERE).decode("ascii").splitlines()
        paths = [Path(json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    return [path for path in paths if os.path.exists(path / INFO)]
