"""Several token stores as one, against one store of the same tokens."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmtool.data.store import EncodedChunk, StoreWriter, TokenStore
from lmtool.errors import DataError

ROWS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11], [12, 13]]


def stored(path: Path, rows: list[list[int]]) -> TokenStore:
    lengths = np.array([len(row) for row in rows])
    with StoreWriter(path, fingerprint="f", vocab_size=20) as writer:
        writer.append(EncodedChunk(np.concatenate(rows), lengths, 2 * lengths, lengths, True))
        return writer.finish()


def test_a_joined_store_is_the_store_of_all(tmp_path: Path) -> None:
    whole = stored(tmp_path / "whole", ROWS)
    parts = [stored(tmp_path / str(i), ROWS[i:j]) for i, j in ((0, 2), (2, 3), (3, 6))]
    joined = TokenStore.concatenate(parts, "joined")
    assert (len(joined), joined.n_documents, joined.n_bytes.sum()) == (len(whole), 6, whole.n_bytes.sum())
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            assert joined.read(start, stop).tolist() == whole.read(start, stop).tolist()
    assert [joined.document_range(i) for i in range(6)] == [whole.document_range(i) for i in range(6)]
    places = np.arange(len(whole))
    assert joined.find_documents(places).tolist() == whole.find_documents(places).tolist()
    assert [int(joined.find_documents(place)) for place in range(13)] == whole.find_documents(places).tolist()
    assert joined.document_lengths().tolist() == whole.document_lengths().tolist() == [len(row) for row in ROWS]
    assert joined.count_tokens().tolist() == whole.count_tokens().tolist()
    assert joined.n_words.tolist() == whole.n_words.tolist()
    for read in (lambda: joined.read(0, 14), lambda: joined.document_range(6), lambda: joined.document_range(-1)):
        with pytest.raises(IndexError):
            read()


@pytest.mark.parametrize("verify", [TokenStore.verify, TokenStore.verify_or_start_verifying])
def test_each_part_is_verified(tmp_path: Path, verify: Callable[[TokenStore], None]) -> None:
    for name in "ab":
        stored(tmp_path / name, ROWS)
    tokens = tmp_path / "b" / "tokens-00000.bin"
    tokens.write_bytes(b"\7" + tokens.read_bytes()[1:])
    joined = TokenStore.concatenate([TokenStore(tmp_path / name) for name in "ab"], "joined")
    with pytest.raises(DataError, match="tokens-00000"):
        verify(joined)
