"""What is learned from answers: probabilities of labels, which rows to ask about next, and which answers may be wrong.

An answer is J choices, each of one of K options: with one class a row a single choice of the classes, with several
labels a choice of no or yes for each.

Shapes: N answered rows, Q other rows, F features, J choices, K options.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool.inference.load import LoadedModel
from lmtool.search.index import text_vectors

FOLDS = 5
"""Parts of the answers, each predicted by a model of the others."""

MANY = 1_000
"""Rows of a table from which on features are words and pairs that occur in two of them."""

MOST_NARROWED = 1_500
"""Answers up to which features are fewer with them; of more the eigenvectors take longer than is won."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
RowFeatures = Any
"""A matrix with a row for each row of the table, sparse or not."""


def features_of(texts: Sequence[str], loaded: LoadedModel | None) -> RowFeatures:
    """Vectors of length 1: by a model, pooled as it was trained to; or without one tf-idf of words and pairs."""
    if loaded is not None:
        return text_vectors(loaded, texts)
    from sklearn.feature_extraction.text import TfidfVectorizer

    least = 2 if len(texts) > MANY else 1  # a word of one row tells nothing of others
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", min_df=least)
    return words.fit_transform(texts)


def probabilities(known_NF: RowFeatures, option_NJ: Ints, row_QF: RowFeatures, n_options: int) -> Floats:
    """Probabilities (Q, J, K) by logistic regression, of each choice for itself. Options that no answer has get 0."""
    from sklearn.linear_model import LogisticRegression

    known_NF, row_QF = _narrow(known_NF, row_QF)
    p_QJK = np.zeros((row_QF.shape[0], option_NJ.shape[1], n_options))
    for j, option_N in enumerate(option_NJ.T):
        if len(chosen := np.unique(option_N)) == 1:
            p_QJK[:, j, chosen] = 1.0
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a fit that has not converged, and of as many classes as rows
                model = LogisticRegression(C=10.0, max_iter=300).fit(known_NF, option_N)
            p_QJK[:, j, chosen] = model.predict_proba(row_QF)
    return p_QJK


def _narrow(known_NF: RowFeatures, row_QF: RowFeatures) -> tuple[RowFeatures, RowFeatures]:
    """Rows in as many features as there are answers, where that is fewer: by those a model is fitted much faster.

    The weights of the best model are a sum of answered rows. So rows are written in an orthonormal basis of those, by
    the eigenvectors of their products with each other; the model of these is the same.
    """
    from sklearn.utils.extmath import safe_sparse_dot

    if known_NF.shape[0] >= min(known_NF.shape[1], MOST_NARROWED):
        return known_NF, row_QF
    product_NN, product_QN = (safe_sparse_dot(rows_F, known_NF.T, dense_output=True) for rows_F in (known_NF, row_QF))
    value_N, vector_NN = np.linalg.eigh(product_NN)
    basis_NN = vector_NN / np.sqrt(np.maximum(value_N, 1e-9))
    return product_NN @ basis_NN, product_QN @ basis_NN


def out_of_fold(known_NF: RowFeatures, option_NJ: Ints, n_options: int) -> Floats:
    """Probabilities (N, J, K) of answered rows, each by a model that has not seen its answer."""
    from sklearn.model_selection import KFold

    p_NJK = np.zeros((*option_NJ.shape, n_options))
    for others, some in KFold(min(FOLDS, len(option_NJ)), shuffle=True, random_state=0).split(option_NJ):
        p_NJK[some] = probabilities(known_NF[others], option_NJ[others], known_NF[some], n_options)
    return p_NJK


def different(row_QF: RowFeatures, k: int) -> list[int]:
    """At most k rows that are far from each other, by k-means++ (Arthur and Vassilvitskii 2007)."""
    from sklearn.cluster import kmeans_plusplus

    return [*dict.fromkeys(kmeans_plusplus(row_QF, min(k, row_QF.shape[0]), random_state=0)[1].tolist())]


def least_sure(p_QJK: Floats) -> Ints:
    """All rows (Q), first those with the smallest margin between the two most probable options of a choice.

    Scheffer et al. 2001.
    """
    margin_QJ = np.ptp(np.partition(p_QJK, -2)[..., -2:], -1)
    return np.argsort(margin_QJ.min(1), kind="stable")


def suggested(p_NJK: Floats, option_NJ: Ints) -> Ints:
    """The options (N, J) that confident learning takes for the true ones (Northcutt et al. 2021).

    The most probable one among those above the mean probability that their own rows have, where the most probable one
    of all is not that of the answer. Where it differs from the answer, that is probably wrong. p: out of fold.
    """
    is_own_NJK = option_NJ[..., None] == np.arange(p_NJK.shape[2])
    own_JK = is_own_NJK.sum(0)
    threshold_JK = np.where(own_JK, (p_NJK * is_own_NJK).sum(0) / np.maximum(own_JK, 1), np.inf)
    sure_NJK = p_NJK >= threshold_JK - 1e-6
    doubted_NJ = sure_NJK.any(2) & (p_NJK.argmax(2) != option_NJ)
    return np.where(doubted_NJ, np.where(sure_NJK, p_NJK, -1).argmax(2), option_NJ)
