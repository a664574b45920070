"""`lmtool sweep --minutes` compared with the defaults: what the search finds, on rows that neither has seen.

    python benchmarks/sweeps.py FOLDER [--minutes 3] [--only reviews sst2]

Each data set is trained on by the defaults, and then searched for so many minutes without values named; texts for 60
steps. FOLDER has sst2.train.csv, sst2.test.csv, rte.train.csv, rte.dev.csv and tinyshakespeare.txt. Tables are told by
accuracy on a test table, with the paired difference and its standard error; texts by bits per byte of validation.
"""

import argparse
import csv
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
STEPS = ("-s", "training.steps=60")


def lmtool(*words: str) -> str:
    """The output of a command."""
    return subprocess.run([sys.executable, "-m", "lmtool", *words], check=True, capture_output=True, text=True).stdout


def right(run: Path, test: Path) -> list[bool]:
    """Which rows of a test table a run predicts as they are labelled."""
    predicted = csv.DictReader(lmtool("predict", str(run), str(test), "-q").splitlines())
    with test.open(newline="", encoding="utf-8") as file:
        return [
            row["label"] == prediction["predicted"]
            for row, prediction in zip(csv.DictReader(file), predicted, strict=True)
        ]


def compare(name: str, train: Path, test: Path | None, minutes: float, folder: Path) -> str:
    """A row of the table."""
    default, found, fixed = folder / f"{name}-default", folder / f"{name}-sweep", () if test else STEPS
    began = time.monotonic()
    lmtool("finetune" if test else "pretrain", str(train), *fixed, "-o", str(default), "-q")
    took = time.monotonic() - began
    sweep = ["sweep", str(train), *fixed, "-o", str(found), "-q", "--json", "--minutes", str(minutes)]
    best = json.loads(lmtool(*sweep))["rows"][0]
    seconds = time.monotonic() - began - took
    setting = ", ".join(f"{key} {value}" for key, value in best["values"].items()) or "default"
    told = f"| {name} | {took:.0f} | {seconds:.0f} | {setting}"
    if test is None:
        before = json.loads((default / "metrics.json").read_text())["bits_per_byte"]
        after = best["runs"][0]["value"]
        return f"{told} | {before:.3f} | {after:.3f} | {after - before:+.3f} bits per byte |"
    one, other = right(default, test), right(Path(best["runs"][0]["path"]), test)
    differences = [b - a for a, b in zip(one, other, strict=True)]
    mean = sum(differences) / len(differences)
    error = math.sqrt(sum((d - mean) ** 2 for d in differences)) / len(differences)
    shares = f"{100 * sum(one) / len(one):.1f} | {100 * sum(other) / len(other):.1f}"
    return f"{told} | {shares} | {100 * mean:+.1f} ± {100 * error:.1f} points |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    sets = {
        "reviews": (DATA / "reviews.csv", DATA / "reviews.test.csv"),
        "sst2": (options.folder / "sst2.train.csv", options.folder / "sst2.test.csv"),
        "rte": (options.folder / "rte.train.csv", options.folder / "rte.dev.csv"),
        "entailment": (DATA / "entailment.csv", DATA / "entailment.test.csv"),
        "stories": (DATA / "stories.txt", None),
        "tinyshakespeare": (options.folder / "tinyshakespeare.txt", None),
    }
    print("| data | default, s | search, s | found | default | found | difference |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or sets:
            print(compare(name, *sets[name], options.minutes, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
