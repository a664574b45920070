"""Reading tables, annotated text among them: dialects, encodings, and faults of rows; see also test_rowfile.py."""

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.delimited import MAX_FIELD_CHARACTERS, Dialect, parse_records
from lmtool.data.files import iterate_lines
from lmtool.data.table import RowError, SkippedRowCounts, Table, format_csv_or_conll_rows, open_table
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from tests.support.errors import refuses
from tests.support.examples import examples
from tests.support.tables import FORMATS, parquet_of


def open_at(path: Path, content: str | bytes, field_limit: int = MAX_FIELD_CHARACTERS, **reading: Any) -> Table:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table(str(path), Data(**reading), field_limit=field_limit)


def values(table: Table, skipped: SkippedRowCounts | None = None) -> list[tuple[Any, ...]]:
    return [row.values for row in table.rows(skipped)]


def place(error: DataError) -> str:
    """Where an error of three printable lines is, without the path of its file."""
    assert len(error.lines()) == 3
    assert all(line.isprintable() and len(line) < 400 for line in error.lines())
    return error.where.partition("/a.")[2].partition(":")[2]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_table_knows_its_columns_and_numbers_of_rows(ending: str, tmp_path: Path) -> None:
    table = open_at(tmp_path / f"Table{ending.upper()}", FORMATS[ending](["one", "two", "three"]))
    assert table.names == ("id", "text")
    assert [row.number for row in table.rows()] == [1, 2, 3]
    assert "3 rows, 2 columns" in table.describe()


def test_a_dataset_names_its_classes_and_flattens_translations(tmp_path: Path) -> None:
    import datasets

    label, tag = datasets.ClassLabel(names=["bad", "good"]), datasets.ClassLabel(names=["x", "y"])
    pair = datasets.Translation(languages=("de", "en"))
    features = datasets.Features({"label": label, "tags": datasets.Sequence(tag), "translation": pair})
    translations = [{"de": "Haus", "en": "house"}, {"de": "Hund", "en": "dog"}]
    rows = {"label": [1, -1], "tags": [[0, 1], []], "translation": translations}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "named" / "train.parquet"))
    table = open_table(f"hf:{tmp_path / 'named'}")
    assert table.names == ("label", "tags", "de", "en")
    assert values(table) == [("good", ["x", "y"], "Haus", "house"), (None, [], "Hund", "dog")]


@settings(max_examples=examples(300, 600), deadline=None)
@given(st.text(alphabet='a",,""\n\r \t', max_size=24), st.sampled_from(",;\t|"), st.booleans())
def test_any_text_is_read_as_csv_reads_it(text: str, delimiter: str, skip: bool) -> None:
    """The same rows for any blocks of the text; and a fault exactly where csv in strict mode raises."""
    text = text.replace(",", delimiter)
    lines = list(iterate_lines(text))
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skip)
    theirs: list[list[str]] = []
    failed = False
    try:
        theirs.extend(row for row in reader if row)
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
    assert [((line or 0) - 1, fields, fault and fault.kind) for line, fields, fault in alone] == [
        (line, fields, fault and fault.kind) for line, fields, fault in ours
    ]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(alphabet='ab", \né', min_size=1, max_size=8), st.sampled_from(["pos", "neg"])), min_size=1
    )
)
def test_the_dialect_of_a_written_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("text", "label"), *rows])
    assert values(open_at(tmp_path_factory.mktemp("csv") / "a.csv", buffer.getvalue())) == rows


@pytest.mark.parametrize(
    ("name", "content", "delimiter", "quoted"),
    [
        ("a.csv", "text,label\na b,x\n", ",", True),
        ("a.csv", "text;label\na, b, c;x\nd, e;y\n", ";", True),
        ("a.csv", '"text, raw";label\n"a;b";c\n', ";", True),
        ("a.csv", 'text\n"a, b"\nhello\n', ",", True),
        # A header with two candidate delimiters: the rows decide.
        ("a.csv", "id,a;b\n1,x\n2,y\n3,z;z\n", ",", True),
        ("a.csv", "id,a;b\nx;y\nx,x;y\nz;z\n", ";", True),
        ("a.tsv", "text,label\na,x\n", ",", True),
        # Quotes in tab-separated text are text ...
        ("a.tsv", 'text\tlabel\n"Hello" he said\tx\n', "\t", False),
        ("a.tsv", 'text\tlabel\n"Go\tx\nmiddle\ty\nhome"\tz\n', "\t", False),
        ("a.tsv", 'text\tlabel\n5" disk\tx\n"a ""b"""\ty\n', "\t", False),
        # ... unless they are clearly used.
        ("a.tsv", 'text\tlabel\n"say ""hi"""\tx\nplain\ty\n', "\t", True),
        ("a.tsv", 'text\tlabel\n"two\tfields"\tx\nplain\ty\n', "\t", True),
        ("a.tsv", '"text"\t"label"\n"Hello."\t"x"\n"Bye."\t"y"\n', "\t", True),
    ],
)
def test_delimiter_and_quoting_are_inferred(
    name: str, content: str, delimiter: str, quoted: bool, tmp_path: Path
) -> None:
    assert open_at(tmp_path / name, content).file.dialect == Dialect(delimiter, quoted)  # type: ignore[attr-defined]


def test_spaces_after_delimiters_are_dropped_where_quotes_follow_them(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", 'text, label\n"a, b", "x"\n c, "y"\n')
    assert values(table) == [("a, b", "x"), ("c", "y")]
    table = open_at(tmp_path / "b.csv", 'text,label\n" ""a""",x\n"b, ""c""",y\n d,z\n')
    assert values(table) == [(' "a"', "x"), ('b, "c"', "y"), (" d", "z")]


def test_a_given_delimiter_is_not_inferred(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", "a;b,c\nx;y,z\n", delimiter=";")
    assert table.names == ("a", "b,c")
    assert values(table) == [("x", "y,z")]
    for wrong in (";;", '"', ""):
        with refuses("usage"):
            open_at(tmp_path / "a.csv", "a;b,c\nx;y,z\n", delimiter=wrong)


def test_a_sample_may_end_inside_a_quoted_field(tmp_path: Path) -> None:
    rows = [('said "x",\t\t' + "word " * 40 + f"\n{i}", "a") for i in range(9000)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter="\t").writerows([("text", "label"), *rows])
    assert values(open_at(tmp_path / "a.tsv", buffer.getvalue())) == rows


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "utf-16-le"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_an_encoding_is_given_or_inferred_from_all_of_the_text(encoding: str, ending: str, tmp_path: Path) -> None:
    """The fallback is only that of text which is not valid otherwise, though its first letters may be."""
    content = ("text,label\n" + "plain,x\n" * 30_000 + "naïve café,ä\n").encode(encoding)
    path = tmp_path / f"a{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    tables = [open_table(str(path), Data(encoding=encoding))]
    if encoding != "utf-16-le":
        tables.append(open_table(str(path), fallback_encoding="cp1252"))
        assert ("cp1252" in tables[1].describe()) == (encoding == "cp1252")
    for table in tables:
        assert table.names == ("text", "label")
        assert values(table)[-1] == ("naïve café", "ä")


@pytest.mark.parametrize("encoding", ["utf-9", "base64", "utf-8"])
def test_an_encoding_that_cannot_be_is_refused(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(DataError if encoding == "utf-8" else UsageError):
        open_at(tmp_path / "a.csv", "a,b\n1,2\n".encode("utf-16"), encoding=encoding)


def test_blanks_around_names_and_columns_without_one(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.csv", " text ,,label,\na,b,c,d\n")
    assert table.names == ("text", "column 2", "label", "column 4")
    assert table.file.column_names == (" text ", "", "label", "")


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.csv", b"", ""),
        ("a.csv", b"\n\n", ""),
        ("a.jsonl", b" \n", ""),
        ("a.jsonl", b"{}\n{}\n", ""),
        ("a.json", b"[]", ""),
        ("a.parquet", parquet_of({"text": []}), ""),
        ("a.csv", b"text,label\n\n", ""),
        ("a.csv", b"text, text \na,b\n", ""),
        ("a.csv", b"te\0xt,label\na,b\n", "1, the header, column 1"),
        ("a.xlsx", b"PK\x03\x04rest", ""),
        ("a.txt", b"text\n", ""),
    ],
)
def test_a_file_that_is_no_table_is_refused(name: str, content: bytes, where: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_at(tmp_path / name, content)
    assert place(caught.value) == where


def test_a_source_that_is_not_one_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    for source in tmp_path, tmp_path / "*.csv":
        with refuses("data"):
            open_table(str(source))


LONG = "b" * 101
FAULTS = [
    # name, content, kind, where, good rows when bad ones are skipped
    ("a.csv", "t,l\na,b\nc\n", "ragged row", "3, row 2, column 'l'", [("a", "b")]),
    ("a.tsv", "t\tl\na\tb\tc\nd\te\n", "ragged row", "2, row 1, column 'l'", [("d", "e")]),
    ("a.csv", 't,l\na,b\nc,"d\ne,f\n', "unclosed quote", "3, row 2, column 'l'", [("a", "b"), ("e", "f")]),
    ("a.csv", 't,l\n"x\ny","d\ne,f\n"g",h\n', "unclosed quote", "3, row 1, column 'l'", [("e", "f"), ("g", "h")]),
    ("a.csv", 't,l\n"a "b" c",d\ne,f\n', "text after a closing quote", "2, row 1, column 't'", [("e", "f")]),
    ("a.csv", 't,l\n"a\n\0",b\ne,f\n', "NUL byte", "3, row 1, column 't'", [("e", "f")]),
    ("a.csv", f"t,l\na,{LONG}\nc,d\n", "field too long", "2, row 1, column 'l'", [("c", "d")]),
    ("a.csv", f"t,l\n{'b,' * 900}\nc,d\n", "field too long", "2, row 1", [("c", "d")]),
    ("a.csv", f't,l\n"{LONG[2:]}\n{"b," * 900}",a\nc,d\n', "unclosed quote", "2, row 1, column 't'", [("c", "d")]),
    ("a.jsonl", f'{{"t": 1, "l": "{LONG}"}}\n{{"t": 2}}\n', "field too long", "1, row 1, column 'l'", [(2, None)]),
    ("a.jsonl", f'{{"t": 1, "l": 2}}\n{{"t": {[1] * 900}}}\n', "field too long", "2, row 2", [(1, 2)]),
    ("a.jsonl", '{"t": "a\\u0000", "l": 1}\n{"t": 2}\n', "NUL byte", "1, row 1, column 't'", [(2, None)]),
    (
        "a.conll",
        "a O\nb O\n\nc O\nd\n\ne O\n",
        "uneven columns",
        "5, row 2",
        [(["a", "b"], ["O", "O"]), (["e"], ["O"])],
    ),
    ("a.jsonl", '{"t": 1}\n{"t": }\n', "not JSON", "2, row 2", [(1,)]),
    ("a.jsonl", '{"t": 1}\n{"t": 1, "t": 2}\n', "duplicate key", "2, row 2, column 't'", [(1,)]),
]


@pytest.mark.parametrize(("name", "content", "kind", "where", "good"), FAULTS)
def test_bad_rows_are_refused_where_they_are_or_skipped(
    name: str, content: str, kind: str, where: str, good: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    table = open_at(tmp_path / name, content, field_limit=100)
    with pytest.raises(RowError) as caught:
        list(table.rows())
    assert (caught.value.kind, place(caught.value)) == (kind, where)
    assert "--skip-bad-rows" in caught.value.fix
    skipped = SkippedRowCounts(rows={})
    rows = [row for row in table.rows(skipped) if row.values[0] not in ("", "b" * 99)]
    assert [row.values for row in rows] == good
    assert skipped.kinds[kind] == 1
    assert skipped.rows is not None
    assert skipped.rows[caught.value.row] == kind
    assert table.n_rows == skipped.count + len(values(table, SkippedRowCounts()))


TAGGED = "-DOCSTART- -X- O\n\nOtto NNP B-PER\nran VBD O\n\n\n# NN O\n"


@pytest.mark.parametrize(("gap", "end"), [(" ", "\n"), ("\t", "\r\n"), ("   ", "\n")])
def test_sentences_are_rows_of_columns(gap: str, end: str, tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.conll", TAGGED.replace(" ", gap).replace("\n", end))
    assert table.names == ("tokens", "column 2", "tags")
    assert [(row.number, row.line, row.values) for row in table.rows()] == [
        (1, 3, (["Otto", "ran"], ["NNP", "VBD"], ["B-PER", "O"])),
        (2, 7, (["#"], ["NN"], ["O"])),
    ]


def test_words_may_have_no_tags_or_spaces_in_them(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.conll.gz", gzip.compress(b"a\nb\n\nc"))
    assert table.names == ("tokens",)
    assert [row.values for row in table.rows()] == [(["a", "b"],), (["c"],)]
    (row,) = open_at(tmp_path / "a.conll", "New York\tB-X\n").rows()
    assert row.values == (["New York"], ["B-X"])


def test_predicted_tags_are_a_further_column(tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.conll", TAGGED)
    rows = ((row, (["B-PER", "O"][: len(row.values[0])],)) for row in table.rows())
    written = "".join(format_csv_or_conll_rows(table, ("predicted",), rows))
    assert written == "Otto\tNNP\tB-PER\tB-PER\nran\tVBD\tO\tO\n\n#\tNN\tO\tB-PER\n\n"


def squad(*paragraphs: Any) -> str:
    return json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": list(paragraphs)}]})


def test_questions_are_rows(tmp_path: Path) -> None:
    answers = [{"text": "Otto", "answer_start": 0}]
    qas = [
        {"id": "1", "question": "Who ran?", "answers": answers},
        {"id": "2", "question": "Where?", "is_impossible": True},
        {"question": "When?"},
    ]
    table = open_at(tmp_path / "a.json", squad({"context": "Otto ran.", "qas": qas}, {"context": "", "qas": []}))
    assert table.names == ("id", "question", "context", "answers")
    assert [row.values for row in table.rows()] == [
        ("1", "Who ran?", "Otto ran.", answers),
        ("2", "Where?", "Otto ran.", []),
        (None, "When?", "Otto ran.", None),
    ]


@pytest.mark.parametrize("content", ["[" * 100_000, '{"data": 1}', '{"data": []}', '{"data": [{"paragraphs": [1]}]}'])
def test_other_json_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        open_at(tmp_path / "a.json", content)


IMPOSSIBLE = {"question": "?", "is_impossible": True, "answers": [{"text": "a"}]}


@pytest.mark.parametrize(
    ("context", "question", "kind"),
    [(3, {"question": "Who?"}, "wrong type"), ("a", {}, "wrong type"), ("a", IMPOSSIBLE, "impossible question")],
)
def test_wrong_questions_are_faults(context: object, question: object, kind: str, tmp_path: Path) -> None:
    table = open_at(tmp_path / "a.json", squad({"context": context, "qas": [question]}))
    with pytest.raises(RowError) as caught:
        list(table.rows())
    assert caught.value.kind == kind


@pytest.mark.parametrize("content", ['"some words of a sentence, ",label\n' * 60_000, "x" * 3_000_000])
def test_a_table_is_read_in_bounded_memory(content: str, tmp_path: Path) -> None:
    """Of rows, and of one line without an end; for a quote without one see test_rowfile.py."""
    table = open_at(tmp_path / "a.csv", "text,label\n" + content, field_limit=10_000)
    tracemalloc.start()
    for count, _ in enumerate(table.rows(SkippedRowCounts())):
        if count > 4_000:
            break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
