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

from lmtool.errors import DataError, ResourceError
from lmtool.storage import durable, records
from lmtool.storage.checksum import CHECKSUM_BLOCK_BYTES, xxh3, xxh3_by_block
from lmtool.storage.durable import convert_write_errors, write_file
from lmtool.storage.records import ChecksummedModel

SHARD_TOKENS = 1 << 24
"""Tokens at which a shard is closed."""

MAX_CACHE_FILE_BYTES = 1 << 30
"""Limit of the size of a cache file that is read whole."""

MAX_VERIFIED_FIRST = 1 << 26
"""Bytes of tokens up to which a store is verified at once; a larger one is verified in the background."""

SAMPLE_SLICES = 64
"""Slices of a long text in a sample of it."""

STORE_MANIFEST = "store.json"

_PROGRESS_FILE = "progress.json"
_INDEX_FILE = "documents.bin"
_INDEX_COLUMNS = 3


def _shard_file_name(i: int) -> str:
    return f"tokens-{i:05d}.bin"


class StoreManifest(ChecksummedModel):
    """The content of store.json. checksums: of the blocks of each file, by name."""

    format: Literal[2]
    fingerprint: str
    vocab_size: int = Field(ge=1, le=1 << 32)
    dtype: Literal["<u2", "<u4"]
    shards: list[NonNegativeInt]
    tokens: NonNegativeInt
    documents: PositiveInt
    checksums: dict[str, list[str]]


class _LazilyVerifiedShard:
    """The tokens of a file of a store. A block is verified when it is read for the first time."""

    def __init__(self, store: "TokenStore", name: str, tokens: NDArray[Any], checksums: list[str]) -> None:
        self.tokens = tokens
        self._store, self._name, self._checksums = store, name, checksums
        self._is_verified = bytearray(len(checksums))

    def verify(self, first: int, stop: int) -> None:
        """Compares the blocks of the tokens first..stop with their checksums. Raises DataError."""
        if self._store.damage is not None:
            raise self._store.damage
        size = CHECKSUM_BLOCK_BYTES // self.tokens.itemsize
        begin, end = first // size, -(-stop // size)
        while (block := self._is_verified.find(0, begin, end)) >= 0:
            tokens = self.tokens[block * size : (block + 1) * size]
            if xxh3(tokens.data.cast("B")) != self._checksums[block]:
                begin = block * CHECKSUM_BLOCK_BYTES
                what = f"has changed in bytes {begin:,} to {begin + tokens.nbytes:,}"
            elif int(tokens.max()) >= self._store.vocab_size:
                what = f"has ids outside of the vocabulary of {self._store.vocab_size:,}"
            else:
                self._is_verified[block] = 1
                begin = block + 1
                continue
            self._store.damage = self._store._invalidate_and_make_error(f"{self._name} {what}")
            raise self._store.damage


_ERRNOS_WITHOUT_DAMAGE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
"""Errors of the system, which do not mean that a store is damaged."""


class TokenStore:
    """Token ids of a corpus, memory-mapped from disk.

    n_bytes, n_words: int64 arrays, UTF-8 bytes and whitespace-separated words of each document's text.
    fingerprint: content address, equal for equal ids.
    damage: the error of its tokens, once it is found.

    A block is verified when it is read for the first time, so no damaged token is returned.
    """

    def __init__(self, path: Path, *, invalidate_if_damaged: bool = False) -> None:
        """Opens a complete store, and verifies all but its tokens. Raises DataError when it is missing or damaged.

        invalidate_if_damaged: a damaged store loses its store.json, and so is written again the next time.
        """
        self.path = path
        self.damage: DataError | None = None
        self._invalidate_if_damaged = invalidate_if_damaged
        try:
            manifest = self._manifest = read_store_manifest(path)
            documents = _memory_map(path / _INDEX_FILE, np.dtype("<i8"), (manifest.documents, _INDEX_COLUMNS))
            self._shards = []
            for number, n in enumerate(manifest.shards):
                name = _shard_file_name(number)
                tokens = _memory_map(path / name, np.dtype(manifest.dtype), (n,))
                self._shards.append(_LazilyVerifiedShard(self, name, tokens, manifest.checksums[name]))
        except PermissionError as error:
            fix = "change its permissions, or copy it"
            raise ResourceError("no permission to read the token store", where=str(path), fix=fix) from error
        except FileNotFoundError as error:
            if not (path / STORE_MANIFEST).exists():
                fix = "make one with `lmtool tokenize`"
                raise DataError("there is no token store", where=str(path), fix=fix) from error
            raise self._invalidate_and_make_error(f"{Path(error.filename).name} is missing") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _ERRNOS_WITHOUT_DAMAGE:
                what = f"the token store cannot be read: {error.strerror}"
                raise ResourceError(what, where=str(path), fix=durable.suggest_write_fix(error)) from error
            raise self._invalidate_and_make_error(str(error)) from error
        if xxh3_by_block(documents.data.cast("B")) != manifest.checksums[_INDEX_FILE]:
            raise self._invalidate_and_make_error(f"{_INDEX_FILE} has changed")
        ends = documents[:, 0]
        if ends[0] < 0 or ends[-1] > manifest.tokens or (ends[1:] < ends[:-1]).any() or (documents < 0).any():
            raise self._invalidate_and_make_error(f"{_INDEX_FILE} has ends of documents that do not grow")
        self._ends = np.cumsum(manifest.shards, dtype=np.int64)
        self._document_ends, self.n_bytes, self.n_words = documents.T
        self.n_documents, self.vocab_size, self.fingerprint = len(ends), manifest.vocab_size, manifest.fingerprint

    @classmethod
    def concatenate(cls, parts: Sequence[Self], fingerprint: str) -> Self:
        """Concatenates several stores of one vocabulary without copying tokens; the index of documents is in memory."""
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
        """Compares all tokens with their checksums. Raises DataError with the first block that differs."""
        for shard in self._shards:
            shard.verify(0, len(shard.tokens))

    def verify_or_start_verifying(self) -> None:
        """Verifies a small store at once, and a large one in a thread, after which the next `read` raises the error."""
        if sum(shard.tokens.nbytes for shard in self._shards) <= MAX_VERIFIED_FIRST:
            self.verify()
        else:
            threading.Thread(target=self._verify_in_background, name="verify-store", daemon=True).start()

    def _verify_in_background(self) -> None:
        with suppress(DataError):  # kept for the next read
            self.verify()

    def _invalidate_and_make_error(self, what: str) -> DataError:
        """Returns the error for a damaged store; deletes its store.json if it is to be invalidated."""
        fix = "delete this folder, and make it again"
        if self._invalidate_if_damaged:
            fix = "run the command again, which makes it anew; resume continues a run that has begun"
            with suppress(OSError):
                (self.path / STORE_MANIFEST).unlink(missing_ok=True)
        return DataError(f"the token store is damaged: {what}", where=str(self.path), fix=fix, code="damaged")

    def __len__(self) -> int:
        """Returns the number of tokens."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Returns tokens start..stop as a new int64 array. Raises IndexError outside the store."""
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

    def sample_evenly(self, n_tokens: int) -> NDArray[np.int64]:
        """Returns all tokens, or at most `n_tokens` in SAMPLE_SLICES slices that are spread evenly over the store."""
        if len(self) <= n_tokens:
            return self.read(0, len(self))
        starts = np.linspace(0, len(self), SAMPLE_SLICES, endpoint=False, dtype=np.int64)
        size = n_tokens // SAMPLE_SLICES
        return np.concatenate([self.read(start, start + size) for start in starts.tolist()])

    def count_each_token(self) -> NDArray[np.int64]:
        """Returns the count of each id of the vocabulary."""
        self.verify()
        counts = (np.bincount(shard.tokens, minlength=self.vocab_size) for shard in self._shards)
        return sum(counts, np.zeros(self.vocab_size, dtype=np.int64))

    def document_range(self, i: int) -> tuple[int, int]:
        """Returns start and stop of the tokens of document i."""
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of a store of {self.n_documents}")
        return int(self._document_ends[i - 1]) if i else 0, int(self._document_ends[i])

    def document_lengths(self) -> NDArray[np.int64]:
        """Returns the number of tokens of each document."""
        length_D: NDArray[np.int64] = np.diff(self._document_ends, prepend=0)
        return length_D

    def find_documents(self, token: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the document that has each token position."""
        return np.searchsorted(self._document_ends, token, side="right")

    @property
    def content_checksum(self) -> str:
        """Returns a checksum of all tokens and documents."""
        return xxh3(records.encode_json(self._manifest.checksums))


def read_store_manifest(path: Path) -> StoreManifest:
    """Reads store.json. Raises OSError, and ValueError when it is damaged."""
    raw = durable.read_file(path / STORE_MANIFEST, MAX_CACHE_FILE_BYTES)
    try:
        manifest = records.parse_model(StoreManifest, raw)
    except ValueError as error:
        raise ValueError(f"{STORE_MANIFEST}: {error}") from None
    # byte for byte, because damage in parts not compared would go undetected
    if raw != manifest.to_json_bytes():
        raise ValueError(f"{STORE_MANIFEST} does not match the checksum that it states")
    item = np.dtype(manifest.dtype).itemsize
    sizes = {_shard_file_name(i): n * item for i, n in enumerate(manifest.shards)}
    sizes[_INDEX_FILE] = manifest.documents * _INDEX_COLUMNS * 8
    blocks = {name: len(checksums) for name, checksums in manifest.checksums.items()}
    if blocks != {name: -(-size // CHECKSUM_BLOCK_BYTES) for name, size in sizes.items()}:
        raise ValueError(f"{STORE_MANIFEST} has not one checksum for each block")
    if manifest.tokens != sum(manifest.shards):
        raise ValueError(f"{STORE_MANIFEST} has {manifest.tokens:,} tokens, but its shards {sum(manifest.shards):,}")
    return manifest


def _memory_map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    expected = int(np.prod(shape)) * dtype.itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")
    return np.frombuffer(durable.map_file(path), dtype).reshape(shape)


class EncodedChunk(NamedTuple):
    """The tokens of a chunk. lengths, n_bytes, n_words: of each text in it. ends: the last text ends its document."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    n_words: NDArray[np.int64]
    ends: bool


class _WriterProgress(ChecksummedModel, frozen=False):
    """The whole shards on disk, and the index up to them.

    open_bytes, open_words: of the document in which the last shard ends, so far.
    checksums: as in store.json.
    """

    chunks: int
    shards: list[int]
    documents: int
    open_bytes: int
    open_words: int
    checksums: dict[str, list[str]]


def remove_progress_file(path: Path) -> None:
    """Removes the file that a writer leaves when it is interrupted after the store is complete."""
    with suppress(OSError):
        (path / _PROGRESS_FILE).unlink(missing_ok=True)


class StoreWriter:
    """Writes a store chunk by chunk to a hidden folder beside `path`, and renames the folder when it is complete.

    Whole shards survive a crash: a new writer for the same `path` and `fingerprint` continues after them. One writer
    at a time; the caller holds a lock.
    """

    def __init__(self, path: Path, *, fingerprint: str, vocab_size: int) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._vocab_size = vocab_size
        self._dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._folder = path.with_name(f".{path.name}-{fingerprint[:16]}.partial")
        with convert_write_errors(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._progress, self._index_end = self._load_progress_and_index_end()
            self._index: IO[bytes] = open(self._folder / _INDEX_FILE, "ab")  # noqa: SIM115  open until finish()
            self._index.truncate(self._progress.documents * _INDEX_COLUMNS * 8)
        self.chunks_done = self._progress.chunks
        """Number of the first chunks of the corpus that are on disk already, which the caller skips."""
        self._shard: list[NDArray[Any]] = []
        self._shard_tokens = 0
        self._index_rows: list[NDArray[np.int64]] = []

    def _load_progress_and_index_end(self) -> tuple[_WriterProgress, bytes]:
        """Returns the intact progress of an earlier writer, and the last block of its index if that is not full."""
        with suppress(FileNotFoundError, ValueError):
            raw = durable.read_file(self._folder / _PROGRESS_FILE, MAX_CACHE_FILE_BYTES)
            saved = records.parse_model(_WriterProgress, raw)
            size = saved.documents * _INDEX_COLUMNS * 8
            index = np.frombuffer(durable.map_file(self._folder / _INDEX_FILE), np.uint8, size)
            checksums = {_INDEX_FILE: xxh3_by_block(index.data)}
            for number, n in enumerate(saved.shards):
                content = (self._folder / _shard_file_name(number)).read_bytes()
                checksums[_shard_file_name(number)] = xxh3_by_block(content[: n * self._dtype.itemsize])
            if checksums == saved.checksums and raw == saved.to_json_bytes():
                return saved, index[len(index) - len(index) % CHECKSUM_BLOCK_BYTES :].tobytes()
        return _WriterProgress(chunks=0, shards=[], documents=0, open_bytes=0, open_words=0, checksums={}), b""

    def append(self, chunk: EncodedChunk) -> None:
        """Appends the next chunk. Raises ResourceError when it cannot be written."""
        now = self._progress
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
            self._write_shard_and_progress()

    def _write_shard_and_progress(self) -> None:
        """Writes all appended chunks to disk: first the shard and the index, then the progress file."""
        if self._shard_tokens:
            tokens = np.concatenate(self._shard)
            self._shard.clear()
            name, content = _shard_file_name(len(self._progress.shards)), tokens.data.cast("B")
            self._progress.checksums[name] = xxh3_by_block(content)
            write_file(self._folder / name, content)
            self._progress.shards.append(len(tokens))
            self._shard_tokens = 0
        added = b"".join(rows.tobytes() for rows in self._index_rows)
        self._index_rows.clear()
        with convert_write_errors(self._path):
            self._index.write(added)
            self._index.flush()
            os.fsync(self._index.fileno())
        index, before = self._index_end + added, self._progress.checksums.get(_INDEX_FILE, [])
        self._progress.checksums[_INDEX_FILE] = before[: len(before) - bool(self._index_end)] + xxh3_by_block(index)
        self._index_end = index[len(index) - len(index) % CHECKSUM_BLOCK_BYTES :]
        write_file(self._folder / _PROGRESS_FILE, self._progress.to_json_bytes())

    def finish(self) -> TokenStore:
        """Writes the rest and the manifest, renames the store to its final name, and opens it."""
        self._write_shard_and_progress()
        self._index.close()
        manifest = StoreManifest(
            format=2,
            fingerprint=self._fingerprint,
            vocab_size=self._vocab_size,
            dtype="<u2" if self._dtype.itemsize == 2 else "<u4",
            tokens=sum(self._progress.shards),
            **self._progress.model_dump(include={"shards", "documents", "checksums"}),
        )
        write_file(self._folder / STORE_MANIFEST, manifest.to_json_bytes())
        with convert_write_errors(self._path):
            durable.replace_path(self._folder, self._path)
            durable.sync_directory(self._path.parent)
        remove_progress_file(self._path)
        return TokenStore(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops writing; whole shards stay for the next writer."""
        self._index.close()
