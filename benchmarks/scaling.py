"""What sharing a model among processes costs and saves: FSDP2 beside DDP and one process, by gloo on this machine.

    python benchmarks/scaling.py [--processes 2 4] [--layers 12 --width 256 --context 128 --batch 8 --steps 6]

Every session trains the same GPT in float32, without dropout, on the same batches. Reported are the largest difference
of a loss from one process, the bytes of weights, gradients and moments that a process holds before an update, seconds
per step, and seconds of saving a checkpoint; and, in one process, the activations of a step with recomputation. Of
several processes: seconds of the exchange of one step by itself, and how much of them forward and backward passes hide,
which is what these and the exchange take one after the other, less what they take together.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from training import Tokens, invented_text

from lmtool.batch import Batch
from lmtool.compute.device import Compute
from lmtool.compute.fsdp import Sharding
from lmtool.compute.shards import held, own_rows
from lmtool.model import LanguageModel, build
from lmtool.objective import CausalObjective
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import AdamW, Constant, Training
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run import checkpoint, saving
from lmtool.run.saving import Snapshot
from lmtool.training.fit import LossModule, Trainable, fit
from lmtool.training.optimizer import Optimizers
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


def session(given: argparse.Namespace, kind: str, compute: Compute) -> dict[str, Any]:
    """One training session of this process. kind: "ddp", "fsdp2" or "recompute"."""
    world = compute.world
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
    sharding = Sharding(lm, LossModule(lm, objective), compute) if kind == "fsdp2" else None
    optimizers = Metered(recipe.optimizer, lm, CPU)
    optimizers.model = lm
    examples = Windows(tokens, objective.cut(spec.context), 1)
    module = world.wrap(LossModule(lm, objective)) if sharding is None else sharding.module
    steps = fit(Trainable(lm, objective, optimizers, module), examples, recipe, compute)
    done = [next(steps) for _ in range(2)]  # moments exist from the second one on
    found = None
    if world.size == 1:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            done.append(next(steps))
    done += list(steps)
    exchange, hidden = 0.0, 0.0
    if world.size > 1:
        examples_of_one = examples.read(np.arange(given.batch // world.size))
        exchange, hidden = exchanged(module, objective.collate(examples_of_one))
    peers = checkpoint.SINGLE_PROCESS if sharding is None else world.side_group()
    world.wait()
    began = time.perf_counter()
    own = held(lm.state_dict(), peers.rank), held(optimizers.state(), peers.rank)
    with tempfile.TemporaryDirectory() as folder:
        if world.is_main:
            saving.save(Path(folder), Snapshot(1, *own, {}), keep_last=1, peers=peers)
        elif sharding is not None:
            saving.save_part(Snapshot(0, *own, {}), peers)
    return {
        "losses": [step.loss for step in done],
        "held": optimizers.held,
        "step": statistics.median(step.seconds for step in done[3:]),
        "save": time.perf_counter() - began,
        "exchange": exchange,
        "hidden": hidden,
        "activations": 0 if found is None else peak(found),
    }


ROUNDS, REPEATED = 3, 4
"""Rounds of passes with exchange, without it, and the exchange by itself; and how often each is done in a round."""


def exchanged(module: nn.Module, batch: Batch) -> tuple[float, float]:
    """Median seconds of what processes exchange in a step by itself, and how many of them the passes hide."""

    def passes() -> None:
        module(batch)[0].backward()

    both, alone, exchange = [], [], []
    for _ in range(ROUNDS):
        both += timed(passes)
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                alone += timed(passes)
            exchange += timed(partial(all_reduced, [p for p in module.parameters()]))
        else:
            parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
            gather(parts, True)
            alone += timed(passes)
            gather(parts, False)
            exchange += timed(partial(gathered_and_scattered, parts))
        module.zero_grad()
    together, apart, only = map(statistics.median, (both, alone, exchange))
    return only, apart + only - together


def timed(work: Callable[[], None]) -> list[float]:
    seconds = []
    for _ in range(REPEATED):
        dist.barrier()
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds


def all_reduced(parameters: list[nn.Parameter]) -> None:
    """The gradients of DDP, in its buckets of 25 MB."""
    left = sum(parameter.numel() for parameter in parameters)
    while left > 0:
        size = min(left, 25 << 18)
        dist.all_reduce(torch.zeros(size))
        left -= size


def gather(parts: list[FSDPModule], on: bool) -> None:
    """Let all weights stay gathered, and gradients unexchanged; or no longer."""
    for part in parts:
        part.set_requires_gradient_sync(not on)
        part.set_reshard_after_backward(not on)
        part.set_reshard_after_forward(not on and part is not parts[0], recurse=False)
        part.unshard() if on else part.reshard()


def gathered_and_scattered(parts: list[FSDPModule]) -> None:
    """The weights of each layer for both passes, those of the root once; and the gradients of all."""
    groups = list(dict.fromkeys(fully_shard.state(part)._fsdp_param_group for part in parts))
    for group in groups:
        for _ in range(1 if group is groups[0] else 2):
            group.unshard()
            group.wait_for_unshard()
            group.reshard()
        own = sum(parameter._sharded_param_data.numel() for parameter in group.fsdp_params)
        parts_of_all = list(torch.zeros(dist.get_world_size(), own))
        dist.reduce_scatter(torch.empty(own), parts_of_all)


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
        with CPU.joined() as compute:
            report, world = session(given, given.session, compute), compute.world
            most = world.sum([report["held"] * (world.rank == rank) for rank in range(world.size)])
            if world.is_main:
                print(json.dumps(report | {"held": max(most)}))
        return
    alone, recomputed = launched("ddp", 1), launched("recompute", 1)
    print(f"{'':16}{'loss':>10}{'bytes':>14}{'of DDP':>8}{'s/step':>8}{'save s':>8}{'exchange':>10}{'hidden':>8}")
    rows = [("1 process", alone, alone)]
    for n in given.processes:
        ddp = launched("ddp", n)
        rows += [(f"{n} DDP", ddp, ddp), (f"{n} FSDP2", launched("fsdp2", n), ddp)]
    for name, row, ddp in rows:
        apart = max(abs(a - b) for a, b in zip(row["losses"], alone["losses"], strict=True))
        share = row["held"] / ddp["held"]
        told = f"{name:16}{apart:10.1e}{row['held']:14,.0f}{share:8.2f}{row['step']:8.3f}{row['save']:8.3f}"
        print(f"{told}{row['exchange']:10.3f}{row['hidden']:8.3f}")
    ratio = recomputed["activations"] / alone["activations"]
    print(f"activations recomputed: {ratio:.2f} of {alone['activations']:,} bytes, {recomputed['step']:.3f} s/step")


if __name__ == "__main__":
    main()
