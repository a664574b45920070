"""GLUE's measures by the names of tables, and their mean."""

import json
from pathlib import Path

import pytest

from lmtool.errors import DataError
from lmtool.tasks.results import Results
from lmtool.tasks.suite import Suite, runs_in, tables_in, task_key, task_score

CLASSES = {"accuracy": 0.9, "macro_f1": 0.5, "matthews": 0.25, "f1": 0.7, "positive": "1"}
NUMBERS = {"mse": 0.1, "pearson": 0.6, "spearman": 0.8}


def results(figures: dict[str, object]) -> Results:
    return Results("table", 1, 10, 0.5, dict(figures), [], ())


@pytest.mark.parametrize(
    ("name", "figures", "measure", "value"),
    [
        ("CoLA", CLASSES, "Matthews correlation", 0.25),
        ("mrpc.dev", CLASSES, "mean of accuracy and F1 of 1", 0.8),
        ("QQP", CLASSES, "mean of accuracy and F1 of 1", 0.8),
        ("sst-2", CLASSES, "accuracy", 0.9),
        ("rte_validation", CLASSES, "accuracy", 0.9),
        ("sts-b", NUMBERS, "mean of Pearson and Spearman", 0.7),
        ("tags", {"subset_accuracy": 0.1, "micro_f1": 0.4}, "micro F1", 0.4),
        ("pairs", {"bleu": 12.0, "exact": 0.2}, "exact matches", 0.2),
    ],
)
def test_each_task_has_its_measure(name: str, figures: dict[str, object], measure: str, value: float) -> None:
    score = task_score(name, figures)
    assert (score.measure, score.value) == (measure, pytest.approx(value))


def test_the_mean_is_over_tasks() -> None:
    halves = {"mnli-matched": 0.4, "mnli_mm": 0.6, "rte": 0.9}
    suite = Suite({name: results({"accuracy": value}) for name, value in halves.items()})
    assert suite.mean == pytest.approx((0.5 + 0.9) / 2)
    assert suite.lines()[-1].split() == ["mean", "70.0"]
    assert json.loads(json.dumps(suite.record()))["tasks"]["rte"]["score"] == 0.9
    undefined = Suite({"sts-b": results({"pearson": None, "spearman": 0.5}), "rte": results({"accuracy": 1.0})})
    assert undefined.mean is None
    assert undefined.lines()[0].split()[:2] == ["sts-b", "undefined"]


def test_tables_and_runs_of_a_folder(tmp_path: Path) -> None:
    for name in ("cola.test.csv", "cola.train.csv", "train.csv", "rte.jsonl.gz", "notes.txt"):
        (tmp_path / name).touch()
    for name in ("RTE", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "RTE" / "run.json").touch()
    assert list(tables_in(str(tmp_path))) == ["cola.test", "rte"]
    assert tables_in(str(tmp_path / "cola.test.csv")) == {}
    assert list(runs_in(str(tmp_path))) == ["RTE"]
    assert runs_in(str(tmp_path / "RTE")) == {}
    with pytest.raises(DataError, match="no table to evaluate on"):
        tables_in(str(tmp_path / "other"))
    assert [task_key(name) for name in ("SST-2.test", "sst2", "dev")] == ["sst2", "sst2", "dev"]
