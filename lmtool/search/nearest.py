"""Nearest neighbours among vectors by matrix products, exact and in bounded memory.

Shapes: N rows, Q queries, D vector width, K neighbours, B rows or queries of a block. All vectors have length 1.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.inference.embedding import Vectors

Ints = NDArray[np.int64]

AT_ONCE = 1 << 26
"""Similarities that are held at once: 256 MB."""


def unit(vectors_ND: Vectors) -> Vectors:
    """Vectors scaled to length 1; zeros stay."""
    return torch.nn.functional.normalize(torch.from_numpy(vectors_ND)).numpy()


def nearest(vectors_ND: Vectors, query_QD: Vectors, k: int, row_N: Ints) -> Iterator[tuple[Vectors, Ints]]:
    """Cosine similarities and numbers of the k nearest rows, or all, of each query, the nearest first (K each).

    row_N: the rows that may be found.
    """
    for query_BD in np.array_split(query_QD, 1 + len(query_QD) * len(vectors_ND) // AT_ONCE):
        score_NB = vectors_ND @ query_BD.T  # in this order quicker for one query
        for score_N in score_NB.T:
            score_K, index_K = torch.from_numpy(score_N[row_N]).topk(min(k, len(row_N)))
            yield score_K.numpy(), row_N[index_K.numpy()]


def near_duplicates(vectors_ND: Vectors, threshold: float, n_kept: int = 0) -> Iterator[tuple[int, int, float]]:
    """The rows that are as similar as `threshold` to an earlier one, none of them itself; that one; and how similar.

    So no two of the other rows are as similar, and of a chain of rows that are alike one by one not all but one go.
    n_kept: so many first rows are none of them.
    """
    is_kept_N = np.ones(len(vectors_ND), dtype=bool)
    step = max(1, AT_ONCE // max(1, len(vectors_ND)))
    for begin in range(0, len(vectors_ND), step):
        score_BN = vectors_ND[begin : begin + step] @ vectors_ND[: begin + step].T
        for row, score_N in enumerate(score_BN, begin):
            score_N = np.where(is_kept_N[:row], score_N[:row], -np.inf)
            if row >= max(1, n_kept) and score_N.max() >= threshold:
                is_kept_N[row] = False
                yield row, int(score_N.argmax()), float(score_N.max())
