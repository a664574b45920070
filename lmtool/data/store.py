"""The token store: a corpus as token ids on disk, memory-mapped, in shards, with an index of its documents.

- store.json: sizes, type, fingerprint, checksums; written last, so a folder that has it is complete
- tokens-00000.bin and so on: token ids, uint16 when the vocabulary fits, else uint32, little-endian
- documents.bin: int64 rows, one for each document: the position after its last token, its bytes, its words

Each block of BLOCK bytes of a .bin file has a checksum (XXH3, 64 bits) in store.json, which has one of its own. What is
read has been compared with it.
"""

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from lmtool import durable, records
from lmtool.checksum import BLOCK, xxh3, xxh3_of_blocks
from lmtool.durable import write_file, writing
from lmtool.errors import DataError, ResourceError
from lmtool.records import SealedModel

SHARD_TOKENS = 1 << 24
"""A shard is closed when it holds this many tokens."""

LARGEST = 1 << 30
"""Bytes of a file of the cache that is read whole."""

AT_ONCE = 1 << 26
"""Bytes of tokens up to which a store is verified when it is opened, and not beside its use."""

SAMPLED_PARTS = 64
"""Parts of a long text in a sample of it."""

MANIFEST = "store.json"

_PROGRESS = "progress.json"
_DOCUMENTS = "documents.bin"
_COLUMNS = 3


def _shard_name(i: int) -> str:
    return f"tokens-{i:05d}.bin"


class StoreManifest(SealedModel):
    """The content of store.json. checksums: of the blocks of each file, by name."""

    format: Literal[2]
    fingerprint: str
    vocab_size: int = Field(ge=1, le=1 << 32)
    dtype: Literal["<u2", "<u4"]
    shards: list[NonNegativeInt]
    tokens: NonNegativeInt
    documents: PositiveInt
    checksums: dict[str, list[str]]


class _Shard:
    """The tokens of a file of a store. A block is verified when it is read for the first time."""

    def __init__(self, store: "TokenStore", name: str, tokens: NDArray[Any], checksums: list[str]) -> None:
        self.tokens = tokens
        self._store, self._name, self._checksums = store, name, checksums
        self._is_verified = bytearray(len(checksums))

    def verify(self, first: int, stop: int) -> None:
        """Compare the blocks that hold the tokens first..stop with their checksums. Raises DataError."""
        if self._store.damage is not None:
            raise self._store.damage
        size = BLOCK // self.tokens.itemsize
        begin, end = first // size, -(-stop // size)
        while (block := self._is_verified.find(0, begin, end)) >= 0:
            tokens = self.tokens[block * size : (block + 1) * size]
            if xxh3(tokens.data.cast("B")) != self._checksums[block]:
                what = f"has changed in bytes {block * BLOCK:,} to {block * BLOCK + tokens.nbytes:,}"
            elif int(tokens.max()) >= self._store.vocab_size:
                what = f"has ids outside of the vocabulary of {self._store.vocab_size:,}"
            else:
                self._is_verified[block] = 1
                begin = block + 1
                continue
            self._store.damage = self._store.refusal(f"{self._name} {what}")
            raise self._store.damage


_OF_THE_SYSTEM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
"""Errors that say nothing about a store, which may be whole."""


class TokenStore:
    """Token ids of a corpus, memory-mapped from disk.

    n_documents: documents in order of the corpus.
    n_bytes, n_words: int64 arrays, UTF-8 bytes and whitespace-separated words of each document's text.
    fingerprint: content address, equal for equal ids.
    damage: of its tokens, once it was found.

    A block is verified when it is read for the first time, so that no damaged token is ever returned.
    """

    def __init__(self, path: Path, *, disposable: bool = False) -> None:
        """Open a finished store, and verify all but its tokens. Raises DataError when it is missing or damaged.

        disposable: it is made anew where it is missing, and so loses its store.json when it is found to be damaged.
        """
        self.path = path
        self.damage: DataError | None = None
        self._disposable = disposable
        try:
            manifest = self._manifest = read_manifest(path)
            documents = _mapped(path / _DOCUMENTS, np.dtype("<i8"), (manifest.documents, _COLUMNS))
            self._shards = []
            for number, n in enumerate(manifest.shards):
                name = _shard_name(number)
                tokens = _mapped(path / name, np.dtype(manifest.dtype), (n,))
                self._shards.append(_Shard(self, name, tokens, manifest.checksums[name]))
        except PermissionError as error:
            fix = "change its permissions, or copy it"
            raise ResourceError("no permission to read the token store", where=str(path), fix=fix) from error
        except FileNotFoundError as error:
            if not (path / MANIFEST).exists():
                fix = "make one with `lmtool tokenize`"
                raise DataError("there is no token store", where=str(path), fix=fix) from error
            raise self.refusal(f"{Path(error.filename).name} is missing") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
                what = f"the token store cannot be read: {error.strerror}"
                raise ResourceError(what, where=str(path), fix=durable.way_to_write(error)) from error
            raise self.refusal(str(error)) from error
        if xxh3_of_blocks(documents.data.cast("B")) != manifest.checksums[_DOCUMENTS]:
            raise self.refusal(f"{_DOCUMENTS} has changed")
        ends = documents[:, 0]
        if ends[0] < 0 or ends[-1] > manifest.tokens or (ends[1:] < ends[:-1]).any() or (documents < 0).any():
            raise self.refusal(f"{_DOCUMENTS} has ends of documents that do not grow")
        self._ends = np.cumsum(manifest.shards, dtype=np.int64)
        self._document_ends, self.n_bytes, self.n_words = documents.T
        self.n_documents, self.vocab_size, self.fingerprint = len(ends), manifest.vocab_size, manifest.fingerprint

    @classmethod
    def joined(cls, parts: Sequence[Self], fingerprint: str) -> Self:
        """The texts of several stores of one vocabulary, one after the other.

        Documents keep their order; no tokens are copied, but what is known of all documents is in memory.
        """
        store = cls.__new__(cls)
        store.path, store.fingerprint, store.vocab_size = parts[0].path, fingerprint, parts[0].vocab_size
        store.n_documents = sum(part.n_documents for part in parts)
        store.n_bytes = np.concatenate([part.n_bytes for part in parts])
        store.n_words = np.concatenate([part.n_words for part in parts])
        store._shards = [shard for part in parts for shard in part._shards]
        store._ends = np.cumsum([len(shard.tokens) for shard in store._shards], dtype=np.int64)
        store._document_ends = np.cumsum(np.concatenate([part.document_lengths() for part in parts]))
        return store

    def verify(self) -> None:
        """Compare all tokens with their checksums. Raises DataError, which names the first block that differs."""
        for shard in self._shards:
            shard.verify(0, len(shard.tokens))

    def verify_early(self) -> None:
        """Verify a small store now, and a large one in a thread: its first `read` after that raises."""
        if sum(shard.tokens.nbytes for shard in self._shards) <= AT_ONCE:
            self.verify()
        else:
            threading.Thread(target=self._verify_beside, name="verify-store", daemon=True).start()

    def _verify_beside(self) -> None:
        with suppress(DataError):  # kept for the next read
            self.verify()

    def refusal(self, what: str) -> DataError:
        """The error for a damaged store."""
        fix = "delete this folder, and make it again"
        if self._disposable:
            fix = "run the command again, which makes it anew; resume continues a run that has begun"
            with suppress(OSError):
                (self.path / MANIFEST).unlink(missing_ok=True)
        return DataError(f"the token store is damaged: {what}", where=str(self.path), fix=fix, code="damaged")

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
            part = self._shards[shard].tokens[first : first + len(tokens) - done]
            self._shards[shard].verify(first, first + len(part))
            tokens[done : done + len(part)] = part
            done += len(part)
            shard += 1
        return tokens

    def sample(self, n_tokens: int) -> NDArray[np.int64]:
        """All tokens, or of a longer text at most so many, in parts that are spread over it evenly."""
        if len(self) <= n_tokens:
            return self.read(0, len(self))
        starts = np.linspace(0, len(self), SAMPLED_PARTS, endpoint=False, dtype=np.int64)
        size = n_tokens // SAMPLED_PARTS
        return np.concatenate([self.read(start, start + size) for start in starts.tolist()])

    def counts(self) -> NDArray[np.int64]:
        """The count of each id of the vocabulary in the store."""
        self.verify()
        counts = (np.bincount(shard.tokens, minlength=self.vocab_size) for shard in self._shards)
        return sum(counts, np.zeros(self.vocab_size, dtype=np.int64))

    def document(self, i: int) -> tuple[int, int]:
        """Start and stop of document i's tokens."""
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of a store of {self.n_documents}")
        return int(self._document_ends[i - 1]) if i else 0, int(self._document_ends[i])

    def document_lengths(self) -> NDArray[np.int64]:
        """Tokens of each document."""
        length_D: NDArray[np.int64] = np.diff(self._document_ends, prepend=0)
        return length_D

    def document_at(self, token: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of the document of each token position."""
        return np.searchsorted(self._document_ends, token, side="right")

    @property
    def content(self) -> str:
        """A checksum of all tokens and documents."""
        return xxh3(records.encode(self._manifest.checksums))


def read_manifest(path: Path) -> StoreManifest:
    """The content of store.json. Raises OSError, and ValueError when it is damaged."""
    raw = durable.read(path / MANIFEST, LARGEST)
    try:
        manifest = records.read(StoreManifest, raw)
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from None
    # byte for byte, because damage in parts not compared would go undetected
    if raw != manifest.sealed():
        raise ValueError(f"{MANIFEST} does not match the checksum that it states")
    item = np.dtype(manifest.dtype).itemsize
    sizes = {_shard_name(i): n * item for i, n in enumerate(manifest.shards)}
    sizes[_DOCUMENTS] = manifest.documents * _COLUMNS * 8
    blocks = {name: len(checksums) for name, checksums in manifest.checksums.items()}
    if blocks != {name: -(-size // BLOCK) for name, size in sizes.items()}:
        raise ValueError(f"{MANIFEST} has not one checksum for each block")
    if manifest.tokens != sum(manifest.shards):
        raise ValueError(f"{MANIFEST} has {manifest.tokens:,} tokens, but its shards {sum(manifest.shards):,}")
    return manifest


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    expected = int(np.prod(shape)) * dtype.itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")
    return np.frombuffer(durable.map_file(path), dtype).reshape(shape)


class EncodedChunk(NamedTuple):
    """One chunk of a corpus as tokens. lengths, n_bytes, n_words: of each text in it."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    n_words: NDArray[np.int64]
    ends: bool
    """The last text ends its document."""


class _Saved(SealedModel, frozen=False):
    """What is durably on disk: whole shards, and the index up to them.

    open_bytes, open_words: so far of the document in which the last shard ends.
    checksums: as in store.json.
    """

    chunks: int
    shards: list[int]
    documents: int
    open_bytes: int
    open_words: int
    checksums: dict[str, list[str]]


def discard_progress(path: Path) -> None:
    """Remove what a writer of a whole store needs no more, and may have left when it was interrupted at its end."""
    with suppress(OSError):
        (path / _PROGRESS).unlink(missing_ok=True)


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
        with writing(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._now, self._index_end = self._recover()
            self._index: IO[bytes] = open(self._folder / _DOCUMENTS, "ab")  # noqa: SIM115  open until finish()
            self._index.truncate(self._now.documents * _COLUMNS * 8)
        self.chunks_done = self._now.chunks
        """How many of the corpus' first chunks are already on disk, to be skipped."""
        self._shard: list[NDArray[Any]] = []
        self._shard_tokens = 0
        self._index_rows: list[NDArray[np.int64]] = []

    def _recover(self) -> tuple[_Saved, bytes]:
        """What an earlier writer has left, if it is as it was written, and the last block of the index, if not full."""
        with suppress(FileNotFoundError, ValueError):
            raw = durable.read(self._folder / _PROGRESS, LARGEST)
            saved = records.read(_Saved, raw)
            size = saved.documents * _COLUMNS * 8
            index = np.frombuffer(durable.map_file(self._folder / _DOCUMENTS), np.uint8, size)
            checksums = {_DOCUMENTS: xxh3_of_blocks(index.data)}
            for number, n in enumerate(saved.shards):
                content = (self._folder / _shard_name(number)).read_bytes()
                checksums[_shard_name(number)] = xxh3_of_blocks(content[: n * self._dtype.itemsize])
            if checksums == saved.checksums and raw == saved.sealed():
                return saved, index[len(index) - len(index) % BLOCK :].tobytes()
        return _Saved(chunks=0, shards=[], documents=0, open_bytes=0, open_words=0, checksums={}), b""

    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk. Raises ResourceError when it cannot be written."""
        now = self._now
        ends = sum(now.shards) + self._shard_tokens + np.cumsum(chunk.lengths)
        rows = np.stack([ends, chunk.n_bytes, chunk.n_words], axis=1).astype("<i8")
        rows[0, 1] += now.open_bytes
        rows[0, 2] += now.open_words
        now.open_bytes = now.open_words = 0
        if not chunk.ends:
            _, now.open_bytes, now.open_words = map(int, rows[-1])
            rows = rows[:-1]
        self._index_rows.append(rows)
        now.documents += len(rows)
        now.chunks += 1
        self._shard.append(chunk.tokens.astype(self._dtype))
        self._shard_tokens += len(chunk.tokens)
        if self._shard_tokens >= SHARD_TOKENS:
            self._close_shard()

    def _close_shard(self) -> None:
        """Make all that was appended durable: first the shard and the index, then the record of them."""
        if self._shard_tokens:
            tokens = np.concatenate(self._shard)
            self._shard.clear()
            name, content = _shard_name(len(self._now.shards)), tokens.data.cast("B")
            self._now.checksums[name] = xxh3_of_blocks(content)
            write_file(self._folder / name, content)
            self._now.shards.append(len(tokens))
            self._shard_tokens = 0
        added = b"".join(rows.tobytes() for rows in self._index_rows)
        self._index_rows.clear()
        with writing(self._path):
            self._index.write(added)
            self._index.flush()
            os.fsync(self._index.fileno())
        index, before = self._index_end + added, self._now.checksums.get(_DOCUMENTS, [])
        self._now.checksums[_DOCUMENTS] = before[: len(before) - bool(self._index_end)] + xxh3_of_blocks(index)
        self._index_end = index[len(index) - len(index) % BLOCK :]
        write_file(self._folder / _PROGRESS, self._now.sealed())

    def finish(self) -> TokenStore:
        """Write the rest and the manifest, rename the store to its final name, and open it."""
        self._close_shard()
        self._index.close()
        manifest = StoreManifest(
            format=2,
            fingerprint=self._fingerprint,
            vocab_size=self._vocab_size,
            dtype="<u2" if self._dtype.itemsize == 2 else "<u4",
            tokens=sum(self._now.shards),
            **self._now.model_dump(include={"shards", "documents", "checksums"}),
        )
        write_file(self._folder / MANIFEST, manifest.sealed())
        with writing(self._path):
            durable.rename(self._folder, self._path)
            durable.sync_directory(self._path.parent)
        discard_progress(self._path)
        return TokenStore(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop writing; what is durably on disk stays for the next writer."""
        self._index.close()
