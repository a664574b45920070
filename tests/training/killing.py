"""Kills training runs for test_kill.py: run as `python -m tests.training.killing FOLDER VARIANT`.

A process of its own, so that it can fork: its children need not import torch, which makes a kill cheap. Each variant of
a run is killed repeatedly, at a seeded moment after each start, and resumed until it is finished. Prints the outcome
as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lmtool.run.checkpoint import list_checkpoints, verify_checkpoint
from lmtool.run.directory import Run
from lmtool.run.lock import is_run_locked
from tests.run.killing import die_at_event, in_child
from tests.support.training import Work, lasting

STEPS = {"adamw, patience, samples": 8}
"""Steps of a variant, 16 by default; of the one that is always run, half as many."""
EVENTS = 300

TIMES = {"streamed": 4, "in the background": 2}
"""As many events of a run that does something beside training."""
VARIANTS = {
    "adamw, patience, samples": (
        "evaluation.every=2",
        "evaluation.patience=9",
        "evaluation.prompts=the",
        "evaluation.sample_tokens=3",
    ),
    "muon, micro-batches": ("optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.003}}", "training.micro_batch=3"),
    "lstm, carried states": (
        "model={kind: recurrent, d_model: 12, context: 8, dropout: 0.1}",
        "training.carry_state=true",
        "training.micro_batch=3",
    ),
    "streamed": ("data.stream=true", "training.batch_size=64", "evaluation.every=2"),
    "in the background": ("checkpoint.background=true", "evaluation.every=2"),
}


def wait(pid: int) -> bool:
    """True when the process was killed, False when it ended normally."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the process ended with status {status}"
    return False


def killed_at_an_event(run: Path, start: Callable[[], Any], rng: random.Random, events: int) -> bool:
    """Train, and die just before the n-th file operation on the run; a step has about 150."""
    number = rng.randint(1, events)

    def train() -> None:
        die_at_event(number, run)
        start()

    return wait(in_child(train))


def killed_after_a_while(run: Path, start: Callable[[], Any], rng: random.Random, _: int) -> bool:
    """Train, and be killed from outside."""
    pid = in_child(lambda: [start()])
    while not is_run_locked(run) and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.04))
    os.kill(pid, signal.SIGKILL)
    return wait(pid)


def chain(work: Work, name: str, overrides: tuple[str, ...], seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    run, steps = work.run(name), STEPS.get(name, 16)
    events = EVENTS * TIMES.get(name, 1)
    overrides = (f"training.steps={steps}", "checkpoint.every=1", *overrides)
    # In this process, so that the lazy imports of torch are shared by all children.
    work.pretrain(*overrides, name=f"{name} whole")
    # A run without a checkpoint is started anew; that is tested below.
    assert not wait(in_child(lambda: work.pretrain(*overrides, name=name, stop=lambda: True)))
    outcome: dict[str, Any] = {"kills": 0, "in a save": 0, "steps": [], "problems": []}
    while Run.open(run).state != "finished":
        assert len(outcome["steps"]) < 200, "no progress"
        kill = rng.choice([killed_at_an_event, killed_at_an_event, killed_after_a_while])
        killed = kill(run, lambda: work.resume(name=name), rng, events)
        found = list_checkpoints(run / "checkpoints")
        for step, path in found:
            if verify_checkpoint(path).step != step:
                outcome["problems"].append(f"{path} holds another step")
        outcome["kills"] += killed
        outcome["in a save"] += bool(list((run / "checkpoints").glob(".tmp-step-*")))
        outcome["steps"].append(found[-1][0])
    expected, whole = lasting(run, steps), lasting(work.run(f"{name} whole"), steps)
    outcome["problems"] += [f"other {part}" for part in whole if expected[part] != whole[part]]
    return outcome


def before_the_first_checkpoint(work: Work) -> dict[str, Any]:
    """Killed in its first step, a run cannot be resumed, which is an error."""
    run = work.run("early")
    run.mkdir()

    def train() -> None:
        from lmtool.training import fit

        genuine = fit.learning_rate_factor

        def dies(*arguments: Any) -> float:
            if (run / "run.json").exists():  # not where the speed is measured before
                os.kill(os.getpid(), signal.SIGKILL)
            return genuine(*arguments)

        fit.learning_rate_factor = dies
        work.pretrain(name="early")

    def resume() -> None:
        from lmtool.errors import CheckpointError

        try:
            work.resume(name="early")
        except CheckpointError as error:
            if "no checkpoint yet" in str(error):
                return
        raise AssertionError

    return {"killed": wait(in_child(train)), "refused": not wait(in_child(resume))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Work(Path(sys.argv[1]))
    variant = sys.argv[2]
    seed = 1 + list(VARIANTS).index(variant)
    outcome = chain(place, variant, VARIANTS[variant], seed)
    print(json.dumps(outcome | {"early": before_the_first_checkpoint(place)}))
