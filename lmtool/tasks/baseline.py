"""Baselines of a labelled table: the most frequent label, and linear models that scikit-learn fits in seconds."""

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.arrays import Floats, Ints
from lmtool.printable import format_count
from lmtool.recipe.grammar import join_with_or
from lmtool.runs.files import TaskBaselineScores
from lmtool.runs.uncertainty import CROSS_VALIDATION, N_FOLDS, are_indistinguishable_scores
from lmtool.tasks import metrics
from lmtool.tasks.cells import has_bio_tags
from lmtool.tasks.labels import LabelKind, LabelMap, get_label_names
from lmtool.tasks.reading import LabelledTable

MAX_BASELINE_ROWS = 20_000
"""Rows that the linear model is fitted to: a random sample of larger tables."""

MAX_CHARACTERS = 2_000
"""Characters of a row that the linear model reads."""

MAX_WORD_SAMPLE_ROWS = 2_000
"""Rows that decide whether words are features."""

MAX_EMBEDDED_ROWS = 10_000
"""No vectors are computed if more rows than these are fitted to and measured."""

MIN_KNOWN_WORD_SHARE = 0.6
"""Share of the words of one half of the texts that the other half must have for words to be features."""

LABEL_KIND_METRICS: Mapping[LabelKind, str] = {"class": "accuracy", "multi": "micro_f1", "number": "mse"}
"""The metric of each kind of labels but tags, as named in `Results`."""

# R rows, C classes or labels or 1 number, F features, D vector width


EmbedTexts = Callable[[Sequence[str]], NDArray[np.float32]]
"""Computes vectors of texts (R, D) of length 1."""


class Baseline(TaskBaselineScores):
    """Scores of simple models, formatted for people."""

    def describe(self) -> str:
        """Formats the scores in one line."""
        if self.kind == "tags":
            metric = "entity F1" if self.metric == "f1" else "accuracy"
            by_word = f"{self.features} {self._format(self.linear)}"
            return f"baseline: one tag {self._format(self.constant)}, {by_word} ({metric})"
        constant = {"class": "majority", "multi": "most frequent label", "number": "mean"}[self.kind]
        linear = f"ridge regression on {self.features}" if self.kind == "number" else self.features
        metric = {"class": "", "multi": " (micro F1)", "number": " (mean squared error)"}[self.kind]
        scores = [f"{constant} {self._format(self.constant)}", f"{linear} {self._format(self.linear)}"]
        if self.probe is not None:
            scores.append(f"vectors of the encoder {self._format(self.probe)}")
        rows = f"; fitted to {self.fitted:,} of {self.rows:,} rows" if self.fitted < self.rows else ""
        rows += f"; by {self.part}, as no rows are held out" if self.part == CROSS_VALIDATION else ""
        return f"baseline: {', '.join(scores)}{metric}{rows}"

    def format_comparison(self, figures: Mapping[str, Any], n_rows: int, remedies: Sequence[str] = ()) -> str:
        """Formats the scores and that of a model on `n_rows` rows in one line.

        figures: of the model. remedies: options to suggest if the model is below the baseline.
        """
        value = figures.get(self.metric)
        if value is None:
            return self.describe()
        scores = [score for score in (self.constant, self.linear, self.probe) if score is not None]
        best = min(scores) if self.kind == "number" else max(scores)
        is_below = value > best if self.kind == "number" else value < best
        verdict = " is below it" if is_below else ""
        if value != best and are_indistinguishable_scores(self.metric, (value, n_rows), (best, n_rows)):
            verdict = f"; {format_count(n_rows, 'row is', 'rows are')} too few to tell which is better"
        elif is_below and remedies:
            verdict += f": lmtool finetune with {join_with_or([*remedies])} may do better"
        return f"{self.describe()}; this model {self._format(value)}{verdict}"

    def _format(self, value: float) -> str:
        return f"{value:.4g}" if self.kind == "number" else f"{100 * value:.1f} %"


def format_mean_baseline(baselines: Sequence[Baseline]) -> str:
    """Formats the mean baseline of several runs on one table, whose held-out rows differ, in one line."""
    means = {
        name: float(np.mean([getattr(one, name) for one in baselines]))
        for name in ("constant", "linear", "probe")
        if getattr(baselines[0], name) is not None
    }
    return baselines[0].model_copy(update=means).describe()


def score_or_cross_validate_baseline(
    train: LabelledTable, held_out: LabelledTable | None, part: str, embed_texts: EmbedTexts | None = None
) -> Baseline:
    """Fits the baseline of a table to its training rows and measures it on `held_out`, in seconds.

    If texts or labels cannot be learned, the constant is the score.

    Args:
        held_out: None for cross-validation of the training rows.
        part: name of `held_out`.
        embed_texts: of the encoder that is fine-tuned, if any.
    """
    kind = cast(LabelMap, train.labels).kind
    if kind == "tags":
        scores = _score_most_frequent_tags(train, held_out or train)
    else:
        scores = _score_constant_and_linear_models(train, held_out, embed_texts)
    part = CROSS_VALIDATION if held_out is None else part
    return Baseline.model_validate({"kind": kind, "part": part, "rows": len(train), **scores})


def _score_constant_and_linear_models(
    train: LabelledTable, held_out: LabelledTable | None, embed_texts: EmbedTexts | None
) -> dict[str, Any]:
    """Scores the most frequent label or the mean, and linear models of tf-idf and of vectors."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    labels = cast(LabelMap, train.labels)
    fitted = random.Random(0).sample(train.items, min(MAX_BASELINE_ROWS, len(train)))
    items = fitted if held_out is None else [*fitted, *held_out.items]
    texts = ["\n".join(text[: MAX_CHARACTERS // len(item.texts)] for text in item.texts) for item in items]
    if labels.kind == "number":
        targets: list[Any] = [[cast(float, item.label)] for item in items]
    else:
        targets = [labels.encode(get_label_names(item.label)) for item in items]
    target_RC, row_R = np.array(targets, dtype=np.float64), np.arange(len(items))
    # Pairs of the rows that are fitted to, and those that are measured.
    splits = [(row_R[: len(fitted)], row_R[len(fitted) :])]
    if held_out is None:
        by_label_R = target_RC.argmax(1).argsort(kind="stable")  # stratifies the folds
        folds = [by_label_R[i::N_FOLDS] for i in range(N_FOLDS)]
        splits = [(np.setdiff1d(row_R, fold), fold) for fold in folds if len(fold)]
    truth_RC = target_RC[np.concatenate([measured for _, measured in splits])]
    by_words, mean_C = has_recurring_words(texts[: len(fitted)]), target_RC[: len(fitted)].mean(0)
    constant_C = mean_C if labels.kind == "number" else np.eye(len(mean_C))[mean_C.argmax()]

    def score(make_features: Callable[[Ints, Ints], tuple[Any, Any] | None]) -> float:
        """Returns the metric of a linear model; that of the constant if there are no features."""
        scores = []
        for known, measured in splits:
            target_KC, features = target_RC[known], make_features(known, measured)
            if features is not None and (target_KC != target_KC[0]).any():
                scores.append(_fit_linear_and_score_others(*features, target_KC, labels.kind))
            else:
                scores.append(np.tile(constant_C, (len(measured), 1)))
        return compute_main_metric(truth_RC, np.concatenate(scores), labels.kind)

    def make_tfidf(known: Ints, measured: Ints) -> tuple[Any, Any] | None:
        """Returns the tf-idf of both, with the frequencies of the known texts; None if these have no words."""
        word_pairs = {"ngram_range": (1, 2), "token_pattern": r"\w+"}
        characters = {"ngram_range": (1, 5), "analyzer": "char_wb"}
        vectorizer = TfidfVectorizer(sublinear_tf=True, dtype=np.float64, **(word_pairs if by_words else characters))
        analyze, known_texts = vectorizer.build_analyzer(), [texts[i] for i in known]
        if not any(analyze(text) for text in known_texts):
            return None
        return vectorizer.fit_transform(known_texts), vectorizer.transform([texts[i] for i in measured])

    scores = {"constant": score(lambda known, measured: None), "linear": score(make_tfidf)}
    if embed_texts is not None and len(items) <= MAX_EMBEDDED_ROWS:
        vectors_RD = embed_texts(texts)
        scores["probe"] = score(lambda known, measured: (vectors_RD[known], vectors_RD[measured]))
    features = "words and pairs" if by_words else "character n-grams"
    return {**scores, "metric": LABEL_KIND_METRICS[labels.kind], "features": features, "fitted": len(fitted)}


def _score_most_frequent_tags(train: LabelledTable, held_out: LabelledTable) -> dict[str, Any]:
    """Scores the most frequent tag of all words, and that of each word in the training rows."""
    counts: dict[str, Counter[str]] = {}
    for item in train.items:
        for word, tag in zip(item.texts, get_label_names(item.label), strict=True):
            counts.setdefault(word, Counter())[tag] += 1

    def choose_tag(tags: Counter[str]) -> str:
        return min(tags, key=lambda tag: (-tags[tag], tag))

    default = choose_tag(Counter(tag for item in train.items for tag in get_label_names(item.label)))
    tag_by_word = {word: choose_tag(tags) for word, tags in counts.items()}
    true = [get_label_names(item.label) for item in held_out.items]
    by_word = [[tag_by_word.get(word, default) for word in item.texts] for item in held_out.items]
    metric = "f1" if has_bio_tags(cast(LabelMap, train.labels).names) else "accuracy"
    constant, lexical = (
        metrics.entity_metrics(true, tags)["f1"] if metric == "f1" else metrics.compute_word_accuracy(true, tags)
        for tags in ([[default] * len(tags) for tags in true], by_word)
    )
    features = "the most frequent tag of each word"
    return {"metric": metric, "constant": constant, "linear": lexical, "features": features, "fitted": len(train)}


def has_recurring_words(texts: Sequence[str]) -> bool:
    """Returns whether enough words recur to be features.

    They do not in names, in texts of many languages, and in scripts that do not separate words.
    """
    return compute_split_half_word_coverage(texts) >= MIN_KNOWN_WORD_SHARE


def compute_split_half_word_coverage(texts: Sequence[str]) -> float:
    """Returns the share of the words of one half of the texts that the other half has too."""
    sample = random.Random(0).sample(texts, min(MAX_WORD_SAMPLE_ROWS, len(texts)))
    words = [re.findall(r"\w+", text.lower()) for text in sample]
    known, others = {*chain(*words[::2])}, [*chain(*words[1::2])]
    return sum(word in known for word in others) / max(1, len(others))


def _fit_linear_and_score_others(fitted_RF: Any, other_RF: Any, target_RC: Floats, kind: LabelKind) -> Floats:
    """Fits a linear model and returns its scores (R, C) of other rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if kind == "number":
        numbers_R = Ridge(alpha=1.0, solver="lsqr").fit(fitted_RF, target_RC[:, 0]).predict(other_RF)
        return np.asarray(numbers_R, dtype=np.float64)[:, None]
    scores_RC = np.where(target_RC[0] > 0, np.inf, -np.inf) * np.ones((other_RF.shape[0], 1))
    with warnings.catch_warnings():
        # A bounded number of passes is enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for c in np.flatnonzero((target_RC != target_RC[0]).any(0)):
            # One against the rest, in the dual, takes a fraction of a second for each class.
            model = LogisticRegression(C=10.0, solver="liblinear", dual=True, max_iter=30, random_state=0)
            scores_RC[:, c] = model.fit(fitted_RF, target_RC[:, c]).decision_function(other_RF)
    return scores_RC


def compute_main_metric(truth_RC: Floats, scores_RC: Floats, kind: LabelKind) -> float:
    """Computes the metric of LABEL_KIND_METRICS. truth_RC: multi-hot, or numbers. scores_RC: of classes, or numbers."""
    names = [str(c) for c in range(truth_RC.shape[1])]
    match kind:
        case "number":
            figures = metrics.regression_metrics(truth_RC[:, 0], scores_RC[:, 0])
        case "multi":
            figures = metrics.multi_label_metrics(truth_RC > 0.5, scores_RC > 0, names)
        case "class" | "tags":
            figures = metrics.class_metrics(truth_RC.argmax(1), scores_RC.argmax(1), names)
    return float(figures[LABEL_KIND_METRICS[kind]])
