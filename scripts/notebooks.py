#!/usr/bin/env python3
"""Runs the notebooks of docs/notebooks from their beginning, and keeps what they print and draw in the files.

    scripts/notebooks.py [NAME...]

NAME: notebooks, without .ipynb; all by default. Each runs in an empty folder, on one core, within a minute.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
SECONDS = 600
"""After which a cell hangs."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with what this run printed and drew. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        names = {"LMTOOL_RUNS": f"{folder}/runs", "LMTOOL_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        places = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, resources=places, record_timing=False, coalesce_streams=True)
        client.execute(env={**os.environ, **names})
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        # what libraries report goes, and the numbers of a picture
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "image/svg+xml" in output.get("data", {}):
                output.data.pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        began = time.perf_counter()
        nbformat.write(run(path), path)
        print(f"{path.stem}: {time.perf_counter() - began:.0f} s")
