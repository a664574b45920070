"""Validations: of interrupted runs, that fail or are not finite; and what is left of a run when it is finished."""

import json
import math
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmtool.evaluation.loop import ValidationResult
from lmtool.runs import saving
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.directory import Run
from lmtool.runs.history import RunHistory
from lmtool.runs.listing import summarize_run
from lmtool.runs.load import load_run
from lmtool.tasks.data import TableData
from lmtool.training import samples
from lmtool.training.checkpoint_manager import TrainerState
from lmtool.training.data import TextData
from lmtool.training.events import RunAlreadyFinished, SampleGenerated, StepCompleted, TrainingStarted
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
    read_metrics_json,
    step_numbers,
    warnings_in,
    words,
    write_table,
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


def test_the_last_step_of_an_interrupted_run_is_validated_and_told(work: Work) -> None:
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
    patient = (*SAMPLES, "evaluation.every=3", "evaluation.patience=2", "training.micro_batch=3")
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


def test_patience_does_not_count_validations_of_interruptions(work: Work, validations: Script) -> None:
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
def test_a_finished_run_drops_its_optimizer_state(work: Work, validations: Script, patience: int | None) -> None:
    validations(2.0, 3.0, 3.0)
    last = ended(work.pretrain(DROPS, f"evaluation.patience={patience or 'null'}"))
    assert last.reason == ("early" if patience else "finished")
    kept = checkpoint_steps(work.run())
    assert kept == ([4, 6, 8] if patience else [4, 10, 12])
    assert optimizers(work) == []
    assert load_run(str(work.run())).step == 4
    assert all(not saved.problem for saved in summarize_run(work.run()).checkpoints)
    assert work.resume() == [RunAlreadyFinished(work.run(), kept[-1], early=patience is not None)]


def test_an_interrupted_run_keeps_its_optimizer_state(work: Work) -> None:
    work.pretrain(DROPS, stop=after(6))
    assert optimizers(work) == [4, 6]
    work.pretrain(name="whole")
    work.resume()
    assert optimizers(work) == []
    assert weights(work, 12) == weights(work, 12, "whole")


def test_more_steps_begin_with_a_new_optimizer_state_and_what_follows_is_resumed_exactly(work: Work) -> None:
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


def test_carried_states_begin_anew_after_a_finished_run(work: Work) -> None:
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


class Broken(Exception):
    """An unexpected error."""


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the validation of this number fail, the first being 1."""
    genuine = TextData.validate

    def fail(number: int) -> None:
        coming = iter(range(1, 100))

        def validate(*arguments: Any) -> ValidationResult:
            if next(coming) == number:
                raise Broken("no validation today")
            return genuine(*arguments)

        monkeypatch.setattr(TextData, "validate", validate)

    return fail


def test_a_validation_that_fails_loses_no_step(work: Work, fails: Callable[[int], None]) -> None:
    """Its step is saved, and a resumed run begins with it, as often as it fails; then all is as without the failure."""
    work.pretrain(*SAMPLES, name="whole")
    fails(2)
    with pytest.raises(Broken):
        work.pretrain(*SAMPLES)
    assert list_checkpoints(work.run() / "checkpoints")[-1][0] == 8
    assert [record["step"] for record in metrics(work.run())] == list(range(1, 8))
    assert Run.open(work.run()).state == "stopped"
    fails(1)
    with pytest.raises(Broken):
        work.resume()
    fails(99)
    told = work.resume()
    assert step_numbers(told) == list(range(9, 13))
    assert [event.step for event in of_kind(told, SampleGenerated)][:2] == [8, 8], "it was validated first"
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)


def test_patience_that_runs_out_in_a_validation_that_is_done_again(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = ("evaluation.patience=1", "training.steps=12")

    def say(*losses: float | None) -> None:
        said = iter(losses)

        def validate(*_: Any) -> ValidationResult:
            if (loss := next(said)) is None:
                raise Broken
            return ValidationResult(loss)

        monkeypatch.setattr(TextData, "validate", validate)

    say(5.0, 9.0)
    whole = ended(work.pretrain(*patient, name="whole"))
    say(5.0, None)
    with pytest.raises(Broken):
        work.pretrain(*patient)
    say(9.0)
    assert ended(work.resume()) == whole
    assert (whole.reason, whole.step, whole.best_step) == ("early", 8, 4)
    assert work.resume() == [RunAlreadyFinished(work.run(), 8, early=True)]


def test_samples_that_fail_are_told_and_change_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(name="whole")

    def complete(*_: Any, **options: Any) -> Any:
        raise Broken("no words\nat all")

    monkeypatch.setattr(samples, "complete", complete)
    told = work.pretrain(*SAMPLES)
    assert warnings_in(told) == [f"no samples at step {step}: no words" for step in (4, 8, 12)]
    found, expected = lasting(work.run(), 12), lasting(work.run("whole"), 12)
    del found["state"]["recipe"], expected["state"]["recipe"]
    assert found == expected


# Values that are not finite


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_the_best(work: Work, validations: Script, bad: float) -> None:
    validations(3.0, bad, 2.0, bad)
    told = work.pretrain("evaluation.every=3", "checkpoint.keep_last=1")
    assert [text for text in warnings_in(told) if "rises" not in text] == [
        f"the validation loss of step {step} is {bad}, which cannot be the best" for step in (6, 12)
    ]
    assert (ended(told).best_step, ended(told).best_value) == (9, 2.0)
    assert [event.is_best for event in of_kind(told, StepCompleted) if event.validation] == [1, 0, 1, 0]
    assert load_run(str(work.run())).step == 9
    assert [record["valid_loss"] for record in metrics(work.run())][2::3] == [3.0, None, 2.0, None]


def test_of_equal_accuracies_the_lower_loss_is_the_best() -> None:
    """Also after the state of the best has been read from a checkpoint."""
    state = TrainerState()
    said = [(0.5, 1.0), (0.5, 1.1), (0.5, 0.9), (0.4, 0.1), (0.6, 2.0), (0.6, math.nan), (0.6, 2.0)]
    best = []
    for step, (accuracy, loss) in enumerate(said):
        best.append(state.update_best(step, ValidationResult(loss, {"accuracy": accuracy}), "accuracy"))
        state = TrainerState(**json.loads(json.dumps(state.model_dump())))
    assert best == [True, False, True, False, True, False, False]
    assert (state.best_step, state.best_value, state.stale) == (4, 0.6, 2)


# The final evaluation


def test_figures_of_shorter_training_do_not_stand_for_those_of_longer(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is trained longer, and killed before it is evaluated again."""
    longer = "training.steps=16"
    table = write_table(work.folder / "classes.csv", (f"the cat {words(i % 7)},{'ab'[i % 2]}" for i in range(60)))
    classes = ("objective.kind=classification", "training.epochs=null", "data.valid_fraction=0.2")
    work.learn_table(work.recipe, table, *classes)
    with monkeypatch.context() as patch:
        patch.setattr(TableData, "compute_results", lambda *_: [][0])
        with pytest.raises(IndexError):
            work.resume(longer)
    work.resume(longer)
    record = read_metrics_json(work.run())
    best = json.loads((work.run() / "validated.json").read_text())["best_step"]
    assert record["step"] == best
    assert best > 12 or record["loss"] == pytest.approx(metrics(work.run())[best - 1]["valid_loss"])
    assert work.resume(longer) == [RunAlreadyFinished(work.run(), 16, early=False)]


# Heads without a loss

IDLE = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1, "
    "next_sentence_head: true, n_segments: 2}",
    "objective={kind: masked, next_sentence: false}",
)


def test_a_head_without_a_loss_does_not_learn(work: Work) -> None:
    work.pretrain(*IDLE, "checkpoint.keep_last=9", name="whole")
    first, last = (load_run(f"{work.run('whole')}@{step}").model.state_dict() for step in (2, 12))
    heads = {name for name in first if name.startswith(("pooler.", "next_sentence."))}
    assert len(heads) == 4
    assert {name for name in first if bool((first[name] == last[name]).all())} == heads
    told = work.pretrain(*IDLE, "checkpoint.keep_last=9", stop=after(5))
    (plan,) = of_kind(told, TrainingStarted)
    assert plan.parameters - plan.learning == sum(first[name].numel() for name in heads)
    work.resume()
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
