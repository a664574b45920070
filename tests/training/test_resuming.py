"""What a change of the recipe does to a run that is resumed: each key of the table, on a text and on a table."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import LmtoolError, UsageError
from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.changes import CHANGE_RULES, diff_recipes
from lmtool.recipe.load import load, parse_settings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.directory import Run
from lmtool.runs.files import ValidationState
from lmtool.tasks.data import TableData
from lmtool.training import finetuning, train
from lmtool.training.events import Info, RunAlreadyFinished
from tests.support.cases import nightly_but
from tests.support.cli import CommandLine
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

ANEW = {
    "description": "again",
    "seed": "2",
    "model": "{dropout: 0.3}",
    "objective": "{label_smoothing: 0.3}",
    "tokenizer": "{sample_mb: 3}",
    "data.train": "MOVED",
    "data.mixture": "{a.txt: 1}",
    "data.valid": "MOVED",
    "data.column": "other",
    "data.source_column": "other",
    "data.target_column": "other",
    "data.input_column": "other",
    "data.messages_column": "other",
    "data.text_columns": "other",
    "data.label_column": "other",
    "data.test": "MOVED",
    "data.tasks": "a:b.csv",
    "data.task_tests": "MOVED",
    "data.encoding": "latin-1",
    "data.delimiter": ";",
    "data.skip_bad_rows": "true",
    "data.merge_labels": "{one: other}",
    "data.documents": "line",
    "data.split": "slice",
    "data.valid_fraction": "0.3",
    "data.isolate_documents": "true",
    "data.stream": "true",
    "training.steps": "+2",
    "training.epochs": "3",
    "training.min_steps": "30",
    "training.tokens": "3000",
    "training.minutes": "3",
    "training.batch_size": "4",
    "training.micro_batch": "2",
    "training.device": "auto",
    "training.precision": "auto",
    "training.clip_norm": "2.0",
    "training.micro_tokens": "64",
    "training.carry_state": "true",
    "training.recompute": "layers",
    "training.shard": "none",
    "training.compile": "false",
    "tuning": "{layer_decay: 0.5}",
    "distillation": "{weight: 0.3}",
    "optimizer": "{lr: 0.5}",
    "schedule": "{warmup_steps: 1}",
    "evaluation.every": "2",
    "evaluation.epochs": "1.0",
    "evaluation.tokens": "100",
    "evaluation.metric": "accuracy",
    "evaluation.baseline": "true",
    "evaluation.interpolate": "false",
    "evaluation.gradient_norms": "true",
    "evaluation.num_beams": "2",
    "evaluation.patience": "100",
    "evaluation.prompts": "[the cat]",
    "evaluation.sample_tokens": "3",
    "checkpoint.every": "1",
    "checkpoint.keep_last": "5",
    "checkpoint.keep_optimizer": "false",
    "checkpoint.background": "true",
    "logging": "[tensorboard]",
}
"""Another value of each key; MOVED stands for a copy of the file."""

OF_TABLES = {"data.test", "evaluation.metric", "evaluation.epochs"}
OF_TASKS = {"data.task_tests", "evaluation.num_beams"}
"""Keys that only runs on a table, and on several, have; all others are tried on a text."""

FREE = [key for key, rule in CHANGE_RULES.items() if rule.may_change]
FIXED = [key for key in CHANGE_RULES if key not in FREE]
STEPS = ("training.epochs=null", "evaluation.patience=null", "objective.dropout=0")


@dataclass
class Bases:
    """A folder with runs of 12 steps on a text, on a table and on two tables: finished, and stopped after 6."""

    work: Work

    def __post_init__(self) -> None:
        work = self.work
        rows = [f"the cat {'ran home' if i % 2 else 'sat'} {i % 5},{'ab'[i % 2]}" for i in range(40)]
        for name in ("train.csv", "valid.csv", "test.csv"):
            write_table(work.folder / name, rows)
            write_table(work.folder / f"pairs-{name}", rows, "source,target")
        held_out = (f"data.valid={work.folder}/valid.csv", f"data.test={work.folder}/test.csv")
        pairs = f"{work.folder}/pairs-train.csv"
        tests = (f"data.task_tests=[a:{work.folder}/pairs-test.csv]",)
        writer = "model={kind: recurrent, shape: encoder-decoder, d_model: 8, context: 16}"
        for name, stop in (("finished", 100), ("stopped", 6)):
            work.pretrain("data.split=document", name=f"{name}-text", stop=after(stop))
            classes = (*STEPS, *held_out, "objective.kind=classification")
            work.learn_table(work.recipe, work.folder / "train.csv", *classes, name=f"{name}-table", stop=after(stop))
            scratch = (*STEPS[:2], *tests, f"data.tasks=[a:{pairs}, b:{pairs}]", writer, "objective.kind=seq2seq")
            plan = finetuning.plan_finetuning(None, str(work.recipe), parse_settings(scratch))
            told = train.train(plan, work.session(f"{name}-tasks", after(stop)))
            assert list(told)

    def of(self, key: str, name: str) -> Work:
        """A copy of the run that has a key, as the run of a folder of its own."""
        kind = "table" if key in OF_TABLES else "tasks" if key in OF_TASKS else "text"
        folder = self.work.folder / "copies"
        folder.mkdir(exist_ok=True)
        copy = Work(Path(tempfile.mkdtemp(dir=folder)))
        shutil.copytree(self.work.run(f"{name}-{kind}"), copy.run())
        return copy

    def moved(self, key: str) -> str:
        """The value of a key whose file is elsewhere."""
        name = {"data.train": "text.txt", "data.test": "test.csv", "data.task_tests": "pairs-test.csv"}.get(key)
        if name is None:
            return "[]"
        return ("a:" if key == "data.task_tests" else "") + str(
            shutil.copy(self.work.folder / name, self.work.folder / f"moved-{name}")
        )

    def override(self, key: str) -> str:
        return f"{key}={self.moved(key) if ANEW[key] == 'MOVED' else ANEW[key]}"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTOOL_RUNS", str(tmp_path_factory.mktemp("runs")))
        return Bases(Work(tmp_path_factory.mktemp("bases")))


def written(run: Path) -> Recipe:
    return load(run / "recipe.yaml").recipe


def saved(run: Path) -> dict[str, Any]:
    """The state in the newest checkpoint."""
    _, newest = list_checkpoints(run / "checkpoints")[-1]
    state: dict[str, Any] = json.loads((newest / "state.json").read_text())
    return state


def test_every_rule_is_tested() -> None:
    assert ANEW.keys() == CHANGE_RULES.keys()


@pytest.mark.parametrize("key", nightly_but(FIXED, "seed", "data.merge_labels"))
def test_what_may_not_change_is_refused_by_name(
    key: str, bases: Bases, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = bases.of(key, "stopped")
    before = lasting(work.run(), 6)
    with pytest.raises(LmtoolError) as caught:
        work.resume(bases.override(key))
    assert caught.value.exit_code == 2
    assert key in "\n".join(caught.value.lines())
    if isinstance(caught.value, UsageError):
        assert CHANGE_RULES[key].note in caught.value.fix
    CommandLine(capsys, monkeypatch).refuses(2, "resume", work.run(), "-s", bases.override(key), words=[key])
    assert lasting(work.run(), 6) == before


@pytest.mark.parametrize("key", nightly_but(FREE, "description", "evaluation.epochs"))
def test_what_may_change_is_written_and_trained_by(key: str, bases: Bases) -> None:
    work = bases.of(key, "stopped")
    before = written(work.run())
    override = bases.override(key)
    told = work.resume(override)
    differences = diff_recipes(before, written(work.run()))
    expected = {key} - {"data.valid", "training.device", "training.precision"}
    assert expected <= differences.keys() <= {key, "evaluation.every"}
    assert differences.keys() <= {text.split()[0] for text in told[0].changes} | {"evaluation.every"}
    assert ended(told).step == written(work.run()).training.steps
    assert Recipe.model_validate(saved(work.run())["recipe"]) == written(work.run())


@pytest.mark.parametrize("key", nightly_but(FREE, "description", "evaluation.epochs"))
def test_so_it_is_where_the_run_is_finished(key: str, bases: Bases) -> None:
    """What has to be done again is done; the same command then finds nothing to do, and nor does one without it."""
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
    if key != "training.steps":
        assert isinstance(work.resume(override)[-1], RunAlreadyFinished)
    assert work.resume() == [RunAlreadyFinished(work.run(), written(work.run()).training.steps, early=False)]


def test_what_is_fitted_once_does_not_go_on(work: Work) -> None:
    rows = [f"the cat {'ran home' if i % 2 else 'sat'} {i % 5},{'ab'[i % 2]}" for i in range(40)]
    work.learn_table("linear", write_table(work.folder / "table.csv", rows))
    assert work.resume() == [RunAlreadyFinished(work.run(), 1, early=False, can_go_on=False)]


@pytest.mark.parametrize(("name", "tells"), [("stopped", True), ("finished", False)])
def test_more_steps_of_a_stopped_run_count_from_its_planned_end(bases: Bases, name: str, tells: bool) -> None:
    told = bases.of("training.steps", name).resume("training.steps=+3")
    (change,) = (change for change in told[0].changes if change.startswith("training.steps"))
    assert change.startswith("training.steps 12 -> 15")
    assert ("6 steps" in change) == tells


# What each does


def noted(work: Work) -> ValidationState:
    found = Run.open(work.run()).last_validation
    assert found is not None
    return found


def validations(work: Work, key: str) -> dict[int, float]:
    return {record["step"]: record[key] for record in metrics(work.run()) if record["valid_loss"] is not None}


@pytest.mark.parametrize("name", ["stopped", "finished"])
def test_another_metric_has_another_best(name: str, bases: Bases) -> None:
    """A loss is no accuracy, whatever the two values are: what was validated by the old metric no longer counts."""
    work = bases.of("evaluation.metric", name)
    begins = {"stopped": 8, "finished": 12}[name]
    told = work.resume("evaluation.metric=accuracy")
    counted = {step: value for step, value in validations(work, "accuracy").items() if step >= begins}
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
    assert noted(work).best_value == (validations(work, "accuracy")[12] if "metric" in key else noted(work).best_loss)
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


@pytest.mark.slow
def test_another_beam_width_scores_the_best_checkpoint_anew(bases: Bases) -> None:
    work = bases.of("evaluation.num_beams", "finished")
    before = noted(work)
    work.resume("evaluation.num_beams=2")
    assert "beam" in (work.run() / "metrics.json").read_text()
    assert noted(work) == before


def test_what_is_kept_of_a_finished_run_follows_its_new_recipe(bases: Bases) -> None:
    work = bases.of("checkpoint.keep_last", "finished")
    steps = checkpoint_steps(work.run())
    work.resume("checkpoint.keep_last=1", "checkpoint.keep_optimizer=false")
    left = list_checkpoints(work.run() / "checkpoints")
    assert {step for step, _ in left} == {steps[-1], noted(work).best_step} < set(steps)
    assert not any(checkpoints.has_optimizer(path) for _, path in left)


def test_steps_are_no_fewer_than_those_that_are_done(bases: Bases) -> None:
    work = bases.of("training.steps", "stopped")
    with pytest.raises(UsageError, match="has done 6 steps"):
        work.resume("training.steps=5")
    work.resume("training.steps=6")
    assert Run.open(work.run()).state == "finished"


def test_steps_that_are_edited_in_the_recipe_take_the_place_of_epochs(work: Work) -> None:
    rows = [f"the cat {i % 5},{'ab'[i % 2]}" for i in range(40)]
    table = write_table(work.folder / "table.csv", rows)
    classes = ("training.epochs=2", "objective={kind: classification, dropout: 0}")
    work.learn_table(work.recipe, table, *classes, stop=after(3))
    file = work.run() / "recipe.yaml"
    steps = written(work.run()).training.steps
    file.write_text(file.read_text().replace(f"steps: {steps}", f"steps: {steps + 5}", 1), encoding="utf-8")
    assert ended(work.resume()).step == steps + 5
