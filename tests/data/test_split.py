"""Training and validation parts are disjoint, complete, and never empty."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmtool.data import split as split_module
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.split import DocumentSplitPart, hash_document_numbers, split_by_characters, split_by_documents
from tests.support.texts import documents


@st.composite
def chunk_lists(draw: st.DrawFn) -> list[MultiDocumentChunk]:
    """Chunks of numbered documents, some of them in pieces."""
    chunks, starts, number = [], True, 0
    for n_texts in draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)):
        texts = []
        for i in range(n_texts):
            number += starts or i > 0
            texts.append(f"<{number}{'é' * draw(st.integers(0, 5))}>")
        ends = draw(st.booleans())
        chunks.append(MultiDocumentChunk(texts, starts, ends))
        starts = ends
    if not starts:
        chunks.append(MultiDocumentChunk(["$"], False, True))
    return chunks


def numbers(split: DocumentSplitPart, n: int) -> list[str]:
    """Those of n documents that a part has."""
    return documents(split.select([MultiDocumentChunk([str(i) for i in range(n)])]))


@given(chunks=chunk_lists(), fraction=st.floats(0.01, 0.99))
@settings(deadline=None)
def test_one_text_is_cut_by_characters(chunks: list[MultiDocumentChunk], fraction: float) -> None:
    text = "".join(documents(chunks))
    train, valid = split_by_characters(len(text), fraction)
    assume(0 < train.n_train < len(text))
    n = int(len(text) * (1 - fraction))
    assert "".join(documents(train.select(chunks))) == text[:n]
    assert "".join(documents(valid.select(chunks))) == text[n:]
    assert train.n_train == n


@given(chunks=chunk_lists(), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**70))
@settings(deadline=None)
def test_each_document_is_in_one_part(chunks: list[MultiDocumentChunk], fraction: float, seed: int) -> None:
    everything = documents(chunks)
    assume(len(everything) > 1)
    for_training, for_validation = (
        documents(part.select(chunks)) for part in split_by_documents(len(everything), fraction, seed)
    )
    assert for_training
    assert for_validation
    assert abs(len(for_validation) - fraction * len(everything)) <= 1
    assert for_training == [document for document in everything if document not in for_validation]
    assert for_validation == [document for document in everything if document not in for_training]


def test_the_choice_depends_on_the_seed_alone() -> None:
    first, again, other = (numbers(split_by_documents(1000, 0.1, seed)[1], 1000) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first) & set(other)) < 40


def test_very_many_documents_are_split_by_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_module, "_MAX_EXACT_DOCUMENTS", 10)
    valid = numbers(split_by_documents(20_000, 0.1, 3)[1], 20_000)
    assert abs(len(valid) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    hashes = hash_document_numbers(7, np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(hashes)) == 100_000
    counts, _ = np.histogram(hashes.astype(np.float64), bins=10, range=(0, 2.0**64))
    assert counts.min() > 9_500
