"""Metrics equal those of scikit-learn, scipy and sacrebleu, and of tests/reference, where those of answers are those of
SQuAD's script."""

import math
import random
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn

from lmtool.tasks import metrics
from lmtool.tasks.results import Results, summarize_runs
from tests.reference import annotated
from tests.reference import metrics as reference


def per_class(found: dict[str, Any]) -> list[list[Any]]:
    """Precision, recall, F1 and support of the classes, each as a list."""
    names = ("precision", "recall", "f1", "support")
    return [[scores[name] for scores in found["classes"].values()] for name in names]


# Classes


@pytest.mark.parametrize("seed", range(6))
def test_classes_equal_scikit_learn_and_the_reference(seed: int) -> None:
    """Some classes never occur, or are never predicted."""
    rng = np.random.default_rng(seed)
    n_classes, n_rows = int(rng.integers(2, 9)), int(rng.integers(1, 40))
    true = rng.integers(0, n_classes, n_rows)
    predicted = np.where(rng.random(n_rows) < 0.5, true, rng.integers(0, max(1, n_classes - 2), n_rows))
    labels, plainly = list(range(n_classes)), (true.tolist(), predicted.tolist())
    found = metrics.class_metrics(true, predicted, [str(i) for i in labels])
    if len(set(true) | set(predicted)) > 1:  # scikit-learn warns of a single class
        assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(true, predicted), abs=1e-12)
    assert found["matthews"] == pytest.approx(reference.matthews(*plainly), abs=1e-12)
    assert found["confusion"] == sklearn.confusion_matrix(true, predicted, labels=labels).tolist()
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
    assert found["macro_f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="macro", zero_division=0))
    assert found["macro_f1"] == pytest.approx(reference.macro_f1(*plainly))
    theirs = sklearn.precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0)
    for ours, other in zip(per_class(found), theirs, strict=True):
        assert ours == pytest.approx(other)
    for i, *scores, _ in zip(labels, *per_class(found), strict=True):
        assert scores == pytest.approx(reference.precision_recall_f1(*plainly, i))


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (["negative", "positive"], 1),
        (["entailment", "not_entailment"], 0),
        (["equivalent", "non-equivalent"], 0),
        (["no", "yes", metrics.NO_LABEL], 1),
        (["a", "b", "c"], None),
    ],
)
def test_the_positive_class_is_the_second_unless_it_denies_the_first(names: list[str], index: int | None) -> None:
    assert metrics.find_positive_class_index(names) == index
    found = metrics.class_metrics(np.array([0, 1, 1]), np.array([0, 1, 0]), names)
    assert found.get("positive") == (None if index is None else names[index])


def test_wrong_classes_and_lengths_are_refused() -> None:
    for wrong in ([0, 3], [0, -1], [0]):
        with pytest.raises(ValueError, match=r"classes must|shape"):
            metrics.class_metrics(np.array([0, 1]), np.array(wrong), ["a", "b", "c"])
    with pytest.raises(ValueError, match="shape"):
        metrics.regression_metrics(np.array([]), np.array([]))
    for n in (0, 1):
        with pytest.raises(ValueError, match="references"):
            metrics.translation_metrics(["a"] * n, [])


@pytest.mark.parametrize("seed", range(4))
def test_multi_label_equals_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 30)), int(rng.integers(2, 7)))
    true, predicted = (rng.random(shape) < rng.random(shape[1]) for _ in range(2))
    predicted[:, 0] = False
    found = metrics.multi_label_metrics(true, predicted, [str(i) for i in range(shape[1])])
    assert found["subset_accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
    for average in "micro", "macro":
        expected = sklearn.f1_score(true, predicted, average=average, zero_division=0)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    theirs = sklearn.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    for ours, other in zip(per_class(found), theirs, strict=True):
        assert ours == pytest.approx(other)


def test_a_table_may_have_one_label() -> None:
    true, predicted = np.array([[True], [False], [True], [False]]), np.array([[True], [True], [False], [False]])
    found = metrics.multi_label_metrics(true, predicted, ["x"])
    assert [found[name] for name in ("subset_accuracy", "micro_f1", "macro_f1")] == [0.5, 0.5, 0.5]
    assert per_class(found) == [[0.5], [0.5], [0.5], [2]]


# Numbers


@pytest.mark.parametrize("seed", range(5))
def test_regression_equals_scipy_and_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(2, 30))
    true = rng.integers(0, 6, n_rows) + np.arange(n_rows) % 2 / 2  # with ties
    predicted = true + rng.normal(size=n_rows).round(1)
    true[:2], predicted[:2] = (7, 8), (9, 8.5)
    found = metrics.regression_metrics(true, predicted)
    assert found["mse"] == pytest.approx(sklearn.mean_squared_error(true, predicted))
    assert found["pearson"] == pytest.approx(stats.pearsonr(true, predicted).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(true, predicted).statistic)
    assert found["pearson"] == pytest.approx(reference.pearson(true.tolist(), predicted.tolist()))
    assert found["spearman"] == pytest.approx(reference.spearman(true.tolist(), predicted.tolist()))
    for scale in (1e-100, 1e100):  # whose squares are hardly numbers
        scaled = metrics.regression_metrics(true * scale, predicted * scale)
        assert [scaled[name] for name in ("pearson", "spearman")] == pytest.approx(
            [found["pearson"], found["spearman"]]
        )


def test_a_correlation_with_equal_numbers_is_not_a_number() -> None:
    found = metrics.regression_metrics(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1))
    assert (found["pearson"], found["spearman"]) == (None, None)
    assert metrics.regression_metrics(np.ones(1), np.zeros(1)) == {"mse": 1.0, "pearson": None, "spearman": None}
    assert metrics.regression_metrics(np.arange(3.0), np.full(3, np.nan)) == {
        "mse": None,
        "pearson": None,
        "spearman": None,
    }


# Texts


@pytest.mark.parametrize("seed", range(3))
def test_translations_equal_sacrebleu_and_the_papers(seed: int) -> None:
    rng = random.Random(seed)
    words = ["haus", "der", "alte", "hund", "läuft", "über", "die", "brücke"]
    references = [" ".join(rng.choices(words, k=rng.randint(5, 12))) for _ in range(20)]
    hypotheses = [
        " ".join(word if rng.random() < 0.8 else rng.choice(words) for word in text.split()[rng.randint(0, 1) :])
        for text in references
    ]
    found = metrics.translation_metrics(hypotheses, references)
    assert found["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert found["bleu"] == pytest.approx(reference.bleu(hypotheses, references))
    assert found["chrf"] == pytest.approx(reference.chrf(hypotheses, references))
    assert "tok:13a" in found["bleu_signature"]
    assert "nc:6" in found["chrf_signature"]
    perfect = metrics.translation_metrics(references, references)
    assert (perfect["bleu"], perfect["chrf"]) == pytest.approx((100, 100))


def test_rouge_of_the_examples_of_its_paper() -> None:
    # Lin (2004), section 3: the sentences share as many bigrams, and only the first has the order of the reference
    def rouge(*texts: str, reference: str = "police killed the gunman") -> list[float]:
        found = metrics.compute_rouge(texts, [reference] * len(texts))
        return [found["rouge1"], found["rouge2"], found["rouge_l"]]

    assert rouge("Police kill the gunman.") == pytest.approx([75, 100 / 3, 75])
    assert rouge("the gunman kill police") == pytest.approx([75, 100 / 3, 50])
    assert rouge("police kill the gunman", "the gunman kill police") == pytest.approx([75, 100 / 3, 62.5])
    assert rouge("быстрая лиса", reference="Быстрая лиса") == [100, 100, 100]
    assert metrics.translation_metrics(["a b c d e"], ["a b c d f"])["rouge1"] == pytest.approx(80)


def test_sentences_are_scored_as_sacrebleu_does() -> None:
    hypotheses, references = ["a cat sat", "", "rain"], ["a cat sat", "a dog", "it rains"]
    expected = [sacrebleu.sentence_chrf(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
    assert metrics.compute_chrf_scores(hypotheses, references) == pytest.approx(expected)
    assert expected[0] == 100


def test_a_phrase_that_follows_itself_is_repeated() -> None:
    """Whatever its case and punctuation."""
    hypotheses = ["In a market, in a Market.", "It is don't stop don't stop", "A tree so very, very high.", "it rains"]
    assert list(map(metrics.has_consecutively_repeated_phrase, hypotheses)) == [True, True, False, False]
    assert metrics.translation_metrics(hypotheses, hypotheses)["repeating"] == 0.5


def test_repeated_phrases_are_those_of_the_definition() -> None:
    """Some n >= 2 words and the n after them are equal, for texts of a few words in random order."""
    rng = random.Random(0)
    found = set()
    for _ in range(200):
        words = rng.choices("abcd", k=rng.randint(0, 9))
        spans = [(i, n) for n in range(2, 5) for i in range(len(words)) if i + 2 * n <= len(words)]
        wanted = any(words[i : i + n] == words[i + n : i + 2 * n] for i, n in spans)
        assert metrics.has_consecutively_repeated_phrase(" ".join(words)) is wanted
        found.add(wanted)
    assert found == {True, False}


TEXTS = st.text(alphabet="aAnthe .,!-\u2019x1", max_size=12)


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_answers_are_scored_as_by_the_script(predicted: str, answers: list[str]) -> None:
    assert metrics.exact_match(predicted, answers) == annotated.squad_exact(predicted, answers)
    assert metrics.compute_word_f1(predicted, answers) == pytest.approx(annotated.squad_f1(predicted, answers))


SCORED = st.lists(
    st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]), st.floats(0, 1), st.booleans()), min_size=1, max_size=7
)


@given(SCORED)
def test_no_other_threshold_scores_more(rows: list[tuple[float, float, bool]]) -> None:
    null_scores, scores, has_answer = map(list, zip(*rows, strict=True))

    def total(threshold: float) -> float:
        return math.fsum(
            (score if known else 0.0) if null <= threshold else float(not known)
            for null, score, known in zip(null_scores, scores, has_answer, strict=True)
        )

    found = metrics.find_best_null_threshold(null_scores, scores, has_answer)
    assert total(found) == pytest.approx(max(total(other) for other in (-9.0, *null_scores, 9.0)))
    assert not all(has_answer) or found == math.inf


# Tables, spreads and calibration


def scores_of(confusion: Any, names: list[str]) -> Any:
    """The scores of classes of rows that have this confusion matrix."""
    true, predicted = (np.repeat(axis.ravel(), confusion.ravel()) for axis in np.indices(confusion.shape))
    return metrics.class_metrics(true, predicted, names)["classes"]


def test_tables_of_many_classes_are_cut_and_lose_no_row() -> None:
    confusion = np.random.default_rng(0).integers(0, 9, (50, 50))
    confusion[7] += 100
    names = [f"a class with a long name {i}" for i in range(50)]
    lines = metrics.format_confusion(confusion, names, max_classes=4)
    assert len(lines) == 7
    assert lines[-1] == "... and 46 more classes"
    assert max(map(len, lines)) < 100
    cells = [line.replace(",", "").split()[-5:] for line in lines[1:-1]]
    assert sum(int(cell) for row in cells for cell in row) == confusion.sum()
    lines = metrics.format_class_scores(scores_of(confusion, names), max_classes=4)
    assert len(lines) == 6
    assert any(line.startswith("a class with a long name 7 ") for line in lines)


def test_tables_are_aligned_by_the_width_on_a_terminal() -> None:
    confusion = np.array([[1200, 3], [40, 5]])
    assert metrics.format_confusion(confusion, ["good", "日本"]) == [
        "true \\ predicted   good  日本",
        "good              1,200     3",
        "日本                 40     5",
    ]
    assert metrics.format_class_scores(scores_of(confusion, ["good", "bad\n[b]"]))[2].startswith("bad\\n[b]")


def test_the_spread_of_runs_is_mean_and_deviation_of_each_figure() -> None:
    def results(task: str, accuracy: float, pearson: float | None) -> dict[str, Any]:
        figures = {"accuracy": accuracy, "pearson": pearson, "confusion": [[1, 0], [0, 1]]}
        return {task: Results("test", 3, 10, 0.5, figures, [], ("a", "b"), task).to_record()}

    runs = [results("", 0.5, 0.1), results("", 0.7, None), results("", 0.9, 0.3)]
    # a metric that is undefined in one of them has no mean
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=0.2 / 3**0.5)
    shown = f"accuracy 0.7000 ± 0.2000 (95 %: {low:.4f} to {high:.4f})  loss 0.5000 ± 0.0000 (95 %: 0.5000 to 0.5000)"
    assert summarize_runs(runs) == [f"test, 3 runs: {shown}"]
    several = [results("x", accuracy, None) | results("y", 0.2, None) for accuracy in (0.5, 0.7)]
    assert [line.split(":")[0] for line in summarize_runs(several)] == ["x, test, 2 runs", "y, test, 2 runs"]


def test_calibration_is_that_of_its_definition() -> None:
    """Guo et al. 2017: ten bins of equal width, and the mean distance of accuracy and confidence over the rows."""
    rng = np.random.default_rng(3)
    p_RC, true_R = rng.dirichlet([0.5, 0.5, 0.5], 500), rng.integers(0, 3, 500)
    found = metrics.calibration_metrics(p_RC, true_R)
    sure_R, right_R = p_RC.max(1), p_RC.argmax(1) == true_R
    bin_R = np.minimum((sure_R * 10).astype(int), 9)
    distance = 0.0
    for one, i in zip(found["bins"], sorted(set(bin_R)), strict=True):
        sure, right, n = sure_R[bin_R == i].mean(), right_R[bin_R == i].mean(), (bin_R == i).sum()
        assert (one["confidence"], one["accuracy"], one["rows"]) == (pytest.approx(sure), pytest.approx(right), n)
        distance += n * abs(sure - right)
    assert found["ece"] == pytest.approx(distance / 500)
    assert found["log_loss"] == pytest.approx(-np.log(p_RC[np.arange(500), true_R]).mean())
    certain = metrics.calibration_metrics(np.eye(3), np.arange(3))
    assert certain == {"ece": 0.0, "log_loss": 0.0, "bins": [{"confidence": 1.0, "accuracy": 1.0, "rows": 3}]}
    assert metrics.calibration_metrics(np.full((2, 2), np.nan), np.array([0, 1]))["bins"][0]["confidence"] == 0.0
