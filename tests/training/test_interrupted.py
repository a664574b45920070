"""A run that is interrupted is validated, outside of the training; a finished one drops its optimizer state."""

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmtool.runs import saving
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.directory import Run
from lmtool.runs.history import RunHistory
from lmtool.runs.listing import summarize_run
from lmtool.runs.load import load_run
from lmtool.training.data import TextData
from lmtool.training.events import RunAlreadyFinished, SampleGenerated, StepCompleted
from lmtool.training.resuming import resume
from tests.support.damage import flip_bit
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    assert_resumes_bit_for_bit,
    checkpoint_steps,
    ended,
    lasting,
    metrics,
    of_kind,
    step_numbers,
    warnings_in,
)
from tests.training.conftest import Script

SAMPLES = ("evaluation.prompts=[the, a cat]", "evaluation.sample_tokens=4")
DROPS = "checkpoint.keep_optimizer=false"


def session(work: Work) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((work.run() / "run.json").read_text())
    return dict(info["sessions"][-1])


def optimizers(work: Work) -> list[int]:
    found = list_checkpoints(work.run() / "checkpoints")
    return [step for step, path in found if (path / "optimizer.safetensors").exists()]


def weights(work: Work, step: int, name: str = "run") -> bytes:
    return (work.run(name) / "checkpoints" / f"step-{step:06d}" / "model.safetensors").read_bytes()


def test_its_last_step_is_validated_and_told(work: Work) -> None:
    told = work.pretrain(*SAMPLES, stop=after(6))
    assert step_numbers(told) == list(range(1, 7))
    last = of_kind(told, StepCompleted)[-1]
    assert last.validation is not None
    noted = session(work)["validation"]
    assert noted == {"step": 6, "loss": last.validation.loss, "is_best": last.is_best}
    # as if this step were validated anyway
    work.pretrain("evaluation.every=6", name="validated", stop=after(6))
    assert noted["loss"] == metrics(work.run("validated"))[-1]["valid_loss"]
    # no record and no sample of it
    assert [record["step"] for record in metrics(work.run()) if record["valid_loss"] is not None] == [4]
    assert {event.step for event in of_kind(told, SampleGenerated)} == {4}


def test_a_step_that_is_validated_anyway_is_validated_once(work: Work, validations: Script) -> None:
    validations(2.0, 1.5)
    told = work.pretrain(stop=after(8))
    assert [event.step.step for event in of_kind(told, StepCompleted) if event.validation] == [4, 8]
    assert "validation" not in session(work)
    assert ended(told).best_step == 8


@pytest.mark.parametrize("stops", [(5, 2, 1), (9, 2)])
def test_the_resumed_run_is_the_unbroken_one(work: Work, stops: tuple[int, ...]) -> None:
    """With the same checkpoints."""
    patient = (*SAMPLES, "evaluation.every=3", "evaluation.patience=2")
    assert_resumes_bit_for_bit(work, partial(work.pretrain, *patient), *stops)
    assert checkpoint_steps(work.run()) == checkpoint_steps(work.run("whole"))


def test_a_former_best_goes_also_after_a_kill_at_the_end(
    work: Work, validations: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the last validation is noted, and the best until then is still there."""

    class Killed(BaseException):
        pass

    def prune(folder: Path, spared: Collection[int], *others: int) -> None:
        if 12 in spared and json.loads((work.run() / "validated.json").read_text())["step"] == 12:
            raise Killed
        genuine(folder, spared, *others)

    genuine = saving.prune_checkpoints
    monkeypatch.setattr(saving, "prune_checkpoints", prune)
    validations(3.0, 2.0, 1.0)
    with pytest.raises(Killed):
        work.pretrain("checkpoint.keep_last=1")
    assert checkpoint_steps(work.run()) == [8, 12]
    (work.run() / "checkpoints" / ".tmp-step-000010").mkdir()
    monkeypatch.setattr(saving, "prune_checkpoints", genuine)
    assert Run.open(work.run()).state == "stopped"
    assert work.resume() == [RunAlreadyFinished(work.run(), 12, early=False)]
    assert Run.open(work.run()).state == "finished"
    assert [path.name for path in (work.run() / "checkpoints").iterdir()] == ["step-000012"]


def test_patience_does_not_count_it(work: Work, validations: Script) -> None:
    """Bad validations of five interruptions, each worse than the best, do not end a run with patience 2."""
    validations(3.0)
    work.pretrain("evaluation.patience=2", "training.steps=9", stop=after(1))
    for _ in range(2):
        validations(9.0, 9.0)
        work.resume(stop=after(1))
    validations(2.0, 9.0)
    work.resume(stop=after(3))
    validations(1.0, 1.0)
    last = ended(work.resume())
    assert (last.reason, last.step, last.best_step, last.best_value) == ("finished", 9, 8, 1.0)


def test_the_best_weights_are_used_until_it_is_resumed(work: Work, validations: Script) -> None:
    validations(2.0, 1.5)
    last = ended(work.pretrain(stop=after(7)))
    assert (last.reason, last.best_step, last.best_value) == ("interrupted", 7, 1.5)
    assert (load_run(str(work.run())).step, load_run(str(work.run())).reference.newest_step_after_best) == (7, None)
    summary = summarize_run(work.run())
    assert (summary.metric, summary.value, summary.part) == ("loss", 1.5, "validation")
    assert [saved.step for saved in summary.checkpoints if saved.best] == [7]
    assert (summary.valid_loss, summary.best_valid_loss) == (1.5, 1.5)
    assert RunHistory.from_run(Run.open(work.run())).summary()["best_loss"] == 1.5
    validations(1.8, 1.9)
    assert ended(work.resume()).best_step == 8
    assert load_run(str(work.run())).step == 8


def test_worse_weights_are_named_and_not_used(work: Work, validations: Script) -> None:
    validations(2.0, 2.5)
    last = ended(work.pretrain(stop=after(7)))
    assert (last.best_step, last.best_value) == (4, 2.0)
    loaded = load_run(str(work.run()))
    assert (loaded.step, loaded.reference.newest_step_after_best) == (4, 7)
    for step in (4, 7):
        assert load_run(f"{work.run()}@{step}").reference.newest_step_after_best is None


def test_a_loss_that_is_not_finite_is_never_the_best(work: Work, validations: Script) -> None:
    validations(float("nan"))
    assert ended(work.pretrain(stop=after(2))).best_step is None
    assert session(work)["validation"] == {"step": 2, "loss": None, "is_best": False}
    assert load_run(str(work.run())).step == 2


def test_a_validation_that_fails_leaves_the_step_saved(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(name="whole")
    with monkeypatch.context() as patch:
        patch.setattr(TextData, "validate", lambda *_: [][0])
        with pytest.raises(IndexError):
            work.pretrain(stop=after(3))
    assert checkpoint_steps(work.run())[-1] == 3
    assert Run.open(work.run()).state == "stopped"
    work.resume()
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)


# The optimizer state of a finished run


@pytest.mark.parametrize("patience", [None, 1])
def test_a_finished_run_drops_it(work: Work, validations: Script, patience: int | None) -> None:
    validations(2.0, 3.0, 3.0)
    last = ended(work.pretrain(DROPS, f"evaluation.patience={patience or 'null'}"))
    assert last.reason == ("early" if patience else "finished")
    kept = checkpoint_steps(work.run())
    assert kept == ([4, 6, 8] if patience else [4, 10, 12])
    assert optimizers(work) == []
    assert load_run(str(work.run())).step == 4
    assert all(not saved.problem for saved in summarize_run(work.run()).checkpoints)
    assert work.resume() == [RunAlreadyFinished(work.run(), kept[-1], early=patience is not None)]


def test_one_that_is_interrupted_keeps_it(work: Work) -> None:
    work.pretrain(DROPS, stop=after(6))
    assert optimizers(work) == [4, 6]
    work.pretrain(name="whole")
    work.resume()
    assert optimizers(work) == []
    assert weights(work, 12) == weights(work, 12, "whole")


def test_more_steps_start_it_anew_and_what_follows_is_resumed_exactly(work: Work) -> None:
    longer = ("training.steps=+8", "checkpoint.keep_optimizer=true")
    work.pretrain(name="kept")
    work.resume("training.steps=+8", name="kept")
    for name in ("run", "whole"):
        work.pretrain(DROPS, name=name)
    (warning,) = warnings_in(work.resume(*longer, name="whole"))
    assert "the optimizer state was removed when the run finished, and starts anew" in warning
    work.resume(*longer, stop=after(3))
    assert warnings_in(work.resume()) == []
    assert lasting(work.run(), 20) == lasting(work.run("whole"), 20)
    assert weights(work, 20) != weights(work, 20, "kept")
    assert [record["step"] for record in metrics(work.run())] == list(range(1, 21))


def test_carried_states_start_anew_too(work: Work) -> None:
    carried = ("model={kind: recurrent, d_model: 12, context: 8}", "training.carry_state=true")
    work.pretrain(*carried, DROPS)
    assert ended(work.resume("training.steps=+2")).step == 14


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_damaged_checkpoint_is_passed_over_and_refused_if_it_is_named(work: Work, is_lost: bool) -> None:
    """Also one whose optimizer state is lost while another has it: of a run that is not finished that is damage."""
    work.pretrain(name="whole")
    work.pretrain(stop=after(5))
    damaged = work.run() / "checkpoints" / "step-000005"
    if is_lost:
        (damaged / "optimizer.safetensors").unlink()
    else:
        flip_bit(damaged / "model.safetensors")
        with refuses("checkpoint") as caught:
            list(resume(str(damaged), (), work.session()))
        assert "model.safetensors" in str(caught.value)
    (warning,) = warnings_in(work.resume())
    assert "step-000005" in warning
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
