"""Runs whose validation or samples fail, or whose results are not finite."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.load import load
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from lmtool.tasks.data import TableData
from lmtool.training import samples
from lmtool.training.checkpoint_manager import TrainerState
from lmtool.training.data import TextData
from lmtool.training.events import RunAlreadyFinished, SampleGenerated, StepCompleted, TrainingStarted
from tests.support.training import (
    Work,
    after,
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


def test_a_correlation_with_equal_answers_is_never_the_best(work: Work) -> None:
    """The newest checkpoint is used then; patience runs out as usual."""
    valid = write_table(work.folder / "valid.csv", ["a cat,1.5", "a cat,2.5"])
    table = write_table(work.folder / "numbers.csv", (f"{words(3, i)},{2.5 * (i % 4)}" for i in range(40)))
    numbers = ("objective={kind: classification, task: number, dropout: 0}", "evaluation.metric=correlation")
    settings = (*numbers, "training.epochs=null", f"data.valid={valid}", "evaluation.patience=2")
    told = work.learn_table(work.recipe, table, *settings)
    assert [text for text in warnings_in(told) if "is nan" in text] == [
        f"the validation correlation of step {step} is nan, which cannot be the best" for step in (4, 8)
    ]
    assert (ended(told).reason, ended(told).step) == ("early", 8)
    assert (ended(told).best_step, ended(told).best_value) == (None, None)
    assert load_run(str(work.run())).step == 8
    record = read_metrics_json(work.run())
    assert (record["step"], record["pearson"], record["rows"]) == (8, None, 2)
    last = ended(work.resume("evaluation.patience=null"))
    assert (last.reason, last.step, last.best_step) == ("finished", 12, None)


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


def test_a_checkpoint_that_was_the_best_goes_when_another_is(work: Work) -> None:
    """Also where the better one is the last."""
    work.pretrain("checkpoint.keep_last=1", "evaluation.every=1", "optimizer.lr=0.02")
    best = json.loads((work.run() / "validated.json").read_text())["best_step"]
    assert set(checkpoint_steps(work.run())) == {best, 12}


# Heads without a loss

IDLE = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1, "
    "next_sentence_head: true, n_segments: 2}",
    "objective={kind: masked, next_sentence: false}",
)


def test_a_head_that_nothing_is_asked_of_does_not_learn(work: Work) -> None:
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


def test_such_a_head_is_no_weight_to_carry_on(work: Work) -> None:
    """Weight decay and momentum do not change it, and a run initialized from it has it."""
    work.pretrain(*IDLE, "optimizer={kind: adam, lr: 0.01, weight_decay: 0.5}", "training.steps=4", name="base")
    work.finetune("data.valid_fraction=0.2", "training.steps=2", source=work.run("base"))
    before, now = (load_run(str(work.run(name))).model.state_dict() for name in ("base", "tuned"))
    for name in ("pooler.weight", "next_sentence.bias"):
        assert bool((before[name] == now[f"body.{name}"]).all())
    assert load(work.run("tuned") / "recipe.yaml").recipe.objective.kind == "classification"
