"""The token store: round trips, shards, crashes, and damaged files."""

import errno
import json
import os
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool import checksum as checksum_module
from lmtool.data import store as store_module
from lmtool.data.store import EncodedChunk, StoreWriter, TokenStore
from lmtool.errors import DataError, ResourceError
from tests.errors import refuses


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 20)


def chunks(n: int, seed: int = 0, vocab_size: int = 500) -> list[EncodedChunk]:
    """n chunks of random documents, some continued in the next chunk."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        lengths = rng.integers(0, 9, rng.integers(1, 5))
        made.append(
            EncodedChunk(
                tokens=rng.integers(0, vocab_size, lengths.sum()).astype(np.uint32),
                lengths=lengths,
                n_bytes=rng.integers(0, 50, len(lengths)),
                n_words=rng.integers(0, 9, len(lengths)),
                ends=bool(i == n - 1 or rng.random() < 0.7),
            )
        )
    return made


def expected_documents(made: list[EncodedChunk]) -> list[tuple[list[int], int, int]]:
    found: list[tuple[list[int], int, int]] = []
    is_open = False
    for chunk in made:
        at = 0
        for length, n_bytes, n_words in zip(chunk.lengths, chunk.n_bytes, chunk.n_words, strict=True):
            ids = chunk.tokens[at : at + length].tolist()
            at += length
            if is_open:
                before = found.pop()
                ids, n_bytes, n_words = before[0] + ids, before[1] + n_bytes, before[2] + n_words
            found.append((ids, int(n_bytes), int(n_words)))
            is_open = False
        is_open = not chunk.ends
    return found


def write(path: Path, made: list[EncodedChunk], vocab_size: int = 500) -> TokenStore:
    with StoreWriter(path, fingerprint="f" * 64, vocab_size=vocab_size) as writer:
        for chunk in made[writer.chunks_done :]:
            writer.append(chunk)
        return writer.finish()


def check(store: TokenStore, made: list[EncodedChunk]) -> None:
    documents = expected_documents(made)
    assert store.n_documents == len(documents)
    for i, (ids, n_bytes, n_words) in enumerate(documents):
        assert store.read(*store.document_range(i)).tolist() == ids
        assert (store.n_bytes[i], store.n_words[i]) == (n_bytes, n_words)
    everything = [token for ids, _, _ in documents for token in ids]
    assert store.read(0, len(store)).tolist() == everything
    assert store.count_tokens().tolist() == [everything.count(token) for token in range(store.vocab_size)]
    assert int(store.n_bytes.sum()) == sum(n for _, n, _ in documents)


@given(n=st.integers(1, 30), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_what_is_written_is_read(n: int, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("store") / "tokens"
    made = chunks(n, seed)
    store = write(path, made)
    check(store, made)
    check(TokenStore(path), made)


def test_reading_across_shards(tmp_path: Path) -> None:
    made = chunks(40)
    store = write(tmp_path / "tokens", made)
    assert len(list(store.path.glob("tokens-*.bin"))) > 3
    everything = np.concatenate([chunk.tokens for chunk in made])
    for start in range(0, len(store), 7):
        for stop in range(start, len(store) + 1, 11):
            assert np.array_equal(store.read(start, stop), everything[start:stop])
    assert store.read(0, 3).dtype == np.int64
    owners = store.find_documents(np.arange(len(store)))
    for i in range(store.n_documents):
        start, stop = store.document_range(i)
        assert (owners[start:stop] == i).all()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "<u2"), (65_537, "<u4")])
def test_ids_take_two_bytes_when_they_fit(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    made = chunks(9, vocab_size=vocab_size)
    made[0].tokens[:1] = vocab_size - 1
    store = write(tmp_path / "tokens", made, vocab_size)
    assert json.loads((store.path / "store.json").read_text(encoding="utf-8"))["dtype"] == dtype
    check(store, made)


@pytest.mark.parametrize("crash_at", range(0, 30, 3))
def test_a_new_writer_goes_on_after_the_last_whole_shard(crash_at: int, tmp_path: Path) -> None:
    made = chunks(30)
    path = tmp_path / "tokens"
    with StoreWriter(path, fingerprint="f" * 64, vocab_size=500) as writer:
        for chunk in made[:crash_at]:
            writer.append(chunk)
    assert not path.exists()
    with StoreWriter(path, fingerprint="f" * 64, vocab_size=500) as writer:
        assert crash_at - 8 < writer.chunks_done <= crash_at
        for chunk in made[writer.chunks_done :]:
            writer.append(chunk)
        check(writer.finish(), made)
    assert [p.name for p in tmp_path.iterdir()] == ["tokens"]


def test_a_writer_of_other_content_starts_anew(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "tokens", fingerprint="a" * 64, vocab_size=500) as writer:
        for chunk in chunks(30, seed=1):
            writer.append(chunk)
    with StoreWriter(tmp_path / "tokens", fingerprint="b" * 64, vocab_size=500) as writer:
        assert writer.chunks_done == 0


@pytest.mark.parametrize("damage", ["tokens-00001.bin", "documents.bin", "progress.json"])
def test_a_damaged_beginning_is_not_gone_on_with(damage: str, tmp_path: Path) -> None:
    made = chunks(30)
    with StoreWriter(tmp_path / "tokens", fingerprint="f" * 64, vocab_size=500) as writer:
        for chunk in made:
            writer.append(chunk)
    (partial,) = tmp_path.glob(".tokens-*.partial")
    file = partial / damage
    file.write_bytes(file.read_bytes()[:-3])
    check(write(tmp_path / "tokens", made), made)


@pytest.mark.parametrize("name", ["tokens-00000.bin", "documents.bin", "store.json"])
def test_a_damaged_store_is_refused(name: str, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    file = store.path / name
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(DataError, match="damaged") as caught:
        TokenStore(store.path)
    assert len(caught.value.lines()) <= 3


def test_a_missing_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no token store"):
        TokenStore(tmp_path)


def test_reading_outside_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(3))
    for start, stop in (-1, 2), (3, 2), (0, len(store) + 1):
        with pytest.raises(IndexError):
            store.read(start, stop)
    with pytest.raises(IndexError):
        store.document_range(store.n_documents)


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ResourceError, match="cannot write"):
        StoreWriter(tmp_path / "file" / "tokens", fingerprint="f" * 64, vocab_size=500)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with StoreWriter(tmp_path / "tokens", fingerprint="f" * 64, vocab_size=500) as writer:
        for chunk in chunks(2):
            writer.append(chunk)
        monkeypatch.setattr("os.fsync", full)
        with refuses("no_space"):
            writer.finish()
    monkeypatch.undo()
    made = chunks(30)
    check(write(tmp_path / "tokens", made), made)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in checksum_module, store_module:
        monkeypatch.setattr(module, "BLOCK", 16)


def damaged(path: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def sealed(content: dict[str, Any]) -> bytes:
    """A file of JSON values with a checksum of them, as docs/data.md describes it."""

    def encoded(values: dict[str, Any]) -> bytes:
        return json.dumps(values, indent=1).encode() + b"\n"

    content = {key: value for key, value in content.items() if key != "checksum"}
    return encoded(content | {"checksum": xxhash.xxh3_64(encoded(content)).hexdigest()})


def forge(store: TokenStore, name: str, content: bytes) -> None:
    """Replace a file of a store, and its checksum."""
    (store.path / name).write_bytes(content)
    manifest = json.loads((store.path / "store.json").read_bytes())
    manifest["checksums"][name] = [xxhash.xxh3_64(content).hexdigest()]
    (store.path / "store.json").write_bytes(sealed(manifest))


def refused(path: Path, message: str = "damaged") -> None:
    with pytest.raises(DataError, match=message) as caught:
        TokenStore(path).verify()
    assert len(caught.value.lines()) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["tokens-00000.bin", "tokens-00001.bin", "documents.bin", "store.json"])
def test_every_flipped_bit_is_found(name: str, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    TokenStore(store.path).verify()
    size = (store.path / name).stat().st_size
    for at in range(size):
        damaged(store.path / name, at, at % 8)
        refused(store.path)
        damaged(store.path / name, at, at % 8)
    TokenStore(store.path).verify()


@pytest.mark.parametrize("name", ["tokens-00000.bin", "documents.bin"])
def test_missing_long_and_exchanged_files_are_found(name: str, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    file = store.path / name
    content = file.read_bytes()
    file.unlink()
    refused(store.path, f"{name} is missing")
    file.write_bytes(content + b"\0\0")
    refused(store.path, f"{name} has")
    other = write(tmp_path / "other", chunks(9, seed=1))
    file.write_bytes((other.path / name).read_bytes().ljust(len(content), b"\0")[: len(content)])
    refused(store.path)


def test_no_damaged_token_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are verified when they are read first; what was read before stays readable as it was."""
    small_blocks(monkeypatch)
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 50)
    made = chunks(40)
    store = write(tmp_path / "tokens", made)
    everything = np.concatenate([chunk.tokens for chunk in made])
    shard = json.loads((store.path / "store.json").read_bytes())["shards"][0]
    damaged(store.path / "tokens-00001.bin", 21)  # in its second block of eight tokens
    opened = TokenStore(store.path)
    assert np.array_equal(opened.read(0, shard + 8), everything[: shard + 8])
    assert np.array_equal(opened.read(shard + 16, len(store)), everything[shard + 16 :])
    for start, stop in (shard + 8, shard + 9), (shard + 15, shard + 17), (0, len(store)), (shard + 8, shard + 9):
        with pytest.raises(DataError, match=r"tokens-00001\.bin has changed"):
            opened.read(start, stop)
    with pytest.raises(DataError, match=r"tokens-00001\.bin has changed"):
        TokenStore(store.path).count_tokens()


def test_a_large_store_is_verified_beside_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage is told by the next read, wherever it reads."""
    small_blocks(monkeypatch)
    store = write(tmp_path / "tokens", chunks(40))
    damaged(store.path / "tokens-00001.bin", 0)
    monkeypatch.setattr(store_module, "MAX_VERIFIED_FIRST", 8)
    opened = TokenStore(store.path)
    opened.verify_or_start_verifying()
    for thread in threading.enumerate():
        if thread.name == "verify-store":
            thread.join()
    with pytest.raises(DataError, match=r"tokens-00001\.bin has changed"):
        opened.read(0, 1)
    monkeypatch.setattr(store_module, "MAX_VERIFIED_FIRST", 1 << 20)
    with pytest.raises(DataError, match=r"tokens-00001\.bin has changed"):
        TokenStore(store.path).verify_or_start_verifying()


def test_only_a_disposable_store_goes_when_it_is_damaged(tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    damaged(store.path / "tokens-00000.bin", 0)
    refused(store.path)
    assert (store.path / "store.json").exists()
    with pytest.raises(DataError, match="damaged") as caught:
        TokenStore(store.path, disposable=True).verify()
    assert "run the command again" in caught.value.fix
    assert not (store.path / "store.json").exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_error_of_the_system_is_no_damage(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write(tmp_path / "store", chunks(10))
    with monkeypatch.context() as patch:
        patch.setattr("lmtool.durable.map_file", Mock(side_effect=OSError(code, os.strerror(code))))
        with pytest.raises(ResourceError, match=re.escape(os.strerror(code))):
            TokenStore(store.path, disposable=True)
    TokenStore(store.path).verify()


@pytest.mark.parametrize("rows", ["backwards", "negative", "too far"])
def test_ends_of_documents_that_do_not_grow_are_refused(rows: str, tmp_path: Path) -> None:
    """Also with the right checksum: positions would be looked for forever."""
    store = write(tmp_path / "tokens", chunks(9))
    index = np.fromfile(store.path / "documents.bin", dtype="<i8").reshape(-1, 3)
    if rows == "backwards":
        index[:, 0] = index[::-1, 0]
    elif rows == "negative":
        index[0, 1] = -1
    else:
        index[-1, 0] += 1
    forge(store, "documents.bin", index.tobytes())
    refused(store.path, "ends of documents that do not grow")


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    ids = np.fromfile(store.path / "tokens-00000.bin", dtype="<u2")
    ids[3] = 500
    forge(store, "tokens-00000.bin", ids.tobytes())
    with pytest.raises(DataError, match="ids outside of the vocabulary of 500"):
        TokenStore(store.path).read(0, 1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 1, "format should be 2, not 1"),
        ("vocab_size", "500", "vocab_size should be a valid integer"),
        ("vocab_size", 0, "vocab_size"),
        ("dtype", "<f8", "dtype"),
        ("shards", [-1], "shards.0"),
        ("shards", [10**30], "checksum"),
        ("shards", None, "shards"),
        ("documents", 0, "documents"),
        ("tokens", 3, "has 3 tokens"),
        ("checksums", {}, "one checksum for each block"),
        ("checksums", {"documents.bin": []}, "one checksum for each block"),
        ("more", 1, "more is unknown"),
    ],
)
def test_a_forged_manifest_is_refused(key: str, value: object, message: str, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    manifest = json.loads((store.path / "store.json").read_bytes())
    (store.path / "store.json").write_bytes(sealed(manifest | {key: value}))
    refused(store.path, message)


@pytest.mark.parametrize("name", ["tokens-00001.bin", "documents.bin", "progress.json"])
def test_a_beginning_with_a_flipped_bit_is_not_gone_on_with(name: str, tmp_path: Path) -> None:
    made = chunks(30)
    with StoreWriter(tmp_path / "tokens", fingerprint="f" * 64, vocab_size=500) as writer:
        for chunk in made[:20]:
            writer.append(chunk)
    (partial,) = tmp_path.glob(".tokens-*.partial")
    damaged(partial / name, 9)
    with StoreWriter(tmp_path / "tokens", fingerprint="f" * 64, vocab_size=500) as writer:
        assert writer.chunks_done == 0
        for chunk in made:
            writer.append(chunk)
        check(writer.finish(), made)
    TokenStore(tmp_path / "tokens").verify()


def test_checksums_are_those_of_xxh3_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    store = write(tmp_path / "tokens", chunks(30))
    manifest = json.loads((store.path / "store.json").read_bytes())
    assert set(manifest["checksums"]) == {path.name for path in store.path.glob("*.bin")}
    for name, checksums in manifest["checksums"].items():
        content = (store.path / name).read_bytes()
        blocks = [content[i : i + 16] for i in range(0, len(content), 16)]
        assert checksums == [xxhash.xxh3_64(block).hexdigest() for block in blocks]
