from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmtool.run.creation import create_run
from lmtool.run.directory import Run
from lmtool.run.files import RunInfo
from lmtool.run.saving import Snapshot

MakeRun = Callable[..., Run]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs directory of this test."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def make(runs: Path) -> MakeRun:
    """Makes a run with a checkpoint at each of the given steps, the first being the best, and releases its lock."""

    def make(
        name: str = "tiny", folder: Path | None = None, steps: tuple[int, ...] = (10, 20), finished: bool = False
    ) -> Run:
        with create_run(
            folder,
            RunInfo.create(
                recipe=name,
                summary="decoder, 4 x 128",
                fingerprints={"data": "d0", "tokenizer": "t0"},
            ),
            {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b'{"kind": "char"}'},
        ) as run:
            run.start_session(
                step=0, command=["lmtool", "pretrain", "a b.txt"], environment={"python": "3", "gpu": None}
            )
            for step in steps:
                run.metrics.append({"step": step, "loss": 2.0, "valid_loss": 1 + step / 100})
                run.samples.append({"step": step, "prompt": "", "text": "Once"})
                run.save_checkpoint(
                    Snapshot(step, {"w": torch.tensor([step])}, {}, {"step": step}, steps[0]), keep_last=len(steps)
                )
            if finished:
                run.end_session("finished")
        return run

    return make
