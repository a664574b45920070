"""The blocks of a streamed text as token stores: tokenized beside training, some ahead of it, and removed behind it."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from threading import Condition, Thread

from lmtool.errors import ResourceError
from lmtool.run.lock import is_held
from lmtool.text.corpus import Chunk, coalesce
from lmtool.text.disk import locked, refusing_disk
from lmtool.text.prepare import encode
from lmtool.text.split import Part
from lmtool.text.store import MANIFEST, StoreWriter, TokenStore
from lmtool.text.streaming import Block, Place, StreamedText
from lmtool.text.survey import cache_key
from lmtool.text.tokenizer import Tokenizer

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
        with refusing_disk(root):
            root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".lock"):
            for left in root.iterdir():
                if left.is_dir() and not is_held(left):
                    shutil.rmtree(left, ignore_errors=True)
            with refusing_disk(root):
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
        text: StreamedText,
        part: Part,
        first: TokenStore,
        tokenizer: Tokenizer,
        folder: Path,
        *,
        prefix: str,
        number: int,
        place: Place,
        makes: bool,
    ) -> None:
        """part: of the head, that is trained on. prefix: of names in the folder, which has the blocks of other texts
        too. number, place: of the block to begin with. makes: the stores."""
        self._text, self._part, self._tokenizer, self._folder = text, part, tokenizer, folder
        self._prefix = prefix
        self._stores = {0: first}
        self._places = {number: place}
        self._wanted = number
        self._is_closed = False
        self._error: BaseException | None = None
        self._changed = Condition()
        begin = (1, text.head_end) if number == 0 else (number, place)
        self._thread = Thread(target=self._make, args=begin, name="tokenize-stream", daemon=True) if makes else None
        if self._thread is not None:
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
        path = self._path(number)
        while not (path / MANIFEST).exists():
            if not is_held(self._folder):
                raise ResourceError(
                    "the process that tokenizes the text has ended, or writes to another cache",
                    where=str(path),
                    fix="read the first error above; all processes need the same LMTOOL_CACHE",
                )
            time.sleep(_POLL_SECONDS)
        found = TokenStore(path)
        with self._changed:
            return self._stores.setdefault(number, found)

    def place(self, number: int) -> Place:
        """Where a block begins, in the process that makes it."""
        return self._places[number]

    def drop(self, number: int) -> None:
        """Remove a block that is not needed any more."""
        with self._changed:
            self._stores.pop(number, None)
            self._places.pop(number, None)
        if self._thread is not None:
            shutil.rmtree(self._path(number), ignore_errors=True)

    def close(self) -> None:
        """Stop making stores."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number:06d}"

    def _make(self, number: int, place: Place) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own, which the threads it starts inherit
            os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        try:
            while self._is_wanted(number):
                block = self._text.block(place, self._part)
                store = self._write(number, block)
                with self._changed:
                    if store is not None:
                        self._places[number], self._stores[number] = place, store
                        number += 1
                        self._changed.notify_all()
                place = block.end
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _is_wanted(self, number: int) -> bool:
        """Wait until a block is to be made; False when none is any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or number <= self._wanted + AHEAD)
            return not self._is_closed

    def _write(self, number: int, block: Block) -> TokenStore | None:
        """The store of a block; None where all of its documents are held out, or the end has come."""
        key = cache_key("block", number, self._tokenizer.fingerprint)
        is_empty = True
        with StoreWriter(self._path(number), fingerprint=key, vocab_size=self._tokenizer.vocab_size) as writer:
            for chunk in encode(coalesce(self._while_open(block.chunks())), self._tokenizer):
                writer.append(chunk)
                is_empty = False
            return None if is_empty or self._is_closed else writer.finish()

    def _while_open(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            if self._is_closed:
                return
            yield chunk
