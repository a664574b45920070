"""The token store: a corpus as token ids on disk, memory-mapped, in shards, with an index of its documents.

- store.json: sizes, type, fingerprint; written last, so a folder that has it is complete
- tokens-00000.bin and so on: token ids, uint16 when the vocabulary fits, else uint32, little-endian
- documents.bin: int64 rows, one for each document: the position after its last token, its bytes, its words
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from lmtool import durable
from lmtool.errors import DataError
from lmtool.text.disk import refusing_disk, write_file

SHARD_TOKENS = 1 << 24
"""A shard is closed when it holds this many tokens."""

_FORMAT = 1
_MANIFEST = "store.json"
_PROGRESS = "progress.json"
_DOCUMENTS = "documents.bin"
_COLUMNS = 3


def _shard_name(i: int) -> str:
    return f"tokens-{i:05d}.bin"


class TokenStore:
    """Token ids of a corpus, memory-mapped from disk.

    n_documents: documents in order of the corpus. n_bytes, n_words: int64 arrays, UTF-8 bytes and
    whitespace-separated words of each document's text. fingerprint: content address, equal for equal ids.
    """

    def __init__(self, path: Path) -> None:
        """Open a finished store. Raises DataError when it is missing or damaged."""
        self.path = path
        try:
            manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
            if manifest["format"] != _FORMAT:
                raise ValueError(f"format {manifest['format']}, not {_FORMAT}")
            self.fingerprint: str = manifest["fingerprint"]
            self.vocab_size: int = manifest["vocab_size"]
            self._dtype = np.dtype(manifest["dtype"])
            self._ends = np.cumsum(manifest["shards"], dtype=np.int64)
            self._shards = [_mapped(path / _shard_name(i), self._dtype, (n,)) for i, n in enumerate(manifest["shards"])]
            documents = _mapped(path / _DOCUMENTS, np.dtype("<i8"), (manifest["documents"], _COLUMNS))
        except FileNotFoundError as error:
            raise DataError(
                "there is no token store", where=str(path), fix="make one with `lmtool tokenize`"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"the token store is damaged: {error}", where=str(path), fix="delete this folder"
            ) from error
        self._document_ends, self.n_bytes, self.n_words = documents.T
        self.n_documents: int = manifest["documents"]

    def __len__(self) -> int:
        """Total number of tokens."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start..stop as a new int64 array. Raises IndexError outside the store."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start}..{stop} of a store of {len(self)}")
        tokens = np.empty(stop - start, dtype=np.int64)
        shard = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < len(tokens):
            first = start + done - (int(self._ends[shard - 1]) if shard else 0)
            part = self._shards[shard][first : first + len(tokens) - done]
            tokens[done : done + len(part)] = part
            done += len(part)
            shard += 1
        return tokens

    def counts(self) -> NDArray[np.int64]:
        """The count of each id of the vocabulary in the store."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for shard in self._shards:
            counts += np.bincount(shard, minlength=self.vocab_size)
        return counts

    def document(self, i: int) -> tuple[int, int]:
        """Start and stop of document i's tokens."""
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of a store of {self.n_documents}")
        return int(self._document_ends[i - 1]) if i else 0, int(self._document_ends[i])

    def document_at(self, token: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of the document of each token position."""
        return np.searchsorted(self._document_ends, token, side="right")

    @property
    def total_bytes(self) -> int:
        """UTF-8 bytes of the text of all documents."""
        return int(self.n_bytes.sum())


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    expected = int(np.prod(shape)) * dtype.itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")
    return np.memmap(path, dtype=dtype, mode="r", shape=shape) if expected else np.empty(shape, dtype)


@dataclass(frozen=True)
class EncodedChunk:
    """One chunk of a corpus as tokens. lengths, n_bytes, n_words: of each text in it."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    n_words: NDArray[np.int64]
    ends: bool
    """The last text ends its document."""


@dataclass
class _Saved:
    """What is durably on disk: whole shards, and the index up to them."""

    chunks: int = 0
    shards: list[int] = field(default_factory=list)
    documents: int = 0
    open_bytes: int = 0
    """Bytes so far of the document in which the last shard ends."""
    open_words: int = 0


class StoreWriter:
    """Writes a store chunk by chunk into a hidden folder beside `path`, and renames it when it is complete.

    Whole shards survive a crash: a new writer for the same `path` and `fingerprint` continues after them. One writer
    at a time; the caller holds a lock.
    """

    def __init__(self, path: Path, *, fingerprint: str, vocab_size: int) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._vocab_size = vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._folder = path.with_name(f".{path.name}-{fingerprint[:16]}.partial")
        with refusing_disk(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._done = self._recover()
            self._index: IO[bytes] = open(self._folder / _DOCUMENTS, "ab")  # noqa: SIM115  open until finish()
            self._index.truncate(self._done.documents * _COLUMNS * 8)
        self._now = _Saved(**{**asdict(self._done), "shards": list(self._done.shards)})
        self._n_tokens = sum(self._done.shards)
        self._shard: list[NDArray[Any]] = []
        self._shard_tokens = 0

    @property
    def chunks_done(self) -> int:
        """How many of the corpus' first chunks are already on disk, to be skipped."""
        return self._done.chunks

    def _recover(self) -> _Saved:
        try:
            done = _Saved(**json.loads((self._folder / _PROGRESS).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return _Saved()
        sizes = [self._dtype.itemsize * n for n in done.shards]
        files = [self._folder / _shard_name(i) for i in range(len(sizes))]
        index = self._folder / _DOCUMENTS
        whole = all(f.exists() and f.stat().st_size == n for f, n in zip(files, sizes, strict=True))
        enough = index.exists() and index.stat().st_size >= done.documents * _COLUMNS * 8
        return done if whole and enough else _Saved()

    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk. Raises ResourceError when it cannot be written."""
        now = self._now
        ends = self._n_tokens + np.cumsum(chunk.lengths)
        rows = np.stack([ends, chunk.n_bytes, chunk.n_words], axis=1).astype("<i8")
        rows[0, 1] += now.open_bytes
        rows[0, 2] += now.open_words
        now.open_bytes = now.open_words = 0
        if not chunk.ends:
            _, now.open_bytes, now.open_words = map(int, rows[-1])
            rows = rows[:-1]
        with refusing_disk(self._path):
            self._index.write(rows.tobytes())
        now.documents += len(rows)
        now.chunks += 1
        self._n_tokens += len(chunk.tokens)
        self._shard.append(chunk.tokens.astype(self._dtype))
        self._shard_tokens += len(chunk.tokens)
        if self._shard_tokens >= SHARD_TOKENS:
            self._close_shard()

    def _close_shard(self) -> None:
        """Make all that was appended durable: first the shard and the index, then the record of them."""
        if self._shard_tokens:
            tokens = np.concatenate(self._shard)
            self._shard.clear()
            write_file(self._folder / _shard_name(len(self._now.shards)), tokens.data.cast("B"))
            self._now.shards.append(len(tokens))
            self._shard_tokens = 0
        with refusing_disk(self._path):
            self._index.flush()
            os.fsync(self._index.fileno())
        write_file(self._folder / _PROGRESS, json.dumps(asdict(self._now)).encode())

    def finish(self) -> TokenStore:
        """Write the rest and the manifest, rename the store to its final name, and open it."""
        self._close_shard()
        self._index.close()
        manifest = {
            "format": _FORMAT,
            "fingerprint": self._fingerprint,
            "vocab_size": self._vocab_size,
            "dtype": self._dtype.str,
            "shards": self._now.shards,
            "tokens": self._n_tokens,
            "documents": self._now.documents,
        }
        write_file(self._folder / _MANIFEST, json.dumps(manifest, indent=1).encode())
        with refusing_disk(self._path):
            os.rename(self._folder, self._path)
            durable.sync_directory(self._path.parent)
            (self._path / _PROGRESS).unlink()
        return TokenStore(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop writing; what is durably on disk stays for the next writer."""
        self._index.close()
