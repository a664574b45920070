"""Text that is read while a model trains on it: an endless sequence of blocks, each a function of the files and a seed.

The files are cut into units: extents of about UNIT bytes, moved to the ends of documents, or whole files where
documents cannot be found from the middle. A turn has every unit once, in an order permuted by seed and turn, and a
block is the next BLOCK characters of it. The first block is the head, which stands for the text wherever all of it
would be needed: its survey chooses the recipe, its documents train the tokenizer, and some of them are held out.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmtool.data.corpus import Chunk, Corpus, coalesce, divide_rows, infer_division
from lmtool.data.files import Extent, display, find_files, next_document, packing, reading, suffix
from lmtool.data.hub import PREFIX, Shards
from lmtool.data.split import Documents, Part
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.run.order import hash_key, permute

UNIT = 1 << 20
"""Bytes of an extent."""

BLOCK = 1 << 24
"""Characters of a block, within which examples are shuffled; up to twice as many where a document is so long."""

LARGE = 4_000_000_000
"""Bytes of files from which a text is streamed by default."""


class BlockStart(NamedTuple):
    """Where a block begins: in which turn, at which unit in its order, and after how many chunks of that."""

    turn: int = 0
    unit: int = 0
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class TextHead(Corpus):
    """The first block of a streamed text, as a corpus."""

    whole: "StreamedText"

    def chunks(self) -> Iterator[Chunk]:
        return coalesce(Block(self.whole, BlockStart()).chunks())


class StreamedText:
    """The units of a text, and their order.

    n_units: in a turn.
    n_bytes: of the files, and of datasets as far as it is known.
    head: see above; `read_head` has to be called first.
    first_numbers: of each unit in the head, the number there of its first document.
    """

    def __init__(self, data: Data, seed: int) -> None:
        """Find the files that `data` names. Raises DataError and ResourceError as the reading of a corpus does."""
        files, self._shards = _found(data)
        documents = infer_division(files) if data.documents == "auto" else data.documents
        self._seed = seed
        self._states = [_state(file) for file in files]
        self.head = TextHead(tuple(files), frozenset(), data.column, documents, whole=self)
        self._divisible = [self.head.is_divisible(file) for file in files]
        n_units = [
            -(-size // UNIT) if divisible else 1
            for (size, _), divisible in zip(self._states, self._divisible, strict=True)
        ]
        self._stops = np.cumsum([*n_units, *(shards.n for shards in self._shards)])
        self.n_units = int(self._stops[-1])
        self.n_bytes = sum(size for size, _ in self._states) + sum(shards.size for shards in self._shards)
        self.head_end = BlockStart()
        self.first_numbers: dict[int, int] = {}

    @property
    def share(self) -> float:
        """The share of the units that are in the head."""
        return 1.0 if self.head_end.turn else max(1, self.head_end.unit) / self.n_units

    def read_head(self) -> str:
        """Read the head once, and note which documents it has; returns the content address of the whole text.

        That is of the characters of the head, and of the sizes and formats of all files: 100 GB are not read.
        """
        total = hashlib.sha256(repr((UNIT, BLOCK, self._seed, [one.identity for one in self._shards])).encode())
        for path, (size, _) in zip(self.head.files, self._states, strict=True):
            total.update(f"{suffix(path)} {packing(path)} {size} ".encode())
        block = Block(self, BlockStart())
        for chunk in block.chunks():
            total.update("\0".join(chunk.texts).encode())
            total.update(b"\0\0" if chunk.ends else b"\0")
        self.head_end = block.end
        self.first_numbers = block.first_numbers
        return total.hexdigest()

    def unit(self, turn: int, rank: int) -> int:
        """The number of a unit from its rank in the order of a turn."""
        key = hash_key(self._seed, "units", turn)
        return int(permute(np.array([rank]), self.n_units, key)[0])

    def chunks(self, unit: int) -> Iterator[Chunk]:
        """The documents of a unit. Raises DataError, also where a file has changed since it was found."""
        file = int(np.searchsorted(self._stops, unit, side="right"))
        within = unit - (int(self._stops[file - 1]) if file else 0)
        if file >= len(self._states):
            yield from coalesce(divide_rows(self._shards[file - len(self._states)].texts(within)))
            return
        path = self.head.files[file]
        size, _ = self._unchanged(file)
        extent = None
        if self._divisible[file]:
            blank_lines = suffix(path) == ".txt" and self.head.documents == "blank-line"
            ends = (next_document(path, n * UNIT, size, blank_lines=blank_lines) for n in (within, within + 1))
            extent = Extent(*ends)
        if extent is None or extent.begin < extent.end:
            yield from self.head.of_extent(path, extent)
        self._unchanged(file)

    def where(self, begin: BlockStart) -> str:
        """The file or dataset in which a block begins, as shown in messages."""
        file = int(np.searchsorted(self._stops, self.unit(begin.turn, begin.unit), side="right"))
        return display(self.head.files[file]) if file < len(self._states) else "the dataset"

    def _unchanged(self, file: int) -> tuple[int, int]:
        """Size and time of a file. Raises DataError where they are not as they were."""
        path = self.head.files[file]
        if (state := _state(path)) != self._states[file]:
            fix = "restore it and resume the run, or start a new one"
            raise DataError("the file has changed while it streams", where=display(path), fix=fix)
        return state


class Block:
    """The block of a streamed text that begins at a place; without the documents that `part` of the head leaves out.

    end: where the next block begins. first_numbers: of each unit, the number in this block of its first document. Both
    are known once all chunks were read.
    """

    def __init__(self, text: StreamedText, begin: BlockStart, part: Part | None = None) -> None:
        self._text, self._begin, self._part = text, begin, part
        self.end = begin
        self.first_numbers: dict[int, int] = {}

    def chunks(self) -> Iterator[Chunk]:
        """The documents in order. One that is longer than two blocks is cut, as if it ended there."""
        text, (turn, rank, skipped) = self._text, self._begin
        size = number = 0
        while rank < text.n_units:
            unit = text.unit(turn, rank)
            self.first_numbers[unit] = number
            in_head = text.first_numbers.get(unit)
            for n_chunks, chunk in enumerate(text.chunks(unit), 1):
                before, in_head = in_head, None if in_head is None else in_head + chunk.n_ends
                if n_chunks <= skipped:
                    continue
                size += chunk.size
                is_full = size >= BLOCK and (chunk.ends or size >= 2 * BLOCK)
                kept = chunk._replace(ends=True) if is_full else chunk
                number += kept.n_ends
                if isinstance(self._part, Documents) and before is not None:
                    yield from self._part.of([kept], before)
                else:
                    yield kept
                if is_full:
                    self.end = BlockStart(turn, rank, n_chunks)
                    return
            rank, skipped = rank + 1, 0
        self.end = BlockStart(turn + 1)


def streams(data: Data) -> bool:
    """Whether a text is streamed, or all texts of a mixture: as `data.stream` says, or where it is auto, if the files
    are large together."""
    if data.stream != "auto" or data.split == "slice":
        return data.stream is True
    files, datasets = _found(data)
    return sum(_state(file)[0] for file in files) + sum(shards.size for shards in datasets) >= LARGE


def _found(data: Data) -> tuple[list[Path], list[Shards]]:
    """The files and the datasets that `data` names. Raises DataError and ResourceError."""
    files = [file for source in data.sources if not source.startswith(PREFIX) for file in find_files(source)]
    return files, [Shards(source, data.column) for source in data.sources if source.startswith(PREFIX)]


def _state(path: Path) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds."""
    with reading(path):
        status = os.stat(path)
    return status.st_size, status.st_mtime_ns
