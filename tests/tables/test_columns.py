"""The columns that are read: given ones, conventional ones, and errors when they cannot be inferred."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import DataError, UsageError
from lmtool.tables.columns import Columns, choose_columns
from lmtool.text.table import Table, open_table


def table(path: Path, header: str) -> Table:
    names = header.split(",")
    (path / "a.csv").write_text(f"{header}\n{','.join('x' for _ in names)}\n", encoding="utf-8")
    return open_table(str(path / "a.csv"), cache=path)


@pytest.mark.parametrize(
    ("header", "texts", "label", "target"),
    [
        ("text,label", ["text"], "label", None),
        ("Label,Review Text", ["Review Text"], "Label", None),
        ("id,review,sentiment,date", ["review"], "sentiment", None),
        ("id,title,text,class", ["text"], "class", None),
        ("premise,hypothesis,label", ["premise", "hypothesis"], "label", None),
        ("idx,sentence_1,sentence_2,score", ["sentence_1", "sentence_2"], "score", None),
        ("sentence,question,label", ["question", "sentence"], "label", None),
        # The only remaining column
        ("text,hotel", ["text"], "hotel", None),
        ("words,label", ["words"], "label", None),
        # Sequence to sequence
        ("source,target", ["source"], None, "target"),
        ("id,src,tgt", ["src"], None, "tgt"),
        ("de,en", ["de"], None, "en"),
        ("id,English,German", ["English"], None, "German"),
        ("article,summary", ["article"], None, "summary"),
        # The conventional name of a label implies classes
        ("text,target", ["text"], "target", None),
        ("de,en,label,text", ["text"], "label", None),
    ],
)
def test_usual_names(header: str, texts: list[str], label: str | None, target: str | None, tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, header))
    assert found == Columns(tuple(texts), label, target, found=True)
    assert found.describe().endswith("(inferred from their names)")


@pytest.mark.parametrize(
    ("header", "given", "texts", "label", "target", "found"),
    [
        ("text,label", {"text_columns": ["text"], "label_column": "label"}, ["text"], "label", None, False),
        ("a,b,label", {"text_columns": ["b", "a"]}, ["b", "a"], "label", None, True),
        ("text,a,b", {"label_column": "b"}, ["text"], "b", None, True),
        ("a,b", {"label_column": "b"}, ["a"], "b", None, True),
        ("label,text,class", {"label_column": "class"}, ["text"], "class", None, True),
        ("label,text,class", {"text_columns": ["label"]}, ["label"], "class", None, True),
        ("a,b,c", {"source_column": "c", "target_column": "a"}, ["c"], None, "a", False),
        ("a,b", {"source_column": "b"}, ["b"], None, "a", True),
        ("a,b", {"target_column": "b"}, ["a"], None, "b", True),
        ("id,src,tgt", {"source_column": "src"}, ["src"], None, "tgt", True),
        ("id,src,tgt", {"target_column": "tgt"}, ["src"], None, "tgt", True),
        ("text,label", {"labelled": False}, ["text"], None, None, True),
        ("text,label", {"labelled": False, "text_columns": ["text"]}, ["text"], None, None, False),
        ("words", {"labelled": False}, ["words"], None, None, True),
        ("de,en", {"labelled": False}, ["de"], None, None, True),
        ("de,en,x", {"labelled": False, "source_column": "en"}, ["en"], None, None, False),
    ],
)
def test_given_names(
    header: str,
    given: dict[str, Any],
    texts: list[str],
    label: str | None,
    target: str | None,
    found: bool,
    tmp_path: Path,
) -> None:
    assert choose_columns(table(tmp_path, header), **given) == Columns(tuple(texts), label, target, found)


def test_what_is_read_is_said(tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, "premise,hypothesis,label"))
    assert found.describe() == "columns: text 'premise' and 'hypothesis', label 'label' (inferred from their names)"
    found = choose_columns(table(tmp_path, "a,b"), source_column="a", target_column="b")
    assert found.describe() == "columns: source 'a', target 'b'"


@pytest.mark.parametrize(
    ("header", "given", "parts"),
    [
        ("text,label", {"text_columns": ["txt"]}, ["no column 'txt'; found 'text, label'", "--text-column text?"]),
        ("text,Label", {"label_column": "label"}, ["no column 'label'", "did you mean --label-column Label?"]),
        ("a b,c", {"source_column": "a_b"}, ["did you mean --source-column 'a b'?"]),
        ("text,label", {"target_column": "zzz"}, ["no column 'zzz'", "name one of these with --target-column"]),
        ("text,a,b", {}, ["cannot infer which column is the label; found 'text, a, b'", "--label-column"]),
        ("a,b,label", {}, ["cannot infer which column is the text", "--text-column"]),
        ("good film,1", {}, ["cannot infer which column is the text", "the first row of a table names its columns"]),
        ("text", {}, ["cannot infer which column is the label"]),
        ("a,b,c", {"source_column": "a"}, ["cannot infer which column is the target", "--target-column"]),
        ("a,b,c", {"target_column": "a"}, ["cannot infer which column is the source", "--source-column"]),
    ],
)
def test_what_cannot_be_told(header: str, given: dict[str, Any], parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(table(tmp_path, header), **given)
    assert len(caught.value.lines()) == 3
    assert "a.csv" in caught.value.where
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text_columns": ["a"], "target_column": "b"}, "either with texts and a label or with a source"),
        ({"text_columns": ["a"], "label_column": "a"}, "column 'a' is named twice"),
        ({"text_columns": ["a", "a"]}, "column 'a' is named twice"),
    ],
)
def test_contradictions(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        choose_columns(table(tmp_path, "a,b,c"), **given)
