"""What sharing a model among processes costs and saves: FSDP2 beside DDP and one process, by gloo on this machine.

    python benchmarks/scaling.py [--processes 2 4] [--layers 12 --width 256 --context 128 --batch 8 --steps 6]

Every session trains the same GPT in float32, without dropout, on the same batches. Reported are the largest difference
of a loss from one process, the bytes of weights, gradients and moments that a process holds before an update, seconds
per step, and seconds of saving a checkpoint; and, in one process, the activations of a step with recomputation.
Processes share the cores of this machine, so seconds compare DDP and FSDP2, not numbers of processes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from training import Tokens, invented_text

from lmtool.compute.device import Compute
from lmtool.compute.processes import World, joined
from lmtool.compute.shards import held, own_rows
from lmtool.model import LanguageModel, build
from lmtool.objective import CausalObjective
from lmtool.recipe.spec import AdamW, Causal, Constant, Recipe, Training, Transformer
from lmtool.run import checkpoint
from lmtool.training.fit import fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.sharding import Sharding
from lmtool.training.windows import Windows

CPU = Compute(torch.device("cpu"), "float32")


class Metered(Optimizers):
    """Optimizers that count the bytes of the weights, gradients and moments of this process at each update."""

    model: LanguageModel
    held = 0

    def update(self, rate_multiplier: float, gradient_scale: float, clip_norm: float | None, step: int = 0) -> float:
        parameters = list(self.model.parameters())
        tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None), *self.state().values()]
        self.held = sum(own_rows(tensor).nbytes for tensor in tensors)
        return super().update(rate_multiplier, gradient_scale, clip_norm, step)


def session(given: argparse.Namespace, kind: str, world: World) -> dict[str, Any]:
    """One training session of this process. kind: "ddp", "fsdp2" or "recompute"."""
    tokens = Tokens(invented_text(200_000))
    spec = Transformer(
        kind="transformer", n_layers=given.layers, d_model=given.width, n_heads=4, context=given.context, dropout=0.0
    )
    recompute = "layers" if kind == "recompute" else "none"
    recipe = Recipe(
        model=spec,
        training=Training(steps=given.steps, batch_size=given.batch, recompute=recompute),
        optimizer=AdamW(kind="adamw", lr=1e-3),
        schedule=Constant(kind="constant"),
    )
    torch.manual_seed(1)
    lm = build(spec, tokens.vocab_size)
    objective = CausalObjective(Causal(), -1, False)
    sharding = Sharding(lm, objective, CPU, world) if kind == "fsdp2" else None
    optimizers = Metered(recipe.optimizer, lm, CPU)
    optimizers.model = lm
    examples = Windows(tokens, objective.cut(spec.context), 1)
    module = None if sharding is None else sharding.module
    steps = fit(lm, objective, optimizers, examples, recipe, CPU, world, module=module)
    done = [next(steps) for _ in range(2)]  # moments exist from the second one on
    found = None
    if world.size == 1:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            done.append(next(steps))
    done += list(steps)
    peers = checkpoint.ALONE if sharding is None else world.aside()
    world.wait()
    began = time.perf_counter()
    own = held(lm.state_dict(), peers.rank), held(optimizers.state(), peers.rank)
    with tempfile.TemporaryDirectory() as folder:
        if world.is_main:
            checkpoint.save(Path(folder), 1, *own, {}, best_step=None, keep_last=1, peers=peers)
        elif sharding is not None:
            checkpoint.save_part(*own, peers)
    return {
        "losses": [step.loss for step in done],
        "held": optimizers.held,
        "step": statistics.median(step.seconds for step in done[3:]),
        "save": time.perf_counter() - began,
        "activations": 0 if found is None else peak(found),
    }


def peak(found: profile) -> int:
    """The most bytes that were allocated within a step, beyond those at its beginning."""
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None
    changes = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def launched(kind: str, n: int) -> dict[str, Any]:
    """What the main process of n reports of a session."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), *sys.argv, "--session", kind]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"the session {kind} of {n} processes failed")
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--session", choices=["ddp", "fsdp2", "recompute"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.session:
        with joined(CPU) as world:
            report = session(given, given.session, world)
            most = world.sum([report["held"] * (world.rank == rank) for rank in range(world.size)], CPU)
            if world.is_main:
                print(json.dumps(report | {"held": max(most)}))
        return
    alone, recomputed = launched("ddp", 1), launched("recompute", 1)
    print(f"{'':16}{'loss':>10}{'bytes':>14}{'of DDP':>8}{'s/step':>8}{'save s':>8}")
    rows = [("1 process", alone, alone)]
    for n in given.processes:
        ddp = launched("ddp", n)
        rows += [(f"{n} DDP", ddp, ddp), (f"{n} FSDP2", launched("fsdp2", n), ddp)]
    for name, row, ddp in rows:
        apart = max(abs(a - b) for a, b in zip(row["losses"], alone["losses"], strict=True))
        share = row["held"] / ddp["held"]
        print(f"{name:16}{apart:10.1e}{row['held']:14,.0f}{share:8.2f}{row['step']:8.3f}{row['save']:8.3f}")
    ratio = recomputed["activations"] / alone["activations"]
    print(f"activations recomputed: {ratio:.2f} of {alone['activations']:,} bytes, {recomputed['step']:.3f} s/step")


if __name__ == "__main__":
    main()
