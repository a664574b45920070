"""Metrics of classification, multi-label classification, regression, entities, translation and extracted answers;
and tables of them. Metrics are returned as JSON values by name, or as numbers.

A ratio with denominator 0 is 0, as in scikit-learn with zero_division=0. The libraries are imported when they are used.
"""

# R rows, C classes

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size

from lmtool.arrays import Floats, Ints
from lmtool.printable import align_columns, format_count, printable

MetricValues = dict[str, Any]
"""Metrics by name, as JSON values."""

NO_LABEL = "(none of them)"
"""The class of a generated text that is not a label."""

N_CALIBRATION_BINS = 10
"""Bins of equal width of the confidences."""

_SCORES = ("precision", "recall", "f1", "support")
_WORD_WITH_APOSTROPHES = re.compile(r"\w+(?:['\u2019]\w+)*")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def class_metrics(true_R: Ints, predicted_R: Ints, names: Sequence[str]) -> MetricValues:
    """Computes metrics of classification with one class per row. Raises ValueError for classes without a name.

    accuracy: share of rows whose class is predicted.
    macro_f1: mean over all classes that occur among the true or predicted ones.
    matthews: correlation of true and predicted classes (Matthews 1975; for several classes Gorodkin 2004); 0 if all
        rows have, or all get, the same class.
    f1: of the positive class of two; see `find_positive_class_index`.
    classes: precision, recall, F1 and support of each class.
    confusion: counts of rows of true class i (down) and predicted class j (across).
    """
    from sklearn.metrics import confusion_matrix, matthews_corrcoef, precision_recall_fscore_support

    _check_shapes(true_R, predicted_R)
    both = np.unique(np.concatenate((true_R, predicted_R)))
    if both[0] < 0 or both[-1] >= len(names):
        raise ValueError(f"classes must lie from 0 to {len(names) - 1}")
    labels = range(len(names))
    scores = precision_recall_fscore_support(true_R, predicted_R, labels=labels, zero_division=0)
    chosen = find_positive_class_index(names)
    return {
        "accuracy": float(np.mean(true_R == predicted_R)),
        "macro_f1": float(scores[2][both].mean()),
        "matthews": float(matthews_corrcoef(true_R, predicted_R)) if len(both) > 1 else 0.0,
        **({} if chosen is None else {"f1": float(scores[2][chosen]), "positive": names[chosen]}),
        "classes": _name_class_scores(names, scores),
        "confusion": confusion_matrix(true_R, predicted_R, labels=labels).tolist(),
    }


def find_positive_class_index(names: Sequence[str]) -> int | None:
    """Returns the index of the class of two whose F1 is computed; None for another number of classes.

    It is the second class, unless that is the negation of the first, as in not_entailment. NO_LABEL does not count.
    """
    if len(names) - (NO_LABEL in names) != 2:
        return None
    first, second = (re.sub(r"[\W_]", "", name.lower()) for name in names[:2])
    return int(second not in (f"not{first}", f"non{first}", f"no{first}", f"un{first}"))


def _name_class_scores(names: Sequence[str], scores: Sequence[NDArray[Any]]) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and support of each class."""
    # scikit-learn counts a class without rows in floats.
    columns = (values.tolist() for values in (*scores[:3], scores[3].astype(np.int64)))
    return {name: dict(zip(_SCORES, row, strict=True)) for name, *row in zip(names, *columns, strict=True)}


def _check_shapes(true: NDArray[Any], predicted: NDArray[Any]) -> None:
    if true.shape != predicted.shape or not len(true):
        raise ValueError(f"predictions of shape {predicted.shape} for truth of shape {true.shape}")


def calibration_metrics(p_RC: Floats, true_R: Ints) -> MetricValues:
    """Compares the probabilities of classes with how often they are right, in bins by the highest probability.

    ece: expected calibration error (Guo et al. 2017), the mean over rows of |accuracy - mean confidence| of their bin.
    log_loss: mean negative logarithm of the probability of the right class. bins: those with rows, each with
    `confidence`, `accuracy` and `rows`. NaN counts as probability 0.
    """
    confidence_R = np.nan_to_num(p_RC.max(1))
    right_R = p_RC.argmax(1) == true_R
    bin_R = np.minimum((confidence_R * N_CALIBRATION_BINS).astype(int), N_CALIBRATION_BINS - 1)
    bins = []
    for index in np.unique(bin_R):
        in_R = bin_R == index
        confidence, accuracy = float(confidence_R[in_R].mean()), float(right_R[in_R].mean())
        bins.append({"confidence": confidence, "accuracy": accuracy, "rows": int(in_R.sum())})
    ece = sum(one["rows"] * abs(one["accuracy"] - one["confidence"]) for one in bins) / len(true_R)
    right_p_R = np.maximum(np.nan_to_num(p_RC[np.arange(len(true_R)), true_R]), np.finfo(float).tiny)
    return {"ece": float(ece), "log_loss": float(-np.log(right_p_R).mean()), "bins": bins}


def multi_label_metrics(
    true_RC: NDArray[np.bool_], predicted_RC: NDArray[np.bool_], names: Sequence[str]
) -> MetricValues:
    """Computes metrics of multi-hot labels.

    subset_accuracy: exact match, the share of rows whose predicted labels are all the true ones and no other.
    micro_f1, macro_f1: of all labels, as in scikit-learn.
    classes: precision, recall, F1 and support of each label.
    """
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    _check_shapes(true_RC, predicted_RC)
    # Adds a label that no row has, because scikit-learn reads a single column as classes.
    padded = [np.pad(labels_RC, ((0, 0), (0, 1))) for labels_RC in (true_RC, predicted_RC)]
    scores = [values[:-1] for values in precision_recall_fscore_support(*padded, average=None, zero_division=0)]
    return {
        "subset_accuracy": float((true_RC == predicted_RC).all(1).mean()),
        "micro_f1": float(f1_score(*padded, average="micro", zero_division=0)),
        "macro_f1": float(scores[2].mean()),
        "classes": _name_class_scores(names, scores),
    }


def regression_metrics(true_R: Floats, predicted_R: Floats) -> MetricValues:
    """Computes the mean squared error, Pearson's correlation (1895), and Spearman's (1904) with mean ranks for ties.

    Returns None for NaN, such as a correlation with constant numbers.
    """
    from scipy.stats import pearsonr, spearmanr

    _check_shapes(true_R, predicted_R)
    pearson = spearman = math.nan
    if len(true_R) > 1 and np.isfinite(predicted_R).all():
        with warnings.catch_warnings():
            # Correlations with constant numbers warn.
            warnings.simplefilter("ignore")
            pearson, spearman = (correlate(true_R, predicted_R).statistic for correlate in (pearsonr, spearmanr))
    figures: MetricValues = {"mse": np.mean((true_R - predicted_R) ** 2), "pearson": pearson, "spearman": spearman}
    return {name: None if math.isnan(value) else float(value) for name, value in figures.items()}


def compute_word_accuracy(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Computes the share of the words of sentences whose tags agree."""
    pairs = [pair for row, other in zip(true, predicted, strict=True) for pair in zip(row, other, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


def find_entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Finds the entities of BIO tags as conlleval does, by seqeval: type, first word, and word after the last."""
    from seqeval.metrics.sequence_labeling import get_entities

    return {(kind, first, last + 1) for kind, first, last in get_entities(list(tags))}


def entity_metrics(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> MetricValues:
    """Computes metrics of BIO tags as conlleval does, by seqeval (Tjong Kim Sang and De Meulder 2003).

    Entities agree where both type and words do. An I that continues no entity of its type begins one.

    f1, precision, recall: of all entities.
    accuracy: the share of words whose tags agree.
    entities: precision, recall, F1 and number of true entities (support) of each type.
    """
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    tags = [[list(row) for row in rows] for rows in (true, predicted)]
    types = sorted({kind for rows in tags for row in rows for kind, _, _ in find_entities(row)})
    whole, parts = (0.0, 0.0, 0.0), []
    if types:
        whole = precision_recall_fscore_support(*tags, average="micro", zero_division=0)
        parts = precision_recall_fscore_support(*tags, average=None, zero_division=0)
    return {
        "f1": float(whole[2]),
        "precision": float(whole[0]),
        "recall": float(whole[1]),
        "accuracy": compute_word_accuracy(true, predicted),
        "entities": _name_class_scores(types, parts) if types else {},
    }


def compute_chrf_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Computes chrF (Popović 2015) of each hypothesis, by sacrebleu."""
    from sacrebleu.metrics.chrf import CHRF

    score = CHRF().sentence_score
    return [float(score(text, [reference]).score) for text, reference in zip(hypotheses, references, strict=True)]


def translation_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> MetricValues:
    """Computes corpus BLEU (Papineni et al. 2002) and chrF (Popović 2015) by sacrebleu, with their signatures, and the
    mean F1 of ROUGE by rouge-score, each from 0 to 100, with one reference for each hypothesis.

    repeating: share of hypotheses that repeat a phrase; see `has_consecutively_repeated_phrase`.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    scorers = {"bleu": BLEU(), "chrf": CHRF()}
    return {
        **{name: scorer.corpus_score(hypotheses, [references]).score for name, scorer in scorers.items()},
        **compute_rouge(hypotheses, references),
        "repeating": sum(map(has_consecutively_repeated_phrase, hypotheses)) / len(hypotheses),
        **{f"{name}_signature": str(scorer.get_signature()) for name, scorer in scorers.items()},
    }


class _RougeTokenizer:
    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


def compute_rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Computes ROUGE-1, ROUGE-2 and ROUGE-L by rouge-score: the mean F1 of unigrams, of bigrams, and of longest common
    subsequences, from 0 to 100 (Lin 2004).

    Words are letters and digits of any script in lower case, without stemming; for Latin text those of rouge-score.
    """
    from rouge_score.rouge_scorer import RougeScorer

    kinds = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL"}
    scorer = RougeScorer([*kinds.values()], tokenizer=_RougeTokenizer())
    scores = [scorer.score(reference, text) for text, reference in zip(hypotheses, references, strict=True)]
    return {name: 100 * sum(one[kind].fmeasure for one in scores) / len(scores) for name, kind in kinds.items()}


def has_consecutively_repeated_phrase(text: str) -> bool:
    """Returns whether two or more words directly follow themselves, apart from case and punctuation.

    "in a market, in a market" does. One human translation in ten thousand does.
    """
    words = _WORD_WITH_APOSTROPHES.findall(text.lower())
    for n in range(2, len(words) // 2 + 1):
        n_same = 0
        for first, second in zip(words, words[n:], strict=False):
            n_same = n_same + 1 if first == second else 0
            if n_same == n:
                return True
    return False


def normalize_answer(answer: str) -> str:
    """Returns an answer in lower case, without punctuation, articles and extra white space, as the scripts of SQuAD 1.1
    and 2.0 do (Rajpurkar et al. 2016, 2018)."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """Returns 1 if the normalized prediction equals an answer, else 0. Without answers it must be empty."""
    return float(normalize_answer(predicted) in _normalize_answers(answers))


def compute_word_f1(predicted: str, answers: Sequence[str]) -> float:
    """Returns the best F1 of the normalized prediction's words and an answer's. Without answers it must be empty."""
    words = normalize_answer(predicted).split()
    return max(_compute_token_f1(words, answer.split()) for answer in _normalize_answers(answers))


def _normalize_answers(answers: Sequence[str]) -> list[str]:
    """Returns the normalized answers that are not empty; without any an empty one, which stands for no answer."""
    return [*filter(None, map(normalize_answer, answers))] or [""]


def _compute_token_f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    """Returns the F1 of the words of two answers; of an empty one 1 if both are empty, else 0."""
    if not predicted or not answer:
        return float(predicted == answer)
    n_common = (Counter(predicted) & Counter(answer)).total()
    return 2 * n_common / (len(predicted) + len(answer))


def find_best_null_threshold(
    null_scores: Sequence[float], scores: Sequence[float], has_answer: Sequence[bool]
) -> float:
    """Finds the null score up to which questions should be answered for the highest mean score, as find_best_thresh of
    SQuAD 2.0 does; infinite if all questions have answers.

    A question without an answer scores 1 if it is not answered.

    null_scores: score of the null span minus that of the best span. scores: of the best span.
    """
    if all(has_answer):
        return math.inf
    # The gain over answering no question, for each distinct null score.
    null_score_U, index_N = np.unique(null_scores, return_inverse=True)
    gain_U = np.cumsum(np.bincount(index_N, np.where(has_answer, scores, -1.0)))
    best = int(gain_U.argmax())
    return float(null_score_U[best] if gain_U[best] > 0 else null_score_U[0] - 1)


def format_class_scores(
    classes: Mapping[str, Mapping[str, Any]], nouns: tuple[str, str] = ("class", "rows"), max_classes: int = 20
) -> list[str]:
    """Formats the scores of classes, or of types of entities, as the lines of a table.

    nouns: headers of the first and the last column. max_classes: shows at most these, with the largest support.
    """
    shown = _select_largest([scores["support"] for scores in classes.values()], max_classes)
    rows = [[nouns[0], "precision", "recall", "F1", nouns[1]]]
    for name in (list(classes)[i] for i in shown):
        *scores, support = (classes[name][score] for score in _SCORES)
        rows.append([_escape_and_truncate_label(name), *(f"{100 * score:.1f}" for score in scores), f"{support:,}"])
    return [*align_columns(rows), *_format_omitted(len(classes) - len(shown))]


def format_confusion(confusion_CC: Ints, names: Sequence[str], max_classes: int = 10) -> list[str]:
    """Formats a confusion matrix as aligned lines: true classes down, predicted ones across.

    max_classes: shows at most these, with the largest support, and the others together.
    """
    shown = _select_largest(confusion_CC.sum(1).tolist(), max_classes)
    rest = [i for i in range(len(names)) if i not in set(shown)]
    groups = [[i] for i in shown] + ([rest] if rest else [])
    labels = [_escape_and_truncate_label(names[i], 12) for i in shown] + (["others"] if rest else [])
    rows = [["true \\ predicted", *labels]]
    for label, down in zip(labels, groups, strict=True):
        rows.append([label, *(f"{confusion_CC[np.ix_(down, across)].sum():,}" for across in groups)])
    return [*align_columns(rows), *_format_omitted(len(rest))]


def _select_largest(supports: Sequence[int], max_classes: int) -> list[int]:
    """Returns the classes with the largest support, in their own order."""
    return sorted(sorted(range(len(supports)), key=lambda i: (-supports[i], i))[:max_classes])


def _format_omitted(count: int) -> list[str]:
    return [f"... and {format_count(count, 'more class', 'more classes')}"] if count else []


def _escape_and_truncate_label(name: str, width: int = 30) -> str:
    """Returns a name on one line, its control characters escaped, truncated to a width."""
    # Combining characters have no width, so their number is limited too.
    text = printable(name[: 4 * width])
    is_short = len(name) <= 4 * width and cell_len(text) <= width
    return text if is_short else set_cell_size(text, width - 1).rstrip() + "…"
