"""Estimators of scikit-learn, and rows of Python programs, train what the command trains on the same table."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score

from lmtool import TextClassifier, TextRegressor, finetune
from lmtool.data.python_rows import cache_labelled_rows, rows_to_dicts
from lmtool.errors import DataError
from tests.support.errors import refuses

GOOD, BAD = ("fine", "lovely", "bright", "superb"), ("dull", "awful", "grey", "tedious")
ROWS = [
    (f"a {word} film of day {day}", label)
    for day in range(8)
    for words, label in ((GOOD, "yes"), (BAD, "no"))
    for word in words
]
TEXTS, LABELS = [text for text, _ in ROWS], [label for _, label in ROWS]
SMALL = {"model.buckets": 500, "optimizer.l2": 1.0, "tokenizer.kind": "word", "training.device": "cpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def table(folder: Path) -> str:
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *ROWS])
    return str(folder / "rows.csv")


@pytest.mark.parametrize("kind", ["tuples", "dicts", "pandas", "polars"])
def test_rows_give_the_model_of_the_same_table(kind: str, folder: Path) -> None:
    dicts = [{"text": text, "label": label} for text, label in ROWS]
    polars = SimpleNamespace(columns=["text", "label"], to_dicts=lambda: dicts)
    rows: Any = {"tuples": ROWS, "dicts": dicts, "pandas": pd.DataFrame(dicts), "polars": polars}[kind]
    of_rows, of_file = (finetune(source, settings=SMALL) for source in (rows, table(folder)))
    assert of_rows.figures["results"][""]["accuracy"] == of_file.figures["results"][""]["accuracy"]
    polars = SimpleNamespace(columns=[], to_dicts=lambda: dicts[:5])
    few: Any = {"tuples": TEXTS[:5], "dicts": dicts[:5], "pandas": pd.DataFrame(dicts[:5]), "polars": polars}[kind]
    assert of_rows.predict(few) == of_file.predict(TEXTS[:5])


def test_rows_are_kept_for_resuming_under_a_name_of_their_content(folder: Path) -> None:
    path = cache_labelled_rows(ROWS)
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == [
        {"text": text, "label": label} for text, label in ROWS
    ]
    assert cache_labelled_rows(pd.DataFrame(ROWS, columns=["text", "label"])) == path
    assert cache_labelled_rows(ROWS[1:]) != path


def test_rows_of_several_texts_and_numbers_have_columns() -> None:
    assert rows_to_dicts([("a", "b", "c")], has_labels=True) == [{"text1": "a", "text2": "b", "label": "c"}]
    assert rows_to_dicts([("a", "b")], has_labels=False) == [{"text1": "a", "text2": "b"}]
    assert rows_to_dicts(np.array(["a", "b"]), has_labels=False) == [{"text": "a"}, {"text": "b"}]
    kept = Path(cache_labelled_rows([("a", np.float64(1.5)), ("b", None)])).read_text().splitlines()
    assert [json.loads(line)["label"] for line in kept] == [1.5, None]


def test_what_is_no_row_is_refused_with_its_number() -> None:
    for rows, where in (([("a", "b"), "c"], "row 2"), ([3], "row 1"), ([("a", object())], "row 1")):
        with pytest.raises(DataError) as caught:
            cache_labelled_rows(rows)
        assert caught.value.where == where
    with refuses("usage"):
        TextClassifier().fit(["a", "b"], ["x"])
    with refuses("usage"):
        TextClassifier().fit(["a", "b"], [["x"], ["y"]])
    with refuses("usage"):
        TextClassifier().fit([{"label": "a"}], ["x"])


def test_a_column_that_is_not_there_is_refused(folder: Path) -> None:
    model = finetune(pd.DataFrame(ROWS, columns=["review", "label"]), settings=SMALL)
    assert len(model.predict([{"review": "a fine film"}])) == 1
    with refuses("usage"):
        model.predict([{"text": "a fine film"}])


def test_a_classifier_is_one_of_scikit_learn(folder: Path) -> None:
    numbers = np.array([3 if label == "yes" else 1 for label in LABELS])
    classifier = TextClassifier(settings=SMALL, seed=3).fit(TEXTS, numbers)
    assert classifier.classes_.tolist() == [1, 3]
    p_RC = classifier.predict_proba(TEXTS)
    assert p_RC.shape == (len(TEXTS), 2)
    assert np.allclose(p_RC.sum(1), 1)
    assert classifier.predict(TEXTS).tolist() == numbers.tolist()
    assert classifier.score(TEXTS, numbers) == 1.0
    assert log_loss(numbers, p_RC, labels=classifier.classes_) < 0.3
    assert clone(classifier).get_params() == classifier.get_params()
    assert classifier.model_.recipe.seed == 3
    pairs = list(zip(TEXTS, TEXTS, strict=True))
    assert TextClassifier(settings=SMALL).fit(pairs, LABELS).predict(pairs[:2]).tolist() == ["yes", "yes"]


def test_scikit_learn_validates_and_searches(folder: Path) -> None:
    assert cross_val_score(TextClassifier(settings=SMALL), TEXTS, LABELS, cv=2).mean() > 0.9
    search = GridSearchCV(TextClassifier(settings=SMALL), {"recipe": ["linear"], "seed": [1, 2]}, cv=2)
    assert search.fit(TEXTS, LABELS).best_score_ > 0.9


@pytest.mark.parametrize("estimator", [TextClassifier(), TextRegressor()])
def test_an_estimator_that_is_not_fitted_says_so_as_others_do(estimator: Any) -> None:
    with pytest.raises(NotFittedError):
        estimator.predict(TEXTS[:1])


def test_a_regressor_predicts_numbers(folder: Path) -> None:
    numbers = [2.5 if label == "yes" else -1.5 for label in LABELS]
    regressor = TextRegressor(settings=SMALL).fit(pd.Series(TEXTS), numbers)
    assert regressor.predict(TEXTS).shape == (len(TEXTS),)
    assert regressor.score(TEXTS, numbers) > 0.8
