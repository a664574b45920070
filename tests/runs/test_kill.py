"""A process killed at any moment of a save leaves the old checkpoint or the new one, complete."""

import shutil
from pathlib import Path

import pytest
import torch

from lmtool.runs import checkpoint
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import CHECKPOINTS, Run
from lmtool.runs.lock import is_run_locked
from lmtool.runs.saving import CheckpointContent
from tests.runs.killing import die_at_event, is_killed
from tests.support.runs import FILES, locked, names, run_info, start_session, step_names

pytestmark = pytest.mark.system


def save(run: Run, step: int) -> None:
    run.metrics.append({"step": step, "loss": 1 / step})
    weight = torch.full((30_000,), float(step))
    run.save_checkpoint(CheckpointContent(step, {"weight": weight}, {"moment": -weight}, {"step": step}), keep_last=1)


def check(folder: Path) -> int:
    """All that a killed process has left is whole, and the next one goes on. Returns the step of the newest."""
    newest, warnings = checkpoint.find_newest_valid_checkpoint(folder / CHECKPOINTS)
    assert warnings == []
    for step, path in checkpoint.list_checkpoints(folder / CHECKPOINTS):
        whole = checkpoint.open_and_verify_checkpoint(path)
        weight, moment = whole.load_model()["weight"], whole.load_optimizer()["moment"]
        assert {*weight.tolist(), *moment.neg().tolist(), whole.load_state()["step"], whole.step} == {step}
    assert not is_run_locked(folder)
    with locked(Run.open(folder)) as run:
        start_session(run, newest.step)
        assert not [name for name in names(folder / CHECKPOINTS) if name.startswith(".")]
        assert [record["step"] for record in run.metrics.read_records()] == list(range(1, newest.step + 1))
        save(run, newest.step + 1)
    assert names(folder / CHECKPOINTS) == step_names(newest.step + 1)
    return newest.step


def test_a_kill_before_each_thing_that_a_save_does(tmp_path: Path) -> None:
    with create_and_lock_run(tmp_path / "fresh", run_info(), FILES) as run:
        start_session(run)
        save(run, 1)
        save(run, 2)
    found: list[int] = []
    while True:
        copy = tmp_path / str(len(found) + 1)
        shutil.copytree(tmp_path / "fresh", copy)

        def save_third(copy: Path = copy, event: int = len(found) + 1) -> None:
            run = Run.open(copy)
            run.lock()
            start_session(run, 2)
            die_at_event(event, copy)
            save(run, 3)

        was_killed = is_killed(save_third)
        found.append(check(copy))
        if not was_killed:
            break
    assert len(found) > 30
    assert found == sorted(found), "once the new one has its name, it is kept"
    assert set(found) == {2, 3}
