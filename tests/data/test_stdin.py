"""Texts and tables from standard input and options, which are files for a while."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.data.stdin import temporary_table_file, temporary_table_files, temporary_text_files
from lmtool.errors import Code
from tests.support.errors import refuses

Give = Callable[[bytes], None]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Give:
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return give


def test_texts_and_standard_input_are_files_for_a_while(stdin: Give) -> None:
    stdin("naïve\nlines".encode())
    with temporary_text_files(["book.txt", "-"], ["one\ntwo", "three"]) as files:
        assert files[0] == "book.txt"
        assert [Path(file).read_bytes() for file in files[1:]] == ["naïve\nlines".encode(), b"one\ntwo", b"three"]
        assert all(file.endswith(".txt") for file in files)
    assert not Path(files[1]).parent.exists()
    with pytest.raises(BrokenPipeError), temporary_text_files([], ["a"]):
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("content", "sources", "texts", "code"),
    [
        (b"a", ["-", "-"], [], "usage"),
        (b"", ["-"], [], "data"),
        (b"", [], ["a", " "], "data"),
        (b"", [], [os.fsdecode(b"caf\xe9")], "data"),  # of a shell in another encoding
    ],
)
def test_input_without_text_is_refused(
    stdin: Give, content: bytes, sources: list[str], texts: list[str], code: Code
) -> None:
    stdin(content)
    with refuses(code), temporary_text_files(sources, texts):
        pass


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (b'\xef\xbb\xbf{"text": "a"}\n', ".jsonl"),
        (b'\n {"text": "a"}\n', ".jsonl"),
        (b'\n [\n{"text": "a"}]\n', ".json"),
        (b"[laughs] text,label\na,b\n", ".csv"),
        (b"PAR1\0\0", ".parquet"),
    ],
)
def test_the_format_of_a_table_on_standard_input(stdin: Give, content: bytes, ending: str) -> None:
    stdin(content)
    with temporary_table_files(["-", "other.csv"]) as (received, other):
        assert received.endswith(ending)
        assert Path(received).read_bytes() == content
        assert other == "other.csv"


@pytest.mark.parametrize(
    ("content", "columns", "is_table"),
    [
        (b"text,label\na,b\n", ["text"], True),
        (b'"text"\r\na\r\n', ["text"], True),
        (b"premise\thypothesis\na\tb\n", ["premise", "hypothesis"], True),
        (b'{"text": "a"}\n', ["other"], True),
        (b"A good film, text and all.\nbad\n", ["text"], False),
        (b"texts\n", ["text"], False),
    ],
)
def test_a_table_is_distinguished_from_lines(stdin: Give, content: bytes, columns: list[str], is_table: bool) -> None:
    stdin(content)
    with temporary_table_file("-", [], columns, False) as source:
        assert (Path(source).read_bytes() == content) is is_table


def rows(source: str) -> list[object]:
    return [json.loads(line) for line in Path(source).read_text().splitlines()]


def test_lines_of_standard_input_are_rows(stdin: Give) -> None:
    stdin('\ufeffA naïve "film", =1\r\n\n  \nbad\u2028still bad'.encode())
    with temporary_table_file("-", [], ["review"], False) as source:
        assert rows(source) == [{"review": 'A naïve "film", =1'}, {"review": "bad\u2028still bad"}]
    with temporary_table_file(None, ["a\nb", "c"], ["review"], False) as source:
        assert rows(source) == [{"review": "a\nb"}, {"review": "c"}]
    with temporary_table_file(None, ["a"], ["messages"], True) as source:
        assert rows(source) == [{"messages": [{"role": "user", "content": "a"}]}]


@pytest.mark.parametrize(
    ("content", "source", "texts", "code", "where"),
    [
        (b" \n\n", "-", [], "data", "-"),
        (b"good\nb\xffd\n", "-", [], "data", "standard input:2"),
        (b"", None, [os.fsdecode(b"caf\xe9")], "data", "--text"),
        (b"", None, [], "usage", ""),
        (b"", "a.csv", ["b"], "usage", ""),
    ],
)
def test_input_without_rows_is_refused(
    stdin: Give, content: bytes, source: str | None, texts: list[str], code: Code, where: str
) -> None:
    stdin(content)
    with refuses(code) as caught, temporary_table_file(source, texts, ["text"], False):
        pass
    assert caught.value.where.startswith(where)
    with refuses("usage"), temporary_table_file(None, ["a"], ["premise", "hypothesis"], False):
        pass
