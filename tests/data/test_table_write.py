"""Writing tables: columns kept, formulas guarded, all or nothing, and never into the table that is read."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.table import (
    Row,
    Table,
    format_csv_or_conll_rows,
    format_json_lines,
    format_json_list,
    open_table,
    write_new_table_file,
)
from lmtool.errors import ResourceError, UsageError
from lmtool.recipe.spec.text import Data
from tests.support.examples import examples


def table(folder: Path, content: str = 'text;label\n"a;b";x\nc"d,é;y\n', name: str = "in.csv") -> Table:
    (folder / name).write_text(content, encoding="utf-8")
    return open_table(str(folder / name))


def json_table(folder: Path, *rows: dict[str, Any]) -> Table:
    return table(folder, "".join(json.dumps(row) + "\n" for row in rows), "in.jsonl")


def write(path: Path, source: Table, added: list[str], rows: Iterable[tuple[Row, list[Any]]] | None = None) -> None:
    """Adds to each row the length of its first cell, and 0.25."""
    with_length = ((row, [len(row.values[0]), 0.25]) for row in source.rows())
    write_new_table_file(path, source, format_csv_or_conll_rows(source, added, with_length if rows is None else rows))


def cells(lines: Iterable[str]) -> list[list[str]]:
    return list(csv.reader(io.StringIO("".join(lines), newline=""), strict=True))


def test_columns_are_kept_and_values_added(tmp_path: Path) -> None:
    write(tmp_path / "out.csv", table(tmp_path), ["length", "p"])
    written = cells([(tmp_path / "out.csv").read_bytes().decode()])
    assert written == [["text", "label", "length", "p"], ["a;b", "x", "3", "0.25"], ['c"d,é', "y", "5", "0.25"]]
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv"]


VALUES = {"text": "a\nb \u2028", "n": 3, "f": 0.5, "yes": True, "none": None, "many": ["é", 1], "in": {"a": 1}}


def test_csv_has_json_for_what_is_no_text_or_number(tmp_path: Path) -> None:
    source = json_table(tmp_path, VALUES)
    written = cells(format_csv_or_conll_rows(source, [], ((row, []) for row in source.rows())))
    assert written == [list(VALUES), ["a\nb \u2028", "3", "0.5", "true", "", '["é", 1]', '{"a": 1}']]


def test_json_lines_have_the_columns_and_their_values(tmp_path: Path) -> None:
    source = json_table(tmp_path, VALUES, {"text": "c"})
    added = [(0.25, math.nan), (1, None)]
    lines = list(format_json_lines(source, ["p", "n"], zip(source.rows(), added, strict=True)))
    write_new_table_file(tmp_path / "out.jsonl", source, lines)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert written == [VALUES | {"p": 0.25, "n_2": None}, dict.fromkeys(VALUES) | {"text": "c", "p": 1, "n_2": None}]
    assert open_table(str(tmp_path / "out.jsonl")).names == (*VALUES, "p", "n_2")
    assert json.loads("".join(format_json_list(lines))) == written
    assert json.loads("".join(format_json_list([]))) == []


FORMULAS = ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "--5", "-1,5"]
HARMLESS = ["1=2", "-1.5", "+3", "-1e-05", "a@b", "", "'=1", "3-4", "-.5"]


@pytest.mark.parametrize(("guard", "before"), [(False, ""), (True, "'")])
def test_formulas_are_guarded_when_asked(guard: bool, before: str, tmp_path: Path) -> None:
    pairs = [(FORMULAS[0], HARMLESS[0]), *zip(FORMULAS, HARMLESS, strict=True)]
    source = json_table(tmp_path, *({"=name": formula, "text": harmless} for formula, harmless in pairs))
    rows = ((row, ["=x"]) for row in source.rows())
    assert cells(format_csv_or_conll_rows(source, ["@p"], rows, guard_formulas=guard)) == [
        [before + "=name", "text", before + "@p"],
        *([before + formula, harmless, before + "=x"] for formula, harmless in pairs),
    ]


@settings(max_examples=examples(25, 60), deadline=None)
@given(rows=st.lists(st.tuples(st.text(alphabet='a",;\n\r é', max_size=5), st.text(max_size=5)), min_size=1))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("again")
    rows = [(a, b.replace("\0", "")) for a, b in rows if a.strip()] or [("a", "b")]
    source = json_table(folder, *({"a": a, "b": b} for a, b in rows))
    write(folder / "out.csv", source, ["n"], ((row, [row.number]) for row in source.rows()))
    again = open_table(str(folder / "out.csv"), Data(delimiter=","))
    assert [row.values for row in again.rows()] == [(a, b, str(n)) for n, (a, b) in enumerate(rows, 1)]


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    source = table(tmp_path)
    (tmp_path / "link.csv").symlink_to(tmp_path / "in.csv")
    os.link(tmp_path / "in.csv", tmp_path / "hard.csv")
    (tmp_path / "mine.csv").write_text("mine")
    before = (tmp_path / "in.csv").read_bytes()
    errors = set()
    for name in "in.csv", "link.csv", "hard.csv", f"../{tmp_path.name}/in.csv", "mine.csv", "":
        with pytest.raises(UsageError) as refused:
            write(tmp_path / name, source, ["n", "p"])
        errors.add((name in ("mine.csv", ""), refused.value.code))
    assert errors == {(False, "usage"), (True, "output_exists")}
    assert (tmp_path / "in.csv").read_bytes() == before
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_all_is_written_or_nothing(tmp_path: Path) -> None:
    source = table(tmp_path)

    def stopped() -> Iterator[tuple[Row, list[Any]]]:
        yield next(source.rows()), [1, 2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out.csv", source, ["n", "p"], stopped())
    with pytest.raises(ValueError, match="2 values for 1 added"):
        write(tmp_path / "out.csv", source, ["n"])
    for folder in "no", "in.csv":
        with pytest.raises(ResourceError):
            write(tmp_path / folder / "out.csv", source, ["n", "p"])
    assert os.listdir(tmp_path) == ["in.csv"]
