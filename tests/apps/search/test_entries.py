"""Texts of files and tables with their ids, and what is found, as lines to write."""

import csv
import io
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtool.apps.search.entries import Entry, get_text_columns_to_index, hits_to_csv, hits_to_json_lines, read_entries
from lmtool.errors import DataError
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Classification, Embedding, Seq2Seq
from lmtool.recipe.spec.text import Data
from tests.support.errors import refuses

ROWS = [("k1", "Cats", "They purr."), ("k2", "", "No title."), ("k3", " ", ""), ("k4", "Été", 'A "quoted", thing')]
BOTH, TEXTS = ["Cats They purr.", "No title.", f"Été {ROWS[3][2]}"], ["They purr.", "No title.", ROWS[3][2]]
TITLES = ["Cats", "Été"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, rows: Sequence[Sequence[str]] = ROWS, encoding: str = "utf-8", delimiter: str = ",") -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([("Key", "title", "text"), *rows])
    path.write_bytes(text.getvalue().encode(encoding))


def entries(*sources: str, id_column: str | None = None, **reading: Any) -> list[Entry]:
    return list(read_entries(sources, Data(**reading), id_column))


def texts(*sources: str, **reading: Any) -> list[str]:
    return [entry.text for entry in entries(*sources, **reading)]


def test_a_line_or_a_row_is_a_text_unless_it_is_blank(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"\r\none\r\n \n two \nthree")
    write(folder / "b.csv")
    lines = zip((1, 2, 3), ["one", " two ", "three"], strict=True)
    rows = zip((1, 2, 4), TEXTS, strict=True)  # the number of a row is that which all commands tell
    assert entries("a.txt", "b.csv") == [
        *(Entry(f"a.txt:{i}", "a.txt", text) for i, text in lines),
        *(Entry(f"b.csv:{i}", "b.csv", text) for i, text in rows),
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_columns_are_joined_and_ids_are_those_of_a_column(folder: Path, name: str) -> None:
    path, rows = folder / name, [dict(zip(("Key", "title", "text"), row, strict=True)) for row in ROWS]
    if name == "a.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "a.json":
        path.write_text(json.dumps(rows))
    elif name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, delimiter="\t" if name == "a.tsv" else ",")
    read = entries(name, id_column="key", text_columns=("Title", "text"))
    assert read == [Entry(key, name, text) for key, text in zip(("k1", "k2", "k4"), BOTH, strict=True)]


@pytest.mark.parametrize(
    ("columns", "objective", "read"),
    [
        ({"text_columns": ("TITLE",)}, Classification(kind="classification"), TITLES),
        ({"text_columns": ("title", "text")}, Classification(kind="classification"), BOTH),
        ({"text_columns": ("title", "text")}, Embedding(kind="embedding"), TEXTS),
        ({"text_columns": ("said",)}, Classification(kind="classification"), TEXTS),
        ({"source_column": "title", "target_column": "text"}, Seq2Seq(kind="seq2seq"), TITLES),
    ],
)
def test_texts_are_those_of_the_columns_that_the_run_was_trained_on(
    folder: Path, columns: dict[str, Any], objective: Any, read: list[str]
) -> None:
    """Where the table has them, unless others are named; of related texts of a row each is a text of its own."""
    write(folder / "a.csv")
    recipe = load("transformer-tiny", []).recipe
    recipe = recipe.with_unvalidated_values({"data": Data(**columns), "objective": objective})
    found = read_entries(["a.csv"], Data(), default_columns=get_text_columns_to_index(recipe))
    assert [entry.text for entry in found] == read
    named = read_entries(["a.csv"], Data(text_columns=("key",)), default_columns=("title",))
    assert next(named).text == "k1"


def test_numbers_are_ids_as_they_are_written(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"id": 7, "text": "a"}\n{"id": 8.0, "text": "b"}\n{"id": "x", "text": null}\n')
    assert [entry.id for entry in entries("a.jsonl", id_column="id")] == ["7", "8"]


def test_encoding_and_delimiter_are_those_stated(folder: Path) -> None:
    write(folder / "a.csv", encoding="cp1252", delimiter="#")
    (folder / "a.txt").write_bytes("Été\n".encode("cp1252"))
    stated = {"delimiter": "#", "column": "title"}
    assert texts("a.csv", "a.txt", encoding="cp1252", **stated) == [*TITLES, "Été"]
    for source in ("a.csv", "a.txt"):
        for encoding in ({}, {"encoding": "utf-16"}):
            with refuses("data"):
                texts(source, **encoding, **stated)
    with refuses("usage"):
        texts("a.csv", encoding="latin-99", **stated)


@pytest.mark.parametrize("cell", ["", " "])
def test_a_row_without_an_id_is_refused_or_skipped(folder: Path, cell: str) -> None:
    write(folder / "a.csv", [ROWS[0], (cell, "", ""), (cell, "b", "b"), ROWS[1]])
    with pytest.raises(DataError, match="no id") as error:
        entries("a.csv", id_column="Key")
    assert error.value.where.startswith("a.csv:4")
    skipped = []

    def read() -> Generator[Entry]:
        skipped.append((yield from read_entries(["a.csv"], Data(skip_bad_rows=True), "Key")))

    assert [entry.id for entry in read()] == ["k1", "k2"]
    assert skipped[0].kinds == {"no id": 1}


def test_wrong_columns_are_refused(folder: Path) -> None:
    write(folder / "a.csv")
    with refuses("data"):
        entries("a.csv", id_column="")
    with refuses("usage"):
        entries("a.csv", text_columns=("title", "TITLE"))
    (folder / "a.jsonl").write_text('{"id": 7, "text": ["a"]}\n')
    with refuses("data"):
        entries("a.jsonl")


def test_standard_input_is_lines_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several would read a part of it, and wait for the others."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
    assert texts("-") == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with refuses("data"):
        texts("-")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refuses("usage"):
        texts("-")


def test_what_is_found_is_written_and_read_back() -> None:
    found = [Entry("k,1", "a.csv", 'a "b"\r\nc', 0.5), Entry("k2", "a.csv", "été", 0.25)]
    answers = [('say "hi", you', found), ("nothing", []), ("two", found[1:])]
    read: list[dict[str, Any]] = list(csv.DictReader(io.StringIO("".join(hits_to_csv(answers)), newline="")))
    rows = [(row.pop("query"), row.pop("rank"), Entry(**row)._replace(score=float(row["score"]))) for row in read]
    assert rows == [(query, str(rank), one) for query, hits in answers for rank, one in enumerate(hits, 1)]
    records = [json.loads(line) for line in hits_to_json_lines(answers)]
    assert [(one["query"], [Entry(**hit) for hit in one["hits"]]) for one in records] == answers
