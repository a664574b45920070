"""Training examples: the span of the token store of each sample number.

No index is stored: positions are computed from seed and sample number, whatever the number of documents.

Shapes: S samples, T positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.data.store import TokenStore
from lmtool.errors import DataError
from lmtool.objective import Example, TextCut
from lmtool.run.order import LaneOrder, MixtureOrder, SampleOrder, StreamWindows, derive_seed, permute

TRIES = 8
"""Documents that are drawn to find one that is long enough."""

LONGER = 0.01
"""Share of the tokens that may be in documents longer than a row where documents are drawn one by one."""


class ExampleSource(Protocol):
    """A source of examples.

    unit: name of the texts numbered by `documents`. per_epoch: examples in one epoch.
    """

    unit: str

    @property
    def per_epoch(self) -> int: ...

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which continue from epoch to epoch."""

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the texts of the samples, sorted and distinct."""

    def restarts(self, step: int) -> bool:
        """True when the rows of this step (from 0) do not continue those of the step before; by default always."""
        return True


@dataclass(frozen=True)
class _Window:
    """The tokens of an example: spans of the store, start..stop, one after the other; for a pair also a second part."""

    spans: Sequence[tuple[int, int]]
    other: tuple[int, int] | None = None
    follows: bool = False


@dataclass(frozen=True)
class _Stream(StreamWindows):
    """Windows of the concatenated text, across the ends of documents."""

    length: int

    def window_of(self, epoch: int, item: int, rng: np.random.Generator) -> _Window:
        start = self.window_start(epoch, item)
        return _Window([(start, start + self.length)])


class _Documents:
    """Rows of whole documents, of which only the last one is cut, in an order of documents that is new each epoch.

    Row i begins with document i k of that order, where k documents fill a row on average, so that neighbors in a sorted
    list are in different batches, and nothing begins within a document. Of a document that is longer than a row only
    the beginning is seen.
    """

    def __init__(self, store: TokenStore, cut: TextCut, seed: int) -> None:
        self._store = store
        self._length = cut.length
        self._seed = seed
        self._per_row = max(1, round(cut.stride * store.n_documents / len(store)))
        self.n_items = max(1, store.n_documents // self._per_row)

    @staticmethod
    def suit(store: TokenStore, cut: TextCut) -> bool:
        """Whether a row holds two documents or more, and almost all tokens are in documents that fit into one."""
        if len(store) < cut.length or 2 * len(store) > cut.stride * store.n_documents:
            return False
        length_D = store.document_lengths()
        return int(length_D[length_D > cut.length].sum()) <= LONGER * len(store)

    def window_of(self, epoch: int, item: int, rng: np.random.Generator) -> _Window:
        n, key = self._store.n_documents, derive_seed(self._seed, "documents", epoch)
        spans: list[tuple[int, int]] = []
        first, left = item * self._per_row, self._length
        while left:
            for number in permute((first + np.arange(self._per_row + 1)) % n, n, key).tolist():
                begin, end = self._store.document_range(number)
                spans.append((begin, min(end, begin + left)))
                left -= spans[-1][1] - begin
                if not left:
                    break
            first += self._per_row + 1
        return _Window(spans)


class _Pairs:
    """Windows of one document without special tokens, cut in two; half of the second parts are from another document,
    or, where pairs are swapped, half of the first parts come second.

    An epoch has a window for every `step` tokens of the store, around anchors at that distance, shifted each epoch; a
    document shorter than that has one in some epochs, in proportion to its length. A negative second part is the end
    of such a window of another document, of the same length wherever that document is long enough, so that only its
    content distinguishes it from the true one.
    """

    def __init__(self, store: TokenStore, cut: TextCut, seed: int, marks: Sequence[int]) -> None:
        self._store = store
        self._marks = marks
        self._cut = cut
        self._seed = seed
        self.n_items = max(1, len(store) // cut.stride)
        usable = (number for number in range(store.n_documents) if self._size(number) >= 2)
        key, n, needed = ("next_sentence", 2, "two documents")
        if cut.unit == "swapped pair":
            key, n, needed = ("sentence_order", 1, "a document")
        if len(list(islice(usable, n))) < n:
            what = f"rows of two texts need {needed} of at least two tokens"
            fix = "give more text, divide it with data.documents, or set it to false"
            raise DataError(what, where=f"objective.{key}", fix=fix)

    def window_of(self, epoch: int, item: int, rng: np.random.Generator) -> _Window:
        """The window around this item's anchor, or in the next usable document."""
        anchor = (derive_seed(self._seed, "phase", epoch) + item * self._cut.stride) % len(self._store)
        number = self._usable(anchor)
        start, stop = self._window(number, anchor, self._cut.length)
        middle = start + int(rng.integers(1, stop - start))
        if rng.integers(2):
            return _Window([(start, middle)], (middle, stop), follows=True)
        if self._cut.unit == "swapped pair":
            return _Window([(middle, stop)], (start, middle))
        other = self._other(number, stop - start, rng)
        first, last = self._window(*other, stop - start)
        return _Window([(start, middle)], (max(first + 1, last - (stop - middle)), last))

    def _other(self, number: int, length: int, rng: np.random.Generator) -> tuple[int, int]:
        """Another document than `number`, and an anchor in it: the first drawn with `length` tokens, or the longest."""
        begin, end = self._store.document_range(number)
        drawn = []
        for _ in range(TRIES):
            anchor = int(rng.integers(len(self._store) - (end - begin)))
            anchor += (end - begin) * (anchor >= begin)
            drawn.append((self._usable(anchor, number), anchor))
            if self._size(drawn[-1][0]) >= length:
                return drawn[-1]
        return max(drawn, key=lambda candidate: self._size(candidate[0]))

    def _usable(self, anchor: int, but: int | None = None) -> int:
        """The document at this anchor, or the next one, cyclically, that is usable and not `but`."""
        number = int(self._store.find_documents(anchor))
        while number == but or self._size(number) < 2:
            number = (number + 1) % self._store.n_documents
        return number

    def _window(self, number: int, anchor: int, length: int) -> tuple[int, int]:
        """At most `length` tokens of a document, starting at `anchor` where enough of them follow."""
        start, stop = self._text(number)
        first = min(max(anchor, start), max(start, stop - length))
        return first, min(stop, first + length)

    def _size(self, number: int) -> int:
        start, stop = self._text(number)
        return stop - start

    def _text(self, number: int) -> tuple[int, int]:
        """The span of the document's own tokens, without [BOS] and [EOS]."""
        begin, end = self._store.document_range(number)
        if begin < end and self._store.read(begin, begin + 1)[0] in self._marks:
            begin += 1
        if begin < end and self._store.read(end - 1, end)[0] in self._marks:
            end -= 1
        return begin, end


class Windows:
    """Examples cut from a store, in an order that is a function of the seed.

    lanes: rows of a batch that continue from one batch to the next; None where rows are independent.
    marks: the tokens that start and end a document, which are in no pair.
    isolated: documents do not see each other; short ones are drawn one by one.
    length: most tokens of an example.
    Raises DataError when the text is too short for one example.
    """

    unit = "documents"

    def __init__(
        self,
        store: TokenStore,
        cut: TextCut,
        seed: int,
        lanes: int | None = None,
        marks: Sequence[int] = (),
        isolated: bool = False,
    ) -> None:
        self.length = cut.length
        self._store = store
        self._seed = seed
        self._cutter: _Pairs | _Stream | _Documents
        if cut.unit != "stream":
            self._cutter = _Pairs(store, cut, seed, marks)
        elif isolated and _Documents.suit(store, cut):
            self._cutter = _Documents(store, cut, seed)
        else:
            self._cutter = _Stream(len(store), cut.stride, seed, cut.length)
        n_items = self._cutter.n_items
        self._order = SampleOrder(n_items, seed) if lanes is None else LaneOrder(n_items, lanes, seed)

    @property
    def per_epoch(self) -> int:
        """Examples in one epoch over the store."""
        lanes = self._order
        return lanes.n_steps * lanes.n_lanes if isinstance(lanes, LaneOrder) else self._cutter.n_items

    def restarts(self, step: int) -> bool:
        """True when the rows of this step (from 0) do not continue those of the step before."""
        return not isinstance(self._order, LaneOrder) or self._order.is_lane_start(step)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """The examples with these sample numbers, which continue from epoch to epoch."""
        return [
            Example(
                np.concatenate([self._store.read(*span) for span in window.spans]),
                rng,
                second=None if window.other is None else self._store.read(*window.other),
                second_follows=window.follows,
            )
            for window, rng in self._drawn(sample_S)
        ]

    @property
    def n_tokens(self) -> int:
        """Tokens of the store."""
        return len(self._store)

    def in_order(self, start: int, stop: int, n_before: int) -> Batch:
        """Tokens start..stop of the store as targets, except the first ones of documents; in one row.

        n_before: number of tokens of left context before `start`, where there are so many.
        """
        first = max(0, start - n_before)
        tokens_T = torch.from_numpy(self._store.read(first, stop))
        document_T = torch.from_numpy(np.asarray(self._store.find_documents(np.arange(first, stop)), dtype=np.int64))
        targets_T = tokens_T[1:].masked_fill(document_T[1:] != document_T[:-1], IGNORE)
        targets_T[: max(0, start - first - 1)] = IGNORE
        return Batch(tokens_T[None, :-1], targets_T[None], documents_BT=document_T[None, :-1])

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Numbers of the documents of the samples, sorted and distinct."""
        touched: set[int] = set()
        for window, _ in self._drawn(sample_S):
            for start, stop in (*window.spans, *([window.other] if window.other else [])):
                touched.update(range(self._store.find_documents(start), self._store.find_documents(stop - 1) + 1))
        return sorted(touched)

    def _drawn(self, sample_S: NDArray[np.int64]) -> Iterator[tuple[_Window, np.random.Generator]]:
        """The span of each sample, and its random generator, which may have drawn it."""
        for sample, epoch, item in zip(sample_S, *self._order(sample_S), strict=True):
            rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "example", int(sample))))
            yield self._cutter.window_of(int(epoch), int(item), rng), rng


class Mixture(ExampleSource):
    """Examples of several texts in proportion to their weights, in an order that is a function of the seed.

    Each text is read in its own order and, at its end, again. An epoch has as many examples as one of all texts.
    """

    unit = "documents"

    def __init__(
        self, texts: Sequence[ExampleSource], n_documents: Sequence[int], weights: Sequence[float], seed: int
    ) -> None:
        """n_documents: of each text."""
        self._texts = texts
        self._before = np.cumsum([0, *n_documents])
        self._order = MixtureOrder(tuple(weights), seed)

    @property
    def per_epoch(self) -> int:
        return sum(text.per_epoch for text in self._texts)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        text_S, own_S = self._order(sample_S)
        examples: dict[int, Example] = {}
        for number, text in enumerate(self._texts):
            (here,) = np.nonzero(text_S == number)
            if len(here):
                examples |= zip(here.tolist(), text.read(own_S[here]), strict=True)
        return [examples[row] for row in range(len(sample_S))]

    def documents(self, sample_S: NDArray[np.int64]) -> list[int]:
        text_S, own_S = self._order(sample_S)
        return [
            int(self._before[number]) + document
            for number, text in enumerate(self._texts)
            if (text_S == number).any()
            for document in text.documents(own_S[text_S == number])
        ]
