"""`lmtool finetune`: tables of each kind, what it prints, several seeds, and adapters."""

import json
import shutil
from pathlib import Path

import pytest

from lmtool.recipe.load import load, parse_settings
from lmtool.runs.directory import Run
from lmtool.training.finetuning import plan_finetuning
from tests.support.cli import CommandLine, film_rows, settings, write_table

QUICK = (*settings(training_steps=2, training_epochs="null", evaluation_every=2), "-s", "training.device=cpu")
LINEAR = ("-r", "linear", "-s", "model.buckets=5000", "-s", "training.device=cpu")
UNTRAINED = (*settings(training_steps=1, optimizer_lr=1e-9, model_log_ratios="false", model_buckets=500),)
"""A linear model that has learnt nothing, and does not begin with naive Bayes."""


@pytest.fixture
def films(home: Path) -> str:
    write_table(home / "films.csv", film_rows(100))
    write_table(home / "test.csv", [(f"{text} again", label) for text, label in film_rows(20)])
    return "films.csv"


def results(run: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(run) / "metrics.json").read_text())
    return found


def test_a_linear_model_is_not_advised_to_be_one(lmtool: CommandLine, films: str) -> None:
    out = lmtool.succeeds("finetune", films, "-r", "linear", *UNTRAINED).out
    (advice,) = (line.partition("% is below it")[2] for line in out.splitlines() if "; this model " in line)
    assert "--from hf:" in advice
    assert "more --epochs" in advice
    assert "linear" not in advice


def test_what_is_trained_is_the_same_whatever_was_trained_before(run: Path, films: str) -> None:
    """A run that could be fine-tuned is so only if it is named."""
    settings = parse_settings(["data.train=films.csv"])
    planned = plan_finetuning(None, None, settings).recipe
    shutil.rmtree("runs")
    assert plan_finetuning(None, None, settings).recipe == planned


def test_balanced_class_weights_are_written_as_numbers(lmtool: CommandLine, home: Path) -> None:
    """They follow from the rows that are trained on: a tenth of each class is held out."""
    rows = [(f"the cat sat {i}", "yes" if i % 5 == 0 else "no") for i in range(100)]
    write_table(home / "a.csv", rows)
    lmtool.succeeds("finetune", "a.csv", "-r", "dan", "--class-weights", "balanced", *QUICK, "-o", "run")
    objective = load("run/recipe.yaml").recipe.model_dump()["objective"]
    assert objective["class_weights"] == (90 / (2 * 72), 90 / (2 * 18))
    lmtool.succeeds("resume", "run", "-s", "training.steps=+2")


def test_a_run_goes_on_that_is_far_below_its_baseline(
    lmtool: CommandLine, run: Path, films: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops and says how to continue, unless it is one of several or a program's."""
    monkeypatch.setattr("lmtool.training.session.MIN_SAVED_FLOPS", 0)
    keys = "optimizer.lr=1e-9 data.valid_fraction=0.1 evaluation.patience=null evaluation.every=6 training.batch_size=4"
    slow = ["--from", "last", "--epochs", "2", *(word for key in keys.split() for word in ("-s", key))]
    told = lmtool.succeeds("finetune", films, *slow, "-o", "far")
    assert "lmtool resume far goes on to the end" in told.err
    assert Run.open(Path("far")).state == "stopped"
    (advice,) = (line for line in lmtool.succeeds("resume", "far").out.splitlines() if "; this model " in line)
    assert "--recipe linear" in advice
    assert "--from" not in advice, "which it has begun with"
    assert results("far")["part"] == "validation"
    whole = {"seeds/seed-2": "--seeds 2", "resumable": "--start-or-resume", "alone": "-s evaluation.baseline=false"}
    for path, other in whole.items():
        output = path.partition("/")[0]
        lmtool.succeeds("finetune", films, *slow, *other.split(), "-o", output)
        assert Run.open(Path(path)).state == "finished"


def test_several_seeds_are_several_runs_and_their_spread(lmtool: CommandLine, films: str) -> None:
    train = ("finetune", films, "--test", "test.csv", "-r", "dan", *QUICK, "-s", "evaluation.baseline=false", "-q")
    lines = lmtool.succeeds(*train, "--seeds", "3", "-o", "runs of seeds").out.splitlines()
    paths = [f"runs of seeds/seed-{seed}" for seed in (1, 2, 3)]
    assert [line for line in lines if line.startswith("runs of seeds/")] == paths
    losses = [float(str(results(path)["loss"])) for path in paths]
    assert len(set(losses)) == 3
    mean = sum(losses) / 3
    deviation = (sum((loss - mean) ** 2 for loss in losses) / 2) ** 0.5
    assert lines[-1].startswith("test, 3 runs: ")
    assert f"loss {mean:.4f} ± {deviation:.4f}" in lines[-1]
    lmtool.succeeds(*train, "-s", "seed=2", "-o", "alone")
    assert results("alone") == results(paths[1])


def test_seeds_are_for_one_process(lmtool: CommandLine, films: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    lmtool.refuses(2, "finetune", films, *LINEAR, "--seeds", "2", words=["torchrun"])
