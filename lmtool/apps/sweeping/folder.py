"""The folder of a sweep: finds and removes its runs and its own files."""

import os
from collections.abc import Sequence
from pathlib import Path

from lmtool.report.page import is_lmtool_page
from lmtool.runs.paths import RUN_INFO_FILE, runs_root
from lmtool.storage.durable import convert_os_errors

SWEEP_PAGE_FILE, BEST_RECIPE_FILE = "sweep.html", "best.yaml"
"""Files of a sweep: its page, and the recipe of the best setting."""

SWEEP_PAGE_HEADING = "Settings, the best first"
"""Heading that all pages about sweeps have."""


def find_sweep(reference: str) -> Path | None:
    """Returns the folder of a sweep, by path or by name in the runs directory; None if there is no such sweep."""
    folders = (Path(reference), runs_root() / reference)
    return next((path for path in folders if is_lmtool_page(path / SWEEP_PAGE_FILE, SWEEP_PAGE_HEADING)), None)


def list_sweep_runs(folder: Path) -> list[Path]:
    """Returns the directories of the runs of a sweep, sorted by name."""
    return sorted(path for path in folder.iterdir() if (path / RUN_INFO_FILE).exists())


def remove_sweep_files_and_empty_folder(folder: Path, log_files: Sequence[Path]) -> bool:
    """Removes the files of a sweep, and its folder if that is empty then; returns whether the folder is removed.

    log_files: logs of its runs. Raises ResourceError when a file cannot be removed.
    """
    fix = "change the permissions of this folder"
    with convert_os_errors("the sweep cannot be removed", folder, fix, use_error_filename=True):
        for path in (*log_files, folder / BEST_RECIPE_FILE, folder / SWEEP_PAGE_FILE):
            path.unlink(missing_ok=True)
        if is_empty := not os.listdir(folder):
            folder.rmdir()
    return is_empty
