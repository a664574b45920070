"""The baseline of a labelled table: what scikit-learn reaches in seconds by counting words."""

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.printable import format_count
from lmtool.recipe.grammar import join_with_or
from lmtool.run.files import BaselineScores
from lmtool.run.uncertainty import CROSS_VALIDATION, N_FOLDS, are_equivalent
from lmtool.tasks import metrics
from lmtool.tasks.cells import has_entities
from lmtool.tasks.labels import LabelKind, LabelMap
from lmtool.tasks.reading import LabelledText, LabelledTexts

MOST_ROWS = 20_000
"""Training rows that the linear model is fitted to, a random sample of larger tables."""

MOST_CHARACTERS = 2_000
"""Characters of a row that it reads."""

MOST_SCORED = 2_000
"""Rows that decide whether words are features."""

MOST_EMBEDDED = 10_000
"""Rows, fitted to and measured, of larger tables than which no vectors are computed."""

KNOWN_WORDS = 0.6
"""Share of words in half of the texts that must occur in the other half, for words to be features."""

METRICS: Mapping[LabelKind, str] = {"class": "accuracy", "multi": "micro_f1", "number": "mse"}
"""The metric of each kind of labels but tags, as named in `Results`."""

Floats = NDArray[np.float64]

Indices = NDArray[np.int64]

VectorsOf = Callable[[Sequence[str]], NDArray[np.float32]]
"""Vectors of texts (R, D) of length 1."""


class Baseline(BaselineScores):
    """Results of simple models, as lines for people."""

    def line(self) -> str:
        """The baseline as one line."""
        if self.kind == "tags":
            metric = "entity F1" if self.metric == "f1" else "accuracy"
            lexical = f"{self.features} {self._shown(self.linear)}"
            return f"baseline: one tag {self._shown(self.constant)}, {lexical} ({metric})"
        constant = {"class": "majority", "multi": "most frequent label", "number": "mean"}[self.kind]
        linear = f"ridge regression on {self.features}" if self.kind == "number" else self.features
        metric = {"class": "", "multi": " (micro F1)", "number": " (mean squared error)"}[self.kind]
        shown = [f"{constant} {self._shown(self.constant)}", f"{linear} {self._shown(self.linear)}"]
        if self.probe is not None:
            shown.append(f"vectors of the encoder {self._shown(self.probe)}")
        some = f"; fitted to {self.fitted:,} of {self.rows:,} rows" if self.fitted < self.rows else ""
        some += f"; by {self.part}, as no rows are held out" if self.part == CROSS_VALIDATION else ""
        return f"baseline: {', '.join(shown)}{metric}{some}"

    def beside(self, figures: Mapping[str, Any], n_rows: int, remedies: Sequence[str] = ()) -> str:
        """The baseline and the figures of a model on so many rows as one line.

        remedies: options that may help a model that is below it.
        """
        value = figures.get(self.metric)
        if value is None:
            return self.line()
        figures_of = [figure for figure in (self.constant, self.linear, self.probe) if figure is not None]
        best = min(figures_of) if self.kind == "number" else max(figures_of)
        is_below = value > best if self.kind == "number" else value < best
        verdict = " is below it" if is_below else ""
        if value != best and are_equivalent(self.metric, (value, n_rows), (best, n_rows)):
            verdict = f"; {format_count(n_rows, 'row is', 'rows are')} too few to tell which is better"
        elif is_below and remedies:
            verdict += f": lmtool finetune with {join_with_or([*remedies])} may do better"
        return f"{self.line()}; this model {self._shown(value)}{verdict}"

    def _shown(self, value: float) -> str:
        return f"{value:.4g}" if self.kind == "number" else f"{100 * value:.1f} %"


def mean_line(baselines: Sequence[Baseline]) -> str:
    """One line for the baselines of several runs on one table, whose held-out rows differ: their means."""
    means = {
        name: float(np.mean([getattr(one, name) for one in baselines]))
        for name in ("constant", "linear", "probe")
        if getattr(baselines[0], name) is not None
    }
    return baselines[0].model_copy(update=means).line()


def measure_baseline(
    train: LabelledTexts, rows: LabelledTexts | None, part: str, vectors_of: VectorsOf | None = None
) -> Baseline:
    """The baseline of a table, fitted to its training rows and measured on `rows`, in seconds.

    rows: None where none are held out, for cross-validation. vectors_of: of the encoder that is fine-tuned, if any.
    Raises nothing for texts or labels that cannot be learned: there the constant is the baseline.
    """
    kind = cast(LabelMap, train.labels).kind
    measured = _of_tags(train, rows or train) if kind == "tags" else _of_texts(train, rows, vectors_of)
    part = CROSS_VALIDATION if rows is None else part
    return Baseline.model_validate({"kind": kind, "part": part, "rows": len(train), **measured})


def _of_texts(train: LabelledTexts, rows: LabelledTexts | None, vectors_of: VectorsOf | None) -> dict[str, Any]:
    """What the most frequent label reaches, or the mean of numbers, and linear models of tf-idf and of vectors."""
    labels = cast(LabelMap, train.labels)
    fitted = random.Random(0).sample(train.items, min(MOST_ROWS, len(train)))
    items = fitted if rows is None else [*fitted, *rows.items]
    texts, target_RC, row_R = _texts(items), _targets(items, labels), np.arange(len(items))
    # of each division the rows that are fitted to, and those that are measured
    divisions = [(row_R[: len(fitted)], row_R[len(fitted) :])]
    if rows is None:
        by_label_R = target_RC.argmax(1).argsort(kind="stable")  # so that each part has as many of each
        parts = [by_label_R[i::N_FOLDS] for i in range(N_FOLDS)]
        divisions = [(np.setdiff1d(row_R, part), part) for part in parts if len(part)]
    truth_RC = target_RC[np.concatenate([measured for _, measured in divisions])]
    words, mean_C = has_words(texts[: len(fitted)]), target_RC[: len(fitted)].mean(0)
    # what every row gets without its text
    constant_C = mean_C if labels.kind == "number" else np.eye(len(mean_C))[mean_C.argmax()]

    def reached(features_of: Callable[[Indices, Indices], tuple[Any, Any] | None]) -> float:
        """The figure of a linear model of these features, or where there are none of the constant."""
        scores = []
        for known, measured in divisions:
            target_KC, pair = target_RC[known], features_of(known, measured)
            if pair is not None and (target_KC != target_KC[0]).any():
                scores.append(_linear(*pair, target_KC, labels.kind))
            else:
                scores.append(np.tile(constant_C, (len(measured), 1)))
        return headline(truth_RC, np.concatenate(scores), labels.kind)

    def counted(known: Indices, measured: Indices) -> tuple[Any, Any] | None:
        return _counted([texts[i] for i in known], [texts[i] for i in measured], words)

    figures = {"constant": reached(lambda known, measured: None), "linear": reached(counted)}
    if vectors_of is not None and len(items) <= MOST_EMBEDDED:
        vectors_RD = vectors_of(texts)
        figures["probe"] = reached(lambda known, measured: (vectors_RD[known], vectors_RD[measured]))
    features = "words and pairs" if words else "character n-grams"
    return {**figures, "metric": METRICS[labels.kind], "features": features, "fitted": len(fitted)}


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
    """Whether words are useful features of texts by themselves.

    They are not for names, for texts of many languages, and for scripts that do not separate words.
    """
    return known_words(texts) >= KNOWN_WORDS


def known_words(texts: Sequence[str]) -> float:
    """The share of the words of one half of texts that the other half has too."""
    some = random.Random(0).sample(texts, min(MOST_SCORED, len(texts)))
    words = [re.findall(r"\w+", text.lower()) for text in some]
    known, others = {*chain(*words[::2])}, [*chain(*words[1::2])]
    return sum(word in known for word in others) / max(1, len(others))


def _texts(items: Sequence[LabelledText]) -> list[str]:
    return ["\n".join(text[: MOST_CHARACTERS // len(item.texts)] for text in item.texts) for item in items]


def _targets(items: Sequence[LabelledText], labels: LabelMap) -> Floats:
    """Labels as multi-hot vectors (R, C), classes as such of one label; numbers as they are (R, 1)."""
    if labels.kind == "number":
        return np.array([[cast(float, item.label)] for item in items], dtype=np.float64)
    names = [item.label if isinstance(item.label, tuple) else (cast(str, item.label),) for item in items]
    return np.array([labels.encode(row) for row in names], dtype=np.float64)


def _counted(texts: Sequence[str], others: Sequence[str], words: bool) -> tuple[Any, Any] | None:
    """Their tf-idf, by the first ones; None where these have no words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    by_words = {"ngram_range": (1, 2), "token_pattern": r"\w+"}
    by_characters = {"ngram_range": (1, 5), "analyzer": "char_wb"}
    vectors = TfidfVectorizer(sublinear_tf=True, dtype=np.float64, **(by_words if words else by_characters))
    analyze = vectors.build_analyzer()
    if not any(analyze(text) for text in texts):
        return None
    return vectors.fit_transform(texts), vectors.transform(others)


def _linear(fitted_RF: Any, other_RF: Any, target_RC: Floats, kind: LabelKind) -> Floats:
    """Scores (R, C) of other rows by a linear model of features."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == "number":
        numbers_R = Ridge(alpha=1.0, solver="lsqr").fit(fitted_RF, target_RC[:, 0]).predict(other_RF)
        return np.asarray(numbers_R, dtype=np.float64)[:, None]
    scores_RC = np.where(target_RC[0] > 0, np.inf, -np.inf) * np.ones((other_RF.shape[0], 1))
    with warnings.catch_warnings():
        # a bounded number of passes is enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        for c in np.flatnonzero((target_RC != target_RC[0]).any(0)):
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
