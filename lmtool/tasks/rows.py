"""Encoded rows of tables, and a training order that saves padding.

Shapes: R rows, S samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lmtool.data.order import SampleOrder, derive_seed
from lmtool.objective import Example

BATCHES_PER_POOL = 50
"""Batches whose rows are sorted by length together."""

EVALUATION_RNG = np.random.Generator(np.random.PCG64(0))
"""The generator of examples for evaluation, which draw nothing."""


@dataclass(frozen=True)
class EncodedRow:
    """One row of a table as token ids; see `encode_and_truncate_row` and `encode_source_and_target` of `PromptFormat`.

    Args:
        number: of the row in its table.
        tokens: of the texts, or of the source.
        is_truncated: whether texts were truncated to the context.
        segments: 0 for the first text, 1 for the others; None if the model has no segments.
        label, learned, word_starts: as in `Example`.
        target: ids of the target text, [EOS] included.
        answer: that text; empty if it is unknown.
    """

    number: int
    tokens: NDArray[np.int64]
    is_truncated: bool
    segments: NDArray[np.int64] | None = None
    label: NDArray[np.float64] | None = None
    target: NDArray[np.int64] | None = None
    answer: str = ""
    learned: NDArray[np.bool_] | None = None
    word_starts: NDArray[np.int64] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each part that is padded separately."""
        return (len(self.tokens),) if self.target is None else (len(self.tokens), len(self.target))

    def to_example(self, rng: np.random.Generator = EVALUATION_RNG) -> Example:
        """Returns the row as an input of an objective."""
        follows = False
        parts = self.label, self.segments, self.learned, self.word_starts
        return Example(self.tokens, rng, self.target, follows, *parts)


class LengthBucketedExamples:
    """Rows in an order that is a function of the seed, with rows of similar length together.

    An epoch is a permutation; pools of BATCHES_PER_POOL batches of it are sorted by length and cut into batches, which
    are shuffled.

    Args:
        parts: for each table the number of its consecutive rows, and how often an epoch has each of them, by default
            once. If that is not an integer, other rows occur more often in the next epoch.
        resample_row: draws another encoding of a row for each of its occurrences.
    """

    unit = "rows"

    def __init__(
        self,
        rows: Sequence[EncodedRow],
        batch_size: int,
        seed: int,
        parts: Sequence[tuple[int, float]] | None = None,
        resample_row: Callable[[EncodedRow, np.random.Generator], EncodedRow] | None = None,
    ) -> None:
        self._rows = rows
        self._reread = resample_row
        self._batch_size = batch_size
        self._seed = seed
        self._parts = [(n, max(1, round(times * n))) for n, times in parts or [(len(rows), 1.0)]]
        self.examples_per_epoch = sum(n_drawn for _, n_drawn in self._parts)
        self._lengths_R = np.array([sum(row.lengths) for row in rows])
        # Another thread may read rows of another epoch meanwhile.
        self._order_of_epoch = lru_cache(2)(self._compute_length_bucketed_order)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """Returns the examples with these sample numbers, which continue from epoch to epoch."""
        examples = []
        for sample, i in zip(sample_S.tolist(), self._find_rows(sample_S), strict=True):
            rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "example", sample)))
            row = self._rows[i] if self._reread is None else self._reread(self._rows[i], rng)
            examples.append(row.to_example(rng))
        return examples

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Returns the distinct row numbers of the samples in the table, sorted."""
        return sorted({self._rows[i].number for i in self._find_rows(sample_S)})

    def restarts(self, step: int) -> bool:
        """Returns True: rows of a table never continue those of the step before."""
        return True

    def _find_rows(self, sample_S: NDArray[np.int64]) -> list[int]:
        n = self.examples_per_epoch
        return [int(self._order_of_epoch(int(sample) // n)[int(sample) % n]) for sample in sample_S]

    def _compute_length_bucketed_order(self, epoch: int) -> NDArray[np.int64]:
        """Returns the row indices in the order of an epoch; each table continues where the epoch before ended."""
        shuffled, first = [], 0
        for n, n_drawn in self._parts:
            _, order = SampleOrder(n, self._seed)(np.arange(epoch * n_drawn, (epoch + 1) * n_drawn))
            shuffled.append(first + order)
            first += n
        order_R = np.concatenate(shuffled)
        if len(shuffled) > 1:
            rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "tables", epoch)))
            order_R = rng.permutation(order_R)
        rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "batches", epoch)))
        pool = BATCHES_PER_POOL * self._batch_size
        parts = []
        for start in range(0, len(order_R), pool):
            part = order_R[start : start + pool]
            part = part[np.argsort(self._lengths_R[part], kind="stable")]
            whole = len(part) // self._batch_size * self._batch_size
            batches = part[:whole].reshape(-1, self._batch_size)
            parts += [rng.permutation(batches).reshape(-1), part[whole:]]
        return np.concatenate(parts)
