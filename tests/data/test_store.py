"""The token store: round trips, shards, crashes, and damaged files."""

import errno
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data import store as store_module
from lmtool.data.store import EncodedChunk, StoreWriter, TokenStore
from lmtool.errors import LmtoolError
from lmtool.storage import checksum as checksum_module
from lmtool.storage import durable
from lmtool.storage.checksum import xxh3_by_block
from tests.support.damage import flip_bit, forge
from tests.support.disks import failing_call
from tests.support.errors import refuses

FINGERPRINT = "f" * 64
FILES = ["tokens-00000.bin", "tokens-00001.bin", "documents.bin", "store.json"]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Shards of twenty tokens, of blocks of eight."""
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 20)
    for module in checksum_module, store_module:
        monkeypatch.setattr(module, "CHECKSUM_BLOCK_BYTES", 16)
    return monkeypatch


def chunks(n: int, seed: int = 0, vocab_size: int = 500) -> list[EncodedChunk]:
    """n chunks of random documents, some continued in the next chunk."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        lengths = rng.integers(0, 9, rng.integers(1, 5))
        tokens = rng.integers(0, vocab_size, lengths.sum()).astype(np.uint32)
        n_bytes, n_words = rng.integers(0, 50, len(lengths)), rng.integers(0, 9, len(lengths))
        made.append(EncodedChunk(tokens, lengths, n_bytes, n_words, ends=bool(i == n - 1 or rng.random() < 0.7)))
    return made


def expected_documents(made: list[EncodedChunk]) -> list[tuple[list[int], int, int]]:
    found: list[tuple[list[int], int, int]] = []
    is_open = False
    for chunk in made:
        texts = np.split(chunk.tokens, np.cumsum(chunk.lengths))
        for tokens, n_bytes, n_words in zip(texts[:-1], chunk.n_bytes, chunk.n_words, strict=True):
            before = found.pop() if is_open else ([], 0, 0)
            found.append((before[0] + tokens.tolist(), before[1] + int(n_bytes), before[2] + int(n_words)))
            is_open = False
        is_open = not chunk.ends
    return found


def begin(path: Path, made: list[EncodedChunk], fingerprint: str = FINGERPRINT, vocab_size: int = 500) -> StoreWriter:
    """A writer of a store that has all chunks but has not finished."""
    with StoreWriter(path, fingerprint=fingerprint, vocab_size=vocab_size) as writer:
        for chunk in made[writer.chunks_done :]:
            writer.append(chunk)
    return writer


def write(path: Path, made: list[EncodedChunk], vocab_size: int = 500) -> TokenStore:
    with StoreWriter(path, fingerprint=FINGERPRINT, vocab_size=vocab_size) as writer:
        for chunk in made[writer.chunks_done :]:
            writer.append(chunk)
        return writer.finish()


def check(store: TokenStore, made: list[EncodedChunk]) -> None:
    documents = expected_documents(made)
    assert store.n_documents == len(documents)
    for i, (ids, n_bytes, n_words) in enumerate(documents):
        start, stop = store.document_range(i)
        assert store.read(start, stop).tolist() == ids
        assert (store.find_documents(np.arange(start, stop)) == i).all()
        assert (store.n_bytes[i], store.n_words[i]) == (n_bytes, n_words)
    everything = [token for ids, _, _ in documents for token in ids]
    assert store.document_lengths().tolist() == [len(ids) for ids, _, _ in documents]
    assert store.read(0, len(store)).tolist() == everything
    for start in range(0, len(store), 7):
        for stop in range(start, len(store) + 1, 11):
            assert store.read(start, stop).tolist() == everything[start:stop]
    assert store.count_each_token().tolist() == np.bincount(everything, minlength=store.vocab_size).tolist()
    for wrong in ((-1, 2), (3, 2), (0, len(store) + 1)):
        with pytest.raises(IndexError):
            store.read(*wrong)
    for document in (-1, store.n_documents):
        with pytest.raises(IndexError):
            store.document_range(document)


@given(n=st.integers(1, 30), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_what_is_written_is_read(n: int, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("store") / "tokens"
    made = chunks(n, seed)
    check(write(path, made), made)
    check(TokenStore(path), made)
    assert TokenStore(path).read(0, 0).dtype == np.int64
    other = write(path.with_name("other"), chunks(4, seed + 1))
    check(TokenStore.concatenate([TokenStore(path), other], "joined"), made + chunks(4, seed + 1))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "<u2"), (65_537, "<u4")])
def test_ids_take_two_bytes_when_they_fit(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    made = chunks(9, vocab_size=vocab_size)
    made[0].tokens[:1] = vocab_size - 1
    store = write(tmp_path / "tokens", made, vocab_size)
    assert manifest_of(store)["dtype"] == dtype
    check(store, made)


@pytest.mark.parametrize("crash_at", range(0, 30, 6))
def test_a_new_writer_goes_on_after_the_last_whole_shard(crash_at: int, tmp_path: Path) -> None:
    made = chunks(30)
    path = tmp_path / "tokens"
    begin(path, made[:crash_at])
    assert not path.exists()
    assert begin(tmp_path / "tokens", made, "a" * 64).chunks_done == 0
    assert crash_at - 8 < begin(path, []).chunks_done <= crash_at
    check(write(path, made), made)
    assert sorted(p.name[:8] for p in tmp_path.iterdir()) == [".tokens-", "tokens"]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("name", ["tokens-00001.bin", "documents.bin", "progress.json"])
def test_a_damaged_beginning_is_not_gone_on_with(name: str, is_cut: bool, tmp_path: Path) -> None:
    made = chunks(30)
    begin(tmp_path / "tokens", made[:20])
    (partial,) = tmp_path.glob(".tokens-*.partial")
    if is_cut:
        (partial / name).write_bytes((partial / name).read_bytes()[:-3])
    else:
        flip_bit(partial / name, 9)
    assert begin(tmp_path / "tokens", []).chunks_done == 0
    check(write(tmp_path / "tokens", made), made)


def test_places_that_cannot_be_read_or_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with refuses("data"):
        TokenStore(tmp_path)
    with refuses("resource"):
        StoreWriter(tmp_path / "file" / "tokens", fingerprint=FINGERPRINT, vocab_size=500)
    made = chunks(30)
    with failing_call(), refuses("no_space"):
        write(tmp_path / "tokens", made[:2])
    check(write(tmp_path / "tokens", made), made)


def manifest_of(store: TokenStore) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((store.path / "store.json").read_bytes())
    return content


def forge_file(store: TokenStore, name: str, content: bytes) -> None:
    """Replaces a file of a store, and its checksums."""
    (store.path / name).write_bytes(content)
    forge(store.path / "store.json", checksums=manifest_of(store)["checksums"] | {name: xxh3_by_block(content)})


def refused(path: Path) -> LmtoolError:
    with refuses("damaged") as caught:
        TokenStore(path).verify()
    assert len(caught.value.lines()) == 3
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_lost_or_exchanged_file_is_found(name: str, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(5))
    file = store.path / name
    content = file.read_bytes()
    for at in range(len(content)):
        flip_bit(file, at)
        refused(store.path)
        flip_bit(file, at)
    other = write(tmp_path / "other", chunks(5, seed=1)).path / name
    for wrong in content + b"\0\0", content[:-2], other.read_bytes().ljust(len(content), b"\0")[: len(content)]:
        file.write_bytes(wrong)
        refused(store.path)
    file.write_bytes(content)
    TokenStore(store.path).verify()
    file.unlink()
    with refuses("data" if name == "store.json" else "damaged"):
        TokenStore(store.path)


def test_no_damaged_token_is_read(tmp_path: Path, small_sizes: pytest.MonkeyPatch) -> None:
    """Blocks are verified when they are read first; what was read before stays readable as it was."""
    small_sizes.setattr(store_module, "SHARD_TOKENS", 50)
    made = chunks(40)
    store = write(tmp_path / "tokens", made)
    everything = np.concatenate([chunk.tokens for chunk in made])
    shard = manifest_of(store)["shards"][0]
    flip_bit(store.path / "tokens-00001.bin", 21)  # in its second block of eight tokens
    opened = TokenStore(store.path)
    assert np.array_equal(opened.read(0, shard + 8), everything[: shard + 8])
    assert np.array_equal(opened.read(shard + 16, len(store)), everything[shard + 16 :])
    for start, stop in (shard + 8, shard + 9), (shard + 15, shard + 17), (0, len(store)), (shard + 8, shard + 9):
        with refuses("damaged"):
            opened.read(start, stop)
    for whole in TokenStore(store.path), TokenStore.concatenate([write(tmp_path / "a", made), store], "joined"):
        with refuses("damaged"):
            whole.count_each_token()


def test_a_large_store_is_verified_beside_its_use(tmp_path: Path, small_sizes: pytest.MonkeyPatch) -> None:
    """Its next read tells of damage, wherever it reads."""
    store = write(tmp_path / "tokens", chunks(40))
    flip_bit(store.path / "tokens-00001.bin", 0)
    small_sizes.setattr(store_module, "MAX_VERIFIED_FIRST", 8)
    opened = TokenStore(store.path)
    opened.verify_or_start_verifying()
    for thread in threading.enumerate():
        if thread.name == "verify-store":
            thread.join()
    with refuses("damaged"):
        opened.read(0, 1)
    small_sizes.setattr(store_module, "MAX_VERIFIED_FIRST", 1 << 20)
    with refuses("damaged"):
        TokenStore(store.path).verify_or_start_verifying()


def test_only_a_disposable_store_goes_when_it_is_damaged(tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    flip_bit(store.path / "tokens-00000.bin", 0)
    mine = refused(store.path)
    assert (store.path / "store.json").exists()
    with refuses("damaged") as caught:
        TokenStore(store.path, invalidate_if_damaged=True).verify()
    assert caught.value.fix != mine.fix
    assert not (store.path / "store.json").exists()


def test_an_error_of_the_system_is_no_damage(tmp_path: Path) -> None:
    store = write(tmp_path / "store", chunks(10))
    for code in (errno.EMFILE, errno.EACCES):
        with failing_call(durable, "map_file", code=code), refuses("resource"):
            TokenStore(store.path, invalidate_if_damaged=True)
    TokenStore(store.path).verify()


def test_documents_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    """Also with the right checksum: positions would be looked for forever."""
    store = write(tmp_path / "tokens", chunks(9))
    index = np.fromfile(store.path / "documents.bin", dtype="<i8").reshape(-1, 3)
    backwards, negative, too_far = index.copy(), index.copy(), index.copy()
    backwards[:, 0] = index[::-1, 0]
    negative[0, 1] = -1
    too_far[-1, 0] += 1
    for wrong in (backwards, negative, too_far):
        forge_file(store, "documents.bin", wrong.tobytes())
        refused(store.path)


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    ids = np.fromfile(store.path / "tokens-00000.bin", dtype="<u2")
    ids[3] = 500
    forge_file(store, "tokens-00000.bin", ids.tobytes())
    with refuses("damaged"):
        TokenStore(store.path).read(0, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("format", 1), ("vocab_size", "500"), ("vocab_size", 0), ("dtype", "<f8"), ("documents", 0), ("tokens", 3)),
        *(("shards", [-1]), ("shards", [10**30]), ("shards", None), ("checksums", {}), ("more", 1)),
        ("checksums", {"documents.bin": []}),
    ],
)
def test_a_forged_manifest_is_refused(key: str, value: object, tmp_path: Path) -> None:
    store = write(tmp_path / "tokens", chunks(9))
    forge(store.path / "store.json", **{key: value})
    refused(store.path)
