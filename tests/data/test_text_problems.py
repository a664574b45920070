"""The overlap of two texts against a plain count over sets of n-grams."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data import text_problems as module
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.text_problems import find_words_in_shared_ngrams

DOCUMENTS = st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=6)


def plainly(train: list[str], valid: list[str], n: int) -> tuple[int, int]:
    """Words of `valid`, and how many are in an n-gram of `train`; a shorter document is an n-gram of its own."""

    def ngrams(text: str) -> list[tuple[int, tuple[str, ...]]]:
        words = tuple(re.findall(r"\w+", text.lower()))
        if not words:
            return []
        size = min(n, len(words))
        return [(i, words[i : i + size]) for i in range(len(words) - size + 1)]

    known = {gram for text in train for _, gram in ngrams(text)}
    shared = total = 0
    for text in valid:
        total += len(re.findall(r"\w+", text))
        shared += len({i + k for i, gram in ngrams(text) if gram in known for k in range(len(gram))})
    return total, shared


def in_chunks(documents: list[str], cut: int) -> list[MultiDocumentChunk]:
    """A chunk of all the documents, and one more wherever a document is longer than `cut` characters."""
    chunks = []
    for text in documents:
        at = text.find(" ", cut)
        if at < 0:
            chunks.append(MultiDocumentChunk([text]))
        else:
            chunks += [MultiDocumentChunk([text[:at]], ends=False), MultiDocumentChunk([text[at:]], starts=False)]
    return chunks


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 12), st.integers(2, 4))
@settings(deadline=None)
def test_the_same_as_by_sets_of_ngrams(train: list[str], valid: list[str], cut: int, n: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NGRAM_WORDS", n)
        found = find_words_in_shared_ngrams(in_chunks(train, cut), in_chunks(valid, cut))
        joined = find_words_in_shared_ngrams(
            [MultiDocumentChunk(train)] if train else [], [MultiDocumentChunk(valid)] if valid else []
        )
    assert (found.n_words, found.n_shared) == plainly(train, valid, n)
    assert found == joined


def test_the_example_is_in_both_texts() -> None:
    common = " ".join(f"Word{i}" for i in range(13))
    found = find_words_in_shared_ngrams(
        [MultiDocumentChunk([f"before {common} after"])], [MultiDocumentChunk(["another one", f"so {common}!"])]
    )
    assert found.example == common.lower()
    assert (found.n_words, found.n_shared, found.n_trained) == (16, 13, 15)
    assert found.percent == pytest.approx(100 * 13 / 16)


def test_names_are_documents_of_one_word_and_the_beginning_of_a_long_word_has_no_ngram() -> None:
    names = [MultiDocumentChunk(["anna", "bert"])], [MultiDocumentChunk(["bert", "carla", "anna bert"])]
    beginning = [MultiDocumentChunk(["a b"])], [MultiDocumentChunk(["a" * 100], ends=False)]
    found = [find_words_in_shared_ngrams(*both) for both in (names, beginning)]
    assert [(one.n_words, one.n_shared) for one in found] == [(4, 1), (1, 0)]
