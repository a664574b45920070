import io
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import DataError
from lmtool.generation.prompts import gather_prompts


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\n\n two \n", ["one", "", " two "]),
        ("line\u2028separator\x0b\x85\n".encode(), ["line\u2028separator\x0b\x85"]),
        (b"\n", [""]),
    ],
)
def test_each_line_is_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any, expected: Any) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(data)
    assert gather_prompts([], str(file)) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert gather_prompts([], "-") == expected


@pytest.mark.parametrize(
    ("name", "content"), [("missing.txt", None), (".", None), ("empty.txt", b""), ("latin.txt", b"one\ncaf\xe9\n")]
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, name: Any, content: Any) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        gather_prompts([], str(tmp_path / name))


def test_prompts_come_from_one_place(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n")
    assert gather_prompts(["a", "b"], None) == ["a", "b"]
    assert gather_prompts([], str(tmp_path / "prompts.txt")) == ["one"]
    assert gather_prompts([], None) == [""]
