"""Kills savers, for test_kill.py: run as `python -m tests.runs.killing at-each-event|at-random FOLDER SEED`.

A process of its own, so that it can fork: its children need no import of torch, which makes a kill cost milliseconds.
Prints the result of each kill, as one JSON list.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from lmtool.runs import checkpoint, tensors
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import CHECKPOINTS, Run
from lmtool.runs.lock import is_run_locked
from lmtool.runs.saving import CheckpointContent
from tests.support.runs import FILES, names, run_info


def save(run: Run, step: int) -> None:
    run.metrics.append({"step": step, "loss": 1 / step})
    weight = torch.full((30_000,), float(step))
    run.save_checkpoint(CheckpointContent(step, {"weight": weight}, {"moment": -weight}, {"step": step}), keep_last=1)


def new_run(folder: Path) -> Run:
    run = create_and_lock_run(folder, run_info(), FILES)
    run.rewind_and_start_session(step=0, command=[], environment={})
    return run


def check(folder: Path) -> tuple[int, list[str]]:
    """Step of the newest checkpoint and the problems found: there should be none."""
    problems = []
    newest, warnings = checkpoint.find_newest_valid_checkpoint(folder / CHECKPOINTS)
    problems += warnings
    for step, path in checkpoint.list_checkpoints(folder / CHECKPOINTS):
        whole = checkpoint.open_and_verify_checkpoint(path)
        values = {
            *whole.load_model()["weight"].tolist(),
            *whole.load_optimizer()["moment"].neg().tolist(),
            whole.load_state()["step"],
            whole.step,
        }
        if values != {step}:
            problems.append(f"step {step} holds {values}")
    if is_run_locked(folder):
        problems.append("the lock outlived its process")
    with Run.open(folder) as run:
        run.lock()
        run.rewind_and_start_session(step=newest.step, command=[], environment={})
        left = [name for name in names(folder / CHECKPOINTS) if name.startswith(".")]
        if left:
            problems.append(f"left after the next start: {left}")
        steps = [record["step"] for record in run.metrics.read_records()]
        if steps != list(range(1, newest.step + 1)):
            problems.append(f"metrics of steps {steps} after a save of step {newest.step}")
        save(run, newest.step + 1)
    left = names(folder / CHECKPOINTS)
    if left != [checkpoint.step_folder_name(newest.step + 1)]:
        problems.append(f"left after the next save: {left}")
    return newest.step, problems


def in_child(work: Callable[[], None]) -> int:
    """Pid of a new process that does `work` and exits with 0, or with 1 when it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def die_at_event(number: int, folder: Path) -> None:
    """From now on, count what this process does to files in `folder`, and kill it just before the given event."""
    count = 0

    def event() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate") and (
            str(folder) in str(arguments[0]) or isinstance(arguments[0], int) or name in ("os.remove", "os.rmdir")
        ):
            event()

    genuine_fsync, genuine_serialise = os.fsync, tensors.serialize_safetensors

    def fsync(handle: int) -> None:
        event()
        genuine_fsync(handle)
        event()

    def serialise(group: dict[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
        for chunk in genuine_serialise(group):
            event()
            yield chunk[: len(chunk) // 2]
            event()
            yield chunk[len(chunk) // 2 :]

    os.fsync, tensors.serialize_safetensors = fsync, serialise
    sys.addaudithook(audit)


def at_each_event(folder: Path) -> Iterable[dict[str, object]]:
    """Kill before the first, second, third... event of a save of step 3 over step 2, until it survives."""
    with new_run(folder / "fresh") as run:
        save(run, 1)
        save(run, 2)
    number = 0
    while True:
        number += 1
        copy = folder / str(number)
        shutil.copytree(folder / "fresh", copy)

        def save_third(copy: Path = copy, number: int = number) -> None:
            run = Run.open(copy)
            run.lock()
            run.rewind_and_start_session(step=2, command=[], environment={})
            die_at_event(number, copy)
            save(run, 3)

        _, status = os.waitpid(in_child(save_third), 0)
        step, problems = check(copy)
        yield {"killed": os.WIFSIGNALED(status), "status": status, "old": 2, "step": step, "problems": problems}
        if not os.WIFSIGNALED(status):
            return


def at_random(folder: Path, seed: int) -> Iterable[dict[str, object]]:
    """Thirty times, let a process save one step after the other, and kill it after some milliseconds."""
    delays = random.Random(seed)
    with new_run(folder / "run") as run:
        save(run, 1)
    path = folder / "run"
    for _ in range(30):
        first = checkpoint.find_newest_valid_checkpoint(path / CHECKPOINTS)[0].step
        reader, writer = os.pipe()

        def save_for_ever(first: int = first, writer: int = writer) -> None:
            run = Run.open(path)
            run.lock()
            run.rewind_and_start_session(step=first, command=[], environment={})
            step = first
            while True:
                step += 1
                os.write(writer, b".")
                save(run, step)

        pid = in_child(save_for_ever)
        os.read(reader, 1)
        time.sleep(delays.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(writer)
        begun = first + 1
        while more := os.read(reader, 65536):
            begun += len(more)
        os.close(reader)
        step, problems = check(path)
        yield {"killed": os.WIFSIGNALED(status), "status": status, "old": begun - 1, "step": step, "problems": problems}


if __name__ == "__main__":
    target = Path(sys.argv[2])
    torch.set_num_threads(1)
    outcomes = at_each_event(target) if sys.argv[1] == "at-each-event" else at_random(target, int(sys.argv[3]))
    print(json.dumps(list(outcomes)))
