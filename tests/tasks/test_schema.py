"""The columns that are read: given ones, conventional ones, and errors when they cannot be inferred."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.schema import BY_NAME, Columns, choose_columns


def table(path: Path, header: str) -> Table:
    names = header.split(",")
    (path / "a.csv").write_text(f"{header}\n{','.join('x' for _ in names)}\n", encoding="utf-8")
    return open_table(str(path / "a.csv"))


@pytest.mark.parametrize(
    ("header", "texts", "label", "target"),
    [
        ("text,label", ["text"], "label", None),
        ("Label,Review Text", ["Review Text"], "Label", None),
        ("id,review,sentiment,date", ["review"], "sentiment", None),
        ("id,title,text,class", ["title", "text"], "class", None),
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
        ("prompt,completion", ["prompt"], None, "completion"),
        ("id,prompt,response", ["prompt"], None, "response"),
        ("question,answer", ["question"], None, "answer"),
        # Conversations are in cells that hold lists
        ("messages,label", ["messages"], "label", None),
        # The conventional name of a label implies classes
        ("text,target", ["text"], "target", None),
        ("de,en,label,text", ["text"], "label", None),
    ],
)
def test_usual_names(header: str, texts: list[str], label: str | None, target: str | None, tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, header))
    assert found == Columns(tuple(texts), label, target)
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
        ("x,TEXT,La bel", {"text_columns": ["text"], "label_column": "la-bel"}, ["TEXT"], "La bel", None, False),
        ("label,TEXT,Label", {"text_columns": ["text"], "label_column": "Label"}, ["TEXT"], "Label", None, False),
        ("Label,TEXT,class", {"text_columns": ["text"], "label_column": "LABEL"}, ["TEXT"], "Label", None, False),
        ("a,b,c", {"source_column": "c", "target_column": "a"}, ["c"], None, "a", False),
        ("a,b", {"source_column": "b"}, ["b"], None, "a", True),
        ("a,b", {"target_column": "b"}, ["a"], None, "b", True),
        ("id,src,tgt", {"source_column": "src"}, ["src"], None, "tgt", True),
        ("id,src,tgt", {"target_column": "tgt"}, ["src"], None, "tgt", True),
        ("text,label", {"label_column": ""}, ["text"], "label", None, True),
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
    labelled = given.get("labelled", True)
    given = {key: value for key, value in given.items() if key != "labelled"}
    chosen = choose_columns(table(tmp_path, header), Data(**given), labelled=labelled)
    assert chosen == Columns(tuple(texts), label, target)
    assert chosen.are_inferred == found


@pytest.mark.parametrize(
    ("header", "given", "parts"),
    [
        ("text,label", {"text_columns": ["txt"]}, ["no column 'txt'; found 'text', 'label'", "--text-column text?"]),
        ("text,LABEL,Label", {"label_column": "label"}, ["no column 'label'", "did you mean --label-column Label?"]),
        ("a b,c", {"source_column": "a_bb"}, ["did you mean --source-column 'a b'?"]),
        ("text,label", {"target_column": "zzz"}, ["no column 'zzz'", "name one of these with --target-column"]),
        (
            "text,label",
            {"text_columns": ["txt"], "label_column": "labl"},
            ["no columns 'txt', 'labl'", "--text-column text --label-column label?"],
        ),
        (
            "text,label",
            {"text_columns": ["txt"], "label_column": "zzz"},
            ["no columns 'txt', 'zzz'", "name one of these with --text-column and --label-column"],
        ),
        ("text,a,b", {}, ["cannot infer which column is the label; found 'text', 'a', 'b'", "--label-column"]),
        ("a,b,label", {}, ["cannot infer which column is the text", "--text-column"]),
        (
            "good film,1",
            {},
            ["which columns are the text and the label", "--text-column and --label-column", "first row"],
        ),
        (",".join(f"c{i}" for i in range(40)), {}, ["found 'c0', 'c1',", "'c7' and 32 more"]),
        ("text", {}, ["cannot infer which column is the label"]),
        ("a,b,c", {"source_column": "a"}, ["cannot infer which column is the target", "--target-column"]),
        ("a,b,c", {"target_column": "a"}, ["cannot infer which column is the source", "--source-column"]),
    ],
)
def test_what_cannot_be_told(header: str, given: dict[str, Any], parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(table(tmp_path, header), Data(**given))
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
        choose_columns(table(tmp_path, "a,b,c"), Data(**given))


@pytest.mark.parametrize(
    ("header", "given", "labelled", "expected"),
    [
        ("instruction,input,output", {}, True, ("instruction", "output", "input", True)),
        ("instruction,context,response,category", {}, True, ("instruction", "response", "context", True)),
        ("instruction,output", {}, True, ("instruction", "output", None, True)),
        ("instruction,input", {}, False, ("instruction", None, "input", True)),
        (
            "instruction,input,output",
            {"source_column": "input", "target_column": "output"},
            True,
            ("input", "output", None, False),
        ),
        (
            "a,b,c",
            {"source_column": "a", "target_column": "c", "input_column": "b"},
            True,
            ("a", "c", "b", False),
        ),
        ("instruction,more,output", {"input_column": "more"}, True, ("instruction", "output", "more", True)),
    ],
)
def test_an_instruction_may_have_an_input(
    header: str, given: dict[str, Any], labelled: bool, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    found = choose_columns(table(tmp_path, header), Data(**given), labelled=labelled)
    assert (*found.texts, found.target, found.input, found.are_inferred) == expected
    assert found.label is None
    assert found.has_targets == labelled


@pytest.mark.parametrize("name", ["messages", "Conversations", "conversation"])
def test_conversations_are_found_by_their_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "x", "label": "y", name: [{"role": "user", "content": "a"}]}) + "\n")
    found = choose_columns(open_table(str(path)))
    assert found == Columns((), messages=name)
    assert found.has_targets
    assert found.describe() == f"columns: messages '{name}' (inferred from their names)"
    named = choose_columns(open_table(str(path)), Data(messages_column=name))
    assert named == Columns((), messages=name)
    labelled = choose_columns(open_table(str(path)), Data(source_column="prompt", target_column="label"))
    assert labelled.messages is None


def test_conversations_are_read_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="have a source and a target"):
        choose_columns(table(tmp_path, "a,b"), Data(messages_column="a", source_column="b"))
    with pytest.raises(DataError, match="no column 'c'"):
        choose_columns(table(tmp_path, "a,b"), Data(messages_column="c"))


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


@pytest.mark.parametrize(
    ("header", "texts", "label", "target"),
    [
        ("satz1,satz2,klasse", ("satz1", "satz2"), "klasse", None),
        ("前提,假设,标签", ("前提", "假设"), "标签", None),
        ("frage,antwort", ("frage",), None, "antwort"),
        ("问题,答案", ("问题",), None, "答案"),
        ("Deutsch,Englisch", ("Deutsch",), None, "Englisch"),
        ("frage,antwort,klasse", ("frage", "antwort"), "klasse", None),
    ],
)
def test_pairs_in_other_languages(
    header: str, texts: tuple[str, ...], label: str | None, target: str | None, tmp_path: Path
) -> None:
    found = choose_columns(table(tmp_path, header))
    assert (found.texts, found.label, found.target) == (texts, label, target)


def written(path: Path, header: str, rows: list[list[str]]) -> Table:
    (path / "a.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n", encoding="utf-8")
    return open_table(str(path / "a.csv"))


SENTENCES = {
    "latin": "the quiet film of number {}",
    "chinese": "这家酒店的房间非常干净第{}次",
    "thai": "โรงแรมนี้สะอาดมากครั้งที่{}",
}


@pytest.mark.parametrize("script", SENTENCES)
@pytest.mark.parametrize("header", ["xq,zq,wq", ",,", "wann,äußerungen der gäste,art"])
def test_cells_decide_where_names_are_unknown(script: str, header: str, tmp_path: Path) -> None:
    sentence = SENTENCES[script]
    rows = [[str(i), sentence.format(i), "ab"[i % 2]] for i in range(30)]
    if header == ",,":  # as without a header
        table = written(tmp_path, ",".join(["0", "a longer first " + sentence.format(99), "a"]), rows)
    else:
        table = written(tmp_path, header, rows)
    found = choose_columns(table)
    assert (found.texts, found.label) == ((table.names[1],), table.names[2])
    assert BY_NAME not in found.reasons.values()
    assert "--text-column" in found.describe()
    assert "--label-column" in found.describe()


@pytest.mark.parametrize(("text", "label"), [("commentaire", "avis"), ("avis", "commentaire"), ("text", "comment")])
def test_of_two_names_of_texts_the_one_of_classes_is_the_label(text: str, label: str, tmp_path: Path) -> None:
    rows = [[f"le film tranquille numéro {i}", ("positif", "négatif")[i % 2], str(i)] for i in range(30)]
    for header, cells in ((f"{text},{label}", [row[:2] for row in rows]), (f"{text},{label},nr", rows)):
        found = choose_columns(written(tmp_path, header, cells))
        assert (found.texts, found.label) == ((text,), label)


def test_a_known_name_is_joined_by_what_cells_tell(tmp_path: Path) -> None:
    rows = [[str(i), f"the quiet film of number {i}", "ab"[i % 2], f"remark {i}"] for i in range(30)]
    known_text = choose_columns(written(tmp_path, "n,text,zq,extra", rows))
    assert (known_text.texts, known_text.label, known_text.reasons["text"]) == (("text",), "zq", BY_NAME)
    assert "2 different values" in known_text.reasons["zq"]
    rows = [row[:3] for row in rows]
    known_label = choose_columns(written(tmp_path, "n,zq,label", rows))
    assert (known_label.texts, known_label.label, known_label.reasons["label"]) == (("zq",), "label", BY_NAME)
    assert known_label.reasons["zq"] != BY_NAME
    named = choose_columns(written(tmp_path, "n,zq,wq", rows), Data(text_columns=["zq"]))
    assert (named.texts, named.label) == (("zq",), "wq")


def test_single_words_are_texts_beside_the_classes(tmp_path: Path) -> None:
    rows = [[f"Anna{first}{second}", "pq"[second == "a"]] for first in "bcdefghi" for second in "aeiou"]
    found = choose_columns(written(tmp_path, "vorname,herkunft", rows))
    assert (found.texts, found.label) == (("vorname",), "herkunft")


def test_numbers_of_rows_are_no_label(tmp_path: Path) -> None:
    rows = [[f"the quiet film of number {i}", str(100 - i)] for i in range(50)]
    with pytest.raises(DataError, match="which column is the label"):
        choose_columns(written(tmp_path, "text,id", rows))
    # other numbers are
    rows = [[f"the quiet film of number {i}", str(i * i)] for i in range(50)]
    assert choose_columns(written(tmp_path, "text,preis", rows)).label == "preis"


@pytest.mark.parametrize("name", ["???", "zq", "a1"])
def test_a_column_alone_is_the_text_whatever_it_holds(name: str, tmp_path: Path) -> None:
    table = written(tmp_path, name, [["ab"[i % 2]] for i in range(30)])
    assert choose_columns(table, labelled=False).texts == (name,)


def test_names_without_letters_tell_nothing(tmp_path: Path) -> None:
    rows = [[f"the quiet film of number {i}", f"a second text about {i}", "ab"[i % 2]] for i in range(30)]
    with pytest.raises(DataError, match="which column is the text"):
        choose_columns(written(tmp_path, "???,!!!,%%%", rows))


def test_what_may_be_several_things_is_asked(tmp_path: Path) -> None:
    rows = [[f"the quiet film of number {i}", "ab"[i % 2], "cd"[i % 2]] for i in range(30)]
    with pytest.raises(DataError, match="which column is the label: 'mood', 'place of it' may be"):
        choose_columns(written(tmp_path, "text,mood,place of it", rows))
    rows = [[f"a question about {i}", "one", "two", "ab"[i % 2]] for i in range(30)]
    with pytest.raises(DataError, match="'option1', 'option2' are answers of which one is right"):
        choose_columns(written(tmp_path, "question,option1,option2,label", rows))
    named = choose_columns(written(tmp_path, "question,option1,option2,label", rows), Data(text_columns=("question",)))
    assert (named.texts, named.label) == (("question",), "label")


def test_a_text_that_is_another_one_again_is_read_once(tmp_path: Path) -> None:
    rows = [
        [f"The quiet film {i}!", f"the quiet film {i}", f"see: The quiet film {i}! (end)", "ab"[i % 2]]
        for i in range(9)
    ]
    found = choose_columns(written(tmp_path, "text,comment,body,label", rows))
    assert (found.texts, found.ignored) == (("text",), ())


def test_a_text_beside_a_source_and_its_target_is_told(tmp_path: Path) -> None:
    rows = [[f"a question about {i}", f"since one follows {i}", f"it is number {i}"] for i in range(30)]
    found = choose_columns(written(tmp_path, "question,reasoning,answer", rows))
    assert (found.texts, found.target, found.ignored) == (("question",), "answer", ("reasoning",))
    assert "ignored: 'reasoning'; --input-column" in found.describe()
