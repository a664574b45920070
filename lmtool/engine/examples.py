"""Training examples: which stretch of the token store each sample number is.

Shapes: S samples, T positions.
"""

import numpy as np
from numpy.typing import NDArray

from lmtool.run.order import SampleOrder, StreamWindows
from lmtool.text.store import TokenStore


class Examples:
    """Windows of `context` + 1 tokens of a store, in an order that is a function of the seed."""

    def __init__(self, store: TokenStore, context: int, seed: int) -> None:
        self._store = store
        self._windows = StreamWindows(len(store), context, seed)
        self._order = SampleOrder(self._windows.n_windows, seed)

    @property
    def per_epoch(self) -> int:
        """Windows in one pass over the store."""
        return self._windows.n_windows

    def read(self, sample_S: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The T + 1 tokens of each sample."""
        return [self._store.read(start, stop) for start, stop in self._places(sample_S)]

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the documents that the samples are cut from, in order, each once."""
        touched: set[int] = set()
        for start, stop in self._places(sample_S):
            touched.update(range(self._store.document_at(start), self._store.document_at(stop - 1) + 1))
        return sorted(touched)

    def _places(self, sample_S: NDArray[np.int64]) -> list[tuple[int, int]]:
        starts_S = self._windows.starts(*self._order(sample_S))
        return [(int(start), int(start) + self._windows.context + 1) for start in starts_S]
