"""Small runs on disk, without a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import Run
from lmtool.runs.files import RunInfo
from lmtool.runs.saving import CheckpointContent

MakeRun = Callable[..., Run]
"""The fixture `make`."""

FILES = {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b'{"kind": "char"}'}
"""Of every run, beside its checkpoints."""


def run_info(recipe: str = "tiny") -> RunInfo:
    fingerprints = {"data": "d0", "tokenizer": "t0"}
    return RunInfo.create(recipe=recipe, summary="decoder, 4 x 128", fingerprints=fingerprints)


def start_session(run: Run, step: int = 0, **more: Any) -> list[str]:
    """Begins a session of a locked run after this step."""
    return run.rewind_and_start_session(step=step, **{"command": [], "environment": {}, **more})


@contextmanager
def locked(run: Run) -> Iterator[Run]:
    """While it lasts, this process may write the run."""
    with run:
        run.lock()
        yield run


def make_run(
    name: str = "tiny", folder: Path | None = None, steps: tuple[int, ...] = (10, 20), finished: bool = False
) -> Run:
    """Makes a run with a checkpoint at each of the given steps, the first being the best, and releases its lock."""
    with create_and_lock_run(folder, run_info(name), FILES) as run:
        start_session(run, command=["lmtool", "pretrain", "a b.txt"], environment={"python": "3", "gpu": None})
        for step in steps:
            run.metrics.append({"step": step, "loss": 2.0, "valid_loss": 1 + step / 100})
            run.samples.append({"step": step, "prompt": "", "text": "Once"})
            snapshot = CheckpointContent(step, {"w": torch.tensor([step])}, {}, {"step": step}, steps[0])
            run.save_checkpoint(snapshot, keep_last=len(steps))
        if finished:
            run.record_session_end("finished")
    return run


def names(folder: Path) -> list[str]:
    """Of the files and folders in it."""
    return sorted(path.name for path in folder.iterdir())


def step_names(*steps: int) -> list[str]:
    return [f"step-{step:06d}" for step in steps]
