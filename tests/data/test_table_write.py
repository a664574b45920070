"""Writing tables: columns kept, formulas guarded, all or nothing, and never into the table that is read."""

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.table import Row, Table, format_json_lines, format_json_list, format_rows, open_table, write_table
from lmtool.errors import ResourceError, UsageError
from lmtool.recipe.spec.text import Data
from tests.examples import examples


def table(folder: Path, content: str = 'text;label\n"a;b";x\nc"d,é;y\n', name: str = "in.csv") -> Table:
    (folder / name).write_text(content, encoding="utf-8")
    return open_table(str(folder / name))


def with_length(source: Table) -> Iterator[tuple[Row, list[Any]]]:
    return ((row, [len(row.values[0]), 0.25]) for row in source.rows())


def write(path: Path, source: Table, added: list[str], rows: Iterable[tuple[Row, list[Any]]]) -> None:
    write_table(path, source, format_rows(source, added, rows))


def read(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file, strict=True))


def test_columns_are_kept_and_values_added(tmp_path: Path) -> None:
    source, out = table(tmp_path), tmp_path / "out.csv"
    write(out, source, ["length", "p"], with_length(source))
    assert read(out) == [["text", "label", "length", "p"], ["a;b", "x", "3", "0.25"], ['c"d,é', "y", "5", "0.25"]]
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv"]


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    source = table(tmp_path, "text,label,label_2\na,b,c\n")
    lines = list(format_rows(source, ["label", "label"], ((row, [1, 2]) for row in source.rows())))
    assert lines == ["text,label,label_2,label_3,label_4\n", "a,b,c,1,2\n"]


def test_values_of_every_format(tmp_path: Path) -> None:
    row = {"text": "a\nb", "n": 3, "f": 0.5, "yes": True, "none": None, "many": ["é", 1], "in": {"a": 1}}
    source = table(tmp_path, json.dumps(row) + "\n", "in.jsonl")
    write(tmp_path / "out.csv", source, [], ((r, []) for r in source.rows()))
    assert read(tmp_path / "out.csv") == [list(row), ["a\nb", "3", "0.5", "true", "", '["é", 1]', '{"a": 1}']]


def test_json_lines_have_the_columns_and_their_values(tmp_path: Path) -> None:
    row = {"text": "a\nb \u2028", "n": 3, "f": 0.5, "yes": True, "none": None, "many": ["é", 1], "in": {"a": 1}}
    source = table(tmp_path, json.dumps(row) + "\n" + json.dumps({"text": "c"}) + "\n", "in.jsonl")
    values = [(0.25, math.nan), (1, None)]
    lines = list(format_json_lines(source, ["p", "n"], zip(source.rows(), values, strict=True)))
    out = tmp_path / "out.jsonl"
    write_table(out, source, lines)
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == [
        row | {"p": 0.25, "n_2": None},
        dict.fromkeys(row) | {"text": "c", "p": 1, "n_2": None},
    ]
    again = open_table(str(out))
    assert again.names == (*row, "p", "n_2")
    assert json.loads("".join(format_json_list(lines))) == [json.loads(line) for line in lines]
    assert json.loads("".join(format_json_list([]))) == []


FORMULAS = ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "--5", "-1,5"]
HARMLESS = ["1=2", "-1.5", "+3", "-1e-05", "a@b", "", "'=1", "3-4", "-.5"]


def test_formulas_are_guarded_when_asked(tmp_path: Path) -> None:
    content = json.dumps({"=name": FORMULAS[0], "text": HARMLESS[0]}) + "\n"
    content += "".join(json.dumps({"=name": f, "text": h}) + "\n" for f, h in zip(FORMULAS, HARMLESS, strict=True))
    source = table(tmp_path, content, "in.jsonl")

    def cells(guard: bool) -> list[list[str]]:
        lines = format_rows(source, ["@p"], ((row, ["=x"]) for row in source.rows()), guard_formulas=guard)
        (tmp_path / "out.csv").write_text("".join(lines), encoding="utf-8", newline="")
        return read(tmp_path / "out.csv")[2:]

    assert cells(False) == [[f, h, "=x"] for f, h in zip(FORMULAS, HARMLESS, strict=True)]
    assert cells(True) == [["'" + f, h, "'=x"] for f, h in zip(FORMULAS, HARMLESS, strict=True)]
    guarded_header = next(format_rows(source, ["@p"], [], guard_formulas=True))
    assert guarded_header == "'=name,text,'@p\n"


@settings(max_examples=examples(25, 60), deadline=None)
@given(rows=st.lists(st.tuples(st.text(alphabet='a",;\n\r é', max_size=5), st.text(max_size=5)), min_size=1))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("again")
    rows = [(a, b.replace("\0", "")) for a, b in rows if a.strip()] or [("a", "b")]
    source = table(folder, "".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows), "in.jsonl")
    write(folder / "out.csv", source, ["n"], ((row, [row.number]) for row in source.rows()))
    again = open_table(str(folder / "out.csv"), Data(delimiter=","))
    assert [row.values for row in again.rows()] == [(a, b, str(n)) for n, (a, b) in enumerate(rows, 1)]


def test_the_table_is_never_overwritten(tmp_path: Path) -> None:
    source = table(tmp_path)
    before = (tmp_path / "in.csv").read_bytes()
    (tmp_path / "link.csv").symlink_to(tmp_path / "in.csv")
    os.link(tmp_path / "in.csv", tmp_path / "hard.csv")
    for name in "in.csv", "link.csv", "hard.csv", "../" + tmp_path.name + "/in.csv":
        with pytest.raises(UsageError, match="overwrite the table that is read"):
            write(tmp_path / name, source, ["n", "p"], with_length(source))
    assert (tmp_path / "in.csv").read_bytes() == before


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    source, out = table(tmp_path), tmp_path / "out.csv"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists already"):
        write(out, source, ["n", "p"], with_length(source))
    assert out.read_text(encoding="utf-8") == "mine"
    with pytest.raises(UsageError, match="exists already"):
        write(tmp_path, source, [], [])


def test_all_or_nothing(tmp_path: Path) -> None:
    source, out = table(tmp_path), tmp_path / "out.csv"

    def stopped() -> Iterator[tuple[Row, list[Any]]]:
        yield next(with_length(source))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(out, source, ["n", "p"], stopped())
    assert os.listdir(tmp_path) == ["in.csv"]
    with pytest.raises(ValueError, match="2 values for 1 added"):
        write(out, source, ["n"], with_length(source))
    assert os.listdir(tmp_path) == ["in.csv"]


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    source = table(tmp_path)
    with pytest.raises(ResourceError, match="cannot write"):
        write(tmp_path / "no" / "out.csv", source, ["n", "p"], with_length(source))
    with pytest.raises(ResourceError, match="cannot write"):
        write(tmp_path / "in.csv" / "out.csv", source, ["n", "p"], with_length(source))
