"""How near `lmtool plan` comes to what is measured: memory and time of six recipes on this machine.

    python benchmarks/planning.py [--steps 24] [--recipes tiny ...] [--batch N]

Each recipe is planned and trained in a process of its own, on the bundled stories, for some steps with one validation.
Three figures of memory: the peak that is planned; that of the bytes of all tensors while it trains, updates of the
optimizer among them, which is what a plan foretells; and what the resident set of the process grows by, after a step
of one row, with which libraries load their kernels. The last also has what the allocator keeps. Time is that of steps
and validation.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench import describe_machine, options_of, print_head, print_row, run_lmtool

from lmtool.model import LanguageModel
from lmtool.objective import Objective
from lmtool.recipe.load import Setting, load

RECIPES = ("tiny", "shakespeare-char", "llama-tiny", "bert-tiny", "t5-tiny", "gru")
TEXT = "data/stories.txt"

COUNTED = 3
"""Steps in which tensors are counted; from the second one on moments are there."""


def settings(steps: int, batch: int) -> list[str]:
    length = [f"training.steps={steps}", f"evaluation.every={steps}", "evaluation.baseline=false"]
    length += [f"training.batch_size={batch}"]
    return [*length, "evaluation.prompts=[]", "evaluation.tokens=20000", f"checkpoint.every={steps}"]


def planned(name: str, steps: int, batch: int) -> dict[str, float]:
    flags = [word for setting in settings(steps, batch) for word in ("-s", setting)]
    found = json.loads(run_lmtool("plan", name, "--text", TEXT, "--json", "-q", *flags))
    return {"bytes": found["footprint"]["peak"], "seconds": found["seconds"], "step": found["step_seconds"]}


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def high_water() -> int:
    """The largest resident set since it was reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def trained(name: str, steps: int, batch: int, counts: bool) -> dict[str, float]:
    """Of a training in this process, which has done nothing else. counts: the bytes of tensors, which takes time."""
    from lmtool.compute.device import configure_compute
    from lmtool.compute.processes import World
    from lmtool.objective import build_objective
    from lmtool.runs.load import build_for_training
    from lmtool.training.cost.footprint import AllocationTracker
    from lmtool.training.data import tokenize_training_text
    from lmtool.training.fit import ModelAndOptimizers, fit
    from lmtool.training.optimizer import Optimizers

    recipe = load(name, [*settings(steps, batch), Setting("data.train", [TEXT], "TEXT")]).recipe
    compute = configure_compute("cpu", recipe.training.precision)
    recipe, data = tokenize_training_text(recipe, None, World(), lambda *_: None)

    def train(rows: int, n: int) -> tuple[LanguageModel, Objective]:
        changed = recipe.training.model_copy(update={"batch_size": rows, "steps": n})
        own = recipe.model_copy(update={"training": changed})
        tokenizer = data.prompt_format.tokenizer
        lm, _ = build_for_training(own, tokenizer, compute, data.initialize_from_data_)
        objective = build_objective(own, data.prompt_format.tokenizer, lm.counts_V)
        for parameter in objective.unused_parameters(lm):
            parameter.requires_grad_(False)
        optimizers = Optimizers(own.optimizer, lm, compute, own.tuning)
        for _ in fit(
            ModelAndOptimizers(lm, objective, optimizers), data.make_training_examples(objective), own, compute
        ):
            pass
        return lm, objective

    if counts:
        with AllocationTracker([]) as ledger:
            train(recipe.training.batch_size, COUNTED)
        return {"tensors": ledger.peak}
    # what libraries load at their first products is theirs, and what one row took goes back to the system
    train(1, 1)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident()
    began = time.perf_counter()
    lm, objective = train(recipe.training.batch_size, steps)
    peak = high_water()
    data.validate(lm, objective, compute)
    return {"bytes": peak - before, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        print(json.dumps(trained(asked.train, asked.steps, asked.batch, asked.count)))
        return
    print(describe_machine())
    times = ("seconds planned", "measured", "ratio")
    print_head("recipe", "planned, MB", "tensors", "ratio", "resident", "ratio", *times)
    for name in asked.recipes:
        plan = planned(name, asked.steps, asked.batch)
        command = [sys.executable, __file__, "--train", name, "--steps", str(asked.steps), "--batch", str(asked.batch)]
        tensors, run = (
            json.loads(subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout)
            for more in (["--count"], [])
        )
        cells = [name, f"{plan['bytes'] / 1e6:.1f}"]
        for measured in (tensors["tensors"], run["bytes"]):
            cells += [f"{measured / 1e6:.1f}", f"{plan['bytes'] / measured:.2f}"]
        cells += [f"{plan['seconds']:.1f}", f"{run['seconds']:.1f}", f"{plan['seconds'] / run['seconds']:.2f}"]
        print_row(*cells)


if __name__ == "__main__":
    main()
