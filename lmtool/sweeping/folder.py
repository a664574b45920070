"""The folder of a sweep: its runs, and its own files beside them, which are removed together."""

import os
from collections.abc import Sequence
from pathlib import Path

from lmtool.durable import convert_os_errors
from lmtool.report.page import is_page
from lmtool.run.paths import RUN_INFO_FILE, runs_root

PAGE, BEST = "sweep.html", "best.yaml"
"""Files of a sweep: its page, and the recipe of the best setting."""

HEADING = "Settings, the best first"
"""The heading that all pages about sweeps have."""


def find_sweep(reference: str) -> Path | None:
    """The folder of a sweep by path, or by its name in the runs directory; None where there is no such sweep."""
    folders = (folder for folder in (Path(reference), runs_root() / reference) if is_page(folder / PAGE, HEADING))
    return next(folders, None)


def runs_of_sweep(folder: Path) -> list[Path]:
    """The directories of the runs of a sweep, by name."""
    return sorted(path for path in folder.iterdir() if (path / RUN_INFO_FILE).exists())


def remove_sweep(folder: Path, runs: Sequence[Path]) -> bool:
    """Remove the files of a sweep whose runs are removed, and its folder if that is empty then; whether it is.

    Raises ResourceError when a file cannot be removed.
    """
    with convert_os_errors(
        "the sweep cannot be removed", folder, "change the permissions of this folder", names_file=True
    ):
        for path in (*(run.with_name(f"{run.name}.log") for run in runs), folder / BEST, folder / PAGE):
            path.unlink(missing_ok=True)
        if is_empty := not os.listdir(folder):
            folder.rmdir()
    return is_empty
