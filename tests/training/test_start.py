"""Training sessions in one process: events, saved files, resuming, and errors of the system."""

import errno
import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lmtool.batch import Batch
from lmtool.cli import app
from lmtool.compute.device import CPU
from lmtool.compute.processes import PeerEnded, World
from lmtool.errors import ResourceError
from lmtool.recipe.load import load
from lmtool.recipe.spec.training import Checkpointing
from lmtool.runs import load as loading
from lmtool.runs.checkpoint import list_checkpoints, open_and_verify_checkpoint
from lmtool.runs.directory import Run
from lmtool.runs.load import build_model, load_run
from lmtool.runs.log import RunLog
from lmtool.storage import durable
from lmtool.tokenization.tokenizer import Tokenizer
from lmtool.training import plan
from lmtool.training.checkpoint_manager import CheckpointManager, TrainerState
from lmtool.training.events import CheckpointSaved, RunAlreadyFinished, SampleGenerated, StepCompleted, TrainingStarted
from lmtool.training.resuming import resume
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    assert_resumes_bit_for_bit,
    checkpoint_steps,
    documents,
    ended,
    lasting,
    metrics,
    of_kind,
    step_numbers,
    warnings_in,
    words,
)
from tests.training.conftest import Script

PROMPTS = "evaluation.prompts=[the, a cat]"


# Events and saved files


def test_metrics_have_the_names_that_other_programs_read(work: Work) -> None:
    (begun,) = of_kind(work.pretrain(), TrainingStarted)
    assert (begun.steps, begun.first_step, begun.batch_units) == (12, 0, 8 * 16)
    records = metrics(work.run())
    assert [record["step"] for record in records] == list(range(1, 13))
    for record in records:
        assert " ".join(record) == "step loss valid_loss lr grad_norm tokens tokens_per_second seconds"
        assert (record["valid_loss"] is None) == (record["step"] % 4 != 0)
    tokens = [record["tokens"] for record in records]
    # targets of whole rows, without those that are not predicted
    assert all(0.8 * 8 * 16 < after - before <= 8 * 16 for before, after in zip([0, *tokens], tokens, strict=False))
    assert [record["lr"] for record in records[:4]] == pytest.approx([0.001, 0.002, 0.003, 0.003])
    assert records[-1]["seconds"] == max(record["seconds"] for record in records)


def test_the_last_and_the_best_checkpoints_stay(work: Work, validations: Script) -> None:
    validations(2.0, 3.0, 2.5)
    events = work.pretrain()
    assert (ended(events).best_step, ended(events).best_value) == (4, 2.0)
    assert checkpoint_steps(work.run()) == [4, 10, 12]
    assert load_run(str(work.run())).step == 4
    assert [event.path.name for event in of_kind(events, CheckpointSaved)] == [f"step-{n:06d}" for n in range(2, 13, 2)]


@pytest.mark.parametrize(("keep_last", "steps"), [(9, [3, 6, 9, 12]), (1, [9, 12])])
def test_what_is_validated_is_saved_between_the_steps_that_are_saved_anyway(
    work: Work, validations: Script, keep_last: int, steps: list[int]
) -> None:
    validations(2.0, 3.0, 1.0, 1.5)
    work.pretrain("evaluation.every=3", "checkpoint.every=100", f"checkpoint.keep_last={keep_last}")
    assert checkpoint_steps(work.run()) == steps
    assert load_run(str(work.run())).step == 9


def test_training_stops_when_patience_runs_out(work: Work, validations: Script) -> None:
    validations(3.0, 2.0, 2.1, 2.0, 2.2)
    patient = ("training.steps=100", "evaluation.every=2", "evaluation.patience=3")
    last = ended(work.pretrain(*patient))
    assert (last.reason, last.step, last.best_step) == ("early", 10, 4)
    assert checkpoint_steps(work.run()) == [4, 8, 10]
    assert Run.open(work.run()).state == "finished"
    assert work.resume() == [RunAlreadyFinished(work.run(), 10, early=True)]
    validations(2.3)
    last = ended(work.resume("evaluation.patience=4"))
    assert (last.reason, last.step, last.best_step) == ("early", 12, 4)


def test_numerical_errors_leave_the_last_checkpoint(work: Work) -> None:
    ruin = ("optimizer={kind: sgd, lr: 1e30}", "training.clip_norm=null", "checkpoint.every=1")
    with refuses("numerical") as caught:
        work.pretrain(*ruin, "schedule.warmup_steps=0")
    (step,) = map(int, re.findall(r"step (\d+)", caught.value.what))
    assert checkpoint_steps(work.run())[-1] == step - 1
    for _, path in list_checkpoints(work.run() / "checkpoints"):
        weights = open_and_verify_checkpoint(path).load_model()
        assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert Run.open(work.run()).state == "stopped"
    assert metrics(work.run())[-1]["step"] == step - 1


def test_out_of_memory_is_told_and_remembered(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def tight(*arguments: Any) -> Any:
        nonlocal calls
        calls = 0  # of each model: the one whose speed is measured, and the one that is trained
        model = build_model(*arguments)
        genuine = model.forward

        def forward(batch: Batch) -> Any:
            nonlocal calls
            calls += torch.is_grad_enabled()
            if torch.is_grad_enabled() and calls >= 5 and batch.tokens_BT.shape[0] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return genuine(batch)

        monkeypatch.setattr(model, "forward", forward)
        return model

    with monkeypatch.context() as patch:
        patch.setattr(loading, "build_model", tight)
        events = work.pretrain("training.recompute=none", stop=after(6))
    assert ["2 rows at once from now on" in text for text in warnings_in(events)] == [True]
    assert [event.step.micro_batch for event in of_kind(events, StepCompleted)] == [8] * 4 + [2] * 2
    assert {event.step.micro_batch for event in of_kind(work.resume(), StepCompleted)} == {2}


# Resumed runs are the same, bitwise


MUON = "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.003}}"


@pytest.mark.parametrize(
    "variant", [(MUON, "data.split=slice", "training.precision=bfloat16"), ("training.precision=float16",)]
)
def test_stopping_and_resuming_changes_no_bit(work: Work, variant: tuple[str, ...]) -> None:
    """Twice, once at a step without a checkpoint."""
    assert_resumes_bit_for_bit(work, partial(work.pretrain, *variant), 3, 4)
    assert [session.step for session in Run.open(work.run()).info.sessions] == [0, 3, 7]


def test_a_checkpoint_is_the_model_in_memory(work: Work, built: list[Any]) -> None:
    """Its logits and its samples, bitwise."""
    events = work.pretrain(PROMPTS, "evaluation.sample_tokens=12", "optimizer.lr=0.02")
    named = str(work.run() / "checkpoints" / "step-000012")
    loaded = load_run(named)
    batch = Batch(torch.randint(7, loaded.model.vocab_size, (3, 16)))
    model = built[1].eval()
    with torch.no_grad():
        assert torch.equal(model.logits(model(batch).hidden_BTD), loaded.model.logits(loaded.model(batch).hidden_BTD))
    told = [(event.step, event.prompt, event.text) for event in of_kind(events, SampleGenerated)]
    assert [line[:2] for line in told] == [(step, prompt) for step in (4, 8, 12) for prompt in ("the", "a cat")]
    logged = map(json.loads, (work.run() / "samples.jsonl").read_text().splitlines())
    assert [(line["step"], line["prompt"], line["text"]) for line in logged] == told
    for _, prompt, text in told[-2:]:
        options = ["--max-new-tokens", "12", "--seed", "1", "--json"]
        done = CliRunner().invoke(app, ["generate", prompt, "--run", named, *options])
        assert json.loads(done.stdout)["text"] == text


# Resuming


def test_another_text_is_refused(work: Work) -> None:
    work.pretrain(stop=after(4))
    before = lasting(work.run(), 4)
    work.text.write_text(documents(61), encoding="utf-8")
    with refuses("data_changed") as caught:
        work.resume()
    assert str(work.text) in caught.value.where
    assert lasting(work.run(), 4) == before


def test_another_tokenizer_is_refused(work: Work) -> None:
    work.pretrain(stop=after(4))
    other = Work(work.folder / "other")
    other.text.write_text("xyz " + words(2000, seed=5), encoding="utf-8")
    other.pretrain("training.steps=1", "data.split=slice")
    (work.run() / "tokenizer.json").write_bytes((other.run() / "tokenizer.json").read_bytes())
    assert Tokenizer.load(work.run() / "tokenizer.json").vocab_size > 0
    with refuses("checkpoint"):
        work.resume()


def test_a_changed_setup_is_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(stop=after(4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    events = work.resume("training.precision=bfloat16", "training.micro_batch=3")
    (warning,) = warnings_in(events)
    for change in ("precision float32 -> bfloat16", "micro_batch auto -> 3", "threads", "-> 64"):
        assert change in warning
    assert {event.step.micro_batch for event in of_kind(events, StepCompleted)} == {3}


def test_a_checkpoint_that_is_named_is_gone_on_from(work: Work) -> None:
    work.pretrain("checkpoint.keep_last=9")
    whole = lasting(work.run(), 12)
    named = work.run() / "checkpoints" / "step-000006"
    assert step_numbers(list(resume(str(named), (), work.session()))) == list(range(7, 13))
    assert lasting(work.run(), 12) == whole


# Errors of the system


BACKGROUND = "checkpoint.background=true"


def call_before_writing(monkeypatch: pytest.MonkeyPatch, function: Callable[[Path], None]) -> None:
    genuine = durable.write_and_sync_new_file

    def write_new(path: Path, chunks: Any) -> None:
        function(path)
        genuine(path, chunks)

    monkeypatch.setattr(durable, "write_and_sync_new_file", write_new)


def test_a_disk_that_is_full_for_a_while_is_survived(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full while these checkpoints are written in the background; test_damaged.py has one that stays full."""
    work.pretrain(BACKGROUND, name="whole")

    def fail(path: Path) -> None:
        if path.parent.name in {f".tmp-step-{step:06d}" for step in (4, 6, 8)} and path.name.startswith("opt"):
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    call_before_writing(monkeypatch, fail)
    told = warnings_in(work.pretrain(BACKGROUND))
    assert [f"step {step}" in text for step, text in zip((4, 6, 8), told, strict=True)] == [True] * 3
    assert all("No space left on device" in text for text in told)
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
    assert not list((work.run() / "checkpoints").glob(".tmp*"))


def test_training_goes_on_while_a_checkpoint_is_written(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of step 2 is not written before step 3 is done, which does not change what is in it."""
    work.pretrain("checkpoint.keep_last=9", name="whole")
    third_step, calls = threading.Event(), 0

    def wait(path: Path) -> None:
        if path.parent.name == ".tmp-step-000002":
            assert third_step.wait(60), "the step waits for the checkpoint"

    def stop() -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            third_step.set()
        return False

    call_before_writing(monkeypatch, wait)
    told = [
        event.step.step if isinstance(event, StepCompleted) else event.path.name
        for event in work.pretrain(BACKGROUND, "checkpoint.keep_last=9", stop=stop)
        if isinstance(event, StepCompleted | CheckpointSaved)
    ]
    assert told[:6] == [1, 2, 3, "step-000002", 4, "step-000004"]
    assert told.index("step-000012") == len(told) - 1
    for step in (2, 12):
        found, expected = lasting(work.run(), step), lasting(work.run("whole"), step)
        for part in ("model", "optimizer", "metrics", "validated"):
            assert found[part] == expected[part]


def test_a_log_that_cannot_be_written_is_survived(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = RunLog.append

    def append(self: RunLog, record: Any) -> None:
        if 3 <= record["step"] <= 5:
            raise ResourceError("cannot write the log: No space left on device", where=str(self.path))
        genuine(self, record)

    monkeypatch.setattr(RunLog, "append", append)
    events = work.pretrain()
    assert len(warnings_in(events)) == 1
    assert ended(events).reason == "finished"
    assert [record["step"] for record in metrics(work.run())] == [1, 2, *range(6, 13)]


def test_a_batch_that_processes_cannot_share_is_refused(work: Work) -> None:
    recipe = load(work.recipe).recipe
    with refuses("usage") as caught:
        plan.check_device_and_choose_sharding(recipe, replace(CPU, world=World(0, 3)), {})
    assert caught.value.where == "training.batch_size"
    replicated = load(work.recipe, ["training.shard=none"]).recipe
    plan.check_device_and_choose_sharding(replicated, replace(CPU, world=World(0, 4)), {})


# torch.compile imports parts of torch that torch itself has deprecated, and asks inner tensors for their gradients.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute")
@pytest.mark.slow
def test_a_compiled_model_trains_like_one_that_is_not(work: Work) -> None:
    plain = work.pretrain("model.dropout=0", name="plain")
    compiled = work.pretrain("model.dropout=0", "training.compile=true", name="compiled")
    losses = [[event.step.loss for event in of_kind(events, StepCompleted)] for events in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    (warning,) = warnings_in(work.resume("training.compile=false", "training.steps=+1", name="compiled"))
    assert "compile True -> False" in warning
    assert load_run(str(work.run("compiled"))).step > 0


class EndedPeer:
    """Another process, which has ended."""

    rank, size = 1, 2

    def gather_texts(self, text: str) -> list[str]:
        raise PeerEnded("another process has ended")


@pytest.mark.parametrize("background", [False, True])
def test_the_end_of_another_process_is_no_warning(background: bool) -> None:
    """Training cannot go on without it, as it does without a checkpoint."""
    with ThreadPoolExecutor(1) as thread:
        manager = CheckpointManager(None, Checkpointing(background=background), thread, peers=EndedPeer())
        told = (event for step in (1, 2) for event in manager.save_checkpoint(step, tiny.model(), {}, TrainerState()))
        with refuses("resource"):
            list(told)
