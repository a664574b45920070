"""`lmtool neighbors`: of words alone and in their contexts, analogies and similarities, against plain formulas."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.evaluation.embedding import embed
from lmtool.evaluation.neighbors import require_single_token
from lmtool.runs.load import load_run
from tests.reference import vectors as reference
from tests.support.cli import CommandLine

TEXTS = ["The baker found a map", "The sailor sold a moon by the sea", "A kettle, at dawn", "The twin painted a map"]
AT_DAWN = "At dawn the twin sold a moon"
IN_CONTEXT = ("neighbors", "last", "moon", "--in", AT_DAWN, "--among", "texts.txt")


@pytest.fixture
def texts(run: Path) -> Path:
    Path("texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return run


@pytest.fixture
def word_vectors(run: Path) -> tuple[Any, NDArray[np.float64]]:
    """The tokenizer, and the vectors of its tokens, of length 1."""
    loaded = load_run(str(run))
    table = loaded.model.token_vectors().detach().double().numpy()
    return loaded.tokenizer, table / np.linalg.norm(table, axis=1, keepdims=True)


@pytest.mark.parametrize("layer", [1, -1])
def test_words_in_context_are_ranked_by_cosine(lmtool: CommandLine, texts: Path, layer: int) -> None:
    """A word with equal vectors in several texts is that of the first."""
    loaded = load_run(str(texts))

    def vectors(text: str) -> list[tuple[str, NDArray[Any]]]:
        (found,) = embed(loaded, [text], layer, "none")
        assert found.words is not None
        return [(word, v / np.linalg.norm(v)) for word, v in zip(found.words, found.vectors, strict=True)]

    (query,) = [vector for word, vector in vectors(AT_DAWN) if word == "moon"]
    expected: list[tuple[float, str, str]] = []
    for text in TEXTS:
        for word, vector in vectors(text):
            score = float(vector @ query)
            if not any(other == word and abs(score - known) < 2e-6 for known, other, _ in expected):
                expected.append((score, word, text))
    expected.sort(key=lambda one: -one[0])
    found = lmtool.succeeds(*IN_CONTEXT, "-k", "5", "--layer", layer, "--json").json()["neighbors"]
    assert [one["similarity"] for one in found] == pytest.approx([score for score, *_ in expected[:5]], abs=1e-5)
    assert [(one["word"], one["text"]) for one in found] == [(word, text) for _, word, text in expected[:5]]


def test_each_word_counts_once_where_it_is_nearest(lmtool: CommandLine, texts: Path) -> None:
    every = lmtool.succeeds(*IN_CONTEXT, "-k", "50", "--json").json()["neighbors"]
    distinct = lmtool.succeeds(*IN_CONTEXT, "-k", "50", "--distinct", "--json").json()["neighbors"]
    first = {one["word"].casefold(): one for one in reversed(every)}
    assert len(first) < len(every)
    assert distinct == sorted(first.values(), key=lambda one: -one["similarity"])
    lmtool.refuses(2, "neighbors", "last", "moon", "--distinct")


def test_words_alone_are_ranked_by_cosine(
    lmtool: CommandLine, run: Path, word_vectors: tuple[Any, NDArray[np.float64]]
) -> None:
    tokenizer, unit = word_vectors
    word = tokenizer.encode("The")
    found = lmtool.succeeds("neighbors", run, "The", "-k", "5", "--json", "-q").json()
    similar = unit @ unit[word[0]]
    similar[[*tokenizer.special_ids, word[0]]] = -2
    nearest = np.argsort(-similar)[:5].tolist()
    assert [near["word"] for near in found["neighbors"]] == [tokenizer.display_token(i) for i in nearest]
    np.testing.assert_allclose([near["similarity"] for near in found["neighbors"]], similar[nearest], rtol=1e-5)
    shown = lmtool.succeeds("neighbors", run, "The", "-k", "5").out.splitlines()
    assert [line.split("  ", 1)[1] for line in shown] == [near["word"] for near in found["neighbors"]]


def test_an_analogy_is_what_the_formula_gives(
    lmtool: CommandLine, run: Path, word_vectors: tuple[Any, NDArray[np.float64]]
) -> None:
    """3CosAdd, without the three words."""
    tokenizer, unit = word_vectors
    ids = [require_single_token(tokenizer, word) for word in "eat"]
    ordered = [i for i in reference.analogy(unit, *ids) if i not in tokenizer.special_ids]
    record = lmtool.succeeds("neighbors", "last", "--analogy", "e", "a", "t", "-k", "5", "--json").json()
    assert record["word"] == "e - a + t"
    assert [near["word"] for near in record["neighbors"]] == [tokenizer.display_token(i) for i in ordered[:5]]


def test_similarities_are_ranked(lmtool: CommandLine, run: Path, word_vectors: tuple[Any, NDArray[np.float64]]) -> None:
    tokenizer, unit = word_vectors
    pairs = [("e", "a", 3.5), ("t", "o", 1.0), ("A", "t", 9.0), ("e", "nowhere", 2.0), ("n", "i", 4.0)]
    rows = [f"{one}\t{other}\tN\t{given}\n" for one, other, given in pairs]
    Path("pairs.tsv").write_text("word1\tword2\tPOS\tscore\n" + "".join(rows), encoding="utf-8")
    scored = [pair for pair in pairs if "nowhere" not in pair]
    cosines = [
        float(unit[require_single_token(tokenizer, a)] @ unit[require_single_token(tokenizer, b)]) for a, b, _ in scored
    ]
    asked = ("neighbors", "last", "--similarity", "pairs.tsv")
    record = lmtool.succeeds(*asked, "--json").json()
    assert record["spearman"] == pytest.approx(reference.spearman(cosines, [given for *_, given in scored]))
    assert (record["scored"], record["pairs"], record["missing"]) == (4, 5, ["nowhere"])
    assert "4 of 5 (80.0 %)" in lmtool.succeeds(*asked).out
