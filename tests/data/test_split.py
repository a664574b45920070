"""Training and validation parts are disjoint, complete, and never empty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data import split as split_module
from lmtool.data.corpus import Chunk
from lmtool.data.split import hash_document_numbers, split_by_characters, split_by_documents
from tests.data.test_corpus import documents


@st.composite
def chunk_lists(draw: st.DrawFn) -> list[Chunk]:
    """Chunks of numbered documents, some of them in pieces."""
    chunks, starts, number = [], True, 0
    for n_texts in draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)):
        texts = []
        for i in range(n_texts):
            number += starts or i > 0
            texts.append(f"<{number}{'é' * draw(st.integers(0, 5))}>")
        ends = draw(st.booleans())
        chunks.append(Chunk(texts, starts, ends))
        starts = ends
    if not starts:
        chunks.append(Chunk(["$"], False, True))
    return chunks


@given(chunks=chunk_lists(), fraction=st.floats(0.01, 0.99))
@settings(deadline=None)
def test_the_cut_is_exactly_by_characters(chunks: list[Chunk], fraction: float) -> None:
    text = "".join(documents(chunks))
    train, valid = split_by_characters(len(text), fraction)
    if not 0 < train.n_train < len(text):
        return
    n = int(len(text) * (1 - fraction))
    assert "".join(documents(list(train.select(chunks)))) == text[:n]
    assert "".join(documents(list(valid.select(chunks)))) == text[n:]
    assert train.n_train == n


@given(chunks=chunk_lists(), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**70))
@settings(deadline=None)
def test_each_document_is_on_one_side(chunks: list[Chunk], fraction: float, seed: int) -> None:
    everything = documents(chunks)
    if len(everything) < 2:
        return
    train, valid = split_by_documents(len(everything), fraction, seed)
    for_training, for_validation = documents(list(train.select(chunks))), documents(list(valid.select(chunks)))
    assert sorted(for_training + for_validation) == sorted(everything)
    assert for_training
    assert for_validation
    assert abs(len(for_validation) - fraction * len(everything)) <= 1
    order = {document: i for i, document in enumerate(everything)}
    assert for_training == sorted(for_training, key=order.__getitem__)


def test_the_choice_depends_on_the_seed_alone() -> None:
    chunks = [Chunk([f"{i}" for i in range(1000)])]
    first, again, other = (documents(list(split_by_documents(1000, 0.1, seed)[1].select(chunks))) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first) & set(other)) < 40


def test_large_corpora_split_by_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_module, "_MAX_EXACT_DOCUMENTS", 10)
    chunks = [Chunk([f"{i}" for i in range(20_000)])]
    valid = documents(list(split_by_documents(20_000, 0.1, 3)[1].select(chunks)))
    assert abs(len(valid) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5


def test_hashes_are_distinct_and_spread() -> None:
    hashes = hash_document_numbers(7, np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(hashes)) == 100_000
    counts, _ = np.histogram(hashes.astype(np.float64), bins=10, range=(0, 2.0**64))
    assert counts.min() > 9_500
