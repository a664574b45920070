"""Files of rows: a corpus and a table read them alike, with the same errors."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.corpus import open_corpus
from lmtool.data.delimited import MAX_FIELD_CHARACTERS, DialectHints
from lmtool.data.files import READ_BYTES, infer_format
from lmtool.data.hub import download_dataset
from lmtool.data.rowfile import open_row_file
from lmtool.data.table import SkippedRows, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.schema import choose_columns
from tests.data.test_corpus import documents
from tests.data.texts import prose
from tests.examples import examples

CELLS = ["First, with a comma", 'second, with "quotes" and é', "third\r\nlines\n\nand more", "", " spaces ", "fifth;"]


def corpus_cells(path: Path, column: str = "text") -> list[str]:
    return documents(list(open_corpus([str(path)], column=column, documents="auto").chunks()))


def table_cells(path: Path, **options: Any) -> list[Any]:
    table = open_table(str(path), Data(**options))
    at = table.names.index("text")
    return [row.values[at] for row in table.rows()]


def shown(cells: list[Any]) -> list[Any]:
    """The cells that become documents of a corpus."""
    return [cell for cell in cells if cell and not cell.isspace()]


def delimited(cells: list[str], delimiter: str = ",", end: str = "\n") -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator=end).writerows([["id", "text"], *enumerate(cells)])
    return buffer.getvalue().encode()


def json_lines(cells: list[str]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": cell}).encode() + b"\n" for i, cell in enumerate(cells))


def json_list(cells: list[str], indent: int | None = None) -> bytes:
    return json.dumps([{"id": i, "text": cell} for i, cell in enumerate(cells)], indent=indent).encode()


def parquet(cells: list[str]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(cells)), "text": cells}), buffer)
    return buffer.getvalue()


FILES = {
    "a.csv": delimited(CELLS),
    "crlf.csv": delimited(CELLS, end="\r\n"),
    "cr.csv": delimited(CELLS, end="\r"),
    "semicolon.csv": delimited(CELLS, ";"),
    "tab.csv": delimited(CELLS, "\t"),
    "pipe.csv": delimited(CELLS, "|"),
    "bom.csv": b"\xef\xbb\xbf" + delimited(CELLS),
    "blank.csv": b"\n\nid,text\n\n1,a\n , \n\n2,b",
    "spaced.csv": b'id, text\n1, "a, b"\n2, c\n',
    "null.jsonl": b'{"text": "a"}\n\n{"text": null}\r\n{"text": "b", "more": 1}',
    "surrogate.jsonl": b'{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude00"}\n',
    "a.jsonl": json_lines(CELLS),
    "bom.jsonl": b"\xef\xbb\xbf" + json_lines(CELLS),
    "a.json": json_list(CELLS),
    "indented.json": b"\xef\xbb\xbf \n" + json_list(CELLS, 2) + b"\n",
    "null.json": b'[{"text": "a"},\r\n{"text": null},{"text": "b", "more": {"x": [1, 2]}}]',
    "surrogate.json": b'[{"text": "a\\ud83d"}, {"text": "\\ud83d\\ude00"}]',
    "blocks.json": json_list([prose(READ_BYTES // 60, seed) for seed in range(5)]),
    "many.json": json_list([f"{i} {cell}" for i in range(3000) for cell in CELLS], 1),
    "a.parquet": parquet(CELLS),
    "blocks.csv": delimited([prose(READ_BYTES // 60, seed) for seed in range(5)]),
    "blocks.jsonl": json_lines([prose(READ_BYTES // 60, seed) for seed in range(5)]),
    "many.csv": delimited([f"{i} {cell}" for i in range(3000) for cell in CELLS]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_corpus_and_a_table_hold_the_same_cells(name: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(FILES[name]) if packed else FILES[name])
    cells = table_cells(path)
    assert len(shown(cells)) > 1
    assert corpus_cells(path) == shown(cells)


UNREADABLE = {
    "ragged.csv": b"id,text\n1,a\n\n2,b,c\n",
    "short.csv": b"id,text\n1\n",
    "unclosed.csv": b'id,text\n1,a\n2,"b\n3,c\n',
    "next.csv": b'id,text\n1,"a\n2,"b"\n',
    "stray.csv": b'id,text\n1,"a "b" c"\n',
    "header.csv": b'id,"text\n1,a\n',
    "nameless.csv": b",,\n1,2,3\n",
    "latin.csv": "id,text\n1,é\n".encode("latin-1"),
    "book.csv": b"PK\x03\x04rest",
    "packed.csv": gzip.compress(b"id,text\n1,a\n"),
    "damaged.csv.gz": gzip.compress(delimited([prose(500)]))[:-20],
    "broken.jsonl": b'{"text": "a"}\n\n{"text": }\n',
    "deep.jsonl": b'{"text": "a"}\n' + b"[" * 100_000 + b"\n",
    "list.jsonl": b'{"text": "a"}\n["a"]\n',
    "broken.json": b'[{"text": "a"},\n{"text": }\n]',
    "deep.json": b'[{"text": "a"}, {"text": ' + b"[" * 100_000,
    "cut.json": json_list(CELLS)[:-2],
    "open.json": json_list(CELLS)[:-1],
    "followed.json": json_list(CELLS) + b"\n[]",
    "apart.json": b'[{"text": "a"}\n{"text": "b"}]',
    "mixed.json": b'[{"text": "a"},\n"b"]',
    "comma.json": b'[{"text": "a"},\n]',
    "damaged.parquet": parquet(CELLS)[:-50],
    "text.parquet": b"id,text\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_same_fault_is_told_in_the_same_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(DataError) as of_corpus:
        corpus_cells(path)
    with pytest.raises(DataError) as of_table:
        table_cells(path)
    assert of_corpus.value.what == of_table.value.what
    assert of_corpus.value.where == of_table.value.where
    assert "--" not in of_corpus.value.fix
    assert of_table.value.fix.startswith(of_corpus.value.fix) or "--encoding" in of_table.value.fix


@settings(max_examples=examples(150, 300), deadline=None)
@given(text=st.text(alphabet='a",\n\r é', max_size=30))
def test_hostile_text_is_read_alike(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(f"id,text\n0,a\n{text}\n".encode())
    assert outcome(corpus_cells, path) == outcome(lambda path: shown(table_cells(path)), path)


def outcome(read: Callable[[Path], list[Any]], path: Path) -> list[Any]:
    """The rows, or the error and its place."""
    try:
        return read(path)
    except DataError as error:
        return [error.what, error.where]


@pytest.mark.parametrize("before", ["", "\ufeff\n"])
def test_objects_on_lines_are_read_so_whatever_the_name_says(before: str, tmp_path: Path) -> None:
    """A file of one line may be anything."""
    lines = [json.dumps({"text": cell}) for cell in CELLS]
    path = tmp_path / "a.json"
    path.write_text(before + "\n".join(lines) + "\n", encoding="utf-8")
    table = open_table(str(path))
    assert [row.values[0] for row in table.rows()] == CELLS
    assert infer_format(path) == ".jsonl"
    path.write_text(lines[0])
    assert infer_format(path) == ".txt"
    with pytest.raises(DataError):
        open_table(str(path))


def test_a_list_of_objects_is_read_as_its_lines_are(tmp_path: Path) -> None:
    rows = [{"instruction": f"Add {i} and {i}.", "input": "", "output": str(2 * i)} for i in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    lines, listed = open_table(str(tmp_path / "a.jsonl")), open_table(str(tmp_path / "a.json"))
    assert listed.names == lines.names
    assert [(row.number, row.values) for row in listed.rows()] == [(row.number, row.values) for row in lines.rows()]
    assert choose_columns(listed, Data()) == choose_columns(lines, Data())
    assert [row.line for row in listed.rows()] == [2 + 5 * i for i in range(9)]


def test_faults_of_a_list_are_at_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"text": "a"},\n\n{"text": "b",\n"text": "c"},\n{"text": "d"}]')
    with pytest.raises(DataError, match="twice") as caught:
        table_cells(path)
    assert caught.value.where.startswith(f"{path}:4, row 2")
    skipped = SkippedRows()
    assert [row.values for row in open_table(str(path)).rows(skipped)] == [("a",), ("d",)]
    assert skipped.kinds == {"duplicate key": 1}
    path.write_text('[{"text": "a"},\n{"text":\n"b" "c"}]')
    with pytest.raises(DataError) as caught:
        table_cells(path)
    assert caught.value.where == f"{path}:3"


def test_a_list_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" + ",".join(json.dumps({"text": text}) for text in [prose(100)] * 3000))
    rows = open_row_file(path, ".json", MAX_FIELD_CHARACTERS).read_records()
    assert len([*islice(rows, 1500)]) == 1500  # the end, which is missing, has not been read
    with pytest.raises(DataError, match="missing"):
        list(rows)
    path.write_text('[{"text": "' + "a" * 100_000)
    with pytest.raises(DataError, match="not JSON"):
        list(open_row_file(path, ".json", 1000).read_records())


@settings(max_examples=examples(100, 300), deadline=None)
@given(text=st.text(alphabet='[]{}",: a1\n', max_size=20))
def test_what_follows_in_a_list_is_read_as_json_does(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text('[{"text": "b"}' + text)
    try:
        rows = json.loads(path.read_text())
        expected = [row["text"] for row in rows] if all(isinstance(row.get("text"), str) for row in rows) else None
    except (ValueError, AttributeError):
        expected = None
    if expected is not None:
        assert table_cells(path) == expected
    else:
        with pytest.raises(DataError):
            corpus_cells(path)


def test_json_that_is_no_list_of_objects_is_text_of_a_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in '{"text": "a"}', "[1, 2]", '["text"]', "3":
        path.write_text(content)
        assert corpus_cells(path) == [content]


def test_a_cell_that_is_not_text(tmp_path: Path) -> None:
    numbers = io.BytesIO()
    pq.write_table(pa.table({"text": [1, 2]}), numbers)
    for name, content in ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n'), ("a.parquet", numbers.getvalue()):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match="the column holds int, not text") as of_corpus:
            corpus_cells(path)
        table = open_table(str(path))
        with pytest.raises(DataError) as of_table:
            read_labelled_table(table, choose_columns(table, labelled=False))
        assert of_corpus.value.what == of_table.value.what
        assert of_corpus.value.where == of_table.value.where


def test_a_missing_column_is_told_in_one_way(tmp_path: Path) -> None:
    errors = []
    for name in "a.csv", "a.jsonl", "a.parquet":
        path = tmp_path / name
        path.write_bytes(FILES[name])
        with pytest.raises(DataError) as caught:
            corpus_cells(path, column="Texts")
        assert str(path) in caught.value.where
        errors.append((caught.value.what, caught.value.fix))
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(FILES["a.jsonl"])
    with pytest.raises(DataError) as caught:
        download_dataset(f"hf:{folder}", "Texts")
    errors.append((caught.value.what, caught.value.fix))
    assert set(errors) == {("no column 'Texts'; found 'id', 'text'", "did you mean --column text?")}
    with pytest.raises(DataError) as caught:
        choose_columns(open_table(str(tmp_path / "a.csv")), Data(text_columns=["Texts"]))
    assert (caught.value.what, caught.value.fix) == (errors[0][0], "did you mean --text-column text?")


def test_every_object_of_a_corpus_has_the_column(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 2000 + b'{"txt": "b"}\n')
    with pytest.raises(DataError, match="no column 'text'; found 'txt'") as caught:
        corpus_cells(path)
    assert caught.value.where == f"{path}:2001"
    assert table_cells(path)[-1] is None


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_cell_of_a_corpus_has_any_length(ending: str, quoted: bool, tmp_path: Path) -> None:
    cells = [
        "a",
        (prose(30_000) if quoted else "word ") * (1 + MAX_FIELD_CHARACTERS // (100_000 if quoted else 5)),
        "b",
    ]
    assert len(cells[1]) > MAX_FIELD_CHARACTERS
    path = tmp_path / f"a{ending}"
    path.write_bytes({".csv": delimited, ".jsonl": json_lines, ".parquet": parquet}[ending](cells))
    assert corpus_cells(path) == cells
    with pytest.raises(DataError, match="the field has more than 1,048,576 characters"):
        table_cells(path)


def test_what_a_corpus_takes_and_a_table_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1, "id": 2, "text": "a\\u0000"}\n')
    assert corpus_cells(path) == ["a\0"]
    with pytest.raises(DataError, match="occurs twice"):
        table_cells(path)


@pytest.mark.parametrize("line", ["a" * READ_BYTES, "some text, and more\n" * 1000])
def test_an_unclosed_quote_does_not_read_on_for_ever(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few megabytes of .gz may be gigabytes of text."""
    limit = 1 << 12

    def endless(path: Path, encoding: str | None, extent: object = None) -> Iterator[str]:
        yield 'id,text\n1,good\n2,"'
        for _ in range(100):
            yield line
        raise AssertionError("read on")

    monkeypatch.setattr("lmtool.data.files.read_text_blocks", endless)
    file = open_row_file(tmp_path / "a.csv", ".csv", limit, hints=DialectHints(quoted=True, sample=1 << 10))
    good, bad = islice(file.read_records(), 2)
    assert good == (2, ["1", "good"], None)
    assert bad[2] is not None
    assert (bad[0], bad[2].line) == (3, 3)


@pytest.mark.parametrize("only", [None, "text"])
def test_parquet_with_text_that_is_not_utf_8(only: str | None, tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["ab", "cd"]).buffers()[:2], pa.py_buffer(b"ab\xff\xfe")])
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="not valid UTF-8"):
        list(open_row_file(tmp_path / "a.parquet", ".parquet", MAX_FIELD_CHARACTERS).read_records(only))


def test_parquet_with_a_date_beyond_python(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "day": pa.array([2**31 - 1], pa.date32())}), tmp_path / "a.parquet")
    with pytest.raises(DataError):
        list(open_row_file(tmp_path / "a.parquet", ".parquet", MAX_FIELD_CHARACTERS).read_records())
