"""Runs whose files were damaged, forged or lost: resumed as if nothing had happened, told of it, or refused."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from typer.testing import CliRunner

from lmtool import durable
from lmtool.checks.runs import find_damaged_run_files
from lmtool.cli import app
from lmtool.data import store as store_module
from lmtool.errors import CheckpointError, DataError, NumericalError, ResourceError
from lmtool.inference.evaluation import ValidationResult
from lmtool.run.checkpoint import list_checkpoints
from lmtool.run.directory import Run
from lmtool.tasks.data import TableData
from lmtool.training.data import TextData
from lmtool.training.events import AlreadyFinished, Ended
from tests.support.cases import nightly_but
from tests.support.training import Work, after, ended, lasting, metrics, warnings_in

SAMPLES = ("evaluation.prompts=[the]", "evaluation.sample_tokens=4")


def kept(run: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(run / "checkpoints")]


def reseal(checkpoint: Path) -> None:
    """Write the manifest of the files as they are now, as docs/runs.md describes it."""
    manifest = json.loads((checkpoint / "MANIFEST.json").read_bytes())
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def encoded(values: dict[str, Any]) -> bytes:
        return json.dumps(values, indent=1).encode() + b"\n"

    del manifest["sha256"]
    sealed = manifest | {"sha256": hashlib.sha256(encoded(manifest)).hexdigest()}
    (checkpoint / "MANIFEST.json").write_bytes(encoded(sealed))


def refused(work: Work, *messages: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        work.resume()
    assert caught.value.exit_code == 4
    assert len(caught.value.lines()) == 3
    assert all(len(line) < 300 for line in caught.value.lines())
    for message in messages:
        assert message in str(caught.value)


# Logs


def lines_of(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines(keepends=True)


def test_damage_of_the_logs_is_told_and_not_continued(work: Work) -> None:
    work.pretrain(*SAMPLES, name="whole")
    work.pretrain(*SAMPLES, stop=after(7))
    log = work.run() / "metrics.jsonl"
    lines = lines_of(log)
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


def test_a_log_that_was_lost_is_told(work: Work) -> None:
    work.pretrain(stop=after(8))
    log = work.run() / "metrics.jsonl"
    log.unlink()
    told = warnings_in(work.resume())
    assert "metrics.jsonl has no record of steps 1, 2, 3, 4, 5 and 3 more" in told


def test_an_unbroken_run_is_not_told_anything(work: Work) -> None:
    work.pretrain(*SAMPLES, stop=after(4))
    for _ in range(3):
        assert not any("jsonl" in line for line in warnings_in(work.resume(stop=after(2))))
    assert list(find_damaged_run_files(work.run())) == []


# Forged files with right checksums


@pytest.mark.parametrize(
    ("change", "message"),
    nightly_but(
        [
            ({"tokens": "7"}, "tokens should be a valid integer"),
            ({"tokens": -1}, "tokens should be greater"),
            ({"seconds": None}, "seconds should be a valid number"),
            ({"stale": 1.5}, "stale"),
            ({"best_step": True}, "best_step should be a valid integer"),
            ({"micro_batch": 0}, "micro_batch should be greater"),
            ({"setup": []}, "setup should be a valid dictionary"),
            ({"pending": {"loss": 1.0}}, "pending.step is missing"),
            ({"recipe": 3}, "recipe should be a valid dictionary"),
            ({"unheard": 3}, "unheard is unknown"),
        ],
        0,
        2,
        5,
        7,
        unpack=True,
    ),
)
def test_a_forged_state_is_refused(work: Work, change: dict[str, object], message: str) -> None:
    work.pretrain(stop=after(3))
    checkpoint = work.run() / "checkpoints" / "step-000003"
    file = checkpoint / "state.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | change))
    reseal(checkpoint)
    refused(work, "state.json", message)


Tensors = dict[str, Tensor]


def some(tensors: Tensors, moment: str = "exp_avg") -> str:
    return next(name for name in sorted(tensors) if name.startswith(f"{moment}/"))


@pytest.mark.parametrize(
    ("forge", "message"),
    nightly_but(
        [
            (lambda t: t.pop(some(t)), "is missing"),
            (lambda t: t.clear(), "is missing"),
            (lambda t: t.update({"exp_avg/nowhere": torch.zeros(2)}), "exp_avg/nowhere is unknown"),
            (lambda t: t.update({"carried/0/0": torch.zeros(2)}), "carried/0/0 is unknown"),
            (lambda t: t.update({some(t): torch.zeros(3, 3, 3)}), "does not fit the model"),
            (lambda t: t.update({some(t): t[some(t)].double()}), "does not fit the model"),
            (lambda t: t.update({some(t, "step"): torch.zeros(4)}), "does not fit the model"),
        ],
        0,
        3,
        unpack=True,
    ),
)
def test_forged_moments_are_refused(work: Work, forge: Callable[[Tensors], object], message: str) -> None:
    work.pretrain(stop=after(3))
    checkpoint = work.run() / "checkpoints" / "step-000003"
    file = checkpoint / "optimizer.safetensors"
    tensors = safetensors.torch.load_file(file)
    forge(tensors)
    file.write_bytes(safetensors.torch.save(tensors))
    reseal(checkpoint)
    refused(work, "the optimizer state does not fit the run", message)


def test_moments_that_are_no_numbers_are_refused(work: Work) -> None:
    work.pretrain(stop=after(3))
    checkpoint = work.run() / "checkpoints" / "step-000003"
    file = checkpoint / "optimizer.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors[some(tensors)].view(-1)[0] = math.nan
    file.write_bytes(safetensors.torch.save(tensors))
    reseal(checkpoint)
    with pytest.raises(NumericalError, match=f"the optimizer state is useless: {some(tensors)} holds NaN"):
        work.resume()


@pytest.mark.parametrize(
    "content", nightly_but([b"", b"[]", b'{"table": "a", "train": ["1"], "test": []}', b'{"table": "a"}'], 2)
)
def test_a_damaged_split_is_refused(work: Work, content: bytes) -> None:
    work.pretrain(name="base")
    work.finetune(source=work.run("base"), name="run", stop=after(3))
    (work.run() / "split.json").write_bytes(content)
    refused(work, "split.json is damaged")


def test_a_lost_split_is_drawn_anew_and_told(work: Work) -> None:
    work.pretrain(name="base")
    work.finetune("data.valid_fraction=0.1", source=work.run("base"), name="run", stop=after(3))
    split = work.run() / "split.json"
    content = split.read_bytes()
    split.unlink()
    told = "split.json is missing: the rows to hold out are drawn anew from the seed"
    assert told in warnings_in(work.resume(stop=after(1)))
    assert split.read_bytes() == content
    assert told not in warnings_in(work.resume())


@pytest.mark.parametrize("content", nightly_but([b"", b"[]", b'{"": {"kind": "class"}}'], 0, 1))
def test_a_damaged_floor_is_refused(work: Work, content: bytes) -> None:
    work.pretrain(name="base")
    work.finetune(source=work.run("base"), name="run", stop=after(3))
    (work.run() / "baseline.json").write_bytes(content)
    refused(work, "baseline.json is damaged", "delete it")
    (work.run() / "baseline.json").unlink()
    assert ended(work.resume()).step == 12


# Killed between the end of training and the last measurement


@pytest.mark.parametrize("is_text", [True, False])
def test_what_was_not_measured_is_measured_by_resuming(
    work: Work, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        if is_text:
            work.pretrain("evaluation.baseline=true", "checkpoint.keep_optimizer=false")
        else:
            work.finetune("checkpoint.keep_optimizer=false", source=work.run("base"), name="run")

    if not is_text:
        work.pretrain(name="base")
    with monkeypatch.context() as patch:
        patch.setattr(TextData if is_text else TableData, "measure", lambda *_: [][0])
        with pytest.raises(IndexError):
            train()
    assert Run.open(work.run()).state == "finished"
    assert not (work.run() / "metrics.json").exists()
    work.resume()
    measured = (work.run() / "metrics.json").read_bytes()
    (work.run()).rename(work.run("resumed"))
    train()
    assert json.loads((work.run() / "metrics.json").read_bytes()) == json.loads(measured)
    assert not list(work.run("resumed").rglob("optimizer.safetensors"))
    assert isinstance(work.resume(name="resumed")[0], AlreadyFinished)


def test_a_run_killed_before_its_optimizer_state_went_loses_it_when_resumed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "remove_optimizer_states", lambda _: [][0])
        with pytest.raises(IndexError):
            work.pretrain("checkpoint.keep_optimizer=false")
    assert len(list(work.run().rglob("optimizer.safetensors"))) > 0
    assert isinstance(work.resume()[0], AlreadyFinished)
    assert not list(work.run().rglob("optimizer.safetensors"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "validated.json", "run.json"])
def test_a_finished_run_is_not_resumed_without_a_word_when_a_file_is_damaged(name: str, work: Work) -> None:
    work.pretrain()
    file = work.run() / name
    damaged = re.sub(rb"(\d)(?=\D*$)", b"x", file.read_bytes())
    file.write_bytes(damaged)
    try:
        told = " ".join(warnings_in(work.resume()))
    except CheckpointError as error:
        told = error.what
    assert name in told
    assert file.read_bytes() == damaged


def test_damaged_results_are_measured_again(work: Work) -> None:
    work.pretrain("evaluation.baseline=true")
    measured = json.loads((work.run() / "metrics.json").read_bytes())
    (work.run() / "metrics.json").write_bytes(b"\0" * 20)
    work.resume()
    assert json.loads((work.run() / "metrics.json").read_bytes()) == measured


@pytest.mark.parametrize("name", ["run.json", "validated.json"])
def test_a_changed_digit_is_found_by_the_checksum(name: str, work: Work) -> None:
    work.pretrain()
    file = work.run() / name
    whole = file.read_bytes()
    for digit in re.finditer(rb"\d", whole):
        other = b"1" if digit[0] != b"1" else b"2"
        file.write_bytes(whole[: digit.start()] + other + whole[digit.end() :])
        with pytest.raises(CheckpointError, match=r"checksum|run\.json is damaged"):
            assert Run.open(work.run()).last_validation is None


def test_a_damaged_checkpoint_of_a_base_is_told(work: Work, tmp_path: Path) -> None:
    work.pretrain()
    best = Run.open(work.run()).find_best_checkpoint()[0].path
    (best / "MANIFEST.json").write_bytes(b"damaged")
    told = warnings_in(work.pretrain(name="further", source=work.run()))
    assert any(best.name in warning for warning in told)
    outcome = CliRunner().invoke(app, ["export", str(work.run()), str(tmp_path / "exported"), "-q"])
    assert outcome.exit_code == 0
    assert f"warning: skipped the damaged checkpoint {best.name}" in outcome.stderr


# Numbers that are not finite


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_first_validation_that_is_not_finite_ends_training(
    work: Work, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextData, "validate", lambda *_: ValidationResult(loss))
    with pytest.raises(NumericalError, match=f"the first validation loss, of step 4, is {loss}") as caught:
        work.pretrain()
    assert caught.value.exit_code == 6
    assert caught.value.where == "step-000004 is saved"
    assert kept(work.run())[-1] == 4
    assert "optimizer.lr below 0.003" in caught.value.fix
    assert Run.open(work.run()).state == "stopped"


def test_a_later_validation_that_is_not_finite_is_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter((3.0, math.nan, 2.0))
    monkeypatch.setattr(TextData, "validate", lambda *_: ValidationResult(next(losses)))
    told = work.pretrain()
    assert warnings_in(told) == ["the validation loss of step 8 is nan, which cannot be the best"]
    assert ended(told).best_step == 12


def test_a_rate_that_destroys_the_weights_is_told_with_what_is_saved(work: Work) -> None:
    with pytest.raises(NumericalError) as caught:
        work.pretrain("optimizer.lr=1e30", "schedule.kind=constant")
    saved = kept(work.run())
    said = f"step-{saved[-1]:06d} is saved" if saved else "no checkpoint is saved yet"
    assert said in caught.value.where
    assert "optimizer.lr" in caught.value.fix


def nan_of(done: Any) -> str:
    assert isinstance(done.exception, NumericalError)
    assert done.exception.exit_code == 6
    assert "the loss is NaN" in str(done.exception)
    return str(done.stdout)


def test_the_loss_of_useless_weights_is_null_and_an_error(work: Work) -> None:
    useless = ("optimizer.lr=1e30", "schedule.kind=constant", "evaluation.every=1", "training.steps=1")
    with pytest.raises(NumericalError, match="first validation loss"):
        work.pretrain(*useless)
    asked = ["eval", str(work.run()), str(work.text)]
    found = json.loads(nan_of(CliRunner().invoke(app, [*asked, "--json"])), parse_constant=pytest.fail)
    assert (found["loss"], found["bits_per_byte"]) == (None, None)
    assert "nan" in nan_of(CliRunner().invoke(app, asked))
    work.pretrain(name="base")
    with pytest.raises(NumericalError, match="first validation loss"):
        work.finetune(*useless, source=work.run("base"))
    asked = ["eval", str(work.run("tuned")), str(work.folder / "table.csv"), "--json"]
    found = json.loads(nan_of(CliRunner().invoke(app, asked)), parse_constant=pytest.fail)
    assert found["loss"] is None


# Full disks


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Callable[[], int]]:
    """The disk is full from the given write on; the returned function says how many there were."""

    def fill(limit: int) -> Callable[[], int]:
        genuine = durable.write_new_file
        n = 0

        def write_new(path: Path, chunks: Any) -> None:
            nonlocal n
            n += 1
            if n > limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            genuine(path, chunks)

        monkeypatch.setattr(durable, "write_new_file", write_new)
        return lambda: n

    return fill


def test_what_a_full_disk_leaves_is_said_truly(
    work: Work, full_after: Callable[[int], Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full from each write on, from the first to the last."""
    settings = ("training.steps=4", "evaluation.every=2", "checkpoint.every=2")
    work.pretrain(*settings, name="whole")
    with monkeypatch.context():
        writes = full_after(1_000_000)
        work.pretrain(*settings, name="counted")
    assert writes() > 15
    monkeypatch.undo()
    for limit in range(writes()):
        name = f"run-{limit}"
        monkeypatch.setenv("LMTOOL_RUNS", str(work.folder / "runs"))
        full_after(limit)
        told: list[str] = []
        try:
            told = warnings_in(work.pretrain(*settings, name=name))
        except ResourceError as error:
            told = [str(error)]
        monkeypatch.undo()
        monkeypatch.setenv("LMTOOL_RUNS", str(work.folder / "runs"))
        assert any("No space left on device" in line for line in told), limit
        steps = kept(work.run(name))
        assert not any("intact" in line for line in told)
        for line in told:
            if "no checkpoint is saved yet" in line:
                assert not steps, limit
            if saved := re.search(r"(step-\d+) is saved", line):
                assert int(saved[1].removeprefix("step-")) in steps, limit
        if (work.run(name) / "run.json").exists() and steps:
            work.resume(name=name)
            assert lasting(work.run(name), 4)["model"] == lasting(work.run("whole"), 4)["model"], limit


# The cache of tokens


def test_a_damaged_cache_does_not_change_a_run(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(work.folder / "cache"))
    work.pretrain(name="whole")
    work.pretrain(stop=after(5))
    for file in (work.folder / "cache" / "tokens").glob("*/*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    assert ended(work.resume()).step == 12
    assert len(caplog.records) == 2
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)


def test_a_large_damaged_cache_stops_a_run_that_then_goes_on(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit 3, before any damaged token is learnt from."""
    monkeypatch.setenv("LMTOOL_CACHE", str(work.folder / "cache"))
    work.pretrain(name="whole")
    work.pretrain(stop=after(5))
    file = max((work.folder / "cache" / "tokens").glob("*/tokens-*.bin"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(store_module, "MAX_VERIFIED_FIRST", 0)
    with pytest.raises(DataError, match=r"tokens-00000\.bin has changed") as caught:
        work.resume()
    assert caught.value.exit_code == 3
    assert any(isinstance(event, Ended) for event in work.resume())
    assert len(caplog.records) == 1
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
