"""The baseline of a labelled table: what scikit-learn reaches in seconds by counting words."""

import random
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.recipe.grammar import either
from lmtool.run.files import BaselineFigures
from lmtool.run.uncertainty import are_alike
from lmtool.tables.annotations import has_entities
from lmtool.tables.labels import LabelKind, LabelMap
from lmtool.tables.reading import LabelledText, LabelledTexts
from lmtool.tables.tasks import metrics

MOST_ROWS = 20_000
"""Training rows that the linear model is fitted to, a random sample of larger tables."""

MOST_CHARACTERS = 2_000
"""Characters of a row that it reads."""

MOST_SCORED = 2_000
"""Rows by which `has_words` decides."""

KNOWN_WORDS = 0.6
"""Share of words in half of the texts that must occur in the other half, for words to be features."""

METRICS: Mapping[LabelKind, str] = {"class": "accuracy", "multi": "micro_f1", "number": "mse"}
"""The metric of each kind of labels but tags, as named in `Results`."""

Floats = NDArray[np.float64]


class Baseline(BaselineFigures):
    """Results of two simple models, as lines for people."""

    def line(self) -> str:
        """The baseline as one line."""
        if self.kind == "tags":
            metric = "entity F1" if self.metric == "f1" else "accuracy"
            lexical = f"{self.features} {self._shown(self.linear)}"
            return f"baseline: one tag {self._shown(self.constant)}, {lexical} ({metric})"
        constant = {"class": "majority", "multi": "most frequent label", "number": "mean"}[self.kind]
        linear = f"ridge regression on {self.features}" if self.kind == "number" else self.features
        metric = {"class": "", "multi": " (micro F1)", "number": " (mean squared error)"}[self.kind]
        some = f"; fitted to {self.fitted:,} of {self.rows:,} rows" if self.fitted < self.rows else ""
        return f"baseline: {constant} {self._shown(self.constant)}, {linear} {self._shown(self.linear)}{metric}{some}"

    def beside(self, figures: Mapping[str, Any], n_rows: int, remedies: Sequence[str] = ()) -> str:
        """The baseline and the figures of a model on so many rows as one line.

        remedies: options that may help a model that is below it.
        """
        value = figures.get(self.metric)
        if value is None:
            return self.line()
        best = min(self.constant, self.linear) if self.kind == "number" else max(self.constant, self.linear)
        is_below = value > best if self.kind == "number" else value < best
        verdict = " is below it" if is_below else ""
        if value != best and are_alike(self.metric, (value, n_rows), (best, n_rows)):
            verdict = f"; {n_rows:,} rows are too few to tell which is better"
        elif is_below and remedies:
            verdict += f": lmtool finetune with {either([*remedies])} may do better"
        return f"{self.line()}; this model {self._shown(value)}{verdict}"

    def _shown(self, value: float) -> str:
        return f"{value:.4g}" if self.kind == "number" else f"{100 * value:.1f} %"


def mean_line(baselines: Sequence[Baseline]) -> str:
    """One line for the baselines of several runs on one table, whose held-out rows differ: their means."""
    figures = np.array([(one.constant, one.linear) for one in baselines])
    constant, linear = figures.mean(0).tolist()
    return baselines[0].model_copy(update={"constant": constant, "linear": linear}).line()


def measure_baseline(train: LabelledTexts, rows: LabelledTexts, part: str) -> Baseline:
    """The baseline of a table, fitted to its training rows and measured on `rows`, in seconds.

    Both have labels. Raises nothing for texts or labels that cannot be learned: there the constant is the baseline.
    """
    kind = cast(LabelMap, train.labels).kind
    measured = _of_tags(train, rows) if kind == "tags" else _of_texts(train, rows)
    return Baseline.model_validate({"kind": kind, "part": part, "rows": len(train), **measured})


def _of_texts(train: LabelledTexts, rows: LabelledTexts) -> dict[str, Any]:
    """What the most frequent label reaches, or the mean of numbers, and a linear model."""
    labels = cast(LabelMap, train.labels)
    fitted = random.Random(0).sample(train.items, min(MOST_ROWS, len(train)))
    truth_RC, fitted_RC = _targets(rows.items, labels), _targets(fitted, labels)
    mean_C = _targets(train.items, labels).mean(0)
    # the scores that every row gets without its text
    constant_C = mean_C if labels.kind == "number" else np.eye(len(mean_C))[mean_C.argmax()]
    texts, others = _texts(fitted), _texts(rows.items)
    words = has_words(texts)
    constant = headline(truth_RC, np.tile(constant_C, (len(truth_RC), 1)), labels.kind)
    scores_RC = _linear(texts, fitted_RC, others, labels.kind, words)
    linear = constant if scores_RC is None else headline(truth_RC, scores_RC, labels.kind)
    features, metric = "words and pairs" if words else "character n-grams", METRICS[labels.kind]
    return {"metric": metric, "constant": constant, "linear": linear, "features": features, "fitted": len(fitted)}


def _of_tags(train: LabelledTexts, rows: LabelledTexts) -> dict[str, Any]:
    """What the most frequent tag of all words reaches, and that of each word, where the training rows have it."""
    counts: dict[str, Counter[str]] = {}
    for item in train.items:
        for word, tag in zip(item.texts, _tags(item), strict=True):
            counts.setdefault(word, Counter())[tag] += 1

    def most(tags: Counter[str]) -> str:
        return min(tags, key=lambda tag: (-tags[tag], tag))

    usual = most(Counter(tag for item in train.items for tag in _tags(item)))
    of_word = {word: most(tags) for word, tags in counts.items()}
    true = [_tags(item) for item in rows.items]
    by_word = [[of_word.get(word, usual) for word in item.texts] for item in rows.items]
    metric = "f1" if has_entities(cast(LabelMap, train.labels).names) else "accuracy"
    one_tag = [[usual] * len(tags) for tags in true]
    constant, lexical = (
        metrics.entity_metrics(true, tags)["f1"] if metric == "f1" else metrics.word_accuracy(true, tags)
        for tags in (one_tag, by_word)
    )
    features = "the most frequent tag of each word"
    return {"metric": metric, "constant": constant, "linear": lexical, "features": features, "fitted": len(train)}


def _tags(item: LabelledText) -> tuple[str, ...]:
    return cast(tuple[str, ...], item.label)


def has_words(texts: Sequence[str]) -> bool:
    """Whether words are useful features of texts: most words of one half of them are known from the other half.

    They are not for names, and for scripts that do not separate words.
    """
    some = random.Random(0).sample(texts, min(MOST_SCORED, len(texts)))
    words = [re.findall(r"\w+", text.lower()) for text in some]
    known, others = {*chain(*words[::2])}, [*chain(*words[1::2])]
    return sum(word in known for word in others) >= KNOWN_WORDS * max(1, len(others))


def _texts(items: Sequence[LabelledText]) -> list[str]:
    return ["\n".join(text[: MOST_CHARACTERS // len(item.texts)] for text in item.texts) for item in items]


def _targets(items: Sequence[LabelledText], labels: LabelMap) -> Floats:
    """Labels as multi-hot vectors (R, C), classes as such of one label; numbers as they are (R, 1)."""
    if labels.kind == "number":
        return np.array([[cast(float, item.label)] for item in items], dtype=np.float64)
    names = [item.label if isinstance(item.label, tuple) else (cast(str, item.label),) for item in items]
    return np.array([labels.encode(row) for row in names], dtype=np.float64)


def _linear(
    texts: Sequence[str], target_RC: Floats, others: Sequence[str], kind: LabelKind, words: bool
) -> Floats | None:
    """Scores (R, C) of `others` by a linear model of tf-idf; None when nothing varies."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    by_words = {"ngram_range": (1, 2), "token_pattern": r"\w+"}
    by_characters = {"ngram_range": (1, 5), "analyzer": "char_wb"}
    vectors = TfidfVectorizer(sublinear_tf=True, dtype=np.float64, **(by_words if words else by_characters))
    analyze = vectors.build_analyzer()
    varies_C = (target_RC != target_RC[0]).any(0)
    if not varies_C.any() or not any(analyze(text) for text in texts):
        return None
    fitted_RF, other_RF = vectors.fit_transform(texts), vectors.transform(others)
    if kind == "number":
        numbers_R = Ridge(alpha=1.0, solver="lsqr").fit(fitted_RF, target_RC[:, 0]).predict(other_RF)
        return np.asarray(numbers_R, dtype=np.float64)[:, None]
    scores_RC = np.where(target_RC[0] > 0, np.inf, -np.inf) * np.ones((len(others), 1))
    with warnings.catch_warnings():
        # a bounded number of passes is enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        for c in np.flatnonzero(varies_C):
            # one against the rest, in the dual: a fraction of a second for each class
            one = LogisticRegression(C=10.0, solver="liblinear", dual=True, max_iter=30, random_state=0)
            scores_RC[:, c] = one.fit(fitted_RF, target_RC[:, c]).decision_function(other_RF)
    return scores_RC


def headline(truth_RC: Floats, scores_RC: Floats, kind: LabelKind) -> float:
    """The metric of METRICS for scores of classes or labels, or numbers. truth: multi-hot, or numbers; both (R, C)."""
    names = [str(c) for c in range(truth_RC.shape[1])]
    match kind:
        case "number":
            figures = metrics.regression_metrics(truth_RC[:, 0], scores_RC[:, 0])
        case "multi":
            figures = metrics.multi_label_metrics(truth_RC > 0.5, scores_RC > 0, names)
        case "class" | "tags":
            figures = metrics.class_metrics(truth_RC.argmax(1), scores_RC.argmax(1), names)
    return float(figures[METRICS[kind]])
