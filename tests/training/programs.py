"""lmtool in a process of its own, for signals."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lmtool
from tests.support import forks
from tests.support.training import Work

LMTOOL = ["-m", "lmtool"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lmtool"]
"""Processes that torchrun itself starts, each of which imports torch."""
_PROGRAM = str(Path(lmtool.__file__).with_name("__main__.py"))
FORKED = [*TORCHRUN[:4], "--start-method", "fork", "--run-path", _PROGRAM]
"""Processes that torchrun forks, which have what it imported."""


def start(work: Work, words: Sequence[str], imports: Sequence[str] = ()) -> forks.Program:
    """Start `python WORDS` in the folder of `work`; its output goes to files there. imports: as of `forks.begin`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (work.folder / "stdout").open("w") as stdout, (work.folder / "stderr").open("w") as stderr:
        return forks.begin(words, cwd=work.folder, env=environment, files=(None, stdout, stderr), imports=imports)


def pretraining(work: Work, *overrides: str) -> list[str]:
    settings = [word for override in overrides for word in ("-s", override)]
    return ["pretrain", str(work.text), "--recipe", str(work.recipe), "-o", str(work.run()), *settings]


def output(work: Work) -> tuple[str, str]:
    return (work.folder / "stdout").read_text(), (work.folder / "stderr").read_text()


def wait_until(there: Callable[[], bool], process: forks.Program, work: Work) -> None:
    """Wait for an effect of the process. Fails when it ends first."""
    while not there():
        assert process.poll() is None, "\n".join(output(work))
        time.sleep(0.01)


def saved(run: Path, step: int) -> Callable[[], bool]:
    return (run / "checkpoints" / f"step-{step:06d}").exists
