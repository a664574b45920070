"""What a change of the recipe does to a resumed run; tests/recipe/test_changes.py holds the rule of each key."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.changes import CHANGE_RULES, diff_recipes
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.directory import Run
from lmtool.runs.files import ValidationState
from lmtool.tasks.data import TableData
from lmtool.training.events import Info, RunAlreadyFinished
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    checkpoint_steps,
    ended,
    lasting,
    metrics,
    of_kind,
    read_metrics_json,
    write_table,
)

CHANGES = {
    "description": "again",
    "data.train": "moved-text.txt",
    "data.test": "moved-test.csv",
    "training.steps": "+2",
    "training.micro_batch": "2",
    "training.recompute": "layers",
    "evaluation.epochs": "1.0",
    "evaluation.tokens": "100",
    "evaluation.baseline": "true",
    "evaluation.interpolate": "false",
    "evaluation.num_beams": "2",
    "evaluation.patience": "100",
    "checkpoint.keep_optimizer": "false",
}
"""Another value of a key of each rule that allows changes."""

KINDS = {key: "table" for key in ("data.test", "evaluation.metric", "evaluation.epochs")}
KINDS["evaluation.num_beams"] = "pairs"
"""Keys that only runs on a table of classes, or of pairs, have; all others are tried on a text."""

STEPS = ("training.epochs=null", "evaluation.patience=null")


@dataclass
class Bases:
    """A folder with runs of 12 steps on a text, on classes and on pairs: finished, and stopped after 6."""

    work: Work

    def __post_init__(self) -> None:
        work = self.work
        rows = [f"the cat {'ran home' if i % 2 else 'sat'} {i % 5},{'ab'[i % 2]}" for i in range(40)]
        for name in ("train.csv", "valid.csv", "test.csv"):
            write_table(work.folder / name, rows)
        pairs = write_table(work.folder / "pairs.csv", rows, "source,target")
        for name in ("text.txt", "test.csv"):
            shutil.copy(work.folder / name, work.folder / f"moved-{name}")
        held_out = (f"data.valid={work.folder}/valid.csv", f"data.test={work.folder}/test.csv")
        classes = (*STEPS, *held_out, "objective={kind: classification, dropout: 0}")
        writer = (*STEPS, "model={kind: recurrent, shape: encoder-decoder, d_model: 8, context: 16}")
        for name, stop in (("finished", 100), ("stopped", 6)):
            work.pretrain("data.split=document", name=f"{name}-text", stop=after(stop))
            work.learn_table(work.recipe, work.folder / "train.csv", *classes, name=f"{name}-table", stop=after(stop))
            kind = "objective.kind=seq2seq"
            work.learn_table(work.recipe, pairs, *writer, kind, name=f"{name}-pairs", stop=after(stop))

    def of(self, key: str, name: str) -> Work:
        """A copy of the run that has a key, as the run of a folder of its own."""
        copy = Work(Path(tempfile.mkdtemp(dir=self.work.folder)))
        shutil.copytree(self.work.run(f"{name}-{KINDS.get(key, 'text')}"), copy.run())
        return copy

    def override(self, key: str) -> str:
        value = CHANGES[key]
        return f"{key}={self.work.folder / value if value.startswith('moved') else value}"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTOOL_RUNS", str(tmp_path_factory.mktemp("runs")))
        return Bases(Work(tmp_path_factory.mktemp("bases")))


def written(run: Path) -> Recipe:
    return load(run / "recipe.yaml").recipe


def test_what_may_not_change_is_refused_by_name(bases: Bases) -> None:
    """Also where the recipe was edited in the run."""
    work = bases.of("seed", "stopped")
    recipe = work.run() / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("dropout: 0.1", "dropout: 0.2"))
    before = lasting(work.run(), 6)
    with refuses("usage") as caught:
        work.resume("seed=2", "data.merge_labels={one: other}", "evaluation.every=2")
    for difference in ("model.dropout 0.1 -> 0.2", "seed 1 -> 2", "data.merge_labels"):
        assert difference in caught.value.what
    assert "evaluation.every" not in caught.value.what
    assert CHANGE_RULES["seed"].note in caught.value.fix
    assert lasting(work.run(), 6) == before


@pytest.mark.parametrize("key", CHANGES)
def test_what_may_change_is_written_and_trained_by(key: str, bases: Bases) -> None:
    work = bases.of(key, "stopped")
    before = written(work.run())
    told = work.resume(bases.override(key))
    differences = diff_recipes(before, written(work.run()))
    assert {key} <= differences.keys() <= {key, "evaluation.every"}
    assert differences.keys() <= {text.split()[0] for text in told[0].changes} | {"evaluation.every"}
    assert ended(told).step == written(work.run()).training.steps == (14 if key == "training.steps" else 12)
    state = json.loads((list_checkpoints(work.run() / "checkpoints")[-1][1] / "state.json").read_text())
    assert Recipe.model_validate(state["recipe"]) == written(work.run())


@pytest.mark.parametrize("key", CHANGES)
def test_what_may_change_of_a_finished_run_is_done_again_once(key: str, bases: Bases) -> None:
    """The same command then finds nothing to do, and nor does one without it."""
    work = bases.of(key, "finished")
    before = written(work.run())
    override = bases.override(key)
    told = work.resume(override)
    differences = diff_recipes(before, written(work.run()))
    assert differences.keys() <= {key, "evaluation.every"}
    without_effect = key == "evaluation.interpolate"  # the run has no baseline
    goes_on = key in ("training.steps", "evaluation.baseline") or (CHANGE_RULES[key].resets and not without_effect)
    assert isinstance(told[-1], RunAlreadyFinished) != bool(goes_on)
    if not goes_on:
        assert [event.text.split()[0] for event in of_kind(told[:-1], Info)] == [
            one for one in differences if one == key
        ]
    assert Run.open(work.run()).state == "finished"
    if key == "evaluation.num_beams":
        assert "beam" in (work.run() / "metrics.json").read_text()
    if key != "training.steps":
        assert isinstance(work.resume(override)[-1], RunAlreadyFinished)
    assert work.resume() == [RunAlreadyFinished(work.run(), written(work.run()).training.steps, early=False)]


def test_what_is_fitted_once_does_not_go_on(work: Work) -> None:
    rows = [f"the cat {'ran home' if i % 2 else 'sat'} {i % 5},{'ab'[i % 2]}" for i in range(12)]
    table = write_table(work.folder / "table.csv", rows)
    work.learn_table("linear", table, "optimizer.l2=1", "data.valid_fraction=0.2", "evaluation.baseline=false")
    assert work.resume() == [RunAlreadyFinished(work.run(), 1, early=False, can_go_on=False)]


# What each does


def noted(work: Work) -> ValidationState:
    found = Run.open(work.run()).last_validation
    assert found is not None
    return found


def accuracies(work: Work) -> dict[int, float]:
    return {record["step"]: record["accuracy"] for record in metrics(work.run()) if record["valid_loss"] is not None}


@pytest.mark.parametrize(("name", "begins"), [("stopped", 8), ("finished", 12)])
def test_another_metric_has_another_best(name: str, begins: int, bases: Bases) -> None:
    """A loss is no accuracy, whatever the two values are: what was validated by the old metric no longer counts."""
    work = bases.of("evaluation.metric", name)
    told = work.resume("evaluation.metric=accuracy")
    counted = {step: value for step, value in accuracies(work).items() if step >= begins}
    best = noted(work)
    assert (best.best_step, best.best_value) in counted.items()
    assert best.best_value == max(counted.values())
    assert (ended(told).metric, ended(told).best_step) == ("accuracy", best.best_step)
    assert Run.open(work.run()).find_best_or_newest_checkpoint()[0].step == best.best_step
    assert read_metrics_json(work.run())["step"] == best.best_step


@pytest.mark.parametrize("override", ["evaluation.metric=accuracy", "evaluation.tokens=100"])
def test_the_checkpoint_that_is_resumed_is_the_first_to_be_compared(override: str, bases: Bases) -> None:
    """Then nothing is, whatever it was by the old yardstick; and the old one again has its old best."""
    key = override.partition("=")[0]
    work = bases.of(key, "finished")
    old = noted(work)
    assert ended(work.resume(override)).step == 12
    assert (noted(work).best_step, noted(work).stale) == (12, 0)
    assert noted(work).best_value == (accuracies(work)[12] if "metric" in key else noted(work).best_loss)
    work.resume(f"{key}={'loss' if 'metric' in key else 200}")
    assert noted(work) == old


def test_patience_counts_by_the_new_metric(bases: Bases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and accuracy both rise here: patience runs out by the one, and never by the other."""
    work = bases.of("evaluation.metric", "stopped")
    later = iter(range(100))

    def validate(*given: Any) -> ValidationResult:
        n = next(later)
        return ValidationResult(1 + n / 100, {"accuracy": n / 100})

    monkeypatch.setattr(TableData, "validate", validate)
    told = work.resume("evaluation.tokens=50", "evaluation.patience=2", "evaluation.every=1")
    assert (ended(told).reason, ended(told).step) == ("early", 9)
    assert work.resume()[-1].early
    told = work.resume("evaluation.metric=accuracy")
    assert (ended(told).reason, ended(told).step, ended(told).best_step) == ("finished", 12, 12)


def test_what_is_kept_of_a_finished_run_follows_its_new_recipe(bases: Bases) -> None:
    work = bases.of("checkpoint.keep_last", "finished")
    steps = checkpoint_steps(work.run())
    work.resume("checkpoint.keep_last=1", "checkpoint.keep_optimizer=false")
    left = list_checkpoints(work.run() / "checkpoints")
    assert {step for step, _ in left} == {steps[-1], noted(work).best_step} < set(steps)
    assert not any(checkpoints.has_optimizer(path) for _, path in left)


def test_steps_are_no_fewer_than_those_that_are_done(bases: Bases) -> None:
    work = bases.of("training.steps", "stopped")
    with refuses("usage"):
        work.resume("training.steps=5")
    work.resume("training.steps=6")
    assert Run.open(work.run()).state == "finished"


def test_steps_that_are_edited_in_the_recipe_take_the_place_of_epochs(work: Work) -> None:
    table = write_table(work.folder / "table.csv", [f"the cat {i % 5},{'ab'[i % 2]}" for i in range(40)])
    classes = ("training.epochs=2", "objective={kind: classification, dropout: 0}")
    work.learn_table(work.recipe, table, *classes, stop=after(3))
    file = work.run() / "recipe.yaml"
    steps = written(work.run()).training.steps
    file.write_text(file.read_text().replace(f"steps: {steps}", f"steps: {steps + 5}", 1), encoding="utf-8")
    assert ended(work.resume()).step == steps + 5
    assert written(work.run()).training.epochs is None
