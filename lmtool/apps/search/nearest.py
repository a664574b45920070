"""Exact nearest neighbours among vectors by matrix products, in bounded memory.

Shapes: N rows, Q queries, D vector width, K neighbours, B rows or queries of a block. All vectors have length 1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from lmtool.arrays import Ints
from lmtool.evaluation.embedding import Vectors

MAX_SIMILARITIES = 1 << 26
"""Maximum similarities in memory: 256 MB."""


def find_nearest_by_cosine(
    vectors_ND: Vectors, query_QD: Vectors, k: int, candidate_N: Ints
) -> Iterator[tuple[Vectors, Ints]]:
    """Yields cosine similarities and indices of the k nearest rows of each query (K each), the nearest first.

    candidate_N: indices of the rows to search.
    """
    for query_BD in np.array_split(query_QD, 1 + len(query_QD) * len(vectors_ND) // MAX_SIMILARITIES):
        score_NB = vectors_ND @ query_BD.T  # faster in this order for one query
        for score_N in score_NB.T:
            score_K, index_K = torch.from_numpy(score_N[candidate_N]).topk(min(k, len(candidate_N)))
            yield score_K.numpy(), candidate_N[index_K.numpy()]


class NearDuplicate(NamedTuple):
    """A row, the index of an earlier row that it resembles, and their cosine similarity."""

    row: int
    earlier: int
    similarity: float


def find_near_duplicates(
    vectors_ND: Vectors, threshold: float, n_first_always_kept: int = 0
) -> Iterator[NearDuplicate]:
    """Yields the rows that are similar to an earlier row that is no duplicate itself.

    So no two of the other rows reach the threshold, and of a chain of similar rows more than one may stay.
    n_first_always_kept: number of first rows that are always kept, even if they are duplicates.
    """
    is_kept_N = np.ones(len(vectors_ND), dtype=bool)
    step = max(1, MAX_SIMILARITIES // max(1, len(vectors_ND)))
    for begin in range(0, len(vectors_ND), step):
        score_BN = vectors_ND[begin : begin + step] @ vectors_ND[: begin + step].T
        for row, score_N in enumerate(score_BN, begin):
            score_N = np.where(is_kept_N[:row], score_N[:row], -np.inf)
            if row >= max(1, n_first_always_kept) and score_N.max() >= threshold:
                is_kept_N[row] = False
                yield NearDuplicate(row, int(score_N.argmax()), float(score_N.max()))
