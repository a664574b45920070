"""Metrics of classification, multi-label classification, regression and translation; and tables of them.

Pure functions of arrays. A ratio with denominator 0 is 0, as in scikit-learn with zero_division=0.
"""

# R rows, C classes

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.printable import plain

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_LABEL = "(none of them)"
"""The class of a generated text that is not a label."""

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of single-label classification."""

    confusion_CC: Ints
    """Counts of rows of true class i (down) and predicted class j (across)."""
    accuracy: float
    precision_C: Floats
    recall_C: Floats
    f1_C: Floats
    support_C: Ints
    macro_f1: float
    """The mean over all classes that occur among the true or predicted ones."""
    matthews: float
    """The correlation of true and predicted classes (Matthews 1975; for several classes Gorodkin 2004); 0 where all
    rows have, or all get, the same class."""

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Plain numbers and lists, classes by name. f1: of the positive class, of two; see `positive`."""
        chosen = positive(names)
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "matthews": self.matthews,
            **({} if chosen is None else {"f1": float(self.f1_C[chosen]), "positive": names[chosen]}),
            "classes": _per_class(self.precision_C, self.recall_C, self.f1_C, self.support_C, names),
            "confusion": self.confusion_CC.tolist(),
        }


@dataclass(frozen=True)
class MultiLabelMetrics:
    """Metrics of multi-label classification."""

    subset_accuracy: float
    """Exact match: the share of rows whose predicted labels are all the true ones and no other."""
    micro_f1: float
    macro_f1: float
    precision_C: Floats
    recall_C: Floats
    f1_C: Floats
    support_C: Ints

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Plain numbers and lists, labels by name."""
        return {
            "subset_accuracy": self.subset_accuracy,
            "micro_f1": self.micro_f1,
            "macro_f1": self.macro_f1,
            "classes": _per_class(self.precision_C, self.recall_C, self.f1_C, self.support_C, names),
        }


class RegressionMetrics(NamedTuple):
    """Metrics of regression. A correlation with constant numbers is NaN."""

    mse: float
    pearson: float
    spearman: float

    def to_json(self) -> dict[str, float | None]:
        """Plain numbers; null for NaN, which JSON lacks."""
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


class EntityMetrics(NamedTuple):
    """Metrics of tagged entities, which count as found where both type and words agree.

    types: precision, recall, F1 and number of true entities (support) of each type. accuracy: the share of words whose
    tags agree.
    """

    f1: float
    precision: float
    recall: float
    accuracy: float
    types: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, types by name."""
        plain_numbers = {name: getattr(self, name) for name in ("f1", "precision", "recall", "accuracy")}
        return plain_numbers | {"entities": self.types}


class TranslationMetrics(NamedTuple):
    """BLEU, chrF, and the F1 of ROUGE-1, -2 and -L, each from 0 to 100, and the sacrebleu signatures of the first two.

    repeating: the share of hypotheses that repeat a phrase; see `repeats_phrase`.
    """

    bleu: float
    chrf: float
    rouge1: float
    rouge2: float
    rouge_l: float
    repeating: float
    bleu_signature: str
    chrf_signature: str

    def to_json(self) -> dict[str, float | str]:
        """Plain numbers and texts."""
        return self._asdict()


def confusion_matrix(true_R: Ints, predicted_R: Ints, n_classes: int) -> Ints:
    """Counts of true class i (down) and predicted class j (across). Raises ValueError for classes not in 0..C - 1."""
    true_R, predicted_R = _same_length(true_R, predicted_R)
    for classes in (true_R, predicted_R):
        if classes.min() < 0 or classes.max() >= n_classes:
            raise ValueError(f"classes must lie from 0 to {n_classes - 1}")
    pairs = np.bincount(true_R * n_classes + predicted_R, minlength=n_classes**2)
    return pairs.reshape(n_classes, n_classes)


def class_metrics(confusion_CC: Ints) -> ClassMetrics:
    """The metrics of a confusion matrix. Matrices of parts of the rows can be added."""
    right_C = np.diagonal(confusion_CC)
    support_C, called_C = confusion_CC.sum(1), confusion_CC.sum(0)
    f1_C = _ratio(2 * right_C, support_C + called_C)
    occurs_C = support_C + called_C > 0
    return ClassMetrics(
        confusion_CC=confusion_CC,
        accuracy=float(right_C.sum() / confusion_CC.sum()),
        precision_C=_ratio(right_C, called_C),
        recall_C=_ratio(right_C, support_C),
        f1_C=f1_C,
        support_C=support_C,
        macro_f1=float(f1_C[occurs_C].mean()),
        matthews=_matthews(confusion_CC.astype(np.float64)),
    )


def positive(names: Sequence[str]) -> int | None:
    """The class of two that F1 is of: the second, unless it is the first one denied, as in not_entailment.

    NO_LABEL, the class of texts that are no label, does not count. None for more classes than two.
    """
    if len(names) - (NO_LABEL in names) != 2:
        return None
    first, second = (re.sub(r"[\W_]", "", name.lower()) for name in names[:2])
    return int(second not in (f"not{first}", f"non{first}", f"no{first}", f"un{first}"))


def _matthews(confusion_CC: Floats) -> float:
    """R_K of Gorodkin (2004): the covariance of true and predicted one-hot classes over the root of their variances."""
    true_C, called_C = confusion_CC.sum(1), confusion_CC.sum(0)
    total = confusion_CC.sum()
    covariance = np.trace(confusion_CC) * total - true_C @ called_C
    variances = (total**2 - true_C @ true_C) * (total**2 - called_C @ called_C)
    return float(covariance / math.sqrt(variances)) if variances > 0 else 0.0


BINS = 10
"""Bins of equal width of the confidences."""


def calibration(p_RC: Floats, true_R: Ints) -> dict[str, Any]:
    """Whether probabilities of classes can be believed, as JSON: rows in bins by their highest probability.

    ece: the expected calibration error (Guo et al. 2017), the mean over rows of |accuracy - mean confidence| of their
    bin. bins: those with rows, each with `confidence`, `accuracy` and `rows`. Probabilities that are no numbers
    count as 0.
    """
    given_R, confidence_R = p_RC.argmax(1), np.nan_to_num(p_RC.max(1))
    right_R = given_R == true_R
    bin_R = np.minimum((confidence_R * BINS).astype(int), BINS - 1)
    bins = []
    for index in np.unique(bin_R):
        in_R = bin_R == index
        sure, right = float(confidence_R[in_R].mean()), float(right_R[in_R].mean())
        bins.append({"confidence": sure, "accuracy": right, "rows": int(in_R.sum())})
    ece = sum(found["rows"] * abs(found["accuracy"] - found["confidence"]) for found in bins) / len(true_R)
    return {"ece": float(ece), "bins": bins}


def sentence_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF (Popović 2015) of each hypothesis, by sacrebleu."""
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF()
    return [
        float(chrf.sentence_score(hypothesis, [reference]).score)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]


def multi_label_metrics(true_RC: NDArray[np.bool_], predicted_RC: NDArray[np.bool_]) -> MultiLabelMetrics:
    """The metrics of multi-hot labels. The macro mean is over all labels, as in scikit-learn."""
    true_RC, predicted_RC = _same_length(true_RC.astype(bool), predicted_RC.astype(bool))
    right_C = (true_RC & predicted_RC).sum(0)
    support_C, called_C = true_RC.sum(0), predicted_RC.sum(0)
    f1_C = _ratio(2 * right_C, support_C + called_C)
    return MultiLabelMetrics(
        subset_accuracy=float((true_RC == predicted_RC).all(1).mean()),
        micro_f1=float(_ratio(2 * right_C.sum(keepdims=True), (support_C + called_C).sum(keepdims=True))[0]),
        macro_f1=float(f1_C.mean()),
        precision_C=_ratio(right_C, called_C),
        recall_C=_ratio(right_C, support_C),
        f1_C=f1_C,
        support_C=support_C,
    )


def regression_metrics(true_R: Floats, predicted_R: Floats) -> RegressionMetrics:
    """Mean squared error, Pearson's correlation (1895), and Spearman's (1904), with mean ranks for ties."""
    true_R, predicted_R = _same_length(true_R.astype(np.float64), predicted_R.astype(np.float64))
    mse = float(np.mean((true_R - predicted_R) ** 2))
    return RegressionMetrics(mse, _pearson(true_R, predicted_R), _pearson(_ranks(true_R), _ranks(predicted_R)))


def translation_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> TranslationMetrics:
    """Corpus BLEU (Papineni et al. 2002) and chrF (Popović 2015) by sacrebleu, mean ROUGE by rouge-score, one reference
    each."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    bleu, chrf = BLEU(), CHRF()
    rouge1, rouge2, rouge_l = rouge(hypotheses, references)
    return TranslationMetrics(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        rouge1=rouge1,
        rouge2=rouge2,
        rouge_l=rouge_l,
        repeating=sum(map(repeats_phrase, hypotheses)) / len(hypotheses),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


class _Words:
    """The tokenizer of ROUGE."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return re.findall(r"[^\W_]+", text.lower())


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the mean F1 over texts, from 0 to 100, by rouge-score.

    Words are letters and digits of any script, in lower case, without stemming; of Latin text those of rouge-score.
    """
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(kinds, tokenizer=_Words())
    found = [scorer.score(reference, text) for text, reference in zip(hypotheses, references, strict=True)]
    first, second, longest = (100 * sum(one[kind].fmeasure for one in found) / len(found) for kind in kinds)
    return first, second, longest


def repeats_phrase(text: str) -> bool:
    """Whether some two or more words directly follow themselves, case and punctuation aside.

    "in a market, in a market" does, which one human translation in ten thousand does.
    """
    words = _WORD.findall(text.lower())
    for n in range(2, len(words) // 2 + 1):
        n_same = 0
        for first, second in zip(words, words[n:], strict=False):
            n_same = n_same + 1 if first == second else 0
            if n_same == n:
                return True
    return False


def _same_length(true: NDArray[Any], predicted: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if true.shape != predicted.shape or not len(true):
        raise ValueError(f"predictions of shape {predicted.shape} for truth of shape {true.shape}")
    return true, predicted


def _ratio(above: Ints, below: Ints) -> Floats:
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)


def _pearson(x_R: Floats, y_R: Floats) -> float:
    # Constant numbers may differ from their mean by rounding.
    if len(x_R) < 2 or (x_R == x_R[0]).all() or (y_R == y_R[0]).all():
        return math.nan
    return float(np.clip(_unit(x_R - x_R.mean()) @ _unit(y_R - y_R.mean()), -1, 1))


def _unit(x_R: Floats) -> Floats:
    """A vector at length 1."""
    # relative to the largest first: squares of very small or large numbers underflow or overflow
    x_R = x_R / np.abs(x_R).max()
    unit_R: Floats = x_R / np.linalg.norm(x_R)
    return unit_R


def _ranks(x_R: Floats) -> Floats:
    """Ranks from 1; ties get their mean rank."""
    _, group_R, count_G = np.unique(x_R, return_inverse=True, return_counts=True)
    last_G = np.cumsum(count_G)
    ranks_R: Floats = (last_G - (count_G - 1) / 2)[group_R]
    return ranks_R


def _per_class(
    precision_C: Floats, recall_C: Floats, f1_C: Floats, support_C: Ints, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    rows = zip(names, precision_C.tolist(), recall_C.tolist(), f1_C.tolist(), support_C.tolist(), strict=True)
    return {name: {"precision": p, "recall": r, "f1": f, "support": n} for name, p, r, f, n in rows}


def word_accuracy(true: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> float:
    """The share of the words of sentences whose tags agree."""
    pairs = [pair for row, other in zip(true, given, strict=True) for pair in zip(row, other, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


def entity_metrics(true: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> EntityMetrics:
    """Metrics of BIO tags of sentences, by seqeval as conlleval has them (Tjong Kim Sang and De Meulder 2003).

    An I that continues no entity of its type begins one.
    """
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    accuracy = word_accuracy(true, given)
    types = sorted({of for tags in (true, given) for of, _, _ in get_entities([list(row) for row in tags])})
    if not types:
        return EntityMetrics(0.0, 0.0, 0.0, accuracy, {})
    rows = [list(row) for row in true], [list(row) for row in given]
    whole = precision_recall_fscore_support(*rows, average="micro", zero_division=0)
    parts = precision_recall_fscore_support(*rows, average=None, zero_division=0)
    names = ("precision", "recall", "f1", "support")
    found = {
        of: {name: int(value) if name == "support" else float(value) for name, value in zip(names, scores, strict=True)}
        for of, *scores in zip(types, *parts, strict=True)
    }
    return EntityMetrics(float(whole[2]), float(whole[0]), float(whole[1]), accuracy, found)


def entity_lines(types: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of all types of entities as aligned lines."""
    rows = [["type", "precision", "recall", "F1", "entities"]]
    for of, found in types.items():
        scores = [f"{100 * found[name]:.1f}" for name in ("precision", "recall", "f1")]
        rows.append([_label(of), *scores, f"{found['support']:,}"])
    return aligned(rows)


def class_lines(metrics: ClassMetrics | MultiLabelMetrics, names: Sequence[str], most: int = 20) -> list[str]:
    """A table of all classes as aligned lines: of more than `most` classes those with the largest support."""
    shown = _largest(metrics.support_C, most)
    labels = [_label(names[i]) for i in shown]
    rows = [["class", "precision", "recall", "F1", "rows"]]
    for i, label in zip(shown, labels, strict=True):
        scores = [f"{100 * score[i]:.1f}" for score in (metrics.precision_C, metrics.recall_C, metrics.f1_C)]
        rows.append([label, *scores, f"{metrics.support_C[i]:,}"])
    return [*aligned(rows), *_more(len(names) - len(shown))]


def confusion_lines(confusion_CC: Ints, names: Sequence[str], most: int = 10) -> list[str]:
    """A confusion matrix as aligned lines: true classes down, predicted ones across.

    Of more than `most` classes those with the largest support are shown, and the others together.
    """
    shown = _largest(confusion_CC.sum(1), most)
    rest = [i for i in range(len(names)) if i not in set(shown)]
    groups = [[i] for i in shown] + ([rest] if rest else [])
    labels = [_label(names[i], 12) for i in shown] + (["others"] if rest else [])
    rows = [["true \\ predicted", *labels]]
    for label, down in zip(labels, groups, strict=True):
        rows.append([label, *(f"{confusion_CC[np.ix_(down, across)].sum():,}" for across in groups)])
    return [*aligned(rows), *_more(len(rest))]


def _largest(support_C: Ints, most: int) -> list[int]:
    """The classes with the largest support, in their own order."""
    order = sorted(range(len(support_C)), key=lambda i: (-int(support_C[i]), i))
    return sorted(order[:most])


def _more(count: int) -> list[str]:
    return [f"... and {count:,} more {'class' if count == 1 else 'classes'}"] if count else []


def _label(name: str, width: int = 30) -> str:
    """A name on one line, its control characters escaped, truncated to a width."""
    # combining characters have no width, so their number is limited too
    text = plain(name[: 4 * width])
    if len(name) <= 4 * width and _width(text) <= width:
        return text
    columns = accumulate(map(_width, text))
    return "".join(c for c, end in zip(text, columns, strict=True) if end < width) + "…"


def _width(text: str) -> int:
    """Terminal columns of a text."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def aligned(rows: list[list[str]]) -> list[str]:
    """Columns two spaces apart, the first left-aligned, the others right-aligned."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first + " " * (widths[0] - _width(first))]
        cells += [" " * (width - _width(cell)) + cell for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
