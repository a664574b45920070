"""Finds run directories: in the runs directory, and by an index there of runs elsewhere."""

import json
import os
import re
from pathlib import Path

from lmtool import __version__
from lmtool.errors import CheckpointError
from lmtool.storage import durable, records

RUN_INFO_FILE = "run.json"
"""A folder is a run if and only if it has this file."""

RUNS_INDEX_FILE = ".elsewhere"
"""In the runs directory: paths of runs outside it, one JSON string a line."""


def runs_root() -> Path:
    """Returns the directory of new runs: $LMTOOL_RUNS, or `runs` in the working directory."""
    return Path(os.environ.get("LMTOOL_RUNS") or "runs")


def list_runs() -> list[Path]:
    """Returns the directories of all runs in `runs_root()` and in the index, unsorted."""
    try:
        inside = [path for path in runs_root().iterdir() if os.path.exists(path / RUN_INFO_FILE)]
    except OSError:
        inside = []
    return inside + _read_runs_index()


def add_to_runs_index(path: Path) -> None:
    """Adds a run outside `runs_root()` to the index, so that `last` and its name find it."""
    path = path.resolve()
    root = runs_root()
    others = [other for other in _read_runs_index() if other != path]
    is_staged = path.parent.name.startswith(durable.TEMPORARY_PREFIX)  # it gets its name later
    if is_staged or path.parent == root.resolve():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(str(other)) for other in [*others, path]]
        durable.replace_file(root / RUNS_INDEX_FILE, "".join(line + "\n" for line in lines).encode("ascii"))
    except OSError:
        # Not essential: the run can always be named by its path.
        return


def add_version_hint(run: Path, error: CheckpointError) -> CheckpointError:
    """Returns the error of reading a run, which names the version of lmtool to use if another one wrote the run."""
    try:
        version = records.parse_json(durable.read_file(run / RUN_INFO_FILE))["sessions"][-1]["environment"]["lmtool"]
        other = version if re.fullmatch(r"\d[\w.+-]{,30}", version, re.ASCII) and version != __version__ else None
    except (OSError, ValueError, LookupError, TypeError):
        other = None
    if other is None:
        return error
    what = f"lmtool {__version__} cannot read this run of lmtool {other}: {error.what.replace(' is damaged', '')}"
    return CheckpointError(what, where=error.where, fix=f"read it with that version: pip install 'lmtool=={other}'")


def _read_runs_index() -> list[Path]:
    try:
        lines = durable.read_file(runs_root() / RUNS_INDEX_FILE).decode("ascii").splitlines()
        paths = [Path(json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    return [path for path in paths if os.path.exists(path / RUN_INFO_FILE)]
