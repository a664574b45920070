"""Files of rows: a corpus and a table read the same cells from them, and refuse the same faults at the same places."""

import json
from collections.abc import Callable, Iterator
from functools import partial
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
from lmtool.data.files import READ_BYTES, detect_format_suffix
from lmtool.data.hub import download_dataset
from lmtool.data.rowfile import open_row_file
from lmtool.data.table import SkippedRowCounts, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.schema import choose_columns
from tests.support.examples import examples
from tests.support.tables import FORMATS, PACKERS, delimited, json_lines, json_list, parquet, parquet_of
from tests.support.texts import documents, prose

CELLS = ["First, with a comma", 'second, with "quotes" and é', "third\r\nlines\n\nand more", "", " spaces ", "fifth;"]
LONG_CELLS = [prose(READ_BYTES // 60, seed) for seed in range(5)]
MANY_CELLS = [f"{i} {cell}" for i in range(1200) for cell in CELLS]
BOM = b"\xef\xbb\xbf"


def corpus_cells(path: Path, column: str = "text") -> list[str]:
    return documents(open_corpus([str(path)], column=column, documents="auto").chunks())


def table_cells(path: Path) -> list[Any]:
    table = open_table(str(path))
    at = table.names.index("text")
    return [row.values[at] for row in table.rows()]


def shown(cells: list[Any]) -> list[Any]:
    """The cells that become documents of a corpus."""
    return [cell for cell in cells if cell and not cell.isspace()]


READABLE: dict[str, tuple[bytes, list[Any]]] = {
    **{f"a{ending}": (write(CELLS), CELLS) for ending, write in FORMATS.items()},
    "cr.csv": (delimited(CELLS, end="\r"), CELLS),
    "pipe.csv": (BOM + delimited(CELLS, "|"), CELLS),
    "bom.jsonl": (BOM + json_lines(CELLS), CELLS),
    "indented.json": (BOM + b" \n" + json_list(CELLS, 2) + b"\n", CELLS),
    "blank.csv": (b"\n\nid,text\n\n1,a\n , \n\n2,b", ["a", " ", "b"]),
    "spaced.csv": (b'id, text\n1, "a, b"\n2, c\n', ["a, b", "c"]),
    "one.csv": (b"text\none; two; three\nfour;five\n", ["one; two; three", "four;five"]),
    "null.jsonl": (b'{"text": "a"}\n\n{"text": null}\r\n{"text": "b", "more": 1}', ["a", None, "b"]),
    "null.json": (b'[{"text": "a"},\r\n{"text": null},{"text": "b", "more": {"x": [1]}}]', ["a", None, "b"]),
    "surrogate.jsonl": (b'{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude00"}\n', ["a\ufffd", "😀"]),
    "long.csv": (delimited(LONG_CELLS), LONG_CELLS),
    "long.json": (json_list(LONG_CELLS), LONG_CELLS),
    "many.csv": (delimited(MANY_CELLS), MANY_CELLS),
    "many.json": (json_list(MANY_CELLS, 1), MANY_CELLS),
}


@pytest.mark.parametrize("name", READABLE)
def test_a_corpus_and_a_table_hold_the_cells_of_any_format_packed_or_not(name: str, tmp_path: Path) -> None:
    content, cells = READABLE[name]
    for ending, pack in PACKERS.items():
        path = tmp_path / (name + ending)
        path.write_bytes(pack(content))
        assert table_cells(path) == cells
        assert corpus_cells(path) == shown(cells)


# For each name the content of the file, and where the fault is, after the path.
FAULTY: dict[str, tuple[bytes, str]] = {
    "unclosed.csv": (b'id,text\n1,a\n2,"b\n3,c\n', ":3, row 2, column 'text'"),
    "next.csv": (b'id,text\n1,"a\n2,"b"\n', ":2, row 1, column 'text'"),
    "header.csv": (b'id,"text\n1,a\n', ":1, the header, column 2"),
    "nameless.csv": (b",,\n1,2,3\n", ":1, the header"),
    "latin.csv": ("id,text\n1,é\n".encode("latin-1"), ":2"),
    "book.csv": (b"PK\x03\x04rest", ""),
    "broken.jsonl": (b'{"text": "a"}\n\n{"text": }\n', ":3, row 2"),
    "deep.jsonl": (b'{"text": "a"}\n' + b"[" * 100_000 + b"\n", ":2, row 2"),
    "list.jsonl": (b'{"text": "a"}\n["a"]\n', ":2, row 2"),
    "broken.json": (b'[{"text": "a"},\n{"text": }\n]', ":2"),
    "deep.json": (b'[{"text": "a"}, {"text": ' + b"[" * 100_000, ":1"),
    "cut.json": (json_list(CELLS)[:-2], ":1"),
    "followed.json": (json_list(CELLS) + b"\n[]", ":2"),
    "apart.json": (b'[{"text": "a"}\n{"text": "b"}]', ":2"),
    "mixed.json": (b'[{"text": "a"},\n"b"]', ":2"),
    "comma.json": (b'[{"text": "a"},\n]', ":2"),
    "damaged.parquet": (parquet([prose(200, seed) for seed in range(50)])[:-50], ""),
    "text.parquet": (b"id,text\n", ""),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_corpus_and_a_table_refuse_the_same_fault_at_the_same_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content, place = FAULTY[name]
    path.write_bytes(content)
    with pytest.raises(DataError) as of_corpus:
        corpus_cells(path)
    with pytest.raises(DataError) as of_table:
        table_cells(path)
    assert of_corpus.value.where == of_table.value.where == f"{path}{place}"
    assert of_corpus.value.what == of_table.value.what
    assert "--" not in of_corpus.value.fix
    assert len(of_table.value.lines()) == 3


def outcome(read: Callable[[Path], list[Any]], path: Path) -> list[Any]:
    """The rows, or the error and its place."""
    try:
        return read(path)
    except DataError as error:
        return [error.what, error.where]


@settings(max_examples=examples(150, 300), deadline=None)
@given(text=st.text(alphabet='a",\n\r é', max_size=30))
def test_hostile_text_is_read_alike(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(f"id,text\n0,a\n{text}\n".encode())
    assert outcome(corpus_cells, path) == outcome(lambda path: shown(table_cells(path)), path)


@pytest.mark.parametrize("before", ["", "\ufeff\n"])
def test_several_objects_on_lines_are_read_as_such_whatever_the_name_says(before: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(before + json_lines(CELLS).decode())
    assert table_cells(path) == CELLS
    assert detect_format_suffix(path) == ".jsonl"
    for content in '{"text": "a"}', "[1, 2]", '["text"]', "3":  # which may be anything, for a corpus a text
        path.write_text(content)
        assert detect_format_suffix(path) == ".txt"
        assert corpus_cells(path) == [content]
        with pytest.raises(DataError):
            open_table(str(path))


def test_rows_and_faults_of_a_list_are_at_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"text": "a"},\n\n{"text": "b",\n"text": "c"},\n{"text": "d"}]')
    with pytest.raises(DataError) as caught:
        table_cells(path)
    assert caught.value.where.startswith(f"{path}:4, row 2")
    skipped = SkippedRowCounts()
    rows = open_table(str(path)).rows(skipped)
    assert [(row.number, row.line, row.values) for row in rows] == [(1, 2, ("a",)), (3, 6, ("d",))]
    assert skipped.kinds == {"duplicate key": 1}
    path.write_text('[{"text": "a"},\n{"text":\n"b" "c"}]')
    with pytest.raises(DataError) as caught:
        table_cells(path)
    assert caught.value.where == f"{path}:3"


def test_a_list_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join(json.dumps({"text": text}) for text in [prose(100)] * 3000))
    rows = open_row_file(path, ".json", MAX_FIELD_CHARACTERS).read_rows_and_faults()
    assert len([*islice(rows, 1500)]) == 1500  # the end, which is missing, has not been read
    with pytest.raises(DataError):
        list(rows)
    path.write_text('[{"text": "' + "a" * 100_000)
    with pytest.raises(DataError):
        list(open_row_file(path, ".json", 1000).read_rows_and_faults())


@settings(max_examples=examples(100, 300), deadline=None)
@given(text=st.text(alphabet='[]{}",: a1\n', max_size=20))
def test_a_list_ends_where_python_ends_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
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


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b'{"text": "a"}\n{"text": 3}\n'), ("a.parquet", parquet_of({"text": [1, 2]}))]
)
def test_a_cell_that_is_not_text_is_refused_where_it_is(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as of_corpus:
        corpus_cells(path)
    table = open_table(str(path))
    with pytest.raises(DataError) as of_table:
        read_labelled_table(table, choose_columns(table, labelled=False))
    assert of_corpus.value.lines()[:2] == of_table.value.lines()[:2]


def test_a_missing_column_is_refused_alike_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "train.jsonl").write_bytes(json_lines(CELLS))
    errors = []

    def refused(read: Callable[[], object]) -> DataError:
        with pytest.raises(DataError) as caught:
            read()
        errors.append((caught.value.what, caught.value.fix.replace("--text-column", "--column")))
        return caught.value

    for ending, write in FORMATS.items():
        path = tmp_path / f"a{ending}"
        path.write_bytes(write(CELLS))
        assert str(path) in refused(partial(corpus_cells, path, "Texts")).where
    refused(partial(download_dataset, f"hf:{tmp_path / 'dataset'}", "Texts"))
    refused(partial(choose_columns, open_table(str(tmp_path / "a.csv")), Data(text_columns=("Texts",))))
    assert {fix for _, fix in errors} == {"did you mean --column text?"}
    assert len(set(errors)) == 1


def test_every_object_of_a_corpus_has_the_column(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 2000 + b'{"txt": "b"}\n')
    with pytest.raises(DataError) as caught:
        corpus_cells(path)
    assert caught.value.where == f"{path}:2001"
    assert table_cells(path)[-1] is None


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_cell_has_any_length_in_a_corpus_and_a_limit_in_a_table(ending: str, tmp_path: Path) -> None:
    text = "word " * (1 + MAX_FIELD_CHARACTERS // 5)
    path = tmp_path / f"a{ending}"
    path.write_bytes(FORMATS[ending](["a", text, "b"]))
    assert corpus_cells(path) == ["a", text, "b"]
    with pytest.raises(DataError):
        table_cells(path)


def test_a_corpus_takes_nul_and_duplicate_keys_of_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1, "id": 2, "text": "a\\u0000"}\n')
    assert corpus_cells(path) == ["a\0"]
    with pytest.raises(DataError):
        table_cells(path)


@pytest.mark.parametrize("line", ["a" * READ_BYTES, "some text, and more\n" * 1000])
def test_an_unclosed_quote_does_not_read_to_the_end(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few megabytes of .gz may be gigabytes of text."""

    def endless(path: Path, encoding: str | None, extent: object = None) -> Iterator[str]:
        yield 'id,text\n1,good\n2,"'
        for _ in range(100):
            yield line
        raise AssertionError("read on")

    monkeypatch.setattr("lmtool.data.files.read_text_blocks", endless)
    file = open_row_file(tmp_path / "a.csv", ".csv", 1 << 12, hints=DialectHints(quoted=True, sample=1 << 10))
    good, bad = islice(file.read_rows_and_faults(), 2)
    assert good == (2, ["1", "good"], None)
    assert bad[2] is not None
    assert (bad[0], bad[2].line) == (3, 3)


def test_values_that_python_cannot_read_from_parquet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    bad = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["ab", "cd"]).buffers()[:2], pa.py_buffer(b"ab\xff\xfe")])
    late = pa.array([2**31 - 1] * 2, pa.date32())
    for columns, only in (({"text": bad}, None), ({"text": bad}, "text"), ({"text": ["a", "b"], "day": late}, None)):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(DataError):
            list(open_row_file(path, ".parquet", MAX_FIELD_CHARACTERS).read_rows_and_faults(only))
