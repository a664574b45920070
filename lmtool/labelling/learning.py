"""What is learned from answers: probabilities of labels, which rows to ask about next, and which answers may be wrong.

Shapes: N answered rows, Q other rows, F features, C classes, K chosen rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool.inference.embedding import embed
from lmtool.inference.load import Loaded
from lmtool.search.nearest import unit

FOLDS = 5
"""Parts of the answers, each predicted by a model of the others."""

CHOSEN = 20
"""Rows that are chosen at once, to be asked until the next model chooses."""

MANY = 1_000
"""Rows of a table from which on features are words and pairs that occur in two of them."""

Floats = NDArray[np.float64]
RowFeatures = Any
"""A matrix with a row for each row of the table, sparse or not."""


def features_of(texts: Sequence[str], loaded: Loaded | None) -> RowFeatures:
    """Vectors of length 1: by a model, pooled as it was trained to; or without one tf-idf of words and pairs."""
    if loaded is not None:
        return unit(np.concatenate([one.vectors for one in embed(loaded, texts, -1, "own", truncate=True)]))
    from sklearn.feature_extraction.text import TfidfVectorizer

    least = 2 if len(texts) > MANY else 1  # a word of one row tells nothing of others
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", min_df=least)
    return words.fit_transform(texts)


def probabilities(known_NF: RowFeatures, target_NC: Floats, row_QF: RowFeatures, multi: bool) -> Floats:
    """Probabilities (Q, C) by logistic regression: of one class each, or with `multi` of each label for itself.

    target: multi-hot. A class that no answer has gets 0.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=10.0, max_iter=300)
    p_QC = np.tile(target_NC.mean(0), (row_QF.shape[0], 1))
    if multi:
        for c in np.flatnonzero(target_NC.min(0) < target_NC.max(0)):
            p_QC[:, c] = model.fit(known_NF, target_NC[:, c]).predict_proba(row_QF)[:, 1]
    elif (seen := np.flatnonzero(target_NC.any(0))).size > 1:
        p_QC[:, seen] = model.fit(known_NF, target_NC.argmax(1)).predict_proba(row_QF)
    return p_QC


def out_of_fold(known_NF: RowFeatures, target_NC: Floats, multi: bool) -> Floats:
    """Probabilities (N, C) of answered rows, each by a model that has not seen its answer."""
    from sklearn.model_selection import KFold

    p_NC = np.zeros(target_NC.shape)
    for others, some in KFold(min(FOLDS, len(target_NC)), shuffle=True, random_state=0).split(target_NC):
        p_NC[some] = probabilities(known_NF[others], target_NC[others], known_NF[some], multi)
    return p_NC


def predicted(p_NC: Floats, multi: bool) -> Floats:
    """The labels of probabilities, multi-hot."""
    return (p_NC > 0.5).astype(np.float64) if multi else _one_hot(p_NC.argmax(1), p_NC.shape[1])


def different(row_QF: RowFeatures, k: int) -> NDArray[np.int64]:
    """Indices (K) of rows that are far from each other, by k-means++ (Arthur and Vassilvitskii 2007)."""
    from sklearn.cluster import kmeans_plusplus

    indices = kmeans_plusplus(row_QF, min(k, row_QF.shape[0]), random_state=0)[1]
    return np.array([*dict.fromkeys(indices.tolist())])


def doubtful(p_QC: Floats, multi: bool) -> NDArray[np.int64]:
    """Indices (K) of the rows of which the model is least sure.

    Those with the smallest margin between the two most probable classes (Scheffer et al. 2001); of several labels,
    with one whose probability is nearest to one half.
    """
    margin_Q = abs(p_QC - 0.5).min(1) if multi else np.ptp(np.partition(p_QC, -2, axis=1)[:, -2:], 1)
    return np.argsort(margin_Q, kind="stable")[:CHOSEN]


def suggested(p_NC: Floats, target_NC: Floats, multi: bool) -> Floats:
    """The labels (N, C), multi-hot, that confident learning takes for the true ones (Northcutt et al. 2021).

    p: probabilities out of fold. Where they differ from the target, that is probably wrong.
    """
    if not multi:
        return _one_hot(_confident(p_NC, target_NC.argmax(1)), target_NC.shape[1])
    pairs = zip(p_NC.T, target_NC.T, strict=True)
    return np.stack([_confident(np.stack([1 - p_N, p_N], 1), has_N.astype(int)) for p_N, has_N in pairs], 1).astype(
        np.float64
    )


def _one_hot(class_N: NDArray[np.int64], n: int) -> Floats:
    return np.eye(n, dtype=np.float64)[class_N]


def _confident(p_NC: Floats, class_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most probable class among those above the mean probability that their own rows have."""
    is_own_NC = class_N[:, None] == np.arange(p_NC.shape[1])
    own_C = is_own_NC.sum(0)
    threshold_C = np.where(own_C, (p_NC * is_own_NC).sum(0) / np.maximum(own_C, 1), np.inf)
    sure_NC = p_NC >= threshold_C - 1e-6
    doubted_N = sure_NC.any(1) & (p_NC.argmax(1) != class_N)
    return np.where(doubted_N, np.where(sure_NC, p_NC, -1).argmax(1), class_N)


def wilson(right: int, n: int) -> tuple[float, float]:
    """The interval, at 95 %, of the share of which `right` of n > 0 are an example (Wilson 1927)."""
    z, share = 1.96, right / n
    middle, width = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)
