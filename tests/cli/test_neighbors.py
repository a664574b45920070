"""Neighbours of a word in its context, against plain loops; their map; what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmtool.analysis.neighbors import find_token, neighbors, neighbors_in_context
from lmtool.errors import DataError, UsageError
from lmtool.inference.embedding import embed
from lmtool.inference.load import load_run
from lmtool.report.neighbors import render_page
from tests.reference import vectors as reference

TEXTS = ["The baker found a map", "The sailor sold a moon by the sea", "A kettle, at dawn", "The twin painted a map"]
BY_SEA, AT_DAWN = "The baker forgot a moon by the sea", "At dawn the twin sold a moon"


def plain(run, word, text, layer):
    """(similarity, word, text), the nearest first; a word with equal states in several texts is that of the first."""
    loaded = load_run(str(run))

    def vectors(one):
        (found,) = embed(loaded, [one], layer, "none")
        return list(zip(found.words, found.vectors.astype(float), strict=True))

    (query,) = [vector for other, vector in vectors(text) if other == word]
    found = [
        (float(vector @ query / np.sqrt((vector @ vector) * (query @ query))), other, line)
        for line in TEXTS
        for other, vector in vectors(line)
    ]
    different = []
    for one in found:
        if not any(other[1] == one[1] and abs(other[0] - one[0]) < 2e-6 for other in different):
            different.append(one)
    return sorted(different, key=lambda one: -one[0])


@pytest.mark.parametrize("layer", [1, -1])
def test_neighbours_in_context(run, layer):
    for text in (BY_SEA, AT_DAWN):
        found = neighbors_in_context(load_run(str(run)), "moon", text, [*TEXTS, text], layer, 6)
        expected = plain(run, "moon", text, layer)[:6]
        assert [neighbor.similarity for neighbor in found.nearest] == pytest.approx([s for s, *_ in expected], abs=1e-5)
        assert [(one.word, one.text) for one in found.nearest] == [tuple(rest) for _, *rest in expected]
        assert all(one.text[one.start :].startswith(one.word) for one in found.nearest)
        assert found.vectors.shape[0] == 7


def test_a_word_has_other_neighbours_in_another_text(run):
    sea, dawn = (neighbors_in_context(load_run(str(run)), "moon", text, TEXTS, -1, 8) for text in (BY_SEA, AT_DAWN))
    assert [n.similarity for n in sea.nearest] != [n.similarity for n in dawn.nearest]


def test_case_is_second(run):
    assert neighbors_in_context(load_run(str(run)), "Moon", AT_DAWN, TEXTS, -1, 1).word == "moon"


def test_what_has_no_neighbours(run):
    with pytest.raises(UsageError, match="not a word of the text"):
        neighbors_in_context(load_run(str(run)), "kettle", AT_DAWN, TEXTS, -1, 3)
    with pytest.raises(UsageError, match="no layer 9"):
        neighbors_in_context(load_run(str(run)), "moon", AT_DAWN, TEXTS, 9, 3)
    with pytest.raises(DataError):
        neighbors_in_context(load_run(str(run)), "moon", AT_DAWN, [AT_DAWN], -1, 3)


def test_static_vectors_come_with_their_words(run):
    found = neighbors(load_run(str(run)), "e", 3)
    table = found.loaded.model.token_vectors().detach().numpy()
    (own,) = [i for i, row in enumerate(table) if np.array_equal(row, found.vectors[0])]
    for neighbor, vector in zip(found.nearest, found.vectors[1:], strict=True):
        cosine = vector @ table[own] / np.linalg.norm(vector) / np.linalg.norm(table[own])
        assert neighbor.similarity == pytest.approx(cosine, abs=1e-5)


def test_the_command(lmtool, run):
    Path("texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    asked = "neighbors", "last", "moon", "--in", AT_DAWN, "--among", "texts.txt", "-k", "5"
    out = lmtool.succeeds(*asked).out.splitlines()
    assert len(out) == 5
    assert any(text in out[0] for text in TEXTS)
    record = json.loads(lmtool.succeeds(*asked, "--json", "--layer", "1", "--map", "tsne").out)
    assert [list(near) for near in record["neighbors"]] == [["word", "similarity", "text", "x", "y"]] * 5
    drawn = lmtool.succeeds(*asked, "--map", "pca").out
    assert "* moon, by the two principal components" in drawn
    lmtool.succeeds(*asked, "-o", "map.html")
    assert Path("map.html").read_text(encoding="utf-8").count("<circle") == 6


def test_what_does_not_fit_is_refused(lmtool, run):
    lmtool.refuses(2, "neighbors", "last", "moon", "--in", AT_DAWN, words=["--among"])
    lmtool.refuses(2, "neighbors", "last", "e", "--layer", "1", words=["--in"])
    lmtool.refuses(2, "neighbors", "last", "e", "-k", "2", "--map", "pca", words=["3 or more"])
    lmtool.refuses(3, "neighbors", "last", "moon", "--in", AT_DAWN, "--among", "nowhere.txt", words=["nowhere"])


def test_hostile_words_stay_text(run):
    found = neighbors(load_run(str(run)), "e", 4)
    hostile = "</script><img src=x onerror=alert(1)>\u202e\x1b"
    near = [replace(neighbor, word=hostile, text=hostile) for neighbor in found.nearest]
    html = render_page(found._replace(word=hostile, nearest=near), "pca")
    for wrong in ("<img", "\u202e", "\x1b"):
        assert wrong not in html
    assert html.count("</script>") == html.count("<script>")


def test_an_analogy_is_what_the_formula_gives(lmtool, run):
    """3CosAdd, without the three words."""
    loaded = load_run(str(run))
    table = loaded.model.token_vectors().detach().double().numpy()
    ids = [find_token(loaded.tokenizer, word) for word in "eat"]
    ordered = [i for i in reference.analogy(table, *ids) if i not in loaded.tokenizer.special_ids]
    record = json.loads(lmtool.succeeds("neighbors", "last", "--analogy", "e", "a", "t", "-k", "5", "--json").out)
    assert record["word"] == "e - a + t"
    assert [near["word"] for near in record["neighbors"]] == [loaded.tokenizer.display_token(i) for i in ordered[:5]]
    lmtool.succeeds("neighbors", "last", "--analogy", "e", "a", "t", "-o", "map.html")
    assert Path("map.html").read_text(encoding="utf-8").count("<circle") == 11


def test_similarities_are_ranked(lmtool, run):
    loaded = load_run(str(run))
    table = loaded.model.token_vectors().detach().double().numpy()
    pairs = [("e", "a", 3.5), ("t", "o", 1.0), ("A", "t", 9.0), ("e", "nowhere", 2.0), ("n", "i", 4.0)]
    rows = [f"{one}\t{other}\tN\t{given}\n" for one, other, given in pairs]
    Path("pairs.tsv").write_text("word1\tword2\tPOS\tscore\n" + "".join(rows), encoding="utf-8")
    scored = [pair for pair in pairs if "nowhere" not in pair]
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)

    def vector(word):
        for text in (f" {word}", word, f" {word.lower()}", word.lower()):
            ids = loaded.tokenizer.encode(text)
            if len(ids) == 1:
                return unit[ids[0]]
        raise AssertionError(word)

    cosines = [float(vector(one) @ vector(other)) for one, other, _ in scored]
    record = json.loads(lmtool.succeeds("neighbors", "last", "--similarity", "pairs.tsv", "--json").out)
    assert record["spearman"] == pytest.approx(reference.spearman(cosines, [given for *_, given in scored]))
    assert (record["scored"], record["pairs"], record["missing"]) == (4, 5, ["nowhere"])
    assert "4 of 5 (80.0 %)" in lmtool.succeeds("neighbors", "last", "--similarity", "pairs.tsv").out


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("word1,word2\na,b\n", "no number after two words"),
        ("word1,word2,score\ne,a,1\ne,t,x\n", "row 2"),
        ("word1,word2,score\nnowhere,a,1\ne,never,2\n", "0 of 2 pairs"),
    ],
)
def test_what_is_no_table_of_similarities_is_refused(lmtool, run, table, words):
    Path("pairs.csv").write_text(table, encoding="utf-8")
    lmtool.refuses(3, "neighbors", "last", "--similarity", "pairs.csv", words=[words])


def test_one_thing_is_asked_at_a_time(lmtool, run):
    lmtool.refuses(2, "neighbors", "last", words=["--analogy"])
    lmtool.refuses(2, "neighbors", "last", "e", "--analogy", "e", "a", "t", words=["--analogy"])
    lmtool.refuses(2, "neighbors", "last", "--similarity", "x.csv", "--map", "pca", words=["no map"])
    lmtool.refuses(2, "neighbors", "last", "--analogy", "e", "a", "qwertz", words=["not a token"])
