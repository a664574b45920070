"""Rows of a labelled table as examples: texts laid out as each family reads them, and an order that saves padding.

Shapes: R rows, S samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmtool.objective import Example
from lmtool.recipe.spec import Averaging, Model, Recurrent, Transformer
from lmtool.run.order import SampleOrder, hash_key
from lmtool.text.tokenizer import Tokenizer

POOL_BATCHES = 50
"""Batches whose rows are sorted by length together."""


@dataclass(frozen=True)
class Row:
    """One laid out row.

    tokens: ids with the marks of the family. segments: 0 for the first text, 1 for the others; None where the model has
    no segments. label: as `Example` has it. number: of the row in its table. cut: texts were cut to fit the context.
    target: ids of the text that answers the row, [EOS] included.
    """

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.tokens) + (0 if self.target is None else len(self.target))

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64] | None
    label: NDArray[np.float64] | None
    number: int
    cut: bool
    target: NDArray[np.int64] | None = None


class Layout:
    """How the texts of a row become one sequence of ids.

    Encoders read [CLS] A [SEP] B [SEP] (Devlin et al. 2019); all others [BOS] A [SEP] B [CLS], where [CLS] is the place
    that the head reads, which GPT calls [EXTRACT] (Radford et al. 2018). What averages words has no place for marks and
    reads A [SEP] B, or [SEP] alone where there is no word. Texts too long for the context are cut behind,
    the longest first.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoder = isinstance(model, Transformer) and model.shape == "encoder"
        self._averages = isinstance(model, Averaging)
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
        if self._averages:
            tokens = np.concatenate([piece for text in fitted for piece in (text, [t.sep_id])]).astype(np.int64)
            return Row(tokens[: max(1, len(tokens) - 1)], None, label, number, _is_cut(texts, fitted))
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
            _is_cut(texts, fitted),
        )


@dataclass(frozen=True)
class PairRow(Row):
    """One laid out row with its texts. answer: empty where it is not known."""

    source: str = ""
    answer: str = ""


class PairLayout:
    """How a source and its target become ids: the source as it is, [EOS] for an empty one; the target ends with [EOS].

    Each has the whole context of an encoder-decoder; a prefix LM reads them in one row. What is too long is cut behind,
    there the longer one first.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context = None if isinstance(model, Recurrent) else model.context
        self._in_one_row = isinstance(model, Transformer) and model.shape == "prefix"

    def rows(self, pairs: Iterable[tuple[str, str | None]], numbers: Iterable[int]) -> list[PairRow]:
        """Rows of sources and targets, in order; a target of None is not known."""
        texts = list(pairs)
        ids, lengths = self._tokenizer.encode_many([text or "" for pair in texts for text in pair])
        pieces = iter(np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])) if len(lengths) else iter(())
        return [
            self._row(next(pieces), next(pieces), pair, number) for pair, number in zip(texts, numbers, strict=True)
        ]

    def _row(
        self, source: NDArray[np.int64], target: NDArray[np.int64], texts: tuple[str, str | None], number: int
    ) -> PairRow:
        end = np.array([self._tokenizer.eos_id])
        whole = [source if len(source) else end, np.concatenate((target, end))]
        fitted = whole
        if self._context is not None:
            fitted = _fit(whole, self._context) if self._in_one_row else [text[: self._context] for text in whole]
        return PairRow(
            fitted[0],
            None,
            None,
            number,
            _is_cut(whole, fitted),
            None if texts[1] is None else fitted[1],
            source=texts[0],
            answer=texts[1] or "",
        )


def _is_cut(whole: list[NDArray[np.int64]], fitted: list[NDArray[np.int64]]) -> bool:
    return any(len(old) != len(new) for old, new in zip(whole, fitted, strict=True))


def _fit(texts: list[NDArray[np.int64]], room: int) -> list[NDArray[np.int64]]:
    """The texts cut behind until they have `room` tokens together, from the longest first."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > room:
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        second = max((size for i, size in enumerate(sizes) if i != longest), default=0)
        sizes[longest] -= max(1, min(sum(sizes) - room, sizes[longest] - second))
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


class RowExamples:
    """Rows in an order that is a function of the seed, rows of like length together.

    An epoch is a permutation; runs of POOL_BATCHES batches of it are sorted by length and cut into batches, which come
    in an order of their own.

    parts: how many of the rows, one after the other, are of one table, and how often each of them comes in an epoch; by
    default all come once. Where that is no whole number, other rows come more often in the next epoch.
    """

    unit = "rows"

    def __init__(
        self, rows: Sequence[Row], batch_size: int, seed: int, parts: Sequence[tuple[int, float]] | None = None
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._seed = seed
        self._parts = [(n, max(1, round(times * n))) for n, times in parts or [(len(rows), 1.0)]]
        self._lengths_R = np.array([row.length for row in rows])
        self._epochs: dict[int, NDArray[np.int64]] = {}

    @property
    def per_epoch(self) -> int:
        """Rows in one pass."""
        return sum(n_drawn for _, n_drawn in self._parts)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which count on from epoch to epoch."""
        return [
            Example(row.tokens, self._rng(int(sample)), other=row.target, label=row.label, segments=row.segments)
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
