"""Text that is read while a model trains on it: an endless sequence of blocks, each a function of the files and a seed.

The files are cut into units: extents of about UNIT_BYTES that end with documents, or whole files if documents cannot be
found from the middle. A turn has every unit once, in an order permuted by seed and turn, and a block is the next
BLOCK_CHARACTERS of it. The first block is the head, which stands for the text wherever all of it would be needed: its
statistics choose the recipe, its documents train the tokenizer, and some of them are held out.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmtool.data.corpus import (
    Corpus,
    MultiDocumentChunk,
    cut_long_documents,
    infer_document_division,
    merge_small_chunks,
)
from lmtool.data.files import (
    ByteRange,
    compression_suffix,
    convert_read_errors,
    detect_format_suffix,
    display_path,
    find_files,
    find_next_document_start,
)
from lmtool.data.hub import HUB_PREFIX, DatasetShards
from lmtool.data.order import derive_seed, permute
from lmtool.data.split import CorpusPart, DocumentSplitPart
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data

UNIT_BYTES = 1 << 20
"""Bytes of an extent."""

BLOCK_CHARACTERS = 1 << 24
"""Characters of a block, within which examples are shuffled; up to twice as many if a document is so long."""

STREAM_FROM_BYTES = 4_000_000_000
"""Size from which a text is streamed by default."""


class BlockPosition(NamedTuple):
    """Where a block begins: in which turn, at which unit in its order, and after how many chunks of that."""

    turn: int = 0
    unit: int = 0
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamHeadCorpus(Corpus):
    """The first block of a streamed text, as a corpus."""

    streamed_text: "StreamedText"

    def chunks(self) -> Iterator[MultiDocumentChunk]:
        return merge_small_chunks(StreamedTextBlock(self.streamed_text, BlockPosition()).read_chunks_and_record_end())


class StreamedText:
    """The units of a text and their order.

    n_units: units of a turn.
    n_bytes: size of the files, and of datasets as far as it is known.
    head: the first block; call `record_head_end_and_hash_text` before reading it.
    first_numbers: for each unit in the head, the number of its first document there.
    """

    def __init__(self, data: Data, seed: int) -> None:
        """Finds the files that `data` names. Raises DataError and ResourceError."""
        files, self._shards = _find_sources(data)
        documents = infer_document_division(files) if data.documents == "auto" else data.documents
        self._seed = seed
        self._states = [_size_and_mtime(file) for file in files]
        self.head = StreamHeadCorpus(tuple(files), frozenset(), data.column, documents, streamed_text=self)
        self._divisible = [self.head.is_divisible(file) for file in files]
        sizes = [size for size, _ in self._states]
        n_units = [-(-n // UNIT_BYTES) if divisible else 1 for n, divisible in zip(sizes, self._divisible, strict=True)]
        self._stops = np.cumsum([*n_units, *(shards.n_shards for shards in self._shards)])
        self.n_units = int(self._stops[-1])
        self.n_bytes = sum(sizes) + sum(shards.n_bytes for shards in self._shards)
        self.head_end = BlockPosition()
        self.first_numbers: dict[int, int] = {}

    @property
    def head_fraction(self) -> float:
        """Returns the fraction of the units that the head has."""
        return 1.0 if self.head_end.turn else max(1, self.head_end.unit) / self.n_units

    def record_head_end_and_hash_text(self) -> str:
        """Reads the head, sets `head_end` and `first_numbers`, and returns the content hash of the whole text.

        The hash is of the characters of the head and of the sizes and formats of all files, so 100 GB are not read.
        """
        settings = (UNIT_BYTES, BLOCK_CHARACTERS, self._seed, [one.identity for one in self._shards])
        total = hashlib.sha256(repr(settings).encode())
        for path, (size, _) in zip(self.head.files, self._states, strict=True):
            total.update(f"{detect_format_suffix(path)} {compression_suffix(path)} {size} ".encode())
        block = StreamedTextBlock(self, BlockPosition())
        for chunk in block.read_chunks_and_record_end():
            total.update("\0".join(chunk.texts).encode())
            total.update(b"\0\0" if chunk.ends else b"\0")
        self.head_end = block.end
        self.first_numbers = block.first_numbers
        return total.hexdigest()

    def choose_unit(self, turn: int, rank: int) -> int:
        """Returns the number of the unit at position `rank` of a turn."""
        key = derive_seed(self._seed, "units", turn)
        return int(permute(np.array([rank]), self.n_units, key)[0])

    def read_unit_chunks(self, unit: int) -> Iterator[MultiDocumentChunk]:
        """Yields the documents of a unit. Raises DataError, also if a file has changed since it was found."""
        file = int(np.searchsorted(self._stops, unit, side="right"))
        within = unit - (int(self._stops[file - 1]) if file else 0)
        if file >= len(self._states):
            yield from merge_small_chunks(cut_long_documents(self._shards[file - len(self._states)].read_texts(within)))
            return
        path = self.head.files[file]
        size = self._check_unchanged_and_get_size(file)
        byte_range = None
        if self._divisible[file]:
            blank = detect_format_suffix(path) == ".txt" and self.head.documents == "blank-line"
            begin = find_next_document_start(path, within * UNIT_BYTES, size, after_blank_line=blank)
            end = find_next_document_start(path, (within + 1) * UNIT_BYTES, size, after_blank_line=blank)
            byte_range = ByteRange(begin, end)
        if byte_range is None or byte_range.begin < byte_range.end:
            yield from self.head.read_byte_range(path, byte_range)
        self._check_unchanged_and_get_size(file)

    def format_location(self, begin: BlockPosition) -> str:
        """Returns the file or dataset in which a block begins, for messages."""
        file = int(np.searchsorted(self._stops, self.choose_unit(begin.turn, begin.unit), side="right"))
        return display_path(self.head.files[file]) if file < len(self._states) else "the dataset"

    def _check_unchanged_and_get_size(self, file_index: int) -> int:
        """Returns the size of a file in bytes. Raises DataError if it or the modification time has changed."""
        path = self.head.files[file_index]
        if (state := _size_and_mtime(path)) != self._states[file_index]:
            fix = "restore it and resume the run, or start a new one"
            raise DataError("the file has changed while it streams", where=display_path(path), fix=fix)
        return state[0]


class StreamedTextBlock:
    """The block of a streamed text that begins at a position, without the documents of the head that `part` omits.

    end: where the next block begins. first_numbers: for each unit, the number of its first document in this block. Both
    are complete once all chunks are read.
    """

    def __init__(self, text: StreamedText, begin: BlockPosition, part: CorpusPart | None = None) -> None:
        self._text, self._begin, self._part = text, begin, part
        self.end = begin
        self.first_numbers: dict[int, int] = {}

    def read_chunks_and_record_end(self) -> Iterator[MultiDocumentChunk]:
        """Yields the documents in order. A document longer than two blocks is cut as if it ended there."""
        text, (turn, rank, skipped) = self._text, self._begin
        size = number = 0
        while rank < text.n_units:
            unit = text.choose_unit(turn, rank)
            self.first_numbers[unit] = number
            in_head = text.first_numbers.get(unit)
            for n_chunks, chunk in enumerate(text.read_unit_chunks(unit), 1):
                before, in_head = in_head, None if in_head is None else in_head + chunk.n_ends
                if n_chunks <= skipped:
                    continue
                size += chunk.size
                is_full = size >= BLOCK_CHARACTERS and (chunk.ends or size >= 2 * BLOCK_CHARACTERS)
                kept = chunk._replace(ends=True) if is_full else chunk
                number += kept.n_ends
                if isinstance(self._part, DocumentSplitPart) and before is not None:
                    yield from self._part.select([kept], before)
                else:
                    yield kept
                if is_full:
                    self.end = BlockPosition(turn, rank, n_chunks)
                    return
            rank, skipped = rank + 1, 0
        self.end = BlockPosition(turn + 1)


def should_stream(data: Data) -> bool:
    """Returns `data.stream`, or if that is "auto" whether all files together are large."""
    if data.stream != "auto" or data.split == "slice":
        return data.stream is True
    files, datasets = _find_sources(data)
    n_bytes = sum(_size_and_mtime(file)[0] for file in files) + sum(shards.n_bytes for shards in datasets)
    return n_bytes >= STREAM_FROM_BYTES


def _find_sources(data: Data) -> tuple[list[Path], list[DatasetShards]]:
    """Returns the files and datasets that `data` names. Raises DataError and ResourceError."""
    files = [file for source in data.sources if not source.startswith(HUB_PREFIX) for file in find_files(source)]
    return files, [DatasetShards(source, data.column) for source in data.sources if source.startswith(HUB_PREFIX)]


def _size_and_mtime(path: Path) -> tuple[int, int]:
    """Returns size in bytes and modification time in nanoseconds."""
    with convert_read_errors(path):
        status = os.stat(path)
    return status.st_size, status.st_mtime_ns
