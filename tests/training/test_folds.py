"""Scores of models that are trained on all rows of a table: of random labels they are chance, everywhere."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmtool.interop.export.card import iterate_formatted_metrics
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.load import parse_settings
from lmtool.report.training import write_run_page
from lmtool.runs.directory import Run
from lmtool.runs.listing import summarize_run
from lmtool.runs.load import load_run
from lmtool.tasks.predict import LabelPredictor
from lmtool.tasks.results import Results, summarize_runs
from lmtool.training.events import Info, TrainingEnded, TrainingStarted
from lmtool.training.finetuning import plan_finetuning
from lmtool.training.job import SessionOptions
from lmtool.training.resuming import resume
from lmtool.training.train import train
from tests.support.training import Work, metrics, of_kind, write_table

FEW_FEATURES = "model.buckets=500"


def random_labels(path: Path, n_rows: int, seed: int) -> Path:
    """Rows of random words, whose labels are drawn without them."""
    rng = random.Random(seed)
    rows = (f"{' '.join(rng.choices(WORDS, k=8))} {i},{'ab'[rng.random() < 0.5]}" for i in range(n_rows))
    return write_table(path, rows)


WORDS = ["film", "plot", "actor", "scene", "good", "bad", "dull", "story", "music"]
WORDS += ["end", "slow", "funny", "old", "new"]


def learn(run: Path, table: Path, *settings: str, recipe: str | None = None, stop: Any = lambda: False) -> list[Any]:
    """The events of a run on a table, its features chosen by cross-validation where no recipe is named."""
    plan = plan_finetuning(None, recipe, parse_settings([f"data.train={table}", FEW_FEATURES, *settings]))
    return list(train(plan, SessionOptions(["test"], lambda *progress: None, stop, run)))


def resumed(run: Path) -> list[Any]:
    return list(resume(str(run), (), SessionOptions(["test"], lambda *progress: None, lambda: False)))


def results_in(events: list[Any]) -> Results:
    (results,) = of_kind(events, Results)
    return results


@pytest.fixture(scope="module")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("random")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTOOL_RUNS", str(folder / "runs"))
        return folder / "run", learn(folder / "run", random_labels(folder / "rows.csv", 200, 0))


def test_random_labels_are_scored_as_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the whole way, the choice of penalty included, and of some that of features; one of twenty may be off."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    reached, off = [], 0
    for seed in range(8):
        table = random_labels(tmp_path / f"{seed}.csv", 120, seed)
        results = results_in(learn(tmp_path / str(seed), table, recipe="linear" if seed > 1 else None))
        assert (results.part, results.rows) == ("cross-validation", 120)
        assert results.interval is not None
        off += not results.interval[0] <= 0.5 <= results.interval[1]
        reached.append(results.figures["accuracy"])
    assert off <= 1
    assert abs(np.mean(reached) - 0.5) < 2.5 * 0.5 / np.sqrt(8 * 120)


def test_every_headline_of_a_run_is_the_score_of_rows_left_out(random_run: tuple[Path, list[Any]]) -> None:
    """In the printed results, the list of runs, the page, the card and the saved figures."""
    path, events = random_run
    results, run = results_in(events), Run.open(random_run[0])
    accuracy = results.figures["accuracy"]
    assert accuracy < 0.65
    assert sum(map(sum, results.figures["confusion"])) == 200
    assert not any("1.0000" in line for line in results.lines())
    assert f"{results.interval[0]:.4f} to {results.interval[1]:.4f}" in results.lines()[1]  # type: ignore[index]

    saved = json.loads((path / "metrics.json").read_text())
    assert (saved["part"], saved["accuracy"], saved["rows"]) == ("cross-validation", accuracy, 200)
    assert saved["interval"] == list(results.interval)  # type: ignore[arg-type]

    summary = summarize_run(path)
    figures = (summary.part, summary.metric, summary.value, summary.rows)
    assert figures == ("cross-validation", "accuracy", accuracy, 200)

    page = write_run_page(run).read_text()
    assert "1.0000" not in page
    assert "Of the validation rows" not in page
    assert "cross-validation" in page

    measured = dict(iterate_formatted_metrics(resolve_reference(str(path))))
    assert measured["cross-validation accuracy"] == f"{accuracy:.4f}"
    assert not any("validation" in name and "cross" not in name for name in measured)
    assert "1.0000" not in measured.values()

    assert [event.reason for event in of_kind(events, TrainingEnded)] == ["finished"]
    (plan,) = of_kind(events, TrainingStarted)
    assert plan.batch_units == 200
    assert any("fitted to 200 rows" in event.text for event in of_kind(events, Info))
    assert f"accuracy {accuracy:.4f} ±" in summarize_runs([run.results_by_task, run.results_by_task])[0]


def test_a_run_whose_score_is_lost_gets_the_same_one(random_run: tuple[Path, list[Any]], tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(random_run[0], path)
    (path / "metrics.json").unlink()
    resumed(path)
    assert (path / "metrics.json").read_bytes() == (random_run[0] / "metrics.json").read_bytes()


def test_a_run_that_is_stopped_while_it_is_scored_is_scored_when_it_is_resumed(tmp_path: Path) -> None:
    table, calls = random_labels(tmp_path / "rows.csv", 60, 1), []

    def stop() -> bool:
        calls.append(1)
        return len(calls) > 2  # the fit of all rows, and of the first fold

    events = learn(tmp_path / "run", table, recipe="linear", stop=stop)
    assert [event.reason for event in of_kind(events, TrainingEnded)] == ["finished", "interrupted"]
    assert of_kind(events, Results) == []
    assert results_in(resumed(tmp_path / "run")).rows == 60


@pytest.mark.parametrize(("kind", "metric"), [("number", "pearson"), ("multi", "micro_f1")])
def test_numbers_and_several_labels_are_scored_by_folds_too(tmp_path: Path, kind: str, metric: str) -> None:
    rng = random.Random(0)
    label = {"number": lambda: f"{rng.gauss(0, 1):.3f}", "multi": lambda: rng.choice(["a", "b", '"a,b"'])}[kind]
    rows = (f"{' '.join(rng.choices(WORDS, k=6))} {i},{label()}" for i in range(60))
    path = write_table(tmp_path / "rows.csv", rows)
    settings = ["model.log_ratios=false"] if kind == "number" else []
    results = results_in(learn(tmp_path / "run", path, f"objective.task={kind}", *settings, recipe="linear"))
    assert (results.part, results.rows) == ("cross-validation", 60)
    assert results.figures[metric] < 0.9


@pytest.mark.parametrize("rows", [["one,a", "two,a", "three,b", "four,b"], ["same,a", "same,b"] * 2])
def test_very_few_rows_are_no_error(tmp_path: Path, rows: list[str]) -> None:
    scored = of_kind(learn(tmp_path / "run", write_table(tmp_path / "rows.csv", rows), recipe="linear"), Results)
    assert len(scored) == (len({row.split(",")[0] for row in rows}) > 1)
    assert summarize_run(tmp_path / "run").value in (None, *(results.figures["accuracy"] for results in scored))


DAN = """\
model: {kind: averaging, d_model: 16, context: 32, n_layers: 1}
objective: {kind: classification}
tokenizer: {kind: word}
training: {steps: 400, batch_size: 16}
optimizer: {kind: adam, lr: 2e-2}
data: {valid_fraction: 0}
"""


def dan(work: Work) -> Path:
    recipe = work.folder / "dan.yaml"
    recipe.write_text(DAN)
    return recipe


@pytest.mark.parametrize(("n_rows", "part", "n_scored"), [(80, "cross-validation", 80), (120, "held-out quarter", 30)])
def test_a_network_is_scored_on_other_rows_and_trained_on_all(
    work: Work, n_rows: int, part: str, n_scored: int
) -> None:
    """It knows all rows by heart, and nothing of others. Of few rows a quarter would tell nothing."""
    table = random_labels(work.folder / "rows.csv", n_rows, 2)
    recipe = dan(work)
    results = results_in(work.learn_table(recipe, table))
    assert (results.part, results.rows) == (part, n_scored)
    assert results.figures["accuracy"] < 0.9
    assert summarize_run(work.run()).part == part
    records = metrics(work.run())
    assert records[-1]["loss"] < 0.3
    assert not any("accuracy" in record for record in records)


def told_by_words(path: Path, seed: int, telling: float, n_rows: int) -> list[tuple[str, str]]:
    """Rows of words of which some tell the class of a text, as often as `telling` says; the first 200 in a table."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n_rows):
        label = rng.choice("ab")
        words = rng.choices(PLAIN, k=10) + [rng.choice(TELLING["ab".index(label)]) for _ in range(2)]
        if rng.random() > telling:
            words[-2:] = rng.choices(TELLING[0] + TELLING[1], k=2)
        rows.append((" ".join(words), label))
    write_table(path, map(",".join, rows[:200]))
    return rows


PLAIN = [a + b for a in ("ka", "lo", "mi", "tu", "re", "so") for b in ("ba", "di", "gu", "fe", "pa", "zo")]
TELLING = [[f"{a}{b}" for a in ("ny", "vy", "xy") for b in ends] for ends in (("ta", "ko", "ri"), ("mu", "le", "sa"))]


def log_losses(run: Path, rows: list[tuple[str, str]]) -> tuple[float, float]:
    """Of the probabilities that `lmtool predict` writes for the rows beyond 200, and of logistic regression (C = 1) of
    tf-idf of words and pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    texts, label_R = [text for text, _ in rows], np.array(["ab".index(label) for _, label in rows])
    classifier = LabelPredictor.from_model(load_run(str(run)))
    p_RC = classifier.compute_probabilities(classifier.encode(texts[200:]))
    vectors = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    peer = LogisticRegression(C=1.0).fit(vectors.fit_transform(texts[:200]), label_R[:200])
    others = peer.predict_proba(vectors.transform(texts[200:]))
    ours, theirs = (-np.log(p[range(len(p)), label_R[200:]]).mean() for p in (p_RC, others))
    return float(ours), float(theirs)


@pytest.mark.parametrize("telling", [0.0, 0.4, 0.8])
def test_probabilities_of_few_rows_are_no_worse_than_those_of_logistic_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, telling: float
) -> None:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    losses = []
    for seed in range(3):
        rows = told_by_words(tmp_path / f"{seed}.csv", seed, telling, 1000)
        learn(tmp_path / str(seed), tmp_path / f"{seed}.csv", "model.buckets=20000", recipe="linear")
        losses.append(log_losses(tmp_path / str(seed), rows))
    ours, theirs = np.mean(losses, axis=0)
    assert ours <= theirs + 0.005


@pytest.mark.parametrize("telling", [0.0, 0.8])
def test_a_network_that_knows_its_rows_by_heart_is_not_sure_of_others(work: Work, telling: float) -> None:
    """The temperature of those held out for the score is that of the model trained on all."""
    rows = told_by_words(work.folder / "rows.csv", 0, telling, 1000)
    recipe = dan(work)
    work.learn_table(recipe, work.folder / "rows.csv")
    ours, theirs = log_losses(work.run(), rows)
    assert ours <= theirs + 0.01


def test_a_test_table_is_the_headline(tmp_path: Path) -> None:
    test = random_labels(tmp_path / "test.csv", 40, 4)
    table = random_labels(tmp_path / "rows.csv", 60, 3)
    results = results_in(learn(tmp_path / "run", table, f"data.test={test}", recipe="linear"))
    assert (results.part, results.rows) == ("test", 40)
