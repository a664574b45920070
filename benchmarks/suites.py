"""Suites of tasks beside lm-eval: the same model, tasks, rows and batch, in turns.

    python benchmarks/suites.py HF_FOLDER [--tasks NAME ...] [--rows 64] [--rounds 3]

HF_FOLDER is a model that `lmtool export` wrote. The tasks are those of tests/lmeval. Times are of scoring alone, both
models are loaded before; lm-eval's is `hf` with 16 rows at once. It says how many rows have the same result.
Needs `pip install lm-eval`.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lmtool.compute.device import CPU
from lmtool.inference.load import Loaded, load_run
from lmtool.interop.importing import imported
from lmtool.tables.suites.measure import measure_suite, open_tasks
from lmtool.tables.suites.spec import read_suite

TASKS = Path(__file__).parents[1] / "tests" / "lmeval"


def own(loaded: Loaded, name: str, n_rows: int) -> tuple[float, list[Any]]:
    """Seconds, and the result of each row, by lmtool."""
    task = read_suite(str(TASKS / "tasks.yaml"))[name].with_values({"limit": n_rows})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        results = measure_suite(loaded, "tasks", open_tasks(loaded, {name: task}), Path(folder))
        seconds = time.perf_counter() - began
        rows = [row.get("right", round(row.get("nats", 0), 2)) for row in results.tasks[name].rows()]
    return seconds, rows


def theirs(model: HFLM, tasks: TaskManager, name: str, n_rows: int) -> tuple[float, list[Any]]:
    """The same by lm-eval."""
    settings: dict[str, Any] = {"limit": n_rows, "batch_size": 16, "bootstrap_iters": 0, "log_samples": True}
    began = time.perf_counter()
    found = lm_eval.simple_evaluate(model, tasks=[name], task_manager=tasks, **settings)
    seconds = time.perf_counter() - began
    rows = sorted(found["samples"][name], key=lambda row: row["doc_id"])
    if "word_perplexity" in rows[0]:
        return seconds, [round(-row["word_perplexity"][0], 2) for row in rows]
    return seconds, [bool(row.get("acc", row.get("exact_match"))) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="HF_FOLDER")
    parser.add_argument("--tasks", nargs="+", default=["reviews", "kinship", "family", "endings", "written", "texts"])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    loaded = load_run(str(imported(options.folder)), CPU)
    model = HFLM(options.folder, dtype="float32", device="cpu", batch_size=16)
    tasks = TaskManager(include_path=str(TASKS / "tasks"), include_defaults=False)
    print(f"{torch.get_num_threads()} threads, {options.rows} rows, medians of {options.rounds} rounds")
    print("task\tlmtool, s\tlm-eval, s\tratio\tequal rows")
    for name in options.tasks:
        turns = [
            (own(loaded, name, options.rows), theirs(model, tasks, name, options.rows)) for _ in range(options.rounds)
        ]
        ours, others = (statistics.median(turn[i][0] for turn in turns) for i in (0, 1))
        equal = sum(a == b for a, b in zip(turns[-1][0][1], turns[-1][1][1], strict=True))
        print(f"{name}\t{ours:.1f}\t{others:.1f}\t{others / ours:.2f}\t{equal} of {options.rows}", flush=True)


if __name__ == "__main__":
    main()
