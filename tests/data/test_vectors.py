"""Files of word vectors: every format gives what was written, and what is no such file is refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from lmtool.data import vectors
from lmtool.data.vectors import VectorFile
from tests.support.errors import refuses

WORDS = ["the", "naïve", "cat", ".", "dog"]
TABLE = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def lines(words: list[str] = WORDS, end: str = "\n") -> str:
    return "".join(f"{w} {' '.join(map(repr, row))}{end}" for w, row in zip(words, TABLE.tolist(), strict=True))


def binary(newlines: bool) -> bytes:
    """As word2vec.c writes it, with a line break after each vector, and as gensim does, without."""
    rows = (f"{word} ".encode() + row.tobytes() + b"\n" * newlines for word, row in zip(WORDS, TABLE, strict=True))
    return b"5 3\n" + b"".join(rows)


FORMATS: dict[str, bytes] = {
    "glove": lines().encode(),
    "word2vec text": f"5 3\n{lines()}".encode(),
    "fasttext": f"5 3\n{lines(end=' ' + chr(10))}".encode(),
    "tabs and carriage returns": lines().replace(" ", "\t").replace("\n", "\r\n").encode(),
    "word2vec binary": binary(newlines=True),
    "word2vec binary without line breaks": binary(newlines=False),
    "gzip": gzip.compress(lines().encode()),
}


def opened(folder: Path, content: bytes, name: str = "v.vec") -> VectorFile:
    (folder / name).write_bytes(content)
    return VectorFile.open(folder / name)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in vectors._READ_BYTES, 5:
        monkeypatch.setattr(vectors, "_READ_BYTES", block)
        file = opened(tmp_path, FORMATS[name], "v.gz" if name == "gzip" else "v.vec")
        assert file.width == 3
        assert file.is_binary == ("binary" in name)
        found = file.read({"cat", "naïve", "nowhere", "dog"})
        assert (found.words, found.n_repeated) == (["naïve", "cat", "dog"], 0)
        np.testing.assert_array_equal(found.vectors_ND, TABLE[[1, 2, 4]])
    assert file.read(set()).vectors_ND.shape == (0, 3)


def test_the_first_of_equal_words_counts_and_words_may_have_spaces(tmp_path: Path) -> None:
    found = opened(tmp_path, lines(["a", "b", "a", "c", "b"]).encode()).read({"a", "c"})
    assert (found.words, found.n_repeated) == (["a", "c"], 1)
    np.testing.assert_array_equal(found.vectors_ND, TABLE[[0, 3]])
    assert opened(tmp_path, b"a 1 2\n. . . 3 4\nb 5 6\n").read({"a", ". . .", "b"}).words == ["a", ". . .", "b"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"The baker found a map.\n", ""),
        (b"\xba\x16\x4f\x2f\x0c\x00", ""),  # a model of fastText
        (b"0 5\n", ":1"),
        (b"2 3\na 1 2\nb 3 4\n", ":2"),
        (b"a 1 2\nb 3\n", ":2"),
        (b"2 2\na 1 2\n\nb 3 x\n", ":4"),
        (b"a 1 2\nb nan 1\n", ":2"),
        (b"a 1 2\nb 1e40 1\n", ":2"),
        (b"3 2\na 1 2\nb 3 4\n", ":1"),
        (binary(newlines=True)[:-5], ", word 5"),
        (binary(newlines=True).replace(b"5 3", b"4 3"), ":1"),
        (b"2 1\na \x00\x00\xc0\x7fb \x00\x00\x00\x00", ", word 1"),
        (b"9 2\n" + b"\x01" * 50_000, ", word 1"),
    ],
)
def test_a_file_without_whole_vectors_is_refused_where_it_fails(content: bytes, where: str, tmp_path: Path) -> None:
    with refuses("data") as refused:
        opened(tmp_path, content, "v.txt").read({"a", "b"})
    assert refused.value.where == f"{tmp_path / 'v.txt'}{where}"
    with refuses("file_not_found"):
        VectorFile.open(tmp_path / "nowhere.vec")
