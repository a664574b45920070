"""Rows of tables as ids, and an order to learn from them that saves padding.

Shapes: R rows, S samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmtool.objective import Example
from lmtool.run.order import SampleOrder, hash_key

POOL_BATCHES = 50
"""Batches whose rows are sorted by length together."""

FIXED = np.random.Generator(np.random.PCG64(0))
"""The generator of examples that are only measured, about which nothing is random."""


@dataclass(frozen=True)
class EncodedRow:
    """One row of a table as ids; see `Framing.row` and `Framing.pair`.

    number: of the row in its table. tokens: of the texts, or of the source. cut: texts were cut to fit the context.
    segments: 0 for the first text, 1 for the others; None where the model has no segments. label: as `Example` has it.
    target: ids of the text that answers the row, [EOS] included. answer: that text; empty where it is not known.
    """

    number: int
    tokens: NDArray[np.int64]
    cut: bool
    segments: NDArray[np.int64] | None = None
    label: NDArray[np.float64] | None = None
    target: NDArray[np.int64] | None = None
    answer: str = ""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each part that is padded apart."""
        return (len(self.tokens),) if self.target is None else (len(self.tokens), len(self.target))

    def example(self, rng: np.random.Generator = FIXED) -> Example:
        """The row as an objective takes it."""
        return Example(self.tokens, rng, other=self.target, label=self.label, segments=self.segments)


class TableExamples:
    """Rows in an order that is a function of the seed, rows of like length together.

    An epoch is a permutation; runs of POOL_BATCHES batches of it are sorted by length and cut into batches, which come
    in an order of their own.

    parts: how many of the rows, one after the other, are of one table, and how often each of them comes in an epoch; by
    default all come once. Where that is no whole number, other rows come more often in the next epoch.
    """

    unit = "rows"

    def __init__(
        self, rows: Sequence[EncodedRow], batch_size: int, seed: int, parts: Sequence[tuple[int, float]] | None = None
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._seed = seed
        self._parts = [(n, max(1, round(times * n))) for n, times in parts or [(len(rows), 1.0)]]
        self._lengths_R = np.array([sum(row.lengths) for row in rows])
        self._epochs: dict[int, NDArray[np.int64]] = {}

    @property
    def per_epoch(self) -> int:
        """Rows in one pass."""
        return sum(n_drawn for _, n_drawn in self._parts)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which count on from epoch to epoch."""
        numbered = zip(sample_S.tolist(), self._indexes(sample_S), strict=True)
        return [self._rows[i].example(self._rng(sample)) for sample, i in numbered]

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the table's rows that the samples are, in order, each once."""
        return sorted({self._rows[i].number for i in self._indexes(sample_S)})

    def restarts(self, step: int) -> bool:
        """Rows of a table never continue those of the step before."""
        return True

    def _rng(self, sample: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(hash_key(self._seed, "example", sample)))

    def _indexes(self, sample_S: NDArray[np.int64]) -> list[int]:
        n = self.per_epoch
        return [int(self._epoch(int(sample) // n)[int(sample) % n]) for sample in sample_S]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        """Indexes of the rows in the order of an epoch; the last two epochs are kept."""
        if epoch not in self._epochs:
            order_R = self._shuffled(epoch)
            n = len(order_R)
            rng = np.random.Generator(np.random.PCG64(hash_key(self._seed, "batches", epoch)))
            pool = POOL_BATCHES * self._batch_size
            parts = []
            for start in range(0, n, pool):
                part = order_R[start : start + pool]
                part = part[np.argsort(self._lengths_R[part], kind="stable")]
                whole = len(part) // self._batch_size * self._batch_size
                batches = part[:whole].reshape(-1, self._batch_size)
                parts += [rng.permutation(batches).reshape(-1), part[whole:]]
            self._epochs = {e: r for e, r in self._epochs.items() if e >= epoch - 1} | {epoch: np.concatenate(parts)}
        return self._epochs[epoch]

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        """Indexes of the rows of an epoch at random; of each table those that follow the ones of the epoch before."""
        found, first = [], 0
        for n, n_drawn in self._parts:
            _, order = SampleOrder(n, self._seed)(np.arange(epoch * n_drawn, (epoch + 1) * n_drawn))
            found.append(first + order)
            first += n
        if len(found) == 1:
            return found[0]
        rng = np.random.Generator(np.random.PCG64(hash_key(self._seed, "tables", epoch)))
        return rng.permutation(np.concatenate(found))
