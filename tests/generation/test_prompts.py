"""Prompts of arguments, of a file, and of a pipe."""

import io
from pathlib import Path

import pytest

from lmtool.errors import DataError
from lmtool.generation.prompts import gather_prompts


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo", ["one", "two"]),
        (b"\xef\xbb\xbfone\r\n\r\n two \r\n", ["one", "", " two "]),
        ("line\u2028separator\x0b\x85\n".encode(), ["line\u2028separator\x0b\x85"]),
        (b"\n", [""]),
    ],
)
def test_each_line_is_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, expected: list[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(data)
    assert gather_prompts([], str(file)) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert gather_prompts([], "-") == expected


@pytest.mark.parametrize("content", [None, b"", b"one\ncaf\xe9\n"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError):
        gather_prompts([], str(file))


def test_prompts_of_arguments_and_none() -> None:
    assert gather_prompts(["a", "b"], None) == ["a", "b"]
    assert gather_prompts([], None) == [""]
