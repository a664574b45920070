"""The token store: round trips, shards, crashes, and damaged files."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.errors import DataError, ResourceError
from lmtool.text import store as store_module
from lmtool.text.store import EncodedChunk, StoreWriter, TokenStore


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
        assert store.read(*store.document(i)).tolist() == ids
        assert (store.n_bytes[i], store.n_words[i]) == (n_bytes, n_words)
    everything = [token for ids, _, _ in documents for token in ids]
    assert store.read(0, len(store)).tolist() == everything
    assert store.counts().tolist() == [everything.count(token) for token in range(store.vocab_size)]
    assert store.total_bytes == sum(n for _, n, _ in documents)


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
    owners = store.document_at(np.arange(len(store)))
    for i in range(store.n_documents):
        start, stop = store.document(i)
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
        store.document(store.n_documents)


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
        with pytest.raises(ResourceError, match="No space left"):
            writer.finish()
    monkeypatch.undo()
    made = chunks(30)
    check(write(tmp_path / "tokens", made), made)
