"""Reading tables: every format and dialect, and errors for bad rows."""

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.delimited import MAX_FIELD_CHARACTERS, Dialect, parse_records
from lmtool.data.files import READ_BYTES, iterate_lines, read_line_blocks
from lmtool.data.table import RowError, SkippedRows, Table, open_table
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from tests.errors import refuses
from tests.examples import examples

ROWS = [("Good, very good", "pos"), ('say "no"', "neg"), ("two\nlines é", "pos")]


def open_at(
    path: Path, content: str | bytes | None = None, field_limit: int = MAX_FIELD_CHARACTERS, **reading: Any
) -> Table:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table(str(path), Data(**reading), field_limit=field_limit)


def values(table: Table, skipped: SkippedRows | None = None) -> list[tuple[Any, ...]]:
    return [row.values for row in table.rows(skipped)]


def message(error: DataError) -> str:
    assert error.exit_code == 3
    assert len(error.lines()) == 3
    assert all(line.isprintable() and len(line) < 400 for line in error.lines())
    return "\n".join(error.lines())


def as_csv(delimiter: str = ",") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter).writerows([("text", "label"), *ROWS])
    return buffer.getvalue()


def contents() -> dict[str, bytes]:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}), parquet)
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    return {
        ".csv": as_csv().encode(),
        ".tsv": as_csv("\t").encode(),
        ".jsonl": lines.encode(),
        ".parquet": parquet.getvalue(),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_rows(ending: str, packed: bool, tmp_path: Path) -> None:
    content = contents()[ending]
    path = tmp_path / f"Table{ending.upper()}{'.gz' if packed else ''}"
    table = open_at(path, gzip.compress(content) if packed else content)
    assert table.names == ("text", "label")
    assert [row.values for row in table.rows()] == ROWS
    assert [row.number for row in table.rows()] == [1, 2, 3]
    assert table.n_rows == 3
    assert "3 rows, 2 columns" in table.describe()


def test_rows_know_their_lines(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", '\na,b\n\n"x\n\ny",1\n2,"3"\n\n \n4,5')
    assert [(row.number, row.line) for row in table.rows()] == [(1, 4), (2, 7), (3, 10)]
    table = open_at(tmp_path / "a.jsonl", '{"a": 1}\n\n{"b": 2}\n')
    assert [tuple(row) for row in table.rows()] == [(1, 1, (1, None)), (2, 3, (None, 2))]


def test_a_dataset_is_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n', encoding="utf-8")
    table = open_table(f"hf:{folder}")
    assert table.names == ("id", "text")
    assert values(table) == [(1, "a"), (2, "b")]


def test_a_dataset_names_its_classes_and_flattens_translations(tmp_path: Path) -> None:
    import datasets

    folder = tmp_path / "named"
    folder.mkdir()
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["x", "y"])),
            "translation": datasets.Translation(languages=("de", "en")),
        }
    )
    rows = {
        "label": [1, -1],
        "tags": [[0, 1], []],
        "translation": [{"de": "Haus", "en": "house"}, {"de": "Hund", "en": "dog"}],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / "train.parquet"))
    table = open_table(f"hf:{folder}")
    assert table.names == ("label", "tags", "de", "en")
    assert values(table) == [("good", ["x", "y"], "Haus", "house"), (None, [], "Hund", "dog")]


FIELDS = st.text(alphabet='ab",;\t| \n\ré', max_size=6)


@settings(max_examples=examples(120, 300), deadline=None)
@given(
    rows=st.lists(st.lists(FIELDS, min_size=2, max_size=4), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_written_tables_are_read_as_csv_reads_them(
    rows: list[list[str]], delimiter: str, quoting: Any, line_end: str
) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator=line_end).writerows(rows)
    agrees_with_csv(buffer.getvalue(), delimiter, skip=False)


@settings(max_examples=examples(250, 500), deadline=None)
@given(text=st.text(alphabet='a",,""\n\r ', max_size=24), skip=st.booleans())
def test_hostile_text_is_read_as_csv_reads_it(text: str, skip: bool) -> None:
    agrees_with_csv(text, ",", skip)


def agrees_with_csv(text: str, delimiter: str, skip: bool) -> None:
    """The same rows for any blocks of the text; and a fault exactly where csv in strict mode raises."""
    lines = list(iterate_lines(text))
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skip)
    theirs = []
    try:
        theirs += [row for row in reader if row]
        failed = False
    except csv.Error:
        failed = True
    dialect = Dialect(delimiter, quoted=True, skip_space=skip)
    for stretches in [text], lines:
        ours = list(parse_records(stretches, dialect))
        assert failed == any(fault for _, _, fault in ours)
        good = [fields for _, fields, _ in ours]
        assert good[: len(theirs)] == theirs
        assert failed or len(good) == len(theirs)
    # Text with NUL is read without the csv module.
    alone = list(parse_records(["\0\n" + text], dialect))[1:]
    assert [(line - 1, fields, fault and fault.kind) for line, fields, fault in alone] == [
        (line, fields, fault and fault.kind) for line, fields, fault in ours
    ]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(alphabet='ab", \né', min_size=1, max_size=8), st.sampled_from(["pos", "neg"])), min_size=1
    )
)
def test_a_written_file_is_opened_without_being_told_anything(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert values(open_at(path)) == rows


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_lines_across_blocks(ends: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{'x' * (READ_BYTES // 7 + i)}é{ends}" for i in range(40)]
    path.write_bytes("".join(lines).encode())
    stretches = list(read_line_blocks(path, None, 1 << 20))
    assert [line for stretch in stretches for line in iterate_lines(stretch)] == lines


@pytest.mark.parametrize(
    ("name", "content", "delimiter", "quoted"),
    [
        ("a.csv", "text,label\na b,x\n", ",", True),
        ("a.csv", "text;label\na, b, c;x\nd, e;y\n", ";", True),
        ("a.csv", '"text, raw";label\n"a;b";c\n', ";", True),
        ("a.csv", "text|label\na,b;c|x\n", "|", True),
        ("a.csv", "text\tlabel\na, b\tx\n", "\t", False),
        ("a.csv", "score;text\n3,5;good\n4,5;better\n", ";", True),
        ("a.csv", 'text\n"a, b"\nhello\n', ",", True),
        # A header with two candidate delimiters: the rows decide.
        ("a.csv", "id,a;b\n1,x\n2,y\n3,z;z\n", ",", True),
        ("a.csv", "id,a;b\nx;y\nx,x;y\nz;z\n", ";", True),
        ("a.tsv", "text,label\na,x\n", ",", True),
        # Quotes in tab-separated text are text ...
        ("a.tsv", 'text\tlabel\n"Hello" he said\tx\n', "\t", False),
        ("a.tsv", 'text\tlabel\n"Hello."\tx\n"Bye."\ty\n', "\t", False),
        ("a.tsv", 'text\tlabel\n"Go\tx\nmiddle\ty\nhome"\tz\n', "\t", False),
        ("a.tsv", 'text\tlabel\n5" disk\tx\n"a ""b"""\ty\n', "\t", False),
        # ... unless they are clearly used.
        ("a.tsv", 'text\tlabel\n"say ""hi"""\tx\nplain\ty\n', "\t", True),
        ("a.tsv", 'text\tlabel\n"two\tfields"\tx\nplain\ty\n', "\t", True),
        ("a.tsv", 'text\tlabel\n"two\nlines"\tx\nplain\ty\n', "\t", True),
        ("a.tsv", '"text"\t"label"\n"Hello."\t"x"\n"Bye."\t"y"\n', "\t", True),
    ],
)
def test_delimiter_and_quoting_are_told(name: str, content: str, delimiter: str, quoted: bool, tmp_path: Path) -> None:
    assert open_at(tmp_path / name, content).file.dialect == Dialect(delimiter, quoted)


def test_spaces_after_delimiters(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", 'text, label\n"a, b", "x"\n c, "y"\n')
    assert values(table) == [("a, b", "x"), ("c", "y")]
    table = open_at(tmp_path / "b.csv", 'text,label\n" ""a""",x\n"b, ""c""",y\n d,z\n')
    assert values(table) == [(' "a"', "x"), ('b, "c"', "y"), (" d", "z")]


def test_what_is_asked_for_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table = open_at(path, "a;b,c\nx;y,z\n", delimiter=";")
    assert table.names == ("a", "b,c")
    assert values(table) == [("x", "y,z")]
    assert "delimiter semicolon, quotes enclose fields, UTF-8" in table.describe()
    for wrong in (";;", '"', "\n", ""):
        with pytest.raises(UsageError, match="cannot be a delimiter"):
            open_at(path, delimiter=wrong)


def test_the_last_rows_of_the_sample_are_not_taken_for_faults(tmp_path: Path) -> None:
    """The sample from which the dialect is inferred may end inside a quoted field."""
    rows = [('said "x",\t\t' + "word " * 40 + f"\n{i}", "a") for i in range(9000)]
    path = tmp_path / "a.tsv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([("text", "label"), *rows])
    assert values(open_at(path)) == rows


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
def test_encodings(encoding: str | None, tmp_path: Path) -> None:
    content = "text,label\r\nnaïve café,ä\r\n".encode(encoding or "utf-8")
    table = open_at(tmp_path / "a.csv", content, encoding=encoding)
    assert table.names == ("text", "label")
    assert values(table) == [("naïve café", "ä")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_an_encoding_is_inferred_from_all_of_the_text(encoding: str, ending: str, tmp_path: Path) -> None:
    """The usual one is only that of text which is not valid otherwise, though its first letters may be."""
    content = ("text,label\n" + "plain,x\n" * 30_000 + "naïve café,ä\n").encode(encoding)
    (tmp_path / f"a{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    table = open_table(str(tmp_path / f"a{ending}"), fallback_encoding="cp1252")
    assert table.names == ("text", "label")
    assert values(table)[-1] == ("naïve café", "ä")
    assert ("cp1252" in table.describe()) == (encoding == "cp1252")


def test_utf_16_is_not_read_as_utf_8(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the text is UTF-16") as caught:
        open_at(tmp_path / "a.csv", "text\na\n".encode("utf-16"), encoding="utf-8")
    assert caught.value.fix == "omit --encoding"


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    for name, content in ("a.csv", "text,label\na,b\n"), ("a.jsonl", '{"text": "a", "label": "b"}\n'):
        table = open_at(tmp_path / name, b"\xef\xbb\xbf" + content.encode())
        assert table.names == ("text", "label")
        assert values(table) == [("a", "b")]


def test_blanks_around_names_and_columns_without_one(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", " text ,,label,\na,b,c,d\n")
    assert table.names == ("text", "column 2", "label", "column 4")
    assert table.file.header == (" text ", "", "label", "")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.csv", b"", ["the table is empty: not even a header"]),
        ("a.csv", b"\n\n", ["the table is empty"]),
        ("a.jsonl", b" \n", ["the table is empty"]),
        ("a.csv", b"text,label\n\n", ["a header and no rows", "'text', 'label'"]),
        ("a.csv", b",,\n,,\n", ["the header names no column", "a.csv:1"]),
        ("a.csv", b"text,label,text\na,b,c\n", ["the header names 'text' twice, in columns 1 and 3"]),
        ("a.csv", b"text, text \na,b\n", ["'text' twice"]),
        ("a.csv", b'text,"label\na,b\n', ["a quote opens here and is never closed", "a.csv:1, the header, column 2"]),
        ("a.csv", b"te\0xt,label\na,b\n", ["a NUL byte", "a.csv:1, the header, column 1", "utf-16"]),
        ("a.csv", "text\nä\n".encode("cp1252"), ["not valid UTF-8: byte 0xe4", "a.csv:2", "--encoding cp1252"]),
        ("a.csv", "text\nä".encode()[:-1], ["not valid UTF-8", "a.csv:2"]),
        ("a.csv", b"PK\x03\x04rest", ["a workbook or archive", "save the sheet as CSV"]),
        ("a.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), ["gzip, not text", ".gz"]),
        ("a.xlsx", b"PK\x03\x04rest", ["not a table by its name", "save the sheet as CSV"]),
        ("a.json", b"[]", ["the table is empty"]),
        ("a.json", b"[1]", ["nor the JSON of SQuAD"]),
        ("a.txt", b"text\n", ["not a table by its name", ".csv, .tsv, .jsonl, .parquet"]),
        ("a.parquet", b"text,label\n", ["not a Parquet file"]),
        ("a.csv.gz", b"text,label\n", ["gzip file is damaged"]),
        ("a.jsonl", b"{}\n{}\n", ["the objects have no keys"]),
        ("a.jsonl", b"[1]\n", ["not a JSON object", "a.jsonl:1, row 1"]),
    ],
)
def test_what_is_no_table(name: str, content: bytes, found: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_at(tmp_path / name, content)
    for part in found:
        assert part in message(caught.value)


def test_a_parquet_table_without_rows_or_with_a_name_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="a header and no rows"):
        open_at(path)
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    with pytest.raises(DataError, match="twice"):
        open_at(path)


def test_no_file_a_folder_and_several(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "reviews2.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with refuses("file_not_found") as caught:
        open_at(tmp_path / "review.csv")
    assert "did you mean" in message(caught.value)
    with pytest.raises(DataError, match="a folder, not a table"):
        open_at(tmp_path)
    with pytest.raises(DataError, match="2 files, not one table"):
        open_at(tmp_path / "*.csv")


def test_no_such_encoding(tmp_path: Path) -> None:
    for wrong in ("utf-9", "base64"):
        with pytest.raises(UsageError, match=f"there is no encoding '{wrong}'"):
            open_at(tmp_path / "a.csv", "a,b\n1,2\n", encoding=wrong)


FAULTS = [
    # name, content, kind, what and where, good rows when bad ones are skipped
    (
        "a.csv",
        "t,l\na,b,c\nd,e\n",
        "ragged row",
        ["the row has 3 fields, the header 2", "a.csv:2, row 1"],
        [("d", "e")],
    ),
    ("a.csv", "t,l\na,b\nc\n", "ragged row", ["the row has 1 field, the", "a.csv:3, row 2, column 'l'"], [("a", "b")]),
    ("a.tsv", "t\tl\na\tb\tc\nd\te\n", "ragged row", ["take tabs out of fields"], [("d", "e")]),
    (
        "a.csv",
        't,l\na,b\nc,"d\ne,f\ng,h\n',
        "unclosed quote",
        ["a quote opens here and is never closed", "a.csv:3, row 2, column 'l'"],
        [("a", "b"), ("e", "f"), ("g", "h")],
    ),
    (
        "a.csv",
        't,l\n"x\ny","d\ne,f\n"g",h\n',
        "unclosed quote",
        ["a quote opens here and is not closed before the next one, on line 5", "a.csv:3, row 1, column 'l'"],
        [("e", "f"), ("g", "h")],
    ),
    (
        "a.csv",
        't,l\n"a "b" c",d\ne,f\n',
        "text after a closing quote",
        ["continues after its closing quote", "a.csv:2, row 1, column 't'", '""'],
        [("e", "f")],
    ),
    ("a.csv", "t,l\na,b\nc,d\0\ne,f\n", "NUL byte", ["a.csv:3, row 2, column 'l'"], [("a", "b"), ("e", "f")]),
    ("a.csv", 't,l\n"a\n\0",b\ne,f\n', "NUL byte", ["a NUL byte", "a.csv:3, row 1, column 't'"], [("e", "f")]),
    ("a.csv", f"t,l\na,{'b' * 101}\nc,d\n", "field too long", ["more than 100 ch", "row 1, column 'l'"], [("c", "d")]),
    (
        "a.csv",
        f't,l\n"{"b" * 101}",a\nc,d\n',
        "field too long",
        ["more than 100 ch", "row 1, column 't'"],
        [("c", "d")],
    ),
    ("a.csv", f"t,l\n{'b,' * 900}\nc,d\n", "field too long", ["the line has 1,600 characters or more"], [("c", "d")]),
    ("a.csv", f't,l\n"{"b" * 99}\n{"b," * 900}",a\nc,d\n', "unclosed quote", ["not closed within 100"], [("c", "d")]),
    (
        "a.jsonl",
        f'{{"t": 1, "l": "{"b" * 101}"}}\n{{"t": 2}}\n',
        "field too long",
        ["a.jsonl:1, row 1, column 'l'"],
        [(2, None)],
    ),
    ("a.jsonl", f'{{"t": 1, "l": 2}}\n{{"t": {[1] * 900}}}\n', "field too long", ["the line has 1,600"], [(1, 2)]),
    ("a.jsonl", '{"t": "a\\u0000", "l": 1}\n{"t": 2}\n', "NUL byte", ["a.jsonl:1, row 1, column 't'"], [(2, None)]),
    ("a.jsonl", '{"t": 1}\n{"t": }\n', "not JSON", ["not JSON: Expecting value", "a.jsonl:2, row 2"], [(1,)]),
    ("a.jsonl", '{"t": 1}\n"t"\n', "not JSON", ["not a JSON object", "a.jsonl:2, row 2"], [(1,)]),
    ("a.jsonl", '{"t": 1}\n{"t": 1, "t": 2}\n', "duplicate key", ["'t' occurs twice", "a.jsonl:2, row 2"], [(1,)]),
]


@pytest.mark.parametrize(("name", "content", "kind", "found", "good"), FAULTS)
def test_bad_rows_are_named_or_left_out(
    name: str, content: str, kind: str, found: list[str], good: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    table = open_at(tmp_path / name, content, field_limit=100)
    with pytest.raises(RowError) as caught:
        list(table.rows())
    assert caught.value.kind == kind
    for part in [*found, "--skip-bad-rows"]:
        assert part in message(caught.value)
    skipped = SkippedRows()
    rows = [row for row in values(table, skipped) if row[0] not in ("", "b" * 99)]
    assert rows == good
    assert skipped.kinds[kind] == 1
    assert kind in str(skipped)
    assert table.n_rows == skipped.count + len(values(table, SkippedRows()))


def test_row_numbers_count_bad_rows(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", "t,l\na,b\nc\nd,e\nf,g,h\ni,j\n")
    assert [row.number for row in table.rows(SkippedRows())] == [1, 3, 5]


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A file of 20 MB: rows, one line without an end, and a quote that is never closed."""
    path = tmp_path / "a.csv"
    row = "some words of a sentence, " * 4
    for content in (f'"{row}",label\n' * 180_000, "x" * 20_000_000, '"' + "x,y\n" * 5_000_000):
        path.write_text("text,label\n" + content, encoding="utf-8")
        table = open_at(path, field_limit=10_000)
        tracemalloc.start()
        skipped = SkippedRows()
        for count, _ in enumerate(table.rows(skipped)):
            if count > 20_000:
                break
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000_000
