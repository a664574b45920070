"""Texts of files and tables with their ids, and what is found, as lines to write."""

import csv
import io
import json
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtool.apps.search.entries import Entry, get_text_columns_to_index, hits_to_csv, hits_to_json_lines, read_entries
from lmtool.errors import DataError, UsageError
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Classification, Embedding, Seq2Seq
from lmtool.recipe.spec.text import Data

ROWS = [("k1", "Cats", "They purr."), ("k2", "", "No title."), ("k3", " ", ""), ("k4", "Été", 'A "quoted", thing')]
BOTH = ["Cats They purr.", "No title.", 'Été A "quoted", thing']


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, rows=ROWS, encoding="utf-8", delimiter=","):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([("Key", "title", "text"), *rows])
    path.write_bytes(text.getvalue().encode(encoding))
    return str(path.name)


def entries(*sources, id_column=None, **reading):
    return list(read_entries(sources, Data(**reading), id_column))


def test_a_line_or_a_row_is_a_text_unless_it_is_blank(folder):
    (folder / "a.txt").write_bytes(b"\r\none\r\n \n two \nthree")
    write(folder / "b.csv")
    assert entries("a.txt", "b.csv") == [
        *(Entry(f"a.txt:{i}", "a.txt", text) for i, text in enumerate(["one", " two ", "three"], 1)),
        *(Entry(f"b.csv:{i}", "b.csv", text) for i, text in ((1, "They purr."), (2, "No title."), (4, ROWS[3][2]))),
    ], "the number of a row is that which all commands tell"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_columns_are_joined_and_ids_are_those_of_a_column(folder, name):
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
        ({"text_columns": ("TITLE",)}, Classification(kind="classification"), ["Cats", "Été"]),
        ({"text_columns": ("title", "text")}, Classification(kind="classification"), BOTH),
        ({"text_columns": ("title", "text")}, Embedding(kind="embedding"), ["They purr.", "No title.", ROWS[3][2]]),
        ({"text_columns": ("said",)}, Classification(kind="classification"), ["They purr.", "No title.", ROWS[3][2]]),
        ({"source_column": "title", "target_column": "text"}, Seq2Seq(kind="seq2seq"), ["Cats", "Été"]),
    ],
)
def test_texts_are_those_of_the_columns_that_the_run_was_trained_on(folder, columns, objective, read):
    """Where the table has them; of related texts of a row each is a text of its own."""
    write(folder / "a.csv")
    recipe = load("transformer-tiny", []).recipe
    recipe = recipe.with_unvalidated_values({"data": Data(**columns), "objective": objective})
    found = read_entries(["a.csv"], Data(), default_columns=get_text_columns_to_index(recipe))
    assert [entry.text for entry in found] == read
    (named,) = [
        entry.text for entry in read_entries(["a.csv"], Data(text_columns=("key",)), default_columns=("title",))
    ][:1]
    assert named == "k1"


def test_numbers_are_ids_as_they_are_written(folder):
    (folder / "a.jsonl").write_text('{"id": 7, "text": "a"}\n{"id": 8.0, "text": "b"}\n{"id": "x", "text": null}\n')
    assert [entry.id for entry in entries("a.jsonl", id_column="id")] == ["7", "8"]


def test_encoding_and_delimiter_are_those_stated(folder):
    write(folder / "a.csv", encoding="cp1252", delimiter="#")
    (folder / "a.txt").write_bytes("Été\n".encode("cp1252"))
    read = entries("a.csv", "a.txt", encoding="cp1252", delimiter="#", column="title")
    assert [entry.text for entry in read] == ["Cats", "Été", "Été"]
    for source, encoding in product(("a.csv", "a.txt"), ({}, {"encoding": "utf-16"})):
        with pytest.raises(DataError):
            entries(source, **encoding, delimiter="#", column="title")
    with pytest.raises(UsageError):
        entries("a.csv", encoding="latin-99", delimiter="#", column="title")


@pytest.mark.parametrize("cell", ["", " "])
def test_a_row_without_an_id_is_refused_or_skipped(folder, cell):
    write(folder / "a.csv", [ROWS[0], (cell, "", ""), (cell, "b", "b"), ROWS[1]])
    with pytest.raises(DataError, match="no id") as error:
        entries("a.csv", id_column="Key")
    assert error.value.where.startswith("a.csv:4")
    skipped = []

    def read():
        skipped.append((yield from read_entries(["a.csv"], Data(skip_bad_rows=True), "Key")))

    assert [entry.id for entry in read()] == ["k1", "k2"]
    assert str(skipped[0]) == "skipped 1 bad row: no id 1"


def test_wrong_columns_are_refused(folder):
    write(folder / "a.csv")
    with pytest.raises(DataError):
        entries("a.csv", id_column="")
    with pytest.raises(UsageError):
        entries("a.csv", text_columns=("title", "TITLE"))
    (folder / "a.jsonl").write_text('{"id": 7, "text": ["a"]}\n')
    with pytest.raises(DataError):
        entries("a.jsonl")


def test_standard_input_is_lines(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
    assert [entry.text for entry in entries("-")] == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match="the input is empty"):
        entries("-")


def test_standard_input_is_for_one_process(monkeypatch):
    """Each of several would read a part of it, and wait for the others."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="for one process"):
        entries("-")


def test_what_is_found_is_written_and_read_back():
    found = [Entry("k,1", "a.csv", 'a "b"\r\nc', 0.5), Entry("k2", "a.csv", "été", 0.25)]
    answers = [('say "hi", you', found), ("nothing", []), ("two", found[1:])]
    rows = list(csv.DictReader(io.StringIO("".join(hits_to_csv(answers)), newline="")))
    wanted = [(query, str(rank), one) for query, hits in answers for rank, one in enumerate(hits, 1)]
    assert [
        (row.pop("query"), row.pop("rank"), Entry(**row)._replace(score=float(row["score"]))) for row in rows
    ] == wanted
    records = [json.loads(line) for line in hits_to_json_lines(answers)]
    assert [(one["query"], [Entry(**hit) for hit in one["hits"]]) for one in records] == answers
