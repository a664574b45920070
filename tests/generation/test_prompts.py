import io

import pytest

from lmtool.errors import DataError, UsageError
from lmtool.generation.prompts import gather_prompts
from tests.support.errors import refuses


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
def test_each_line_is_a_prompt(tmp_path, monkeypatch, data, expected):
    file = tmp_path / "prompts.txt"
    file.write_bytes(data)
    assert gather_prompts([], str(file)) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert gather_prompts([], "-") == expected


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "prompts.txt").write_text("one\n")
    with refuses("file_not_found") as error:
        gather_prompts([], str(tmp_path / "promts.txt"))
    assert error.value.fix == f"did you mean {tmp_path / 'prompts.txt'}?"
    with pytest.raises(DataError, match="a folder"):
        gather_prompts([], str(tmp_path))


def test_empty_files_are_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="empty"):
        gather_prompts([], str(tmp_path / "empty.txt"))


def test_files_that_are_not_utf8_are_refused_with_the_byte(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(DataError, match="at byte 7") as error:
        gather_prompts([], str(tmp_path / "latin.txt"))
    assert error.value.where.endswith("latin.txt:2")


def test_prompts_come_from_one_place(tmp_path):
    (tmp_path / "prompts.txt").write_text("one\n")
    assert gather_prompts(["a", "b"], None) == ["a", "b"]
    assert gather_prompts([], str(tmp_path / "prompts.txt")) == ["one"]
    assert gather_prompts([], None) == [""]
    with pytest.raises(UsageError, match="both"):
        gather_prompts(["a"], str(tmp_path / "prompts.txt"))
