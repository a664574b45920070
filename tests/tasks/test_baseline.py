"""The baseline of a table: against scikit-learn's own pipeline, and for rows that teach nothing."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline

from lmtool.runs.files import TaskBaselineScores
from lmtool.tasks import baseline
from lmtool.tasks.baseline import Baseline, format_mean_baseline, has_recurring_words, score_or_cross_validate_baseline
from lmtool.tasks.reading import LabelledTable
from tests.tasks.labelled import read

STOCK = {"a": ["sun", "rain", "cloud", "wind"], "b": ["bread", "salt", "oil", "rice"], "c": ["wood", "nail", "saw"]}


def table(path: Path, rows: Iterable[tuple[str, object]]) -> LabelledTable:
    return read(path / "t.csv", "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))


def rows(path: Path, n: int, seed: int, noise: float = 0.4) -> LabelledTable:
    """Texts of which most words tell the class; some tell another."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(n):
        label = rng.choice("abc")
        words = [rng.choice(STOCK[rng.choice("abc") if rng.random() < noise else label]) for _ in range(5)]
        drawn.append((" ".join(words), label))
    return table(path, drawn)


def parts(found: LabelledTable) -> tuple[list[str], list[str]]:
    return [item.texts[0] for item in found.items], [str(item.label) for item in found.items]


PIPELINE = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10))


def test_it_is_the_accuracy_of_the_usual_pipeline(tmp_path: Path) -> None:
    train, test = rows(tmp_path, 300, 0, 0.7), rows(tmp_path, 300, 1, 0.7)
    found = score_or_cross_validate_baseline(train, test, "test")
    (texts, labels), (others, truth) = parts(train), parts(test)
    assert found.linear == pytest.approx(PIPELINE.fit(texts, labels).score(others, truth), abs=0.05)
    assert found.constant == truth.count(max("abc", key=labels.count)) / len(truth)
    assert (found.features, found.metric, found.part) == ("words and pairs", "accuracy", "test")


def test_rows_of_which_none_are_held_out_are_cross_validated(tmp_path: Path) -> None:
    """Each is scored by a model of others, and a text that is in them twice tells of itself."""
    train = rows(tmp_path, 200, 0, 0.7)
    found = score_or_cross_validate_baseline(train, None, "training")
    texts, labels = parts(train)
    folds = KFold(5, shuffle=True, random_state=0)
    assert found.linear == pytest.approx(cross_val_score(PIPELINE, texts, labels, cv=folds).mean(), abs=0.05)
    assert found.constant == max(map(labels.count, "abc")) / 200 < found.linear < 0.9
    assert found.part == "cross-validation"
    assert found.describe().endswith("; by cross-validation, as no rows are held out")


def test_several_labels_have_a_micro_f1(tmp_path: Path) -> None:
    texts = ["sun", "sun rain", "rain", "sun rain", "none"] * 20
    labels = ["x", "x;y", "y", "x;y", ";"] * 20
    found = table(
        tmp_path, ((f"{text} {i % 4}", label) for i, (text, label) in enumerate(zip(texts, labels, strict=True)))
    )
    scores = score_or_cross_validate_baseline(found, found, "validation")
    truth = np.array([["x" in label, "y" in label] for label in labels])
    assert scores.linear == 1.0
    assert scores.constant == pytest.approx(f1_score(truth, np.tile([True, False], (100, 1)), average="micro"))
    assert "most frequent label 54.5 %, words and pairs 100.0 % (micro F1)" in scores.describe()


def test_numbers_have_a_ridge_regression(tmp_path: Path) -> None:
    numbers = table(tmp_path, ((f"{'good' if i % 2 else 'bad'} day", 2.5 + i % 2) for i in range(60)))
    found = score_or_cross_validate_baseline(numbers, numbers, "validation")
    assert found.constant == pytest.approx(0.25)
    assert found.linear < 0.05
    assert found.describe().startswith("baseline: mean 0.25, ridge regression on words and pairs 0.0")
    assert "below" not in found.format_comparison({"mse": found.linear * 0.9}, 12)
    assert "is below it" in found.format_comparison({"mse": 0.1}, 12)  # below the mean, above the regression


@pytest.mark.parametrize(
    ("texts", "recur"),
    [
        (["天气很好", "天气不好", "今天下雨", "昨天下雪"], False),
        (["anna", "maria", "otto", "hugo"], False),
        (["?", "!", "?", "!"], False),
        (["it is so", "so it is", "is it so", "so it was"], True),
    ],
)
def test_texts_whose_words_do_not_recur_are_read_by_characters(texts: list[str], recur: bool, tmp_path: Path) -> None:
    """Words recur that are in both halves of the texts."""
    assert has_recurring_words(texts) == recur
    found = table(tmp_path, ((text, "ab"[i // 2 % 2]) for i, text in enumerate(texts)))
    features = score_or_cross_validate_baseline(found, found, "validation").features
    assert features == ("words and pairs" if recur else "character n-grams")


def test_characters_learn_chinese(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = {"好": ["天晴", "很美", "喜欢"], "坏": ["大雨", "难看", "讨厌"]}
    labels = rng.choices("好坏", k=80)
    found = table(
        tmp_path, (("".join([*rng.choices("一二三四五六七八九十", k=6), rng.choice(words[x])]), x) for x in labels)
    )
    scores = score_or_cross_validate_baseline(found.select_rows(range(40)), found.select_rows(range(40, 80)), "test")
    assert scores.linear > 0.95


def test_rows_that_teach_nothing_have_the_floor_of_the_majority(tmp_path: Path) -> None:
    found = rows(tmp_path, 60, 0)
    alike = [i for i, item in enumerate(found.items) if item.label == found.items[0].label]
    for train in (alike, alike[:1]):
        scores = score_or_cross_validate_baseline(found.select_rows(train), found, "validation")
        assert scores.linear == scores.constant == len(alike) / 60
    marks = table(tmp_path, zip("!!!!!!", "aabbbb", strict=True))
    scores = score_or_cross_validate_baseline(marks, marks, "validation")
    assert scores.linear == scores.constant == pytest.approx(2 / 3)


def test_a_large_table_is_fitted_by_some_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no vectors are computed."""
    monkeypatch.setattr(baseline, "MAX_BASELINE_ROWS", 100)
    monkeypatch.setattr(baseline, "MAX_EMBEDDED_ROWS", 50)
    train, test = rows(tmp_path, 250, 0), rows(tmp_path, 80, 1)
    found = score_or_cross_validate_baseline(train, test, "test", lambda texts: pytest.fail("computed"))
    assert (found.fitted, found.rows, found.probe) == (100, 250, None)
    assert found.describe().endswith("; fitted to 100 of 250 rows")
    assert found.linear > found.constant


@pytest.mark.parametrize("held", [True, False])
def test_vectors_of_an_encoder_have_a_figure_of_their_own(held: bool, tmp_path: Path) -> None:
    train, test = rows(tmp_path, 60, 0, 1.0), rows(tmp_path, 60, 1, 1.0) if held else None
    items = [*train.items, *(test.items if test else ())]
    classes = {" ".join(item.texts): "abc".index(str(item.label)) for item in items}

    def vectors_of(texts: Sequence[str]) -> NDArray[np.float32]:
        """Which tell the class, as texts of noise alone do not."""
        return np.eye(3, dtype=np.float32)[[classes[text] for text in texts]]

    found = score_or_cross_validate_baseline(train, test, "validation", vectors_of)
    assert found.linear < 0.6
    assert found.probe is not None
    assert found.probe > 0.9
    assert f"vectors of the encoder {100 * found.probe:.1f} %" in found.describe()
    assert "this model 70.0 % is below it" in found.format_comparison({"accuracy": 0.7}, 1000)
    means = format_mean_baseline([found, found.model_copy(update={"probe": found.probe - 0.02})])
    assert f"vectors of the encoder {100 * found.probe - 1:.1f} %" in means


def test_a_baseline_is_read_back_and_compared() -> None:
    figures = {"kind": "class", "part": "test", "metric": "accuracy", "constant": 0.223, "linear": 0.881}
    found = Baseline.model_validate({**figures, "features": "words and pairs", "fitted": 10, "rows": 10})
    assert Baseline(**dict(TaskBaselineScores.model_validate(found.model_dump()))) == found
    remedies = ["--recipe linear", "more --epochs"]
    assert "below" not in found.format_comparison({"accuracy": 0.9}, 10_000)
    below = found.format_comparison({"accuracy": 0.7}, 1000, remedies)
    assert "70.0 % is below it" in below
    assert "--recipe linear or more --epochs" in below
    for accuracy in (0.7, 0.9):
        few = found.format_comparison({"accuracy": accuracy}, 12, remedies)
        assert few.endswith("; 12 rows are too few to tell which is better")
    assert found.format_comparison({"bleu": 3.0}, 1000) == found.describe()
    other = found.model_copy(update={"constant": 0.225, "linear": 0.861})
    assert "22.4 %, words and pairs 87.1 %" in format_mean_baseline([found, other])
