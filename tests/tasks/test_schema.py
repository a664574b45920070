"""The columns that are read: given ones, conventional ones, those that cells tell, and errors when none can be."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.schema import BY_NAME, Columns, are_certainly_no_texts, are_certainly_texts, choose_columns
from tests.support.errors import refuses
from tests.tasks.labelled import read


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
        # without a label
        ("text,label", {"labelled": False}, Columns(("text",)), True),
        ("words", {"labelled": False}, Columns(("words",)), True),
        ("de,en", {"labelled": False}, Columns(("de",)), True),
        ("instruction,input", {"labelled": False}, Columns(("instruction",), input="input"), True),
        ("de,en,x", {"labelled": False, "source_column": "en"}, Columns(("en",)), False),
    ],
)
def test_given_names(header: str, given: dict[str, Any], found: Columns, are_inferred: bool, tmp_path: Path) -> None:
    labelled, named = given.get("labelled", True), {name: given[name] for name in given if name != "labelled"}
    chosen = choose_columns(table(tmp_path, header), Data(**named), labelled=labelled)
    assert (chosen, chosen.are_inferred) == (found, are_inferred)


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


# By cells

RNG = random.Random(0)
WORDS = ["fine", "old", "story", "of", "the", "sea", "many", "quiet", "people", "who", "never", "went", "home"]
SAMPLES = {
    "title": [" ".join(RNG.choices(WORDS, k=RNG.randint(1, 4))).title() for _ in range(60)],
    "description": [" ".join(RNG.choices(WORDS, k=RNG.randint(5, 30))) + "." for _ in range(60)],
    "chinese": ["".join(RNG.choices("人不知而慍亦君子乎學時習之說", k=12)) for _ in range(60)],
    "word": [RNG.choice(WORDS) for _ in range(60)],
    "year": [str(1950 + i) for i in range(60)],
    "price": [f"${i}.99" for i in range(60)],
    "number": [f"{i / 7:.3f}" for i in range(60)],
    "row": [f"{i:,}" for i in range(5000, 5060)],
    "uuid": [f"{RNG.getrandbits(128):032x}" for _ in range(60)],
    "code": [f"REV-{i:05}" for i in range(60)],
    "email": [f"{RNG.choice(WORDS)}@example.org" for _ in range(60)],
    "url": [f"https://example.org/{RNG.choice(WORDS)}" for _ in range(60)],
    "iso": [f"2021-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(60)],
    "stamp": [f"2021-{1 + i % 12:02}-{1 + i % 28:02}T12:30:{i:02}Z" for i in range(60)],
    "american": [f"{1 + i % 12}/{1 + i % 28}/2021 4:{i:02} PM" for i in range(60)],
    "german": [f"{1 + i % 28}.{1 + i % 12}.2021" for i in range(60)],
    "words of dates": [f"March {1 + i % 28}, 2021" for i in range(60)],
    "short dates": [f"{1 + i % 28} Sep 2021" for i in range(60)],
    "one value": ["the same for all"] * 60,
    "nothing": [""] * 60,
}
PROSE = {"title", "description", "chinese"}
NO_CODE = {*PROSE, "word"}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_cells_are(name: str) -> None:
    assert are_certainly_texts(SAMPLES[name]) == (name in PROSE)
    for some_empty in ([], ["", None]):
        assert are_certainly_no_texts([*SAMPLES[name], *some_empty]) == (name not in NO_CODE)


def test_a_category_of_several_words_is_no_prose_and_values_are_codes() -> None:
    assert not are_certainly_texts(["science fiction", "crime and thriller"] * 500)
    assert are_certainly_texts(["a film of the sea", "another one entirely"])
    for values in ([1, 2, 3], [["a"], ["b"]], [True, None]):
        assert are_certainly_no_texts([*values])


def columns(path: Path, **cells: str) -> Columns:
    """The columns of a table with samples under other names."""
    with (path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*(SAMPLES.get(name, ["x", "y"] * 30) for name in cells.values()), strict=True))
    return choose_columns(open_table(str(path / "a.csv")))


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ({"description": "description", "label": "y", "title": "title"}, ("description", "title")),
        ({"Title": "title", "Review Text": "description", "Body": "chinese"}, ("Title", "Review Text", "Body")),
        ({"title": "code", "description": "description"}, ("description",)),
        ({"title": "nothing", "text": "description"}, ("text",)),
        ({"text": "chinese", "title": "chinese"}, ("text", "title")),
        # one column of a usual name is the text, whatever it holds
        ({"text": "code"}, ("text",)),
        ({"title": "code", "text": "number"}, ("text",)),
        # two texts that belong together go before the others
        ({"title": "title", "premise": "title", "hypothesis": "title"}, ("premise", "hypothesis")),
    ],
)
def test_all_columns_of_texts_are_used_in_their_order(
    cells: dict[str, str], texts: tuple[str, ...], tmp_path: Path
) -> None:
    found = columns(tmp_path, **cells | {"label": "y"})
    assert (found.texts, found.label) == (texts, "label")


def test_a_column_of_texts_that_is_not_used_is_told_with_options_that_add_it(tmp_path: Path) -> None:
    """But none without texts."""
    usual = {"id": "code", "text": "description", "when": "iso", "place": "word", "stars": "number", "label": "y"}
    assert "ignored" not in columns(tmp_path, **usual).describe()
    found = columns(tmp_path, **usual | {"name of it": "title"})
    assert found.texts == ("text",)
    assert found.describe().endswith(
        "ignored: 'name of it'; to read it too: --text-column text --text-column 'name of it'"
    )
    named = choose_columns(open_table(str(tmp_path / "a.csv")), Data(text_columns=("name of it", "text")))
    assert named.texts == ("name of it", "text")
    assert "ignored" not in named.describe()


def written(path: Path, header: str, *cells: str) -> Table:
    """30 rows of cells in which {0} is their number, {word} a word of their own, {kind} a or b, and {other} c or d."""
    words = [first + second for first in "bcdefg" for second in "aeiou"]
    lines = [",".join(cells).format(i, word=word, kind="ab"[i % 2], other="cd"[i % 2]) for i, word in enumerate(words)]
    (path / "a.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return open_table(str(path / "a.csv"))


FILM = "the quiet film of number {0}"
SENTENCES = {"latin": FILM, "chinese": "这家酒店的房间非常干净第{0}次", "thai": "โรงแรมนี้สะอาดมากครั้งที่{0}"}


@pytest.mark.parametrize("script", SENTENCES)
@pytest.mark.parametrize("header", ["xq,zq,wq", ",,", "wann,äußerungen der gäste,art"])
def test_cells_decide_where_names_are_unknown(script: str, header: str, tmp_path: Path) -> None:
    sentence = SENTENCES[script]
    if header == ",,":  # as without a header
        header = f"0,a longer first {sentence.format(99)},a"
    table = written(tmp_path, header, "{0}", sentence, "{kind}")
    found = choose_columns(table)
    assert (found.texts, found.label) == ((table.names[1],), table.names[2])
    assert BY_NAME not in found.reasons.values()
    assert "--text-column" in found.describe()
    assert "--label-column" in found.describe()


@pytest.mark.parametrize(
    ("header", "cells", "text", "label"),
    [
        # of two names of texts the one of classes is the label
        ("commentaire,avis", (FILM, "{kind}"), "commentaire", "avis"),
        ("avis,commentaire,nr", (FILM, "{kind}", "{0}"), "avis", "commentaire"),
        # a known name is joined by what cells tell
        ("n,text,zq", ("{0}", FILM, "{kind}"), "text", "zq"),
        ("n,zq,label", ("{0}", FILM, "{kind}"), "zq", "label"),
        # a text that is another one again is read once
        ("text,comment,body,label", ("A film {0}!", "a film {0}", "so: A film {0}! (end)", "{kind}"), "text", "label"),
        ("genre,id,text", ("{kind}", "{0}", "{0}x"), "text", "genre"),
        ("vorname,herkunft", ("Anna{word}", "{kind}"), "vorname", "herkunft"),
    ],
)
def test_cells_tell_what_columns_are(
    header: str, cells: tuple[str, ...], text: str, label: str, tmp_path: Path
) -> None:
    found = choose_columns(written(tmp_path, header, *cells))
    assert (found.texts, found.label, found.ignored) == ((text,), label, ())
    assert "zq" not in (text, label) or found.reasons["zq"] != BY_NAME


def test_numbers_of_rows_are_no_label_and_other_numbers_are(tmp_path: Path) -> None:
    with refuses("data"):
        choose_columns(written(tmp_path, "text,id", FILM, "{0}"))
    assert choose_columns(written(tmp_path, "text,preis", FILM, "{0}{0}")).label == "preis"


@pytest.mark.parametrize("name", ["???", "zq", "a1"])
def test_a_column_alone_is_the_text_whatever_it_holds(name: str, tmp_path: Path) -> None:
    assert choose_columns(written(tmp_path, name, "{kind}"), labelled=False).texts == (name,)


@pytest.mark.parametrize(
    ("header", "cells", "what"),
    [
        ("???,!!!,%%%", (FILM, "a second text about {0}", "{kind}"), "which column is the text"),
        ("text,mood,place of it", (FILM, "{kind}", "{other}"), "'mood', 'place of it' may be"),
        ("question,option1,option2,label", (FILM, "one", "two", "{kind}"), "'option1', 'option2' are answers"),
    ],
)
def test_what_may_be_several_things_is_asked(header: str, cells: tuple[str, ...], what: str, tmp_path: Path) -> None:
    found = written(tmp_path, header, *cells)
    with pytest.raises(DataError, match=what):
        choose_columns(found)
    first, *_, last = found.names
    named = choose_columns(found, Data(text_columns=(first,), label_column=last))
    assert (named.texts, named.label) == ((first,), last)


def test_a_text_beside_a_source_and_its_target_is_told(tmp_path: Path) -> None:
    cells = ("a question about {0}", "since one follows {0}", "it is number {0}")
    found = choose_columns(written(tmp_path, "question,reasoning,answer", *cells))
    assert (found.texts, found.target, found.ignored) == (("question",), "answer", ("reasoning",))
    assert "ignored: 'reasoning'; --input-column" in found.describe()


# As published


@pytest.mark.parametrize("gold", ["gold_label", "label"])
def test_rows_without_agreement_are_left_out(gold: str, tmp_path: Path) -> None:
    """As published, texts have quotes that nothing closes."""
    labels = ["neutral", "-", "entailment", "neutral", "-", "entailment"]
    lines = [f'The 5" disc {i}\tShe said "no more {i}.\t{label}' for i, label in enumerate(labels)]
    found = read(tmp_path / "a.tsv", "\n".join([f"sentence1\tsentence2\t{gold}", *lines]))
    rows = range(1, 7) if gold == "label" else (1, 3, 4, 6)
    assert [item.row for item in found.items] == [*rows]
    assert found.items[0].texts == ('The 5" disc 0', 'She said "no more 0.')
    assert {notice.kind: notice.count for notice in found.notices} == (
        {} if gold == "label" else {"rows without agreement": 2}
    )


def test_a_table_without_a_header_is_read_by_its_cells(tmp_path: Path) -> None:
    rows = [("gj04", "gj04", "bc01", "cj99")[row % 4] for row in range(8)]
    lines = [
        f'{source}\t{int(row % 3 != 2)}\t{"*" * (row % 3 == 2)}\tThe "sailors rode breeze number {row}.'
        for row, source in enumerate(rows)
    ]
    found = read(tmp_path / "train.tsv", "\n".join(lines))
    assert found.table.names == ("column 1", "column 2", "column 3", "column 4")
    assert found.columns.describe().startswith(
        "columns: text 'column 4', label 'column 2' (inferred from their cells: "
    )
    assert found.table.describe().endswith("8 rows, 4 columns, delimiter tab, no quoting, no header, UTF-8")
    assert found.items[0].texts == ('The "sailors rode breeze number 0.',)
    assert [item.label for item in found.items] == ["1", "1", "0", "1", "1", "0", "1", "1"]
    assert choose_columns(found.table, labelled=False) == Columns(("column 4",))


@pytest.mark.parametrize(
    "text",
    [
        "What did you like about it?,label\nIt was good fun to see,yes\nNot so much of it,no\n",
        "0,1\ngood film of the year,1\nbad film of the year,0\n",
        "text,label\na longer text than others,x\ntext,label\nother,x\n",
    ],
)
def test_names_are_a_header(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert open_table(str(tmp_path / "a.csv")).names == tuple(text.partition("\n")[0].split(","))


@pytest.mark.parametrize("row", ["{0}\tthis is sentence number {1} of all", "{2}\tthe very same sentence"])
def test_a_table_without_header_and_classes_is_refused(row: str, tmp_path: Path) -> None:
    with refuses("data"):
        read(tmp_path / "a.tsv", "\n".join(row.format(i // 2, i, i % 2) for i in range(60)))
