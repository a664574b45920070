"""Reading text as documents, and errors for text that cannot be read; for files of rows see test_rowfile.py."""

import errno
import gzip
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmtool.data import corpus as corpus_module
from lmtool.data import files
from lmtool.data.corpus import _MIN_LIST_LINES, Corpus, MultiDocumentChunk, infer_document_division, open_corpus
from lmtool.data.files import READ_BYTES
from lmtool.errors import Code, LmtoolError
from tests.support.disks import failing_call
from tests.support.errors import refuses
from tests.support.tables import FORMATS, PACKERS, zstd
from tests.support.texts import documents, prose


def read(*sources: Path | str, documents_are: Any = "auto", stream: bool = False) -> list[str]:
    corpus = open_corpus([str(source) for source in sources], "text", documents_are)
    if stream:
        corpus = Corpus(corpus.files, corpus.explicit_files, corpus.column, corpus.documents, stream=True)
    return documents(corpus.chunks())


def refused(source: Path | str, code: Code = "data") -> LmtoolError:
    """The error of a source, of three printable lines that name it."""
    with refuses(code) as caught:
        read(source)
    lines = caught.value.lines()
    assert len(lines) <= 3
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert str(source)[:20] in str(caught.value)
    return caught.value


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    ("text", "whole", "paragraphs", "lines"),
    [
        ("one\ntwo\n\n \nthree\n", None, ["one\ntwo", "three"], ["one", "two", "three"]),
        ("one\r\ntwo\r\n\r\nthree\r\n", None, ["one\r\ntwo", "three"], ["one", "two", "three"]),
        ("\ufeffé", ["é"], ["é"], ["é"]),
        (prose(20_000), None, None, None),
    ],
)
def test_a_text_divides_into_documents(
    text: str, whole: list[str] | None, paragraphs: list[str], lines: list[str], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](text.encode()))
    assert read(path, documents_are="whole") == (whole or [text])
    if lines:
        assert read(path) == (whole or [text])
        assert read(path, documents_are="blank-line") == paragraphs
        assert read(path, documents_are="line") == lines
        assert read(path, documents_are="line", stream=True) == [line + "\n" for line in lines]


@given(text=st.text(st.sampled_from("a \n\r\té"), max_size=60), block=st.integers(1, 9), chunk=st.integers(1, 9))
@example(text="aaaaaaa\r\n", block=1, chunk=1)
@settings(deadline=None)
@pytest.mark.parametrize("documents_are", ["whole", "line", "blank-line"])
def test_blocks_and_chunks_do_not_show(documents_are: str, text: str, block: int, chunk: int) -> None:
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    splits: dict[str, Callable[[str], list[str]]] = {"blank-line": corpus_module._BLANK_LINES.split}
    split = {"line": corpus_module._split_lines, **splits}.get(documents_are)
    divide: Callable[[Iterator[str]], Iterator[MultiDocumentChunk]] = corpus_module._chunk_single_document
    if split is not None:
        divide = partial(corpus_module._chunk_documents, split=split)
    in_one = documents(divide(iter([text]))) if text else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "CHUNK_CHARACTERS", chunk)
        assert documents(divide(iter(blocks))) == in_one
        assert documents(corpus_module.merge_small_chunks(divide(iter(blocks)))) == in_one
    if documents_are == "whole":
        assert in_one == ([text] if text.strip() else [])
    if documents_are == "line":
        assert in_one == [t for line in text.split("\n") if (t := line.removesuffix("\r")).strip()]


@pytest.mark.parametrize("text", [prose(120_000), "é" * 1_000_000])
@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
@pytest.mark.parametrize("documents_are", ["whole", "line", "blank-line"])
def test_a_long_text_comes_in_chunks(documents_are: Any, ending: str, text: str, tmp_path: Path) -> None:
    """Also without any space; in lines of prose no line is long."""
    path = tmp_path / f"a{ending}"
    path.write_bytes(text.encode() if ending == ".txt" else FORMATS[".jsonl"]([text, "next"]))
    chunks = list(Corpus((path,), frozenset(), "text", documents_are).chunks())
    assert len(chunks) > 2
    assert max(chunk.size for chunk in chunks) < 4 * corpus_module.CHUNK_CHARACTERS
    if ending == ".jsonl":
        assert documents(chunks) == [text, "next"]
    elif documents_are == "whole" or " " not in text:
        assert documents(chunks) == [text]


def test_folders_and_patterns_name_visible_texts(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    for name in "b.txt", "a.txt", "sub/c.txt", "sub/.d.txt", "sub/.hidden/e.txt", "f.png", "g.md", "h[1].txt":
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    assert read(tmp_path) == ["a.txt", "b.txt", "h[1].txt", "sub/c.txt"]
    assert read(tmp_path / "?.txt") == ["a.txt", "b.txt"]
    assert read(tmp_path / "**" / "?.txt") == ["a.txt", "b.txt", "sub/c.txt"]
    assert read(tmp_path / "g.md", tmp_path / "a.txt") == ["g.md", "a.txt"]
    assert read(tmp_path / "h[1].txt") == ["h[1].txt"]


# Texts that cannot be read: name, content, the line, and what the message has beside it.
UNREADABLE = {
    "empty": ("a.txt", b"", "", ""),
    "blank": ("a.txt", b" \n\n", "", ""),
    "empty jsonl": ("a.jsonl", b"\n", "", ""),
    "binary far": ("a.txt", "é".encode() * READ_BYTES + b"\0", "", f"offset {2 * READ_BYTES}"),
    "utf-16": ("a.txt", "hello".encode("utf-16"), "", "UTF-16"),
    "latin-1": ("a.txt", "caf\u00e9 au lait".encode("latin-1"), ":1", "0xe9 at offset 3"),
    "latin-1 far": ("a.txt", b"x\n" * 150_000 + b"\xff", ":150001", "offset 300000"),
    "cut character": ("a.txt", "abcdé".encode()[:-1], ":1", "offset 4"),
    "character over blocks": ("a.txt", b"x" * (READ_BYTES - 1) + b"\xc3(", ":1", f"0xc3 at offset {READ_BYTES - 1}"),
    "no gzip": ("a.txt.gz", b"plain", "", "gzip"),
    "cut gzip": ("a.txt.gz", gzip.compress(prose(500).encode())[:-20], "", "gzip"),
    "cut zstd": ("a.txt.zst", zstd(prose(500).encode())[:-20], "", "zstd"),
    "zstd as text": ("a.txt", zstd(b"abc"), "", ".zst"),
    "gzip as text": ("a.txt", gzip.compress(b"abc"), "", ".gz"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_text_is_refused_where_it_is(case: str, tmp_path: Path) -> None:
    name, content, line, part = UNREADABLE[case]
    (tmp_path / name).write_bytes(content)
    error = refused(tmp_path / name)
    assert error.where == f"{tmp_path / name}{line}"
    assert part in str(error)


def test_sources_without_text_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.png").write_bytes(b"x")
    for source in tmp_path / "pipe", tmp_path / "folder", tmp_path / "*.txt", tmp_path / "a\x1b[31m\nb.txt":
        refused(source)
    (tmp_path / "a.txt").write_text("x")
    for source in tmp_path / "a.text", tmp_path / "none" / "a.txt":
        refused(source, "file_not_found")
    named = tmp_path / "a\x1b[31m\n.jsonl"
    named.write_text('{"\\u001b[31m\\n": "a"}')
    refused(named)


def test_a_file_without_permission_is_no_fault_of_its_text(tmp_path: Path) -> None:
    """Tests may run as root, whom chmod does not stop."""
    (tmp_path / "a.txt").write_text("x")
    for code in (errno.EACCES, errno.EIO):
        with failing_call(files, "open_decompressed", code=code):
            refused(tmp_path / "a.txt", "resource")


SYLLABLES = ["ka", "lo", "mi", "ran", "sel", "tu", "vo", "ny", "be", "dra"]
STOCK = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES]


def word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))


def chinese(rng: random.Random, n: int) -> str:
    return "".join(chr(0x4E00 + rng.randrange(500)) for _ in range(n))


def wrapped_prose(rng: random.Random) -> list[str]:
    """Of changing topics, in lines of at most 70 characters."""
    lines = [""]
    for _ in range(60):
        topic = rng.sample(STOCK, 12)
        for one in rng.choices(topic, k=60):
            if len(lines[-1]) + len(one) > 69:
                lines.append("")
            lines[-1] = f"{lines[-1]} {one}".strip()
    return lines


def story(rng: random.Random) -> list[str]:
    """One sentence a line, each taking up words of the one before."""
    words, lines = rng.sample(STOCK, 12), []
    for _ in range(300):
        words = rng.sample(words, 9) + rng.sample(STOCK, 3)
        lines.append(" ".join(words[: rng.randint(4, 12)]) + ".")
    return lines


def each(n: int, line: Callable[[random.Random], str]) -> Callable[[random.Random], list[str]]:
    return lambda rng: [line(rng) for _ in range(n)]


SHAPES: dict[str, tuple[str, Callable[[random.Random], list[str]]]] = {
    "names": ("line", each(300, word)),
    "captions": ("line", each(300, lambda rng: " ".join(rng.choices(STOCK, k=rng.randint(5, 20))) + ".")),
    "Chinese names": ("line", each(300, lambda rng: chinese(rng, rng.randint(2, 3)))),
    "Chinese prose": ("whole", each(300, lambda rng: chinese(rng, 35))),
    "wrapped prose": ("whole", wrapped_prose),
    "a story": ("whole", story),
    "code": ("whole", each(200, lambda rng: f"def {word(rng)}():\n    return {word(rng)}")),
    "numbers": ("whole", each(300, lambda rng: f"{rng.random():.4f},{rng.random():.4f}")),
    "dialogue": ("whole", each(100, lambda rng: f"{word(rng).upper()}:\n{' '.join(rng.choices(STOCK, k=6))}\n")),
    "a short list": ("whole", each(_MIN_LIST_LINES - 1, word)),
    "paragraphs": ("blank-line", each(100, lambda rng: " ".join(rng.choices(STOCK, k=60)) + "\n")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_documents_are_found_in_texts_of_this_shape(shape: str, tmp_path: Path) -> None:
    expected, make = SHAPES[shape]
    for seed in range(3):
        for end in "\n", "\r\n":
            path = tmp_path / f"{seed}.txt"
            text = "\n".join(make(random.Random(seed))) + "\n"
            path.write_text(text.replace("\n", end), encoding="utf-8", newline="")
            assert infer_document_division([path]) == expected, seed
