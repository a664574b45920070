"""The columns that are read: given ones, conventional ones, and errors when they cannot be inferred."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.schema import BY_NAME, Columns, choose_columns
from tests.support.errors import refuses


def table(path: Path, header: str) -> Table:
    """A row that tells nothing."""
    (path / "a.csv").write_text(f"{header}\n{','.join('x' for _ in header.split(','))}\n", encoding="utf-8")
    return open_table(str(path / "a.csv"))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Label,Review Text", Columns(("Review Text",), "Label")),
        ("id,title,text,class", Columns(("title", "text"), "class")),
        ("premise,hypothesis,label", Columns(("premise", "hypothesis"), "label")),
        ("idx,sentence_1,sentence_2,score", Columns(("sentence_1", "sentence_2"), "score")),
        ("satz1,satz2,klasse", Columns(("satz1", "satz2"), "klasse")),
        ("frage,antwort,klasse", Columns(("frage", "antwort"), "klasse")),
        ("text,hotel", Columns(("text",), "hotel")),  # the only other column
        ("words,label", Columns(("words",), "label")),
        ("id,src,tgt", Columns(("src",), target="tgt")),
        ("id,English,German", Columns(("English",), target="German")),
        ("问题,答案", Columns(("问题",), target="答案")),
        ("messages,label", Columns(("messages",), "label")),  # conversations are in cells that hold lists
        ("text,target", Columns(("text",), "target")),  # the name of a label implies classes
        ("de,en,label,text", Columns(("text",), "label")),
        ("instruction,input,output", Columns(("instruction",), target="output", input="input")),
        ("instruction,output", Columns(("instruction",), target="output")),
    ],
)
def test_usual_names(header: str, found: Columns, tmp_path: Path) -> None:
    chosen = choose_columns(table(tmp_path, header))
    assert chosen == found
    assert chosen.describe().endswith("(inferred from their names)")


@pytest.mark.parametrize(
    ("header", "given", "found", "are_inferred"),
    [
        ("text,label", {"text_columns": ["text"], "label_column": "label"}, Columns(("text",), "label"), False),
        ("a,b,label", {"text_columns": ["b", "a"]}, Columns(("b", "a"), "label"), True),
        ("text,a,b", {"label_column": "b"}, Columns(("text",), "b"), True),
        ("a,b", {"label_column": "b"}, Columns(("a",), "b"), True),
        ("label,text,class", {"text_columns": ["label"]}, Columns(("label",), "class"), True),
        ("x,TEXT,La bel", {"text_columns": ["text"], "label_column": "la-bel"}, Columns(("TEXT",), "La bel"), False),
        ("label,T,Label", {"text_columns": ["T"], "label_column": "Label"}, Columns(("T",), "Label"), False),
        ("a,b,c", {"source_column": "c", "target_column": "a"}, Columns(("c",), target="a"), False),
        ("a,b", {"source_column": "b"}, Columns(("b",), target="a"), True),
        ("id,src,tgt", {"target_column": "tgt"}, Columns(("src",), target="tgt"), True),
        ("text,label", {"label_column": ""}, Columns(("text",), "label"), True),
        ("i,x,o", {"source_column": "x", "target_column": "o"}, Columns(("x",), target="o"), False),
        ("instruction,x,output", {"input_column": "x"}, Columns(("instruction",), target="output", input="x"), True),
    ],
)
def test_given_names(header: str, given: dict[str, Any], found: Columns, are_inferred: bool, tmp_path: Path) -> None:
    chosen = choose_columns(table(tmp_path, header), Data(**given))
    assert (chosen, chosen.are_inferred) == (found, are_inferred)


@pytest.mark.parametrize(
    ("header", "given", "found"),
    [
        ("text,label", {}, Columns(("text",))),
        ("words", {}, Columns(("words",))),
        ("de,en", {}, Columns(("de",))),
        ("instruction,input", {}, Columns(("instruction",), input="input")),
        ("de,en,x", {"source_column": "en"}, Columns(("en",))),
    ],
)
def test_texts_are_chosen_without_a_label(header: str, given: dict[str, Any], found: Columns, tmp_path: Path) -> None:
    assert choose_columns(table(tmp_path, header), Data(**given), labelled=False) == found


@pytest.mark.parametrize(
    ("header", "given", "parts"),
    [
        ("text,label", {"text_columns": ["txt"]}, ["no column 'txt'; found 'text', 'label'", "--text-column text?"]),
        ("text,LABEL,Label", {"label_column": "label"}, ["did you mean --label-column Label?"]),
        ("a b,c", {"source_column": "a_bb"}, ["did you mean --source-column 'a b'?"]),
        ("text,label", {"text_columns": ["txt"], "label_column": "labl"}, ["--text-column text --label-column label?"]),
        ("text,label", {"text_columns": ["txt"], "label_column": "zz"}, ["with --text-column and --label-column"]),
        ("text,a,b", {}, ["found 'text', 'a', 'b'", "--label-column"]),
        ("a,b,label", {}, ["--text-column"]),
        ("good film,1", {}, ["--text-column and --label-column", "first row"]),
        (",".join(f"c{i}" for i in range(40)), {}, ["found 'c0', 'c1',", "'c7' and 32 more"]),
        ("a,b,c", {"source_column": "a"}, ["--target-column"]),
        ("a,b,c", {"target_column": "a"}, ["--source-column"]),
        ("a,b", {"messages_column": "c"}, ["no column 'c'"]),
    ],
)
def test_what_cannot_be_told_names_the_option(
    header: str, given: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(table(tmp_path, header), Data(**given))
    assert "a.csv" in caught.value.where
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"text_columns": ["a"], "target_column": "b"},
        {"text_columns": ["a"], "label_column": "a"},
        {"text_columns": ["a", "a"]},
        {"messages_column": "a", "source_column": "b"},
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with refuses("usage"):
        choose_columns(table(tmp_path, "a,b,c"), Data(**given))


@pytest.mark.parametrize("name", ["messages", "Conversations"])
def test_conversations_are_found_by_their_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "x", "label": "y", name: [{"role": "user", "content": "a"}]}) + "\n")
    found = choose_columns(open_table(str(path)))
    assert found == choose_columns(open_table(str(path)), Data(messages_column=name)) == Columns((), messages=name)
    assert found.has_targets
    assert found.describe() == f"columns: messages '{name}' (inferred from their names)"
    labelled = choose_columns(open_table(str(path)), Data(source_column="prompt", target_column="label"))
    assert labelled.messages is None


@pytest.mark.parametrize(
    "header",
    [
        *("kommentar,kategorie", "Nachricht,Stimmung", "commentaire,catégorie", "COMMENTAIRE,CATEGORIE"),
        *("reseña,sentimiento", "comentário,rótulo", "testo,etichetta", "bericht,klasse", "opinia,ocena"),
        *("отзыв,тональность", "评论,类别", "評論,標籤", "レビュー,ラベル", "댓글,감정", "التعليق,الفئة", "نص,تصنيف"),
        *("κείμενο,κατηγορία", "Κείμενο,Ετικέτα", "yorum,duygu", "टिप्पणी,श्रेणी", "ulasan,sentimen"),
    ],
)
def test_names_in_other_languages(header: str, tmp_path: Path) -> None:
    text, label = header.split(",")
    # beside another column, so that it is the name that tells
    found = choose_columns(table(tmp_path, f"nr,{header},x"))
    assert (found.texts, found.label, set(found.reasons.values())) == ((text,), label, {BY_NAME})
