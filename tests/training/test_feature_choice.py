"""The features of a linear model that nobody names: chosen by cross-validation where words recur."""

import random
from pathlib import Path

import pytest

from lmtool.apps.sweeping.sweep import SharedRunArguments
from lmtool.data.survey import no_progress
from lmtool.recipe import finetuning as rules
from lmtool.recipe import resolve
from lmtool.recipe.load import parse_settings
from lmtool.recipe.spec.words import Averaging
from lmtool.training import convex, finetuning
from lmtool.training.finetuning import FEATURE_NAMES, plan_finetuning
from lmtool.training.plan import TrainingPlan
from tests.support.training import Work, write_table

MANY = 200
"""Rows among which features are compared here; elsewhere they are 500."""


@pytest.fixture
def folder(work: Work, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (rules, resolve, finetuning):
        monkeypatch.setattr(module, "FEW_ROWS", MANY)
    monkeypatch.setattr(convex, "N_DIVISIONS", 1)
    return work.folder


def table(path: Path, n_rows: int, telling: str) -> Path:
    """Rows of words that recur, and a name: its ending tells the class, or the order of two words does."""
    rng, lines = random.Random(0), []
    for _ in range(n_rows):
        label, stem = rng.choice("ab"), "".join(rng.choices("bdfgklmnprst", k=5))
        ending = {"a": "io", "b": "ou"}[label if telling == "ending" else rng.choice("ab")]
        fixed = "good old" if (label == "a" or telling == "ending") else "old good"
        lines.append(f"{stem}{ending} is a {fixed} friend,{label}")
    return write_table(path, lines)


def planned(path: Path | str, *settings: str, recipe: str | None = None) -> TrainingPlan:
    return plan_finetuning(None, recipe, parse_settings([f"data.train={path}", *settings]))


@pytest.mark.parametrize(
    ("telling", "best", "other"),
    [("ending", FEATURE_NAMES[1], FEATURE_NAMES[0]), ("order", FEATURE_NAMES[0], FEATURE_NAMES[1])],
)
def test_the_better_features_are_chosen_and_both_figures_are_told(
    folder: Path, telling: str, best: str, other: str
) -> None:
    plan = planned(table(folder / "rows.csv", MANY, telling), "model.buckets=2000")
    assert f"a linear model of {best} (chosen by cross-validation on 180 rows: loss " in plan.choice
    assert f", {other} " in plan.choice
    assert (plan.resolved.recipe.tokenizer.kind == "char") == (telling == "ending")


@pytest.mark.parametrize(("n_rows", "settings"), [(60, []), (MANY, ["data.valid_fraction=0"])])
def test_words_and_characters_are_taken_where_no_rows_are_held_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int, settings: list[str]
) -> None:
    """A score by cross-validation is then of all that was chosen."""
    monkeypatch.delattr(finetuning, "compute_cross_validated_head_losses")
    plan = planned(table(folder / "rows.csv", n_rows, "order"), *settings)
    assert f"a linear model of {FEATURE_NAMES[1]} (" in plan.choice
    assert isinstance(plan.resolved.recipe.model, Averaging)
    assert plan.resolved.recipe.model.word_buckets


def test_many_classes_take_words(folder: Path) -> None:
    """Characters of them would take minutes."""
    words = "word " * 100
    path = write_table(folder / "rows.csv", (f"{words} of the class {i},c{i % 400}" for i in range(1200)))
    assert f"a linear model of {FEATURE_NAMES[0]} is trained" in planned(path).choice


def test_features_or_a_recipe_that_are_named_are_taken(folder: Path) -> None:
    path = table(folder / "rows.csv", MANY, "ending")
    for setting in ("tokenizer.kind=char", "model.ngrams=1"):
        assert "cross-validation" not in planned(path, setting).choice
    plan = planned(path, recipe="linear")
    assert (plan.choice, plan.resolved.recipe.tokenizer.kind) == ("", "word")


def test_a_pretrained_last_run_is_suggested_instead_and_a_classifier_is_not(work: Work) -> None:
    path = table(work.folder / "rows.csv", 20, "ending")
    work.pretrain("training.steps=1", name="runs/first")
    assert "--from last fine-tunes first, a " in planned(path).choice
    work.finetune("training.steps=1", "data.valid_fraction=0.2", source=work.run("runs/first"), name="runs/second")
    assert "--from last" not in planned(path).choice


def test_a_sweep_chooses_once_and_trains_what_a_run_alone_would(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(table(folder / "rows.csv", MANY, "ending"))
    alone = planned(path, "model.buckets=2000", "seed=2")
    stages = []
    typed = SharedRunArguments([path], None, None, ["model.buckets=2000"])
    typed, told = typed.resolve_for_all_runs({"seed": ["1", "2"]}, lambda *progress: stages.append(progress))
    assert stages == [("choosing features", 0, 2), ("choosing features", 1, 2)]
    monkeypatch.delattr(finetuning, "compute_cross_validated_head_losses")
    assert typed.resolve_recipe({"seed": "2"}).model_dump() == alone.resolved.recipe.model_dump()
    words = typed.build_command({"seed": "2"})
    assert words[:3] == ["lmtool", "finetune", path]
    assert planned(path, *words[4::2]).resolved.recipe == alone.resolved.recipe
    assert told.partition(" (")[0] == alone.choice.partition(" (")[0]


def test_a_sweep_over_features_chooses_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(finetuning, "compute_cross_validated_head_losses")
    arguments = SharedRunArguments([str(table(folder / "rows.csv", MANY, "ending"))], None, None, [])
    typed, _ = arguments.resolve_for_all_runs({"model.ngrams": ["1", "2"]}, no_progress)
    assert typed.fixed_settings == []


def test_a_linear_model_whose_head_is_fitted_is_not_said_to_be_trained_whole(work: Work) -> None:
    rows = [f"a {word} play {i},{word}" for i in range(10) for word in ("good", "bad")]
    path = write_table(work.folder / "t.csv", rows)
    work.learn_table("linear", path, "optimizer.l2=1", "data.valid_fraction=0.2", "evaluation.baseline=false")
    plan = plan_finetuning(str(work.run()), None, parse_settings([f"data.train={path}"]))
    assert "weights" not in plan.choice


@pytest.mark.parametrize("recipe", [None, "linear"])
def test_a_sweep_compares_settings_on_rows_that_are_held_out(folder: Path, recipe: str | None) -> None:
    path = str(table(folder / "rows.csv", 100, "ending"))
    assert not planned(path, recipe=recipe).resolved.recipe.data.holds_out
    axes = {"optimizer.l2": ["0.1", "10"]}
    typed, told = SharedRunArguments([path], None, recipe, []).resolve_for_all_runs(axes, no_progress)
    assert typed.resolve_recipe({}).data.valid_fraction == 0.25
    assert told.splitlines()[-1].startswith("a quarter of the rows is held out, to compare settings")
    for fixed in (["data.valid_fraction=0"], [f"data.valid=[{path}]"]):
        named, told = SharedRunArguments([path], None, recipe, fixed).resolve_for_all_runs(axes, no_progress)
        assert named.fixed_settings[-1:] == fixed
        assert "a quarter" not in told
