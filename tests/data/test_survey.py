"""What a survey counts, and the overlap of two texts, against plain counts."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data import text_problems as module
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.survey import scan_training_text
from lmtool.data.text_problems import find_words_in_shared_ngrams
from lmtool.recipe.spec.text import Data
from tests.support.texts import prose
from tests.support.training import no_report

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
def test_words_in_shared_ngrams_are_those_of_a_plain_count(
    train: list[str], valid: list[str], cut: int, n: int
) -> None:
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


def survey(folder: Path, text: str, **data: Any) -> Any:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return scan_training_text(Data(train=(str(folder / "a.txt"),), **data), stream_seed=1, report=no_report)


def test_a_survey_counts_what_a_reader_counts(tmp_path: Path) -> None:
    rows = [prose(200 + 37 * n, seed=n).replace("\n", " ") for n in range(40)]
    divided = survey(tmp_path, "\n\n".join(rows))
    shape = divided.text.text_statistics
    assert (divided.data.documents, divided.data.split) == ("blank-line", "document")
    assert (shape.documents, shape.longest) == (40, max(map(len, rows)))
    assert (shape.characters, shape.n_bytes) == (sum(map(len, rows)), sum(len(row.encode()) for row in rows))
    assert shape.alphabet == len(set("".join(rows)))
    assert not shape.is_list
    assert not shape.is_stream


def test_the_share_of_new_words_is_that_of_the_last_tenth(tmp_path: Path) -> None:
    rows = [f"the cat number{n if n % 3 else 0} sat down" for n in range(1000)]
    shape = survey(tmp_path, "\n".join(rows), documents="line").text.text_statistics
    early = set(re.findall(r"\w+", " ".join(rows[:900])))
    late = re.findall(r"\w+", " ".join(rows[900:]))
    assert shape.new_words == len(set(late) - early) / len(late)


def test_one_text_is_cut_wherever_it_is_long_or_a_paragraph(tmp_path: Path) -> None:
    long = survey(tmp_path, "word after word " * 30_000)
    assert (long.text.text_statistics.longest, long.text.text_statistics.new_words) == (16 * 30_000, 0)
    for divided in long, survey(tmp_path, "\n\nOnly one paragraph, on one line.\n\n"):
        assert (divided.data.documents, divided.data.split) == ("whole", "slice")
