"""Runs that were damaged, killed or forged, are not finite, or find a full disk; tests/faults tries much more."""

import errno
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.data import store as store_module
from lmtool.errors import Code, DataError, NumericalError, ResourceError
from lmtool.evaluation.loop import ValidationResult
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import Run
from lmtool.storage import durable
from lmtool.tasks.data import TableData
from lmtool.training.data import TextData
from lmtool.training.events import RunAlreadyFinished
from tests.support.damage import flip_bit, sign
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    checkpoint_steps,
    ended,
    lasting,
    metrics,
    read_metrics_json,
    warnings_in,
)

SAMPLES = ("evaluation.prompts=[the]", "evaluation.sample_tokens=4")


# Logs


def test_damage_of_the_logs_is_told_and_not_continued(work: Work) -> None:
    work.pretrain(*SAMPLES, name="whole")
    work.pretrain(*SAMPLES, stop=after(5))
    assert not any("jsonl" in line for line in warnings_in(work.resume(stop=after(2))))
    assert list(find_damaged_run_files(work.run())) == []
    log = work.run() / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], b"oops\n", *lines[3:]]))
    samples = work.run() / "samples.jsonl"
    samples.write_bytes(samples.read_bytes().replace(b'"prompt": "the"', b'"prompt": 3'))
    told = warnings_in(work.resume())
    assert [line for line in told if "jsonl" in line] == [
        "metrics.jsonl: damaged and removed: line 3",
        "metrics.jsonl has no record of step 3",
        "samples.jsonl: damaged and removed: line 1",
    ]
    assert [record["step"] for record in metrics(work.run())] == [1, 2, *range(4, 13)]
    whole, now = lasting(work.run("whole"), 12), lasting(work.run(), 12)
    assert (now["model"], now["optimizer"], now["state"]) == (whole["model"], whole["optimizer"], whole["state"])
    assert list(find_damaged_run_files(work.run())) == [(log, "metrics.jsonl has no record of step 3")]


@pytest.mark.parametrize(
    ("name", "code"), [("exp_avg/inputs.tokens.weight", "numerical"), ("carried/0/0", "checkpoint")]
)
def test_forged_moments_are_refused(work: Work, name: str, code: Code) -> None:
    """Their checksums are right: one is no number, or of no weight. tests/faults forges all files."""
    work.pretrain(stop=after(3))
    file = work.run() / "checkpoints" / "step-000003" / "optimizer.safetensors"
    moments = safetensors.torch.load_file(file)
    moments[name] = torch.full_like(moments.get(name, torch.zeros(2)), math.nan)
    file.write_bytes(safetensors.torch.save(moments))
    sign(file.parent)
    with refuses(code) as caught:
        work.resume()
    assert name in str(caught.value)


def test_a_lost_split_is_drawn_anew_and_told(work: Work) -> None:
    work.pretrain("training.steps=2", name="base")
    work.finetune("data.valid_fraction=0.1", source=work.run("base"), name="run", stop=after(3))
    split = work.run() / "split.json"
    content = split.read_bytes()
    split.unlink()
    told = "split.json is missing: the rows to hold out are drawn anew from the seed"
    assert told in warnings_in(work.resume(stop=after(1)))
    assert split.read_bytes() == content
    assert told not in warnings_in(work.resume())


# Killed between the end of training and the last measurement


@pytest.mark.parametrize("is_text", [True, False])
def test_what_was_not_measured_is_measured_by_resuming(
    work: Work, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the results were damaged; a finished run then has no optimizer state, and keeps its results."""
    if not is_text:
        work.pretrain("training.steps=2", name="base")

    def train() -> None:
        drops = "checkpoint.keep_optimizer=false"
        if is_text:
            work.pretrain("evaluation.baseline=true", drops)
        else:
            work.finetune("training.steps=4", drops, source=work.run("base"), name="run")  # no rows are held out

    with monkeypatch.context() as patch:
        patch.setattr(TextData if is_text else TableData, "compute_results", lambda *_: [][0])
        with pytest.raises(IndexError):
            train()
    assert Run.open(work.run()).state == "finished"
    assert not (work.run() / "metrics.json").exists()
    work.resume()
    measured = read_metrics_json(work.run())
    assert not list(work.run().rglob("optimizer.safetensors"))
    (work.run() / "metrics.json").write_bytes(b"\0" * 20)
    work.resume()
    assert read_metrics_json(work.run()) == measured
    work.run().rename(work.run("resumed"))
    train()
    assert read_metrics_json(work.run()) == measured
    assert isinstance(work.resume(name="resumed")[0], RunAlreadyFinished)


def test_a_run_killed_before_its_optimizer_state_went_loses_it_when_resumed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "remove_optimizer_states", lambda _: [][0])
        with pytest.raises(IndexError):
            work.pretrain("checkpoint.keep_optimizer=false")
    assert len(list(work.run().rglob("optimizer.safetensors"))) > 0
    assert isinstance(work.resume()[0], RunAlreadyFinished)
    assert not list(work.run().rglob("optimizer.safetensors"))


# Numbers that are not finite


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_first_validation_that_is_not_finite_ends_training(
    work: Work, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextData, "validate", lambda *_: ValidationResult(loss))
    with refuses("numerical") as caught:
        work.pretrain()
    assert f"of step 4, is {loss}" in caught.value.what
    assert "step-000004" in caught.value.where
    assert "optimizer.lr below 0.003" in caught.value.fix
    assert checkpoint_steps(work.run())[-1] == 4
    assert Run.open(work.run()).state == "stopped"


def test_the_loss_of_useless_weights_is_null_and_an_error(work: Work) -> None:
    useless = ("optimizer.lr=1e30", "schedule.kind=constant", "evaluation.every=1", "training.steps=1")

    def evaluated(name: str, source: Path, *options: str) -> str:
        done = CliRunner().invoke(app, ["eval", str(work.run(name)), str(source), *options])
        assert isinstance(done.exception, NumericalError)
        return str(done.stdout)

    with refuses("numerical"):
        work.pretrain(*useless)
    assert "nan" in evaluated("run", work.text)
    work.pretrain("training.steps=2", name="base")
    with refuses("numerical"):
        work.finetune(*useless, source=work.run("base"))
    for name, source in (("run", work.text), ("tuned", work.folder / "table.csv")):
        found = json.loads(evaluated(name, source, "--json"), parse_constant=pytest.fail)
        assert (found["loss"], found.get("bits_per_byte")) == (None, None)


# Full disks


@pytest.mark.parametrize("background", ["true", "false"])
def test_what_a_full_disk_leaves_is_said_truly(work: Work, monkeypatch: pytest.MonkeyPatch, background: str) -> None:
    """The disk is full from each write on, from the first to the last."""
    settings = ("training.steps=2", "evaluation.every=1", "checkpoint.every=1", f"checkpoint.background={background}")
    genuine, written = durable.write_and_sync_new_file, []

    def told_when_full_after(limit: int, name: str) -> list[str]:
        def write_new(path: Path, chunks: Any) -> None:
            written.append(path)
            if len(written) > limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            genuine(path, chunks)

        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(durable, "write_and_sync_new_file", write_new)
            try:
                return warnings_in(work.pretrain(*settings, name=name))
            except ResourceError as error:
                return [str(error)]

    assert told_when_full_after(1_000_000, "whole") == []
    assert len(written) > 15
    for limit in range(len(written)):
        name = f"run-{limit}"
        told = told_when_full_after(limit, name)
        assert any("No space left on device" in line for line in told), limit
        steps = checkpoint_steps(work.run(name))
        assert not any("intact" in line for line in told)
        for line in told:
            if "no checkpoint is saved yet" in line:
                assert not steps, limit
            if saved := re.search(r"(step-\d+) is saved", line):
                assert int(saved[1].removeprefix("step-")) in steps, limit
        if (work.run(name) / "run.json").exists() and steps:
            work.resume(name=name)
            assert lasting(work.run(name), 2)["model"] == lasting(work.run("whole"), 2)["model"], limit


# The cache of tokens


@pytest.mark.parametrize("is_large", [False, True])
def test_a_damaged_cache_does_not_change_a_run(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_large: bool
) -> None:
    """A large one, of which not all is verified at first, stops a run that then goes on."""
    monkeypatch.setenv("LMTOOL_CACHE", str(work.folder / "cache"))
    work.pretrain(name="whole")
    work.pretrain(stop=after(5))
    files = [*(work.folder / "cache" / "tokens").glob("*/tokens-*.bin" if is_large else "*/*")]
    if is_large:
        files = [max(files, key=lambda path: path.stat().st_size)]
        monkeypatch.setattr(store_module, "MAX_VERIFIED_FIRST", 0)
    for file in files:
        flip_bit(file)
    if is_large:
        with pytest.raises(DataError):
            work.resume()
    assert ended(work.resume()).step == 12
    assert len(caplog.records) == (1 if is_large else 2)
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
