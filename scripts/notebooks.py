#!/usr/bin/env python3
"""Runs the notebooks of docs/notebooks from their beginning, and keeps what they print and draw in the files.

    scripts/notebooks.py [NAME...]

NAME: notebooks, without .ipynb; all by default. Each runs in an empty folder, on one core, within a minute.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
SECONDS = 600
"""After which a cell hangs."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of this run. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        names = {"LMTOOL_RUNS": f"{folder}/runs", "LMTOOL_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        settings = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, resources=settings, record_timing=False)
        client.execute(env={**os.environ, **names})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(kept(cell.outputs))
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def kept(outputs: Iterable[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """What a cell printed and drew; without what libraries report, and without the numbers of pictures once more."""
    printed: nbformat.NotebookNode | None = None
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if output.output_type == "stream" and printed is not None:
            printed.text += output.text
            continue
        if output.output_type == "stream":
            printed = output
        if "image/svg+xml" in output.get("data", {}):
            output.data.pop("text/plain", None)
        yield output


def main(names: list[str]) -> None:
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        began = time.perf_counter()
        nbformat.write(run(path), path)
        print(f"{path.stem}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
