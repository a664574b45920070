"""Rows of a labelled table as examples: texts laid out as each family reads them, and an order that saves padding.

Shapes: R rows, S samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmtool.objective import Example
from lmtool.recipe.spec import Model, Recurrent, Transformer
from lmtool.run.order import SampleOrder, hash_key
from lmtool.text.tokenizer import Tokenizer

POOL_BATCHES = 50
"""Batches whose rows are sorted by length together."""


@dataclass(frozen=True)
class Row:
    """One laid out row.

    tokens: ids with the marks of the family. segments: 0 for the first text, 1 for the others; None where the model has
    no segments. label: as `Example` has it. number: of the row in its table. cut: texts were cut to fit the context.
    """

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64] | None
    label: NDArray[np.float64] | None
    number: int
    cut: bool


class Layout:
    """How the texts of a row become one sequence of ids.

    Encoders read [CLS] A [SEP] B [SEP] (Devlin et al. 2019); all others [BOS] A [SEP] B [CLS], where [CLS] is the place
    that the head reads, which GPT calls [EXTRACT] (Radford et al. 2018). Texts too long for the context are cut behind,
    the longest first.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoder = isinstance(model, Transformer) and model.shape == "encoder"
        self._segments = model.n_segments if isinstance(model, Transformer) else 0
        self._context = None if isinstance(model, Recurrent) else model.context

    def rows(
        self, texts: Iterable[tuple[str, ...]], labels: Iterable[NDArray[np.float64] | None], numbers: Iterable[int]
    ) -> list[Row]:
        """Rows of texts, in order."""
        all_texts = list(texts)
        ids, lengths = self._tokenizer.encode_many([text for row in all_texts for text in row])
        pieces = iter(np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])) if len(lengths) else iter(())
        return [
            self._row([next(pieces) for _ in row], label, number)
            for row, label, number in zip(all_texts, labels, numbers, strict=True)
        ]

    def _row(self, texts: list[NDArray[np.int64]], label: NDArray[np.float64] | None, number: int) -> Row:
        t = self._tokenizer
        room = None if self._context is None else self._context - 1 - len(texts)
        fitted = texts if room is None else _fit(texts, room)
        first, between, last = (t.cls_id, t.sep_id, t.sep_id) if self._encoder else (t.bos_id, t.sep_id, t.cls_id)
        parts: list[NDArray[np.int64]] = [np.array([first])]
        segments = [0]
        for i, text in enumerate(fitted):
            parts += [text, np.array([last if i == len(fitted) - 1 else between])]
            segments += [min(i, 1)] * (len(text) + 1)
        return Row(
            np.concatenate(parts).astype(np.int64),
            np.array(segments, dtype=np.int64) if self._segments > 1 else None,
            label,
            number,
            any(len(old) != len(new) for old, new in zip(texts, fitted, strict=True)),
        )


def _fit(texts: list[NDArray[np.int64]], room: int) -> list[NDArray[np.int64]]:
    """The texts cut behind until they have `room` tokens together, from the longest first."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > room:
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        second = max((size for i, size in enumerate(sizes) if i != longest), default=0)
        sizes[longest] -= max(1, min(sum(sizes) - room, sizes[longest] - second))
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


class RowExamples:
    """Rows in an order that is a function of the seed, every row once an epoch, rows of like length together.

    An epoch is a permutation; runs of POOL_BATCHES batches of it are sorted by length and cut into batches, which come
    in an order of their own.
    """

    unit = "rows"

    def __init__(self, rows: Sequence[Row], batch_size: int, seed: int) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._seed = seed
        self._lengths_R = np.array([len(row.tokens) for row in rows])
        self._epochs: dict[int, NDArray[np.int64]] = {}

    @property
    def per_epoch(self) -> int:
        """Rows in one pass."""
        return len(self._rows)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which count on from epoch to epoch."""
        return [
            Example(row.tokens, self._rng(int(sample)), label=row.label, segments=row.segments)
            for sample, row in zip(sample_S, (self._rows[i] for i in self._indexes(sample_S)), strict=True)
        ]

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the table's rows that the samples are, in order, each once."""
        return sorted({self._rows[i].number for i in self._indexes(sample_S)})

    def restarts(self, step: int) -> bool:
        """Rows of a table never go on."""
        return True

    def _rng(self, sample: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(hash_key(self._seed, "example", sample)))

    def _indexes(self, sample_S: NDArray[np.int64]) -> list[int]:
        return [int(self._epoch(int(sample) // len(self._rows))[int(sample) % len(self._rows)]) for sample in sample_S]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        """Indexes of the rows in the order of an epoch; the last two epochs are kept."""
        if epoch not in self._epochs:
            n = len(self._rows)
            _, order_R = SampleOrder(n, self._seed)(np.arange(epoch * n, (epoch + 1) * n))
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
