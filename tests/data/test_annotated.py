"""Files of annotated text: their rows, and their faults."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import RowError, SkippedRowCounts, Table, format_csv_or_conll_rows, open_table
from lmtool.errors import DataError

TAGGED = "-DOCSTART- -X- O\n\nOtto NNP B-PER\nran VBD O\n\n\n# NN O\n"


def opened(path: Path, content: str | bytes, **options: Any) -> Table:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(str(path), **options)


@pytest.mark.parametrize(("gap", "end"), [(" ", "\n"), ("\t", "\r\n"), ("   ", "\n")])
def test_sentences_are_rows_of_columns(gap: str, end: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll", TAGGED.replace(" ", gap).replace("\n", end))
    assert table.names == ("tokens", "column 2", "tags")
    assert [(row.number, row.line, row.values) for row in table.rows()] == [
        (1, 3, (["Otto", "ran"], ["NNP", "VBD"], ["B-PER", "O"])),
        (2, 7, (["#"], ["NN"], ["O"])),
    ]


def test_words_may_have_no_tags_or_spaces_in_them(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll.gz", gzip.compress(b"a\nb\n\nc"))
    assert table.names == ("tokens",)
    assert [row.values for row in table.rows()] == [(["a", "b"],), (["c"],)]
    (row,) = opened(tmp_path / "a.conll", "New York\tB-X\n").rows()
    assert row.values == (["New York"], ["B-X"])


@pytest.mark.parametrize(
    ("content", "kind", "where", "good"),
    [
        ("a O\nb O\n\nc O\nd\n\ne O\n", "uneven columns", "5, row 2", [1, 3]),
        ("abcdef O\nb O\n\nc O\n", "field too long", "1, row 1, column 'tokens'", [2]),
    ],
)
def test_a_bad_sentence_is_refused_where_it_is_or_skipped(
    content: str, kind: str, where: str, good: list[int], tmp_path: Path
) -> None:
    table = opened(tmp_path / "a.conll", content, field_limit=5)
    with pytest.raises(RowError) as caught:
        list(table.rows())
    assert caught.value.where == f"{tmp_path / 'a.conll'}:{where}"
    skipped = SkippedRowCounts()
    assert [row.number for row in table.rows(skipped)] == good
    assert skipped.kinds == {kind: 1}


def test_predicted_tags_are_a_further_column(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll", TAGGED)
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
    table = opened(tmp_path / "a.json", squad({"context": "Otto ran.", "qas": qas}, {"context": "", "qas": []}))
    assert table.names == ("id", "question", "context", "answers")
    assert [row.values for row in table.rows()] == [
        ("1", "Who ran?", "Otto ran.", answers),
        ("2", "Where?", "Otto ran.", []),
        (None, "When?", "Otto ran.", None),
    ]


@pytest.mark.parametrize(
    "content",
    [
        *("[1", "[" * 100_000, '{"data": ' + "9" * 5000 + "}", '{"data": 1}', '{"data": []}'),
        '{"data": [{"paragraphs": [1]}]}',
        '{"data": [{"paragraphs": [{"context": "a", "qas": {}}]}]}',
    ],
)
def test_other_json_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        opened(tmp_path / "a.json", content)


IMPOSSIBLE = {"question": "?", "is_impossible": True, "answers": [{"text": "a"}]}


@pytest.mark.parametrize(
    ("context", "question", "kind"),
    [(3, {"question": "Who?"}, "wrong type"), ("a", {}, "wrong type"), ("a", IMPOSSIBLE, "impossible question")],
)
def test_wrong_questions_are_faults(context: object, question: object, kind: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.json", squad({"context": context, "qas": [question]}))
    with pytest.raises(RowError) as caught:
        list(table.rows())
    assert caught.value.kind == kind
