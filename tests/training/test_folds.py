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
from lmtool.report.training import write_run_page
from lmtool.runs.directory import Run
from lmtool.runs.listing import summarize_run
from lmtool.runs.load import load_run
from lmtool.tasks.data import TableData
from lmtool.tasks.predict import LabelPredictor
from lmtool.tasks.results import Results, summarize_runs
from lmtool.training import convex
from lmtool.training.events import Info, TrainingEnded, TrainingStarted
from tests.support.training import Stop, Work, metrics, of_kind, write_table

WORDS = ["film", "plot", "actor", "scene", "good", "bad", "dull", "story", "music", "slow", "funny", "old", "new"]


@pytest.fixture(autouse=True, scope="module")
def _chosen_once() -> Any:
    """Penalties are compared on one division of the rows, where lmtool takes three of few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convex, "N_DIVISIONS", 1)
        yield


def random_labels(path: Path, n_rows: int, seed: int) -> Path:
    """Rows of random words, whose labels are drawn without them."""
    rng = random.Random(seed)
    rows = (f"{' '.join(rng.choices(WORDS, k=8))} {i},{'ab'[rng.random() < 0.5]}" for i in range(n_rows))
    return write_table(path, rows)


def learn(work: Work, table: Path, *settings: str, name: str = "run", stop: Stop = lambda: False) -> list[Any]:
    """The events of a linear model of a table."""
    own = ("model.buckets=500", "evaluation.baseline=false", "training.device=cpu")
    return work.learn_table("linear", table, *own, *settings, name=name, stop=stop)


def results_in(events: list[Any]) -> Results:
    (results,) = of_kind(events, Results)
    return results


@pytest.fixture(scope="module")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    work = Work(tmp_path_factory.mktemp("random"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMTOOL_RUNS", str(work.folder / "runs"))
        return work.run(), learn(work, random_labels(work.folder / "rows.csv", 90, 0))


def test_random_labels_are_scored_as_chance(work: Work) -> None:
    """By the whole way, the choice of penalty included; one of twenty may be off."""
    reached, off = [], 0
    for seed in range(4):
        results = results_in(learn(work, random_labels(work.folder / f"{seed}.csv", 120, seed), name=str(seed)))
        assert (results.part, results.rows) == ("cross-validation", 120)
        assert results.interval is not None
        off += not results.interval[0] <= 0.5 <= results.interval[1]
        reached.append(results.figures["accuracy"])
    assert off <= 1
    assert abs(np.mean(reached) - 0.5) < 2.5 * 0.5 / np.sqrt(4 * 120)


def test_every_headline_of_a_run_is_the_score_of_rows_left_out(random_run: tuple[Path, list[Any]]) -> None:
    """In the printed results, the list of runs, the page, the card and the saved figures."""
    path, events = random_run
    results, run = results_in(events), Run.open(path)
    accuracy, interval = results.figures["accuracy"], results.interval
    assert accuracy < 0.7
    assert interval is not None
    assert sum(map(sum, results.figures["confusion"])) == 90
    assert not any("1.0000" in line for line in results.lines())
    assert f"{interval[0]:.4f} to {interval[1]:.4f}" in results.lines()[1]

    saved = json.loads((path / "metrics.json").read_text())
    assert (saved["part"], saved["accuracy"], saved["rows"]) == ("cross-validation", accuracy, 90)
    assert saved["interval"] == list(interval)

    summary = summarize_run(path)
    figures = (summary.part, summary.metric, summary.value, summary.rows)
    assert figures == ("cross-validation", "accuracy", accuracy, 90)

    page = write_run_page(run).read_text()
    assert "1.0000" not in page
    assert "Of the validation rows" not in page
    assert "cross-validation" in page

    measured = dict(iterate_formatted_metrics(resolve_reference(str(path))))
    assert measured["cross-validation accuracy"] == f"{accuracy:.4f}"
    assert not any("validation" in name and "cross" not in name for name in measured)
    assert "1.0000" not in measured.values()

    assert [event.reason for event in of_kind(events, TrainingEnded)] == ["finished"]
    assert [event.batch_units for event in of_kind(events, TrainingStarted)] == [90]
    assert any("fitted to 90 rows" in event.text for event in of_kind(events, Info))
    assert f"accuracy {accuracy:.4f} ±" in summarize_runs([run.results_by_task, run.results_by_task])[0]


def test_a_run_whose_score_is_lost_gets_the_same_one(random_run: tuple[Path, list[Any]], work: Work) -> None:
    shutil.copytree(random_run[0], work.run())
    (work.run() / "metrics.json").unlink()
    work.resume()
    assert (work.run() / "metrics.json").read_bytes() == (random_run[0] / "metrics.json").read_bytes()


def test_a_run_that_is_stopped_while_it_is_scored_is_scored_when_it_is_resumed(work: Work) -> None:
    calls = iter([False, False, True])  # the fit of all rows, and of the first fold
    events = learn(work, random_labels(work.folder / "rows.csv", 60, 1), stop=lambda: next(calls))
    assert [event.reason for event in of_kind(events, TrainingEnded)] == ["finished", "interrupted"]
    assert of_kind(events, Results) == []
    assert results_in(work.resume()).rows == 60


@pytest.mark.parametrize(
    ("kind", "metric", "settings"), [("number", "pearson", ["model.log_ratios=false"]), ("multi", "micro_f1", [])]
)
def test_numbers_and_several_labels_are_scored_by_folds_too(
    work: Work, kind: str, metric: str, settings: list[str]
) -> None:
    rng = random.Random(0)
    labels = {"number": lambda: f"{rng.gauss(0, 1):.3f}", "multi": lambda: rng.choice(["a", "b", '"a,b"'])}
    rows = [f"{' '.join(rng.choices(WORDS, k=6))} {i},{labels[kind]()}" for i in range(60)]
    table = write_table(work.folder / "rows.csv", rows)
    results = results_in(learn(work, table, f"objective.task={kind}", *settings))
    assert (results.part, results.rows) == ("cross-validation", 60)
    assert results.figures[metric] < 0.9


@pytest.mark.parametrize("rows", [["one,a", "two,a", "three,b", "four,b"], ["same,a", "same,b"] * 2])
def test_very_few_rows_are_no_error(work: Work, rows: list[str]) -> None:
    scored = of_kind(learn(work, write_table(work.folder / "rows.csv", rows)), Results)
    assert len(scored) == (len({row.split(",")[0] for row in rows}) > 1)
    assert summarize_run(work.run()).value in (None, *(results.figures["accuracy"] for results in scored))


def test_a_test_table_is_the_headline(work: Work) -> None:
    test, table = (random_labels(work.folder / f"{n}.csv", n, n) for n in (40, 60))
    results = results_in(learn(work, table, f"data.test={test}"))
    assert (results.part, results.rows) == ("test", 40)


def learn_by_network(work: Work, table: Path) -> list[Any]:
    """A deep averaging network, which is trained until it knows its rows by heart."""
    recipe = work.folder / "dan.yaml"
    recipe.write_text("""\
model: {kind: averaging, d_model: 16, context: 32, n_layers: 1}
objective: {kind: classification}
tokenizer: {kind: word}
training: {steps: 150, batch_size: 16}
optimizer: {kind: adam, lr: 4e-2}
data: {valid_fraction: 0}
evaluation: {baseline: false}
""")
    return work.learn_table(recipe, table)


@pytest.mark.parametrize(("n_rows", "part", "n_scored"), [(80, "cross-validation", 80), (120, "held-out quarter", 30)])
def test_a_network_is_scored_on_other_rows_and_trained_on_all(
    work: Work, n_rows: int, part: str, n_scored: int
) -> None:
    """It knows all rows by heart, and nothing of others. Of few rows a quarter would tell nothing."""
    results = results_in(learn_by_network(work, random_labels(work.folder / "rows.csv", n_rows, 2)))
    assert (results.part, results.rows) == (part, n_scored)
    assert results.figures["accuracy"] < 0.9
    assert summarize_run(work.run()).part == part
    records = metrics(work.run())
    assert records[-1]["loss"] < 0.3
    assert not any("accuracy" in record for record in records)


def told_by_words(path: Path, seed: int, telling: float) -> list[tuple[str, str]]:
    """700 rows of words of which some tell the class, as often as `telling` says; the first 200 in a table."""
    plain = [a + b for a in ("ka", "lo", "mi", "tu", "re", "so") for b in ("ba", "di", "gu", "fe", "pa", "zo")]
    ends = {"a": ("ta", "ko", "ri"), "b": ("mu", "le", "sa")}
    tells = {label: [a + b for a in ("ny", "vy", "xy") for b in of] for label, of in ends.items()}
    rng, rows = random.Random(seed), []
    for _ in range(700):
        label = rng.choice("ab")
        stock = tells[label] if rng.random() <= telling else tells["a"] + tells["b"]
        rows.append((" ".join(rng.choices(plain, k=10) + rng.choices(stock, k=2)), label))
    write_table(path, map(",".join, rows[:200]))
    return rows


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


@pytest.mark.parametrize("telling", [0.0, 0.8])
def test_probabilities_of_few_rows_are_no_worse_than_those_of_logistic_regression(
    work: Work, monkeypatch: pytest.MonkeyPatch, telling: float
) -> None:
    monkeypatch.setattr(TableData, "needs_folds", False)  # a score is not asked for
    losses = []
    for seed in range(3):
        table = work.folder / f"{seed}.csv"
        rows = told_by_words(table, seed, telling)
        learn(work, table, "model.buckets=20000", name=str(seed))
        losses.append(log_losses(work.run(str(seed)), rows))
    ours, theirs = np.mean(losses, axis=0)
    assert ours <= theirs + 0.005


def test_a_network_that_knows_its_rows_by_heart_is_not_sure_of_others(work: Work) -> None:
    """The temperature of those held out for the score is that of the model trained on all."""
    rows = told_by_words(work.folder / "rows.csv", 0, 0.0)
    learn_by_network(work, work.folder / "rows.csv")
    ours, theirs = log_losses(work.run(), rows)
    assert ours <= theirs + 0.01
