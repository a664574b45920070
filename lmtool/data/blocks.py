"""The blocks of a streamed text as token stores: tokenized beside training, some ahead of it, and removed behind it."""

import os
import shutil
import sys
import time
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from tempfile import mkdtemp
from threading import Condition, Thread

from lmtool.data.corpus import coalesce
from lmtool.data.prepare import encode
from lmtool.data.split import Part
from lmtool.data.store import MANIFEST, StoreWriter, TokenStore
from lmtool.data.streaming import Block, BlockStart, StreamedText
from lmtool.data.survey import cache_key
from lmtool.durable import locked, writing
from lmtool.errors import ResourceError
from lmtool.run.lock import is_held
from lmtool.tokenization.tokenizer import Tokenizer

AHEAD = 2
"""Blocks that are tokenized ahead of the last one in use."""

NICE = 5
"""Priority of the threads that tokenize, below that of training: it waits for them where it needs them."""

STREAMS = "streams"
"""The folder of the cache with a folder for each run that streams, which is removed when that ends."""

_POLL_SECONDS = 0.05


class BlockFolder:
    """A new folder for blocks in a cache, held until `close`. What runs have left that were killed is removed.

    Raises ResourceError.
    """

    def __init__(self, cache: Path) -> None:
        root = cache / STREAMS
        self._held = ExitStack()
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".lock"):
            for left in root.iterdir():
                if left.is_dir() and not is_held(left):
                    shutil.rmtree(left, ignore_errors=True)
            with writing(root):
                self.path = Path(mkdtemp(dir=root))
            self._held.enter_context(locked(self.path / ".lock"))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()


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
        self._wanted = begin[0]
        self._is_closed = False
        self._error: BaseException | None = None
        self._changed = Condition()
        self._thread = None
        if makes:
            made_first = begin if begin[0] else (1, self._text.head_end)
            self._thread = Thread(target=self._make, args=made_first, name="tokenize-stream", daemon=True)
            self._thread.start()

    def store(self, number: int) -> TokenStore:
        """The store of a block, once it is there. Raises what making it has raised, and ResourceError when the process
        that makes it has ended."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify_all()
            while self._thread is not None and number not in self._stores:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            if number in self._stores:
                return self._stores[number]
        path = self._folder(number)
        while not (path / MANIFEST).exists():
            if not is_held(path.parent):
                what = "the process that tokenizes the text has ended, or writes to another cache"
                fix = "read the first error above; all processes need the same LMTOOL_CACHE"
                raise ResourceError(what, where=str(path), fix=fix)
            time.sleep(_POLL_SECONDS)
        store = TokenStore(path)
        with self._changed:
            return self._stores.setdefault(number, store)

    def start(self, number: int) -> BlockStart:
        """Where a block begins, in the process that makes it."""
        return self._starts[number]

    def drop(self, number: int) -> None:
        """Remove a block that is not needed any more."""
        with self._changed:
            self._stores.pop(number, None)
            self._starts.pop(number, None)
        if self._thread is not None:
            shutil.rmtree(self._folder(number), ignore_errors=True)

    def close(self) -> None:
        """Stop making stores."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _folder(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{number:06d}")

    def _make(self, number: int, start: BlockStart) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own, which the threads it starts inherit
            os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        try:
            while True:
                with self._changed:
                    while number > self._wanted + AHEAD and not self._is_closed:
                        self._changed.wait()
                if self._is_closed:
                    return
                block = self._text.block(start, self._part)
                store = self._write(number, block)
                with self._changed:
                    if store is not None:
                        self._starts[number], self._stores[number] = start, store
                        number += 1
                        self._changed.notify_all()
                start = block.end
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _write(self, number: int, block: Block) -> TokenStore | None:
        """The store of a block; None where all of its documents are held out, or the end has come."""
        key = cache_key("block", number, self._tokenizer.fingerprint)
        is_empty = True
        with StoreWriter(self._folder(number), fingerprint=key, vocab_size=self._tokenizer.vocab_size) as writer:
            for chunk in encode(coalesce(takewhile(lambda _: not self._is_closed, block.chunks())), self._tokenizer):
                writer.append(chunk)
                is_empty = False
            return None if is_empty or self._is_closed else writer.finish()
