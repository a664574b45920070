"""Training examples: which stretch of the token store each sample number is.

Shapes: S samples, T positions.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.objective import Cut, Example
from lmtool.run.order import LaneOrder, SampleOrder, StreamWindows, hash_key
from lmtool.text.store import TokenStore


class Source(Protocol):
    """Where examples come from.

    unit: what the texts are that `documents` numbers. per_epoch: examples in one pass.
    """

    unit: str

    @property
    def per_epoch(self) -> int: ...

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which count on from epoch to epoch."""

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the texts that the samples are cut from, in order, each once."""

    def restarts(self, step: int) -> bool:
        """True when the rows of this step (from 0) do not go on from those of the step before."""


class Examples:
    """Examples cut from a store, in an order that is a function of the seed.

    lanes: rows of a batch that go on from one batch to the next; None where each row stands alone.
    """

    unit = "documents"

    def __init__(self, store: TokenStore, cut: Cut, seed: int, lanes: int | None = None) -> None:
        self._store = store
        self._cut = cut
        self._seed = seed
        self._windows = StreamWindows(len(store), cut.step, seed)
        n_windows = self._windows.n_windows
        self._order = SampleOrder(n_windows, seed) if lanes is None else LaneOrder(n_windows, lanes, seed)

    @property
    def per_epoch(self) -> int:
        """Examples in one pass over the store."""
        lanes = self._order
        return lanes.n_steps * lanes.n_lanes if isinstance(lanes, LaneOrder) else self._windows.n_windows

    def restarts(self, step: int) -> bool:
        """True when the rows of this step (from 0) do not go on from those of the step before."""
        return not isinstance(self._order, LaneOrder) or self._order.restarts(step)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which count on from epoch to epoch."""
        return [
            Example(self._store.read(start, stop), self._rng(int(sample)))
            for sample, (start, stop) in zip(sample_S, self._places(sample_S), strict=True)
        ]

    @property
    def n_tokens(self) -> int:
        """Tokens of the store."""
        return len(self._store)

    def in_order(self, start: int, stop: int, n_before: int) -> Batch:
        """Tokens start..stop of the store as targets, but for the first ones of documents; in one row.

        n_before: how many tokens before `start` are read with them, where there are so many.
        """
        first = max(0, start - n_before)
        tokens_T = torch.from_numpy(self._store.read(first, stop))
        document_T = torch.from_numpy(np.asarray(self._store.document_at(np.arange(first, stop)), dtype=np.int64))
        targets_T = tokens_T[1:].masked_fill(document_T[1:] != document_T[:-1], IGNORE)
        targets_T[: max(0, start - first - 1)] = IGNORE
        return Batch(tokens_T[None, :-1], targets_T[None], documents_BT=document_T[None, :-1])

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the documents that the samples are cut from, in order, each once."""
        touched: set[int] = set()
        for start, stop in self._places(sample_S):
            touched.update(range(self._store.document_at(start), self._store.document_at(stop - 1) + 1))
        return sorted(touched)

    def _rng(self, sample: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(hash_key(self._seed, "example", sample)))

    def _places(self, sample_S: NDArray[np.int64]) -> list[tuple[int, int]]:
        starts_S = self._windows.starts(*self._order(sample_S))
        return [(int(start), int(start) + self._cut.length) for start in starts_S]
