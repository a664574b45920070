"""lmtool in a process of its own, for signals."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.training.tiny import Work

LMTOOL = [sys.executable, "-m", "lmtool"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lmtool"]


def start(work: Work, words: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a program in the folder of `work`; its output goes to files there."""
    with (work.folder / "stdout").open("w") as stdout, (work.folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            words, cwd=work.folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=stdout, stderr=stderr, text=True
        )


def pretraining(work: Work, *overrides: str) -> list[str]:
    settings = [word for override in overrides for word in ("-s", override)]
    return ["pretrain", str(work.text), "--recipe", str(work.recipe), "-o", str(work.run()), *settings]


def output(work: Work) -> tuple[str, str]:
    return (work.folder / "stdout").read_text(), (work.folder / "stderr").read_text()


def wait_until(there: Callable[[], bool], process: "subprocess.Popen[str]", work: Work) -> None:
    """Wait for an effect of the process. Fails when it ends first."""
    while not there():
        assert process.poll() is None, "\n".join(output(work))
        time.sleep(0.01)


def saved(run: Path, step: int) -> Callable[[], bool]:
    return (run / "checkpoints" / f"step-{step:06d}").exists
