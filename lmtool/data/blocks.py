"""The blocks of a streamed text as token stores: tokenized beside training, some ahead of it, and removed behind it."""

import shutil
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from threading import Lock

from lmtool import durable, system
from lmtool.data.corpus import coalesce
from lmtool.data.prepare import encode
from lmtool.data.split import Part
from lmtool.data.store import MANIFEST, StoreWriter, TokenStore
from lmtool.data.streaming import Block, BlockStart, StreamedText
from lmtool.data.survey import cache_key
from lmtool.errors import ResourceError
from lmtool.tokenization.tokenizer import Tokenizer

AHEAD = 2
"""Blocks that are tokenized ahead of the last one in use."""

NICE = 5
"""Priority of the threads that tokenize, below that of training: it waits for them where it needs them."""

STREAMS = "streams"
"""The folder of the cache with a scratch folder of each run that streams."""

_POLL_SECONDS = 0.05


class BlockStores:
    """The token stores of the blocks of a text from one of them on, by number.

    Block 0 is given, since all processes have it in the cache. Of the others one process makes the stores, in a thread
    that drives those of the encoders; the others find them in the same folder. At any time that has those not yet
    dropped, AHEAD more, and one that is being written.
    """

    def __init__(
        self,
        streamed: tuple[StreamedText, Part],
        first: TokenStore,
        tokenizer: Tokenizer,
        path: Path,
        begin: tuple[int, BlockStart] = (0, BlockStart()),
        *,
        makes: bool,
    ) -> None:
        """streamed: the text, and the part of its head that is trained on. first: the store of block 0. path: of the
        stores but for their numbers. begin: the number of the first block, and where that begins. makes: the stores."""
        (self._text, self._part), self._tokenizer, self._path = streamed, tokenizer, path
        self.share = self._text.share
        """Of the text that block 0 is."""
        self._stores = {0: first}
        self._starts = dict([begin])
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "tokenize-stream", system.lower_priority, (NICE,)) if makes else None
        self._making = Lock()
        self._made: dict[int, Future[BlockStart]] = {}
        """Where the next block begins, once a block is made."""
        self._next, start = begin if begin[0] else (1, self._text.head_end)
        self._before: Future[BlockStart] = Future()
        self._before.set_result(start)
        self._make_until(begin[0] + AHEAD)

    def _make_until(self, last: int) -> None:
        """Have the stores of all blocks up to this one made, in order."""
        with self._making:
            while self._thread is not None and self._next <= last:
                self._before = self._made[self._next] = self._thread.submit(self._make, self._next, self._before)
                self._next += 1

    def store(self, number: int) -> TokenStore:
        """The store of a block, once it is there. Raises what making it has raised, and ResourceError when the process
        that makes it has ended."""
        self._make_until(number + AHEAD)
        if number in self._made:
            self._made[number].result()
        if number in self._stores:
            return self._stores[number]
        path = self._folder(number)
        while not (path / MANIFEST).exists():
            if not durable.is_in_use(path.parent):
                what = "the process that tokenizes the text has ended, or writes to another cache"
                fix = "read the first error above; all processes need the same LMTOOL_CACHE"
                raise ResourceError(what, where=str(path), fix=fix)
            time.sleep(_POLL_SECONDS)
        return self._stores.setdefault(number, TokenStore(path))

    def start(self, number: int) -> BlockStart:
        """Where a block begins, in the process that makes it."""
        return self._starts[number]

    def drop(self, number: int) -> None:
        """Remove a block that is not needed any more."""
        for known in self._stores, self._starts, self._made:
            known.pop(number, None)
        if self._thread is not None:
            shutil.rmtree(self._folder(number), ignore_errors=True)

    def close(self) -> None:
        """Stop making stores."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _folder(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{number:06d}")

    def _make(self, number: int, before: Future[BlockStart]) -> BlockStart:
        """Make the store of a block; returns where the next one begins."""
        start = before.result()
        while not self._is_closed:
            block = Block(self._text, start, self._part)
            store = self._write(number, block)
            if store is not None:
                self._starts[number], self._stores[number] = start, store
                return block.end
            start = block.end
        raise CancelledError

    def _write(self, number: int, block: Block) -> TokenStore | None:
        """The store of a block; None where all of its documents are held out, or the end has come."""
        key = cache_key("block", number, self._tokenizer.fingerprint)
        is_empty = True
        with StoreWriter(self._folder(number), fingerprint=key, vocab_size=self._tokenizer.vocab_size) as writer:
            for chunk in encode(coalesce(takewhile(lambda _: not self._is_closed, block.chunks())), self._tokenizer):
                writer.append(chunk)
                is_empty = False
            return None if is_empty or self._is_closed else writer.finish()
