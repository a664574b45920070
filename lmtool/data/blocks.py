"""Tokenizes the blocks of a streamed text in the background, some ahead of training, and removes them behind it."""

import shutil
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from threading import Lock

from lmtool import system
from lmtool.data.corpus import merge_small_chunks
from lmtool.data.prepare import encode_chunks_in_parallel
from lmtool.data.split import CorpusPart
from lmtool.data.store import STORE_MANIFEST, StoreWriter, TokenStore
from lmtool.data.streaming import BlockPosition, StreamedText, StreamedTextBlock
from lmtool.data.survey import cache_key
from lmtool.errors import ResourceError
from lmtool.storage import durable
from lmtool.tokenization.tokenizer import Tokenizer

PREFETCHED_BLOCKS = 2
"""Blocks that are tokenized ahead of the last block in use."""

TOKENIZER_NICENESS = 5
"""Increment of the nice value of the tokenizing threads, which gives training the priority."""

STREAMS_FOLDER = "streams"
"""Folder of the cache that holds a scratch folder for each streaming run."""

_POLL_SECONDS = 0.05


class BackgroundBlockTokenizer:
    """The token stores of the blocks of a text, by block number.

    All processes have block 0 in the cache. One process writes the other stores, in a thread that drives the threads of
    the encoders; the other processes find them in the same folder, which holds the blocks that are not removed yet,
    PREFETCHED_BLOCKS more, and one that is being written.
    """

    def __init__(
        self,
        text: StreamedText,
        train_part: CorpusPart,
        head_store: TokenStore,
        tokenizer: Tokenizer,
        path: Path,
        first_block: tuple[int, BlockPosition] = (0, BlockPosition()),
        *,
        is_writer: bool,
    ) -> None:
        """train_part: part of the head that is trained on. head_store: of block 0. path: of the stores without their
        numbers. first_block: number and position of the first block. is_writer: whether this process writes stores."""
        self._text, self._part, self._tokenizer, self._path = text, train_part, tokenizer, path
        self.head_fraction = text.head_fraction
        self._stores = {0: head_store}
        self._positions = dict([first_block])
        self._is_closed = False
        priority = (TOKENIZER_NICENESS,)
        self._thread = ThreadPoolExecutor(1, "tokenize-stream", system.lower_priority, priority) if is_writer else None
        self._scheduling = Lock()
        self._ends: dict[int, Future[BlockPosition]] = {}
        """Position after each scheduled block."""
        self._next, start = first_block if first_block[0] else (1, text.head_end)
        self._last_end: Future[BlockPosition] = Future()
        self._last_end.set_result(start)
        self._schedule_blocks_through(first_block[0] + PREFETCHED_BLOCKS)

    def _schedule_blocks_through(self, last_block: int) -> None:
        """Schedules the tokenization of all blocks up to block `last_block`, in order."""
        with self._scheduling:
            while self._thread is not None and self._next <= last_block:
                end = self._thread.submit(self._tokenize_next_nonempty_block, self._next, self._last_end)
                self._last_end = self._ends[self._next] = end
                self._next += 1

    def wait_for_store(self, number: int) -> TokenStore:
        """Returns the store of a block once it is complete. Raises what the tokenization raised, and ResourceError when
        the process that writes the stores has ended."""
        self._schedule_blocks_through(number + PREFETCHED_BLOCKS)
        if number in self._ends:
            self._ends[number].result()
        if number in self._stores:
            return self._stores[number]
        path = self._store_path(number)
        while not (path / STORE_MANIFEST).exists():
            if not durable.is_scratch_folder_in_use(path.parent):
                what = "the process that tokenizes the text has ended, or writes to another cache"
                fix = "read the first error above; all processes need the same LMTOOL_CACHE"
                raise ResourceError(what, where=str(path), fix=fix)
            time.sleep(_POLL_SECONDS)
        return self._stores.setdefault(number, TokenStore(path))

    def block_position(self, number: int) -> BlockPosition:
        """Returns where a block begins; only the writing process knows it."""
        return self._positions[number]

    def remove_block(self, number: int) -> None:
        """Deletes the store of a block."""
        for known in self._stores, self._positions, self._ends:
            known.pop(number, None)
        if self._thread is not None:
            shutil.rmtree(self._store_path(number), ignore_errors=True)

    def close(self) -> None:
        """Stops the tokenization."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _store_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{number:06d}")

    def _tokenize_next_nonempty_block(self, number: int, previous_end: Future[BlockPosition]) -> BlockPosition:
        """Writes the store of a block, skipping blocks without training text, and returns where the next one begins."""
        start = previous_end.result()
        while not self._is_closed:
            block = StreamedTextBlock(self._text, start, self._part)
            store = self._write_store_unless_empty(number, block)
            if store is not None:
                self._positions[number], self._stores[number] = start, store
                return block.end
            start = block.end
        raise CancelledError

    def _write_store_unless_empty(self, number: int, block: StreamedTextBlock) -> TokenStore | None:
        """Returns None if all documents of the block are held out, or the tokenization is stopped."""
        key = cache_key("block", number, self._tokenizer.fingerprint)
        is_empty = True
        with StoreWriter(self._store_path(number), fingerprint=key, vocab_size=self._tokenizer.vocab_size) as writer:
            chunks = merge_small_chunks(takewhile(lambda _: not self._is_closed, block.read_chunks_and_record_end()))
            for chunk in encode_chunks_in_parallel(chunks, self._tokenizer):
                writer.append(chunk)
                is_empty = False
            return None if is_empty or self._is_closed else writer.finish()
