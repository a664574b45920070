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

from lmtool.tasks.metrics import (
    NO_LABEL,
    calibration_metrics,
    class_metrics,
    compute_chrf_scores,
    compute_rouge,
    compute_word_f1,
    exact_match,
    find_best_null_threshold,
    find_positive_class_index,
    format_class_scores,
    format_confusion,
    has_consecutively_repeated_phrase,
    multi_label_metrics,
    regression_metrics,
    translation_metrics,
)
from lmtool.tasks.results import Results, summarize_runs
from tests.reference import annotated
from tests.reference import metrics as reference


def per_class(found):
    """Precision, recall, F1 and support of the classes, each as a list."""
    names = ("precision", "recall", "f1", "support")
    return [[scores[name] for scores in found["classes"].values()] for name in names]


def metrics_of(confusion, names):
    """The metrics of rows that have this confusion matrix."""
    true, predicted = (np.repeat(axis.ravel(), confusion.ravel()) for axis in np.indices(confusion.shape))
    return class_metrics(true, predicted, names)


def classes(seed):
    """Truth and predictions of a few rows; some classes never occur, or are never predicted."""
    rng = np.random.default_rng(seed)
    n_classes, n_rows = int(rng.integers(2, 9)), int(rng.integers(1, 40))
    true = rng.integers(0, n_classes, n_rows)
    predicted = np.where(rng.random(n_rows) < 0.5, true, rng.integers(0, max(1, n_classes - 2), n_rows))
    return true, predicted, n_classes


@pytest.mark.parametrize("seed", range(15))
def test_classes_equal_scikit_learn_and_the_reference(seed):
    true, predicted, n_classes = classes(seed)
    labels = list(range(n_classes))
    found = class_metrics(true, predicted, [str(i) for i in labels])
    if len(set(true) | set(predicted)) > 1:  # scikit-learn warns of a single class
        assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(true, predicted), abs=1e-12)
    assert found["matthews"] == pytest.approx(reference.matthews(true.tolist(), predicted.tolist()), abs=1e-12)
    assert found["confusion"] == sklearn.confusion_matrix(true, predicted, labels=labels).tolist()
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
    assert found["macro_f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="macro", zero_division=0))
    assert found["macro_f1"] == pytest.approx(reference.macro_f1(true.tolist(), predicted.tolist()))
    theirs = sklearn.precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0)
    for ours, other in zip(per_class(found), theirs, strict=True):
        assert ours == pytest.approx(other)
    for i, *scores, _ in zip(labels, *per_class(found), strict=True):
        assert scores == pytest.approx(reference.precision_recall_f1(true.tolist(), predicted.tolist(), i))


def test_the_positive_class_is_the_second_unless_it_denies_the_first():
    assert find_positive_class_index(["0", "1"]) == 1
    assert find_positive_class_index(["negative", "positive"]) == 1
    assert find_positive_class_index(["entailment", "not_entailment"]) == 0
    assert find_positive_class_index(["equivalent", "non-equivalent"]) == 0
    assert find_positive_class_index(["no", "yes", NO_LABEL]) == 1
    assert find_positive_class_index(["a", "b", "c"]) is None
    value = class_metrics(np.array([0, 1, 1]), np.array([0, 1, 0]), ["no", "yes"])
    assert (value["f1"], value["positive"]) == (pytest.approx(2 / 3), "yes")


def test_rouge_of_the_examples_of_its_paper():
    # Lin (2004), section 3: the sentences share as many bigrams, and only the first has the order of the reference
    def rouge(*texts: str, reference: str = "police killed the gunman") -> list[float]:
        found = compute_rouge(texts, [reference] * len(texts))
        return [found["rouge1"], found["rouge2"], found["rouge_l"]]

    assert rouge("Police kill the gunman.") == pytest.approx([75, 100 / 3, 75])
    assert rouge("the gunman kill police") == pytest.approx([75, 100 / 3, 50])
    assert rouge("police kill the gunman", "the gunman kill police") == pytest.approx([75, 100 / 3, 62.5])
    assert rouge("быстрая лиса", reference="Быстрая лиса") == [100, 100, 100]
    assert translation_metrics(["a b c d e"], ["a b c d f"])["rouge1"] == pytest.approx(80)


def test_a_class_never_predicted_and_one_that_never_occurs():
    found = class_metrics(np.array([0, 0, 1]), np.array([0, 0, 0]), ["a", "b", "c"])
    assert per_class(found)[2] == pytest.approx([0.8, 0, 0])
    assert found["macro_f1"] == pytest.approx(0.4)  # of two classes: the third is in neither


@pytest.mark.parametrize("wrong", [[0, 3], [0, -1], [0]])
def test_classes_out_of_range_and_unequal_lengths_are_refused(wrong):
    with pytest.raises(ValueError, match=r"classes must|shape"):
        class_metrics(np.array([0, 1]), np.array(wrong), ["a", "b", "c"])


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="shape"):
        regression_metrics(np.array([]), np.array([]))


@pytest.mark.parametrize("seed", range(10))
def test_multi_label_equals_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 30)), int(rng.integers(2, 7)))
    true = rng.random(shape) < rng.random(shape[1])
    predicted = rng.random(shape) < rng.random(shape[1])
    predicted[:, 0] = False
    found = multi_label_metrics(true, predicted, [str(i) for i in range(shape[1])])
    assert found["subset_accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
    for average in "micro", "macro":
        expected = sklearn.f1_score(true, predicted, average=average, zero_division=0)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    theirs = sklearn.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    for ours, other in zip(per_class(found), theirs, strict=True):
        assert ours == pytest.approx(other)


def test_a_table_may_have_one_label():
    true, predicted = np.array([[True], [False], [True], [False]]), np.array([[True], [True], [False], [False]])
    found = multi_label_metrics(true, predicted, ["x"])
    assert [found[name] for name in ("subset_accuracy", "micro_f1", "macro_f1")] == [0.5, 0.5, 0.5]
    assert per_class(found) == [[0.5], [0.5], [0.5], [2]]


@pytest.mark.parametrize("scale", [1, 1e-200, 1e200])
@pytest.mark.parametrize("seed", range(10))
def test_regression_equals_scipy_and_the_reference(seed, scale):
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(2, 30))
    true = rng.integers(0, 6, n_rows) + np.arange(n_rows) % 2 / 2  # with ties
    predicted = true + rng.normal(size=n_rows).round(1)
    true[0], true[1] = 7, 8
    predicted[0], predicted[1] = 9, 8.5
    found = regression_metrics(true, predicted)
    assert found["mse"] == pytest.approx(sklearn.mean_squared_error(true, predicted))
    assert found["pearson"] == pytest.approx(stats.pearsonr(true, predicted).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(true, predicted).statistic)
    assert found["pearson"] == pytest.approx(reference.pearson(true.tolist(), predicted.tolist()))
    assert found["spearman"] == pytest.approx(reference.spearman(true.tolist(), predicted.tolist()))
    scaled = regression_metrics(true * scale**0.5, predicted * scale**0.5)
    for name in ("pearson", "spearman"):
        assert scaled[name] == pytest.approx(found[name])


def test_a_correlation_with_equal_numbers_is_not_a_number():
    found = regression_metrics(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1))
    assert found["pearson"] is None
    assert found["spearman"] is None
    assert regression_metrics(np.ones(1), np.zeros(1)) == {"mse": 1.0, "pearson": None, "spearman": None}
    assert regression_metrics(np.arange(3.0), np.full(3, np.nan)) == {"mse": None, "pearson": None, "spearman": None}


@pytest.mark.parametrize("seed", range(8))
def test_translations_equal_sacrebleu_and_the_papers(seed):
    rng = random.Random(seed)
    words = ["haus", "der", "alte", "hund", "läuft", "über", "die", "brücke"]
    references = [" ".join(rng.choices(words, k=rng.randint(5, 12))) for _ in range(20)]
    hypotheses = [
        " ".join(word if rng.random() < 0.8 else rng.choice(words) for word in text.split()[rng.randint(0, 1) :])
        for text in references
    ]
    found = translation_metrics(hypotheses, references)
    assert found["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert found["bleu"] == pytest.approx(reference.bleu(hypotheses, references))
    assert found["chrf"] == pytest.approx(reference.chrf(hypotheses, references))
    assert "tok:13a" in found["bleu_signature"]
    assert "nc:6" in found["chrf_signature"]
    perfect = translation_metrics(references, references)
    assert (perfect["bleu"], perfect["chrf"]) == pytest.approx((100, 100))


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("A woman in a market, in a market.", True),
        ("In a market in a Market", True),
        ("It is don't stop don't stop", True),
        ("A tree so very, very high.", False),
    ],
)
def test_a_phrase_that_follows_itself_is_repeated(text, repeats):
    assert has_consecutively_repeated_phrase(text) is repeats


@pytest.mark.parametrize("seed", range(5))
def test_repeated_phrases_are_those_of_the_definition(seed):
    """Some n >= 2 words and the n after them are equal, for texts of two words in random order."""
    rng = random.Random(seed)
    found = set()
    for _ in range(50):
        words = rng.choices("abcd", k=rng.randint(0, 9))
        spans = [(i, n) for n in range(2, 5) for i in range(len(words)) if i + 2 * n <= len(words)]
        wanted = any(words[i : i + n] == words[i + n : i + 2 * n] for i, n in spans)
        assert has_consecutively_repeated_phrase(" ".join(words)) is wanted
        found.add(wanted)
    assert found == {True, False}


def test_the_share_of_repeating_translations_is_a_metric():
    hypotheses = ["a dog a dog runs", "a dog runs in the park", "the cat sat on the mat", "it rains"]
    assert translation_metrics(hypotheses, hypotheses)["repeating"] == 0.25


def test_translations_need_as_many_references():
    for hypotheses, references in ([], []), (["a"], []), (["a"], ["a", "b"]):
        with pytest.raises(ValueError, match="references"):
            translation_metrics(hypotheses, references)


def test_tables_of_many_classes_are_cut_and_lose_no_row():
    rng = np.random.default_rng(0)
    confusion = rng.integers(0, 9, (50, 50))
    confusion[7] += 100
    names = [f"a class with a long name {i}" for i in range(50)]
    lines = format_confusion(confusion, names, max_classes=4)
    assert len(lines) == 7
    assert lines[-1] == "... and 46 more classes"
    assert max(map(len, lines)) < 100
    cells = [line.replace(",", "").split()[-5:] for line in lines[1:-1]]
    assert sum(int(cell) for row in cells for cell in row) == confusion.sum()
    lines = format_class_scores(metrics_of(confusion, names)["classes"], max_classes=4)
    assert len(lines) == 6
    assert any(line.startswith("a class with a long name 7 ") for line in lines)


def test_tables_are_aligned_by_the_width_on_a_terminal():
    confusion = np.array([[1200, 3], [40, 5]])
    assert format_confusion(confusion, ["good", "日本"]) == [
        "true \\ predicted   good  日本",
        "good              1,200     3",
        "日本                 40     5",
    ]
    assert format_class_scores(metrics_of(confusion, ["good", "bad\n[b]"])["classes"])[2].startswith("bad\\n[b]")


def test_the_spread_of_runs_is_mean_and_deviation_of_each_figure() -> None:
    def results(task: str, accuracy: float, pearson: float | None) -> dict[str, Any]:
        figures = {"accuracy": accuracy, "pearson": pearson, "confusion": [[1, 0], [0, 1]]}
        return {task: Results("test", 3, 10, 0.5, figures, [], ("a", "b"), task).to_record()}

    runs = [results("", 0.5, 0.1), results("", 0.7, None), results("", 0.9, 0.3)]
    # a metric that is undefined in one of them has no mean
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=0.2 / 3**0.5)
    interval = f"(95 %: {low:.4f} to {high:.4f})"
    shown = f"accuracy 0.7000 ± 0.2000 {interval}  loss 0.5000 ± 0.0000 (95 %: 0.5000 to 0.5000)"
    assert summarize_runs(runs) == [f"test, 3 runs: {shown}"]
    several = [results("x", accuracy, None) | results("y", 0.2, None) for accuracy in (0.5, 0.7)]
    assert [line.split(":")[0] for line in summarize_runs(several)] == ["x, test, 2 runs", "y, test, 2 runs"]


def test_calibration_is_that_of_its_definition():
    """Guo et al. 2017: ten bins of equal width, and the mean distance of accuracy and confidence over the rows."""
    rng = np.random.default_rng(3)
    p_RC = rng.dirichlet([0.5, 0.5, 0.5], 500)
    true_R = rng.integers(0, 3, 500)
    found = calibration_metrics(p_RC, true_R)
    bins = {}
    for p_C, true in zip(p_RC.tolist(), true_R.tolist(), strict=True):
        bins.setdefault(min(int(max(p_C) * 10), 9), []).append((max(p_C), p_C.index(max(p_C)) == true))
    assert [one["rows"] for one in found["bins"]] == [len(bins[i]) for i in sorted(bins)]
    distances = 0.0
    for one, i in zip(found["bins"], sorted(bins), strict=True):
        sure, right = (sum(values) / len(bins[i]) for values in zip(*bins[i], strict=True))
        assert (one["confidence"], one["accuracy"]) == (pytest.approx(sure), pytest.approx(right))
        distances += len(bins[i]) * abs(sure - right)
    assert found["ece"] == pytest.approx(distances / 500)
    of_truth = [p_C[true] for p_C, true in zip(p_RC.tolist(), true_R.tolist(), strict=True)]
    assert found["log_loss"] == pytest.approx(-math.fsum(map(math.log, of_truth)) / 500)


def test_certain_right_answers_are_calibrated_and_nan_is_no_error():
    certain = calibration_metrics(np.eye(3), np.arange(3))
    assert certain == {"ece": 0.0, "log_loss": 0.0, "bins": [{"confidence": 1.0, "accuracy": 1.0, "rows": 3}]}
    assert calibration_metrics(np.full((2, 2), np.nan), np.array([0, 1]))["bins"][0]["confidence"] == 0.0


def test_sentences_are_scored_as_sacrebleu_does():
    hypotheses, references = ["a cat sat", "", "rain"], ["a cat sat", "a dog", "it rains"]
    expected = [sacrebleu.sentence_chrf(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
    assert compute_chrf_scores(hypotheses, references) == pytest.approx(expected)
    assert expected[0] == 100


TEXTS = st.text(alphabet="aAnthe .,!-\u2019x1", max_size=12)


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_answers_are_scored_as_by_the_script(predicted: str, answers: list[str]) -> None:
    assert exact_match(predicted, answers) == annotated.squad_exact(predicted, answers)
    assert compute_word_f1(predicted, answers) == pytest.approx(annotated.squad_f1(predicted, answers))


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

    found = find_best_null_threshold(null_scores, scores, has_answer)
    assert total(found) == pytest.approx(max(total(other) for other in (-9.0, *null_scores, 9.0)))


def test_where_all_have_an_answer_all_are_answered() -> None:
    assert find_best_null_threshold([5.0, -1.0], [0.0, 1.0], [True, True]) == math.inf
