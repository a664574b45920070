"""Training examples of texts: the windows of a token store, by sample number.

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
from lmtool.data.order import LaneOrder, MixtureOrder, RandomOffsetWindows, SampleOrder, derive_seed, permute
from lmtool.data.store import TokenStore
from lmtool.errors import DataError
from lmtool.objective import Example, TextCutSettings

MAX_DOCUMENT_DRAWS = 8
"""Maximum documents that are drawn to find one that is long enough."""

MAX_LONG_FRACTION = 0.01
"""Maximum fraction of tokens in documents longer than a row, if rows are filled with whole documents."""


class ExampleSource(Protocol):
    """A source of examples.

    unit: name of the texts that `list_distinct_document_numbers` numbers. examples_per_epoch: examples in one epoch.
    """

    unit: str

    @property
    def examples_per_epoch(self) -> int: ...

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """Reads the examples with these sample numbers, which continue from epoch to epoch."""

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Returns the numbers of the texts of the samples, sorted and distinct."""

    def restarts(self, step: int) -> bool:
        """Whether the rows of this step (from 0) do not continue those of the step before; by default always."""
        return True


@dataclass(frozen=True)
class _ExampleTokenSpans:
    """The tokens of an example: spans start..stop of the store, one after the other; for a pair also a second text.

    follows: whether the second text follows the first in a document.
    """

    spans: Sequence[tuple[int, int]]
    other: tuple[int, int] | None = None
    follows: bool = False


@dataclass(frozen=True)
class _ConsecutiveWindowCutter(RandomOffsetWindows):
    """Cuts windows out of the concatenated text, across the ends of documents."""

    length: int

    def cut_window(self, epoch: int, item: int, rng: np.random.Generator) -> _ExampleTokenSpans:
        start = self.window_start(epoch, item)
        return _ExampleTokenSpans([(start, start + self.length)])


class _DocumentPacker:
    """Fills rows with whole documents, of which only the last one is cut, in an order that is new each epoch.

    Row i begins with document i k of that order, where k documents fill a row on average, so that neighbors in a sorted
    list are in different batches, and nothing begins within a document. Of a document that is longer than a row only
    the beginning is seen.
    """

    def __init__(self, store: TokenStore, cut: TextCutSettings, seed: int) -> None:
        self._store = store
        self._length = cut.length
        self._seed = seed
        self._per_row = max(1, round(cut.stride * store.n_documents / len(store)))
        self.n_items = max(1, store.n_documents // self._per_row)

    @staticmethod
    def should_pack(store: TokenStore, cut: TextCutSettings) -> bool:
        """Whether a row holds two documents or more, and almost all tokens are in documents that fit into a row."""
        if len(store) < cut.length or 2 * len(store) > cut.stride * store.n_documents:
            return False
        length_D = store.document_lengths()
        return int(length_D[length_D > cut.length].sum()) <= MAX_LONG_FRACTION * len(store)

    def cut_window(self, epoch: int, item: int, rng: np.random.Generator) -> _ExampleTokenSpans:
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
        return _ExampleTokenSpans(spans)


class _SentencePairCutter:
    """Cuts windows of one document, without special tokens, in two. Half of the second parts are replaced by parts of
    another document, or, for swapped pairs, half of the pairs are swapped.

    An epoch has a window for every `step` tokens of the store, around anchors at that distance, shifted each epoch; a
    document shorter than that has one in some epochs, in proportion to its length. A negative second part is the end
    of such a window of another document, of the same length wherever that document is long enough, so that only its
    content distinguishes it from the true one.
    """

    def __init__(self, store: TokenStore, cut: TextCutSettings, seed: int, special_ids: Sequence[int]) -> None:
        self._store = store
        self._special_ids = special_ids
        self._cut = cut
        self._seed = seed
        self.n_items = max(1, len(store) // cut.stride)
        usable_documents = (number for number in range(store.n_documents) if self._count_tokens(number) >= 2)
        key, n, requirement = ("next_sentence", 2, "two documents")
        if cut.unit == "swapped pair":
            key, n, requirement = ("sentence_order", 1, "a document")
        if len(list(islice(usable_documents, n))) < n:
            what = f"rows of two texts need {requirement} of at least two tokens"
            fix = "give more text, divide it with data.documents, or set it to false"
            raise DataError(what, where=f"objective.{key}", fix=fix)

    def cut_window(self, epoch: int, item: int, rng: np.random.Generator) -> _ExampleTokenSpans:
        """Returns the window around this item's anchor, or in the next usable document."""
        anchor = (derive_seed(self._seed, "phase", epoch) + item * self._cut.stride) % len(self._store)
        number = self._find_usable_document(anchor)
        start, stop = self._place_window(number, anchor, self._cut.length)
        middle = start + int(rng.integers(1, stop - start))
        if rng.integers(2):
            return _ExampleTokenSpans([(start, middle)], (middle, stop), follows=True)
        if self._cut.unit == "swapped pair":
            return _ExampleTokenSpans([(middle, stop)], (start, middle))
        other = self._draw_other_document_and_preferred_start(number, stop - start, rng)
        first, last = self._place_window(*other, stop - start)
        return _ExampleTokenSpans([(start, middle)], (max(first + 1, last - (stop - middle)), last))

    def _draw_other_document_and_preferred_start(
        self, document: int, length: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Draws another document, the first with `length` tokens or else the longest, and a start for its window."""
        begin, end = self._store.document_range(document)
        drawn = []
        for _ in range(MAX_DOCUMENT_DRAWS):
            anchor = int(rng.integers(len(self._store) - (end - begin)))
            anchor += (end - begin) * (anchor >= begin)
            drawn.append((self._find_usable_document(anchor, document), anchor))
            if self._count_tokens(drawn[-1][0]) >= length:
                return drawn[-1]
        return max(drawn, key=lambda candidate: self._count_tokens(candidate[0]))

    def _find_usable_document(self, token_position: int, excluded: int | None = None) -> int:
        """Returns the document at a token position, or the next one, cyclically, that is usable and not excluded."""
        number = int(self._store.find_documents(token_position))
        while number == excluded or self._count_tokens(number) < 2:
            number = (number + 1) % self._store.n_documents
        return number

    def _place_window(self, document: int, preferred_start: int, length: int) -> tuple[int, int]:
        """Returns a span of at most `length` tokens of a document, from `preferred_start` if enough tokens follow."""
        start, stop = self._span_without_special_tokens(document)
        first = min(max(preferred_start, start), max(start, stop - length))
        return first, min(stop, first + length)

    def _count_tokens(self, number: int) -> int:
        start, stop = self._span_without_special_tokens(number)
        return stop - start

    def _span_without_special_tokens(self, document: int) -> tuple[int, int]:
        """Returns the span of a document without its [BOS] and [EOS]."""
        begin, end = self._store.document_range(document)
        if begin < end and self._store.read(begin, begin + 1)[0] in self._special_ids:
            begin += 1
        if begin < end and self._store.read(end - 1, end)[0] in self._special_ids:
            end -= 1
        return begin, end


class Windows:
    """Examples cut from a token store, in an order that is a function of the seed.

    n_lanes: rows of a batch that continue from one batch to the next; None if rows are independent.
    special_ids: the tokens that start and end a document, which are in no pair.
    isolated: documents do not attend to each other; rows are filled with whole short ones.
    length: maximum tokens of an example.
    Raises DataError if the text is too short for one example.
    """

    unit = "documents"

    def __init__(
        self,
        store: TokenStore,
        cut: TextCutSettings,
        seed: int,
        n_lanes: int | None = None,
        special_ids: Sequence[int] = (),
        isolated: bool = False,
    ) -> None:
        self.length = cut.length
        self._store = store
        self._seed = seed
        self._cutter: _SentencePairCutter | _ConsecutiveWindowCutter | _DocumentPacker
        if cut.unit != "stream":
            self._cutter = _SentencePairCutter(store, cut, seed, special_ids)
        elif isolated and _DocumentPacker.should_pack(store, cut):
            self._cutter = _DocumentPacker(store, cut, seed)
        else:
            self._cutter = _ConsecutiveWindowCutter(len(store), cut.stride, seed, cut.length)
        n_items = self._cutter.n_items
        self._order = SampleOrder(n_items, seed) if n_lanes is None else LaneOrder(n_items, n_lanes, seed)

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one epoch over the store."""
        order = self._order
        return order.n_steps * order.n_lanes if isinstance(order, LaneOrder) else self._cutter.n_items

    def restarts(self, step: int) -> bool:
        """Whether the rows of this step (from 0) do not continue those of the step before."""
        return not isinstance(self._order, LaneOrder) or self._order.is_lane_start(step)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """Reads the examples with these sample numbers, which continue from epoch to epoch."""
        return [
            Example(
                np.concatenate([self._store.read(*span) for span in window.spans]),
                rng,
                second=None if window.other is None else self._store.read(*window.other),
                second_follows=window.follows,
            )
            for window, rng in self._cut_windows_with_rng(sample_S)
        ]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the store."""
        return len(self._store)

    def read_span(self, start: int, stop: int, max_left_context: int) -> Batch:
        """Returns a row with the tokens start..stop as targets, except the first ones of documents.

        max_left_context: maximum tokens of left context before `start`.
        """
        first = max(0, start - max_left_context)
        tokens_T = torch.from_numpy(self._store.read(first, stop))
        document_T = torch.from_numpy(np.asarray(self._store.find_documents(np.arange(first, stop)), dtype=np.int64))
        targets_T = tokens_T[1:].masked_fill(document_T[1:] != document_T[:-1], IGNORE)
        targets_T[: max(0, start - first - 1)] = IGNORE
        return Batch(tokens_T[None, :-1], targets_T[None], documents_BT=document_T[None, :-1])

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Returns the numbers of the documents of the samples, sorted and distinct."""
        touched: set[int] = set()
        for window, _ in self._cut_windows_with_rng(sample_S):
            for start, stop in (*window.spans, *([window.other] if window.other else [])):
                touched.update(range(self._store.find_documents(start), self._store.find_documents(stop - 1) + 1))
        return sorted(touched)

    def _cut_windows_with_rng(
        self, sample_S: NDArray[np.int64]
    ) -> Iterator[tuple[_ExampleTokenSpans, np.random.Generator]]:
        """Yields the window of each sample, and its random generator, with which it may have been drawn."""
        for sample, epoch, item in zip(sample_S, *self._order(sample_S), strict=True):
            rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "example", int(sample))))
            yield self._cutter.cut_window(int(epoch), int(item), rng), rng


class TextMixture(ExampleSource):
    """Examples of several texts in proportion to their weights, in an order that is a function of the seed.

    Each text is read in its own order and, at its end, again. An epoch has as many examples as one of all texts.
    """

    unit = "documents"

    def __init__(
        self, texts: Sequence[ExampleSource], n_documents: Sequence[int], weights: Sequence[float], seed: int
    ) -> None:
        """n_documents: of each text. weights: of each text, in any unit."""
        self._texts = texts
        self._before = np.cumsum([0, *n_documents])
        self._order = MixtureOrder(tuple(weights), seed)

    @property
    def examples_per_epoch(self) -> int:
        return sum(text.examples_per_epoch for text in self._texts)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        text_S, own_S = self._order(sample_S)
        examples: dict[int, Example] = {}
        for number, text in enumerate(self._texts):
            (row_K,) = np.nonzero(text_S == number)
            if len(row_K):
                examples |= zip(row_K.tolist(), text.read(own_S[row_K]), strict=True)
        return [examples[row] for row in range(len(sample_S))]

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        text_S, own_S = self._order(sample_S)
        return [
            int(self._before[number]) + document
            for number, text in enumerate(self._texts)
            if (text_S == number).any()
            for document in text.list_distinct_document_numbers(own_S[text_S == number])
        ]
