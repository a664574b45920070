"""The features of a linear model that nobody names: chosen by cross-validation where words recur."""

import random
from pathlib import Path

import pytest

from lmtool.apps.sweeping.sweep import SharedRunArguments
from lmtool.data.survey import no_progress
from lmtool.recipe.load import parse_settings
from lmtool.training import finetuning
from lmtool.training.convex import ChosenPenalty, HeadFittingProblem
from lmtool.training.finetuning import FEATURE_NAMES, plan_finetuning
from lmtool.training.plan import TrainingPlan
from tests.support.training import Work, write_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path


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
    path = table(folder / "rows.csv", 600, telling)
    plan = planned(path, "model.buckets=2000")
    assert f"a linear model of {best} (chosen by cross-validation on 540 rows: loss " in plan.choice
    assert f", {other} " in plan.choice
    assert (plan.resolved.recipe.tokenizer.kind == "char") == (telling == "ending")


@pytest.mark.parametrize(("losses", "best"), [((0.7, 0.69), 1), ((0.7, 0.71), 0)])
def test_the_features_of_the_least_loss_are_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[float, float], best: int
) -> None:
    path, left = table(folder / "rows.csv", 600, "ending"), list(losses)
    monkeypatch.setattr(
        HeadFittingProblem, "choose_penalty", lambda *_: ChosenPenalty(1.0, from_naive_bayes=True, loss=left.pop(0))
    )
    plan = planned(path, "model.buckets=2000")
    assert f"a linear model of {FEATURE_NAMES[best]} (chosen by cross-validation on " in plan.choice


@pytest.mark.parametrize(("n_rows", "settings"), [(60, []), (600, ["data.valid_fraction=0"])])
def test_words_and_characters_are_taken_where_no_rows_are_held_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int, settings: list[str]
) -> None:
    """A score by cross-validation is then of all that was chosen."""
    path = table(folder / "rows.csv", n_rows, "order")
    monkeypatch.delattr(finetuning, "compute_cross_validated_head_losses")
    plan = planned(path, *settings)
    assert f"a linear model of {FEATURE_NAMES[1]} (" in plan.choice
    assert plan.resolved.recipe.model.word_buckets


def test_many_classes_take_words(folder: Path) -> None:
    """Characters of them would take minutes."""
    path, words = folder / "rows.csv", "word " * 100
    path.write_text("text,label\n" + "".join(f"{words} of the class {i},c{i % 400}\n" for i in range(1200)))
    plan = planned(path)
    assert f"a linear model of {FEATURE_NAMES[0]} is trained" in plan.choice


def test_features_or_a_recipe_that_are_named_are_taken(folder: Path) -> None:
    path = table(folder / "rows.csv", 600, "ending")
    for setting in ("tokenizer.kind=char", "model.ngrams=1"):
        assert "cross-validation" not in planned(path, setting).choice
    plan = planned(path, recipe="linear")
    assert (plan.choice, plan.resolved.recipe.tokenizer.kind) == ("", "word")


@pytest.mark.parametrize("telling", ["ending", "order"])
def test_a_sweep_chooses_once_and_trains_what_a_run_alone_would(
    folder: Path, monkeypatch: pytest.MonkeyPatch, telling: str
) -> None:
    path = str(table(folder / "rows.csv", 600, telling))
    alone = planned(path, "model.buckets=2000", "seed=2")
    stages = []
    typed = SharedRunArguments([path], None, None, ["model.buckets=2000"])
    typed, told = typed.resolve_for_all_runs({"seed": ["1", "2"]}, lambda *progress: stages.append(progress))
    assert stages == [("choosing features", 0, 2), ("choosing features", 1, 2)]
    monkeypatch.delattr(finetuning, "compute_cross_validated_head_losses")
    assert typed.resolve_recipe({"seed": "2"}).model_dump() == alone.resolved.recipe.model_dump()
    words = typed.build_command({"seed": "2"})
    assert words[:3] == ["lmtool", "finetune", path]
    again = planned(path, *words[4::2])
    assert again.resolved.recipe == alone.resolved.recipe
    assert told.partition(" (")[0] == alone.choice.partition(" (")[0]


def test_a_sweep_over_features_chooses_none(folder: Path) -> None:
    path = str(table(folder / "rows.csv", 600, "ending"))
    typed, _ = SharedRunArguments([path], None, None, []).resolve_for_all_runs(
        {"model.ngrams": ["1", "2"]}, pytest.fail
    )
    assert typed.fixed_settings == []


def test_a_linear_model_whose_head_is_fitted_is_not_said_to_be_trained_whole(tmp_path: Path) -> None:
    rows = [f"a {word} play {i},{word}" for i in range(100) for word in ("good", "bad")]
    path, work = write_table(tmp_path / "t.csv", rows), Work(tmp_path / "work")
    work.learn_table("linear", path)
    plan = plan_finetuning(str(work.run()), None, parse_settings([f"data.train={path}"]))
    assert "weights" not in plan.choice


@pytest.mark.parametrize("recipe", [None, "linear"])
def test_a_sweep_compares_settings_on_rows_that_are_held_out(folder: Path, recipe: str | None) -> None:
    path = str(table(folder / "rows.csv", 200, "ending"))
    assert not planned(path, recipe=recipe).resolved.recipe.data.holds_out
    axes = {"optimizer.l2": ["0.1", "10"]}
    typed, told = SharedRunArguments([path], None, recipe, []).resolve_for_all_runs(axes, no_progress)
    assert typed.resolve_recipe({}).data.valid_fraction == 0.25
    assert told.splitlines()[-1].startswith("a quarter of the rows is held out, to compare settings")
    for fixed in (["data.valid_fraction=0"], [f"data.valid=[{path}]"]):
        named, told = SharedRunArguments([path], None, recipe, fixed).resolve_for_all_runs(axes, no_progress)
        assert named.fixed_settings[-1:] == fixed
        assert "a quarter" not in told
