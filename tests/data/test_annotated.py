"""Files of annotated text: their rows, and their faults."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import RowError, SkippedRows, Table, format_rows, open_table
from lmtool.errors import DataError

TAGGED = "-DOCSTART- -X- O\n\nOtto NNP B-PER\nran VBD O\n\n\n# NN O\n"


def opened(path: Path, content: str | bytes) -> Table:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(str(path))


@pytest.mark.parametrize("gap", [" ", "\t", "   "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_are_rows_of_columns(gap: str, end: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll", TAGGED.replace(" ", gap).replace("\n", end))
    assert table.names == ("tokens", "column 2", "tags")
    assert [(row.number, row.line, row.values) for row in table.rows()] == [
        (1, 3, (["Otto", "ran"], ["NNP", "VBD"], ["B-PER", "O"])),
        (2, 7, (["#"], ["NN"], ["O"])),
    ]
    assert table.n_rows == 2


def test_words_alone_and_compressed_files(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll.gz", gzip.compress(b"a\nb\n\nc"))
    assert table.names == ("tokens",)
    assert [row.values for row in table.rows()] == [(["a", "b"],), (["c"],)]


def test_a_tab_separates_words_with_spaces(tmp_path: Path) -> None:
    assert [row.values for row in opened(tmp_path / "a.conll", "New York\tB-X\n").rows()] == [(["New York"], ["B-X"])]


def test_uneven_columns_are_a_fault_of_the_sentence(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll", "a O\nb O\n\nc O\nd\n\ne O\n")
    with pytest.raises(RowError, match="1 column, the first one of the file 2") as caught:
        list(table.rows())
    assert "a.conll:5, row 2" in caught.value.where
    skipped = SkippedRows()
    assert [row.number for row in table.rows(skipped)] == [1, 3]
    assert skipped.kinds == {"uneven columns": 1}


def test_a_long_word_is_a_fault_wherever_it_is_in_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("abcdef O\nb O\n\nc O\n")
    skipped = SkippedRows()
    rows = open_table(str(tmp_path / "a.conll"), field_limit=5).rows(skipped)
    assert [row.values for row in rows] == [(["c"], ["O"])]
    assert skipped.kinds == {"field too long": 1}


def test_predicted_tags_are_a_further_column(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.conll", TAGGED)
    rows = ((row, (["B-PER", "O"][: len(row.values[0])],)) for row in table.rows())
    written = "".join(format_rows(table, ("predicted",), rows))
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
    ("content", "what"),
    [
        ("[1", "not JSON: line 1"),
        ("[" * 100_000, "not JSON"),
        ('{"data": ' + "9" * 5000 + "}", "too many digits"),
        ('{"data": 1}', "the JSON of SQuAD"),
        ('{"data": [{"paragraphs": [1]}]}', "the JSON of SQuAD"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": {}}]}]}', "the JSON of SQuAD"),
        ('{"data": []}', "header and no rows"),
    ],
)
def test_other_json_is_refused(content: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=what):
        opened(tmp_path / "a.json", content)


@pytest.mark.parametrize(
    ("paragraph", "what"),
    [
        ({"context": 3, "qas": [{"question": "Who?"}]}, "the context is int"),
        ({"context": "a", "qas": [{}]}, "the question is missing"),
        (
            {"context": "a", "qas": [{"question": "?", "is_impossible": True, "answers": [{"text": "a"}]}]},
            "is_impossible, and has an answer",
        ),
    ],
)
def test_wrong_questions_are_faults(paragraph: Any, what: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.json", squad(paragraph))
    with pytest.raises(RowError, match=what):
        list(table.rows())
