"""Active learning from answers: predicts labels, chooses the next rows, and finds answers that may be wrong.

An answer is J choices, each of one of K options: with one class a row a single choice of the classes, with several
labels a choice of no or yes for each.

Shapes: N answered rows, Q other rows, F features, J choices, K options.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmtool.arrays import Floats, Ints
from lmtool.evaluation.embedding import embed_to_unit_vectors
from lmtool.runs.load import LoadedModel

FOLDS = 5
"""Folds of cross-validation over the answers."""

PAIR_FILTER_ROWS = 1_000
"""Rows of a table above which features are only words and pairs that occur in two rows."""

MAX_PROJECTED_ANSWERS = 1_500
"""Maximum answers whose basis features are projected to; of more, the eigenvectors take too long."""

RowFeatures = Any
"""A matrix with a row for each row of the table, sparse or not."""


def compute_embeddings_or_tfidf(texts: Sequence[str], loaded: LoadedModel | None) -> RowFeatures:
    """Computes vectors of length 1: a model's embeddings, pooled as in training, or tf-idf of words and pairs."""
    if loaded is not None:
        return embed_to_unit_vectors(loaded, texts)
    from sklearn.feature_extraction.text import TfidfVectorizer

    least = 2 if len(texts) > PAIR_FILTER_ROWS else 1  # a word of a single row says nothing about others
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", min_df=least)
    return words.fit_transform(texts)


def fit_and_predict_probabilities(
    known_NF: RowFeatures, option_NJ: Ints, row_QF: RowFeatures, n_options: int
) -> Floats:
    """Fits a logistic regression for each choice and returns the probabilities of options (Q, J, K).

    Options that no answer has get 0.
    """
    from sklearn.linear_model import LogisticRegression

    known_NF, row_QF = _project_both_to_known_span(known_NF, row_QF)
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


def _project_both_to_known_span(known_NF: RowFeatures, row_QF: RowFeatures) -> tuple[RowFeatures, RowFeatures]:
    """Projects rows to a basis of the answered rows if these are fewer than features, to fit a model much faster.

    The weights of the best model are a sum of answered rows, so the model in an orthonormal basis of these, from the
    eigenvectors of their inner products, is the same.
    """
    from sklearn.utils.extmath import safe_sparse_dot

    if known_NF.shape[0] >= min(known_NF.shape[1], MAX_PROJECTED_ANSWERS):
        return known_NF, row_QF
    product_NN, product_QN = (safe_sparse_dot(rows_F, known_NF.T, dense_output=True) for rows_F in (known_NF, row_QF))
    value_N, vector_NN = np.linalg.eigh(product_NN)
    basis_NN = vector_NN / np.sqrt(np.maximum(value_N, 1e-9))
    return product_NN @ basis_NN, product_QN @ basis_NN


def predict_out_of_fold(known_NF: RowFeatures, option_NJ: Ints, n_options: int) -> Floats:
    """Predicts probabilities (N, J, K) of answered rows, each by a model that has not seen its answer."""
    from sklearn.model_selection import KFold

    p_NJK = np.zeros((*option_NJ.shape, n_options))
    for others, some in KFold(min(FOLDS, len(option_NJ)), shuffle=True, random_state=0).split(option_NJ):
        p_NJK[some] = fit_and_predict_probabilities(known_NF[others], option_NJ[others], known_NF[some], n_options)
    return p_NJK


def select_diverse_rows(row_QF: RowFeatures, k: int) -> list[int]:
    """Selects at most k rows that are far from each other, by k-means++ (Arthur and Vassilvitskii 2007)."""
    from sklearn.cluster import kmeans_plusplus

    return [*dict.fromkeys(kmeans_plusplus(row_QF, min(k, row_QF.shape[0]), random_state=0)[1].tolist())]


def rank_rows_by_margin(p_QJK: Floats) -> Ints:
    """Ranks all rows (Q), first those with the smallest margin between the two most probable options of a choice.

    Scheffer et al. 2001.
    """
    margin_QJ = np.ptp(np.partition(p_QJK, -2)[..., -2:], -1)
    return np.argsort(margin_QJ.min(1), kind="stable")


def suggest_options_by_confident_learning(p_NJK: Floats, option_NJ: Ints) -> Ints:
    """Suggests options (N, J) by confident learning (Northcutt et al. 2021); one that differs corrects the answer.

    If the most probable option is not that of the answer, it takes the most probable one among those whose probability
    is above the mean probability that rows with this answer have. p_NJK: out-of-fold probabilities.
    """
    is_own_NJK = option_NJ[..., None] == np.arange(p_NJK.shape[2])
    own_JK = is_own_NJK.sum(0)
    threshold_JK = np.where(own_JK, (p_NJK * is_own_NJK).sum(0) / np.maximum(own_JK, 1), np.inf)
    sure_NJK = p_NJK >= threshold_JK - 1e-6
    doubted_NJ = sure_NJK.any(2) & (p_NJK.argmax(2) != option_NJ)
    return np.where(doubted_NJ, np.where(sure_NJK, p_NJK, -1).argmax(2), option_NJ)
