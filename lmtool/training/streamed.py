"""Training examples of streamed texts: windows, shuffled within each block of a text."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.device import ExecutionContext
from lmtool.data.blocks import STREAMS_FOLDER, BackgroundBlockTokenizer
from lmtool.data.order import derive_seed
from lmtool.data.prepare import TokenizedData
from lmtool.data.streaming import BlockPosition
from lmtool.errors import CheckpointError
from lmtool.objective import Example, TextCutSettings
from lmtool.runs.files import StreamPosition
from lmtool.storage.durable import cache_folder, find_cache_or_temporary_path, make_parent_and_scratch_folder
from lmtool.training.windows import ExampleSource, TextMixture, Windows

KEPT_BATCHES = 4
"""Batches for which a block is kept after its last example, since other processes may be behind."""


@contextmanager
def open_block_stores(
    prepared: TokenizedData, compute: ExecutionContext, resume_positions: Sequence[StreamPosition]
) -> Iterator[list[BackgroundBlockTokenizer]]:
    """Returns a context with the blocks of each streamed text, from the position at which it is resumed, if any.

    Raises CheckpointError if the text of the block there has changed, or positions are missing.
    """
    if resume_positions and len(resume_positions) != len(prepared.streamed):
        marked = f"{len(resume_positions)} of {len(prepared.streamed)} texts"
        what = f"the run cannot be resumed: its checkpoint marks places in {marked}"
        raise CheckpointError(what, fix="resume from another checkpoint")
    with ExitStack() as stack:
        folder, is_main = Path(), compute.world.is_main
        if is_main:
            parent = find_cache_or_temporary_path(cache_folder() / STREAMS_FOLDER / "blocks").parent
            folder = stack.enter_context(make_parent_and_scratch_folder(parent))
        path = Path(compute.world.broadcast_text(str(folder.absolute())))
        opened = []
        for n, (streamed, head) in enumerate(zip(prepared.streamed, prepared.parts, strict=True)):
            begin = (0, BlockPosition())
            if resume_positions:
                begin = (resume_positions[n].block, _block_start(resume_positions[n]))
            blocks = BackgroundBlockTokenizer(
                *streamed, head, prepared.tokenizer, path / str(n), begin, is_writer=is_main
            )
            opened.append(stack.enter_context(closing(blocks)))
        for n, position in enumerate(resume_positions):
            if opened[n].wait_for_store(position.block).content_checksum != position.content:
                what = f"the run cannot be resumed: block {position.block:,} of its text has changed since it was read"
                fix = "restore the old files, or start a new run"
                where = prepared.streamed[n][0].format_location(_block_start(position))
                raise CheckpointError(what, where=where, fix=fix, code="data_changed")
        yield opened


def _block_start(position: StreamPosition) -> BlockPosition:
    return BlockPosition(position.turn, position.unit, position.chunk)


class StreamedWindows(ExampleSource):
    """Examples of the blocks of a text, one block after the other, shuffled within each; see `ExampleSource`.

    Sample n is a function of the text, the seed and n. Its position follows from the number of examples of all earlier
    blocks, which a `StreamPosition` holds, so that a resumed run does not read them again. Two threads may use it: one
    that reads ahead, and one that trains and asks for positions.
    """

    unit = "documents"

    def __init__(
        self,
        blocks: BackgroundBlockTokenizer,
        cut: TextCutSettings,
        seed: int,
        batch_size: int,
        resume_position: StreamPosition | None,
        isolated: bool = False,
    ) -> None:
        """resume_position: of the first block. The other parameters are as for `Windows`."""
        self.length = cut.length
        self._blocks, self._cut, self._seed, self._kept_samples = blocks, cut, seed, KEPT_BATCHES * batch_size
        self._isolated = isolated
        self._first_block = 0 if resume_position is None else resume_position.block
        self._first_samples = [0 if resume_position is None else resume_position.examples]
        self._first_documents = [0 if resume_position is None else resume_position.documents]
        self._opened: dict[int, Windows] = {}
        self._opening = Lock()
        self._examples_per_epoch = max(1, round(self._make_windows(0).examples_per_epoch / blocks.head_fraction))

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one pass over the text, estimated by its first block."""
        return self._examples_per_epoch

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        with self._opening:
            examples = [
                example
                for _, windows, own_S in self._group_samples_by_block(sample_S)
                for example in windows.read(own_S)
            ]
            self._drop_blocks_before(int(sample_S.min()))
        return examples

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Returns the numbers of the documents of the samples in the order of the stream, sorted and distinct."""
        with self._opening:
            return [
                self._first_documents[at] + document
                for at, windows, own_S in self._group_samples_by_block(sample_S)
                for document in windows.list_distinct_document_numbers(own_S)
            ]

    def advance_blocks_to(self, sample: int) -> None:
        """Opens the blocks up to that of a sample, and drops those long before it, without reading it."""
        with self._opening:
            while sample >= self._first_samples[-1]:
                self._open_next_block()
            self._drop_blocks_before(sample)

    def stream_position_before(self, sample: int) -> StreamPosition:
        """Returns the position of the block of the sample before this one, the last one trained on.

        Only for the process that makes the blocks.
        """
        with self._opening:
            while sample > self._first_samples[-1]:
                self._open_next_block()
            at = max(0, bisect_left(self._first_samples, sample) - 1)
            number = self._first_block + at
            content, start = self._blocks.wait_for_store(number).content_checksum, self._blocks.block_position(number)
        before = {"examples": self._first_samples[at], "documents": self._first_documents[at]}
        return StreamPosition(block=number, content=content, **start._asdict(), **before)

    def stream_positions_before(self, sample: int) -> list[StreamPosition]:
        """Returns the position in each text: one; a mixture has several."""
        return [self.stream_position_before(sample)]

    def _group_samples_by_block(self, sample_S: NDArray[np.int64]) -> Iterator[tuple[int, Windows, NDArray[np.int64]]]:
        """Groups consecutive samples by block. Yields its index, its windows, and the numbers of the samples in it."""
        while int(sample_S.max()) >= self._first_samples[-1]:
            self._open_next_block()
        at_S = np.searchsorted(self._first_samples, sample_S, side="right") - 1
        for at in np.unique(at_S).tolist():
            yield at, self._opened[self._first_block + at], sample_S[at_S == at] - self._first_samples[at]

    def _open_next_block(self) -> None:
        """Opens the next block. It has no example if it is too short for one, as the last of a turn may be."""
        number = self._first_block + len(self._first_samples) - 1
        store, n_examples = self._blocks.wait_for_store(number), 0
        if len(store) > self.length:
            self._opened[number] = self._make_windows(number)
            n_examples = self._opened[number].examples_per_epoch
        self._first_samples.append(self._first_samples[-1] + n_examples)
        self._first_documents.append(self._first_documents[-1] + store.n_documents)

    def _make_windows(self, number: int) -> Windows:
        seed = derive_seed(self._seed, "block", number)
        return Windows(self._blocks.wait_for_store(number), self._cut, seed, None, (), self._isolated)

    def _drop_blocks_before(self, sample: int) -> None:
        """Drops the blocks that no process reads any more when this one reads a sample."""
        for number in list(self._opened):
            if self._first_samples[number - self._first_block + 1] <= sample - self._kept_samples:
                del self._opened[number]
                self._blocks.remove_block(number)


class StreamedMixture(TextMixture):
    """Examples of several streamed texts in proportion to their weights; see `TextMixture`.

    Documents are numbered within each text, since the number of documents of the others is unknown.
    """

    unit = "documents, as numbered in each text,"

    def __init__(self, texts: Sequence[StreamedWindows], weights: Sequence[float], seed: int) -> None:
        super().__init__(texts, [0] * len(texts), weights, seed)
        self._streams = texts

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        # also the texts of which this process has no sample for many steps, whose blocks are dropped meanwhile
        for text, sample_of_text in zip(
            self._streams, self._order.count_samples_per_text_before(int(sample_S.min())), strict=True
        ):
            text.advance_blocks_to(sample_of_text)
        return super().read(sample_S)

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        return sorted(set(super().list_distinct_document_numbers(sample_S)))

    def stream_positions_before(self, sample: int) -> list[StreamPosition]:
        """Returns the position in each text before this sample of the mixture."""
        return [
            text.stream_position_before(sample_of_text)
            for text, sample_of_text in zip(
                self._streams, self._order.count_samples_per_text_before(sample), strict=True
            )
        ]
