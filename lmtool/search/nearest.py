"""Nearest neighbours among vectors by matrix products, exact and in bounded memory; and with faiss among very many.

Shapes: N rows, Q queries, D vector width, C candidates, K neighbours, B rows of a block. All vectors have length 1.
"""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool import durable

Vectors = NDArray[np.float32]
Ints = NDArray[np.int64]

AT_ONCE = 1 << 26
"""Similarities that are held at once: 256 MB."""

CANDIDATES = 100
"""Least number of rows that faiss proposes for a query; else ten for each that is wanted."""

PROBED = 16
"""One of so many lists of vectors is looked through for them."""

TRAINED = 64
"""Vectors for each list, from which the lists are made."""


def unit(vectors_ND: Vectors) -> Vectors:
    """Vectors scaled to length 1; zeros stay."""
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.maximum(length_N1, np.finfo(np.float32).tiny), dtype=np.float32)


def best(score_N: Vectors, k: int) -> Ints:
    """The indices of the k largest scores, the largest first, of equal ones the first."""
    least = np.partition(score_N, -k)[-k] if k < len(score_N) else -np.inf
    index_C = np.flatnonzero(score_N >= least)
    return index_C[np.argsort(-score_N[index_C], kind="stable")][:k]


def nearest(vectors_ND: Vectors, query_QD: Vectors, k: int, row_N: Ints) -> Iterator[tuple[Vectors, Ints]]:
    """Cosine similarities and numbers of the k nearest rows, or all, of each query, the nearest first (K each).

    row_N: the rows that may be found, in order.
    """
    step = max(1, AT_ONCE // max(1, len(vectors_ND)))
    for begin in range(0, len(query_QD), step):
        score_NQ = vectors_ND @ query_QD[begin : begin + step].T  # in this order quicker for one query
        for score_N in np.ascontiguousarray(score_NQ.T):
            score_N = score_N if len(row_N) == len(score_N) else score_N[row_N]
            index_K = best(score_N, k)
            yield score_N[index_K], row_N[index_K]


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


def write_lists(vectors_ND: Vectors, path: Path) -> None:
    """Write an inverted file for faiss, in which a number has one byte (Jégou et al. 2011). Raises ResourceError."""
    import faiss

    n_lists = min(4 * math.isqrt(len(vectors_ND)), 1 + len(vectors_ND) // TRAINED)
    index: Any = faiss.index_factory(vectors_ND.shape[1], f"IVF{n_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(vectors_ND[:: max(1, len(vectors_ND) // (TRAINED * n_lists))]))
    for begin in range(0, len(vectors_ND), 1 << 16):
        index.add(np.ascontiguousarray(vectors_ND[begin : begin + (1 << 16)]))
    index.nprobe = max(1, n_lists // PROBED)
    durable.write_file(path, faiss.serialize_index(index).data)


def read_lists(path: Path) -> Any:
    """The inverted file; None where there is none, or no faiss."""
    if find_spec("faiss") is None or not path.exists():
        return None
    import faiss

    return faiss.read_index(str(path))


def nearest_of_lists(lists: Any, vectors_ND: Vectors, query_QD: Vectors, k: int) -> Iterator[tuple[Vectors, Ints]]:
    """As `nearest`, but only of the rows that faiss proposes."""
    for query_D, row_C in zip(query_QD, lists.search(query_QD, max(CANDIDATES, 10 * k))[1], strict=True):
        row_C = np.unique(row_C[row_C >= 0])
        score_C = vectors_ND[row_C] @ query_D
        index_K = best(score_C, k)
        yield score_C[index_K], row_C[index_K]
