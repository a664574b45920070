"""Tables in the published form of GLUE, SuperGLUE, SNLI and SciTail: their own columns, quotes and missing headers."""

import json
from pathlib import Path

import pytest

from lmtool.data.rowfile import DelimitedFile
from lmtool.data.table import open_table
from lmtool.errors import DataError
from lmtool.tasks.reading import LabelledTable, read_labelled_table
from lmtool.tasks.schema import choose_columns

PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"

HEADERS = {
    "CoLA": ("source label mark sentence", "sentence", "label"),
    "SST-2": ("sentence label", "sentence", "label"),
    "MRPC": ("Quality/#1 ID/#2 ID/#1 String/#2 String", "#1 String/#2 String", "Quality"),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "question1 question2", "is_duplicate"),
    "STS-B": (
        "index genre filename year old_index source1 source2 sentence1 sentence2 score",
        "sentence1 sentence2",
        "score",
    ),
    "MNLI": (
        f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label",
        "sentence1 sentence2",
        "gold_label",
    ),
    "MNLI-dev": (
        f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 label2 label3 label4 label5 gold_label",
        "sentence1 sentence2",
        "gold_label",
    ),
    "QNLI": ("index question sentence label", "question sentence", "label"),
    "RTE": ("index sentence1 sentence2 label", "sentence1 sentence2", "label"),
    "WNLI": ("index sentence1 sentence2 label", "sentence1 sentence2", "label"),
    "SNLI": (
        f"gold_label {PARSES} sentence1 sentence2 captionID pairID label1 label2 label3 label4 label5",
        "sentence1 sentence2",
        "gold_label",
    ),
    "SNLI-GLUE": (
        f"index captionID pairID {PARSES} sentence1 sentence2 label1 gold_label",
        "sentence1 sentence2",
        "gold_label",
    ),
}
"""Columns of the published files in their order, then the texts and the label."""

TEXTS = [
    'She said "no more and left.',
    "A man (Mr. Hill) reads the news.",
    'The 5" disc was not a "record',
    "It rains.",
]


def names(text: str) -> list[str]:
    return text.split("/" if "/" in text else " ")


def cell(name: str, row: int, label: str) -> str:
    """A cell as the published files have them: texts with quotes that nothing closes, parses, one genre for all."""
    text = f"{TEXTS[row % 4]} This is {row} of them"
    if "parse" in name:
        return f"( ( {text}{name.partition('_')[0]} ) . )"
    if name.startswith("label") and name != "label":
        return "entailment"
    kinds = {"genre": ["main-news", "fiction", "main-forum"][row % 3], "year": "2012test", "filename": "MSRvid"}
    is_text = name.startswith(("sentence", "question", "#1 S", "#2 S")) or "String" in name
    return text + name if is_text else label if is_label(name) else kinds.get(name, f"{row}{name[0]}")


def is_label(name: str) -> bool:
    return name in ("label", "Quality", "is_duplicate", "score", "gold_label")


def written(path: Path, columns: list[str], labels: list[str], *, header: bool = True) -> LabelledTable:
    lines = ["\t".join(columns)] if header else []
    lines += ["\t".join(cell(name, row, label) for name in columns) for row, label in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return opened(path)


def opened(path: Path) -> LabelledTable:
    table = open_table(str(path))
    return read_labelled_table(table, choose_columns(table))


@pytest.mark.parametrize("name", [name for name in HEADERS if name != "CoLA"])
def test_official_columns(name: str, tmp_path: Path) -> None:
    columns, texts, label = HEADERS[name]
    labels = ["3.800", "0.250", "5.000", "2.600"] * 3 if name == "STS-B" else ["0", "1", "1", "0"] * 3
    found = written(tmp_path / f"{name}.tsv", names(columns), labels)
    assert found.columns.texts == tuple(names(texts))
    assert found.columns.label == label
    assert found.columns.ignored == ()
    assert isinstance(found.table.file, DelimitedFile)
    assert not found.table.file.dialect.quoted
    assert [item.texts for item in found.items] == [
        tuple(cell(text, row, "") for text in names(texts)) for row in range(len(labels))
    ]
    assert [str(item.label) for item in found.items] == [str(float(x)) if name == "STS-B" else x for x in labels]


def test_genre_is_a_label_where_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("genre,id,text\nfiction,1,a\nnews,2,b\nfiction,3,c\nnews,4,d\n")
    assert opened(tmp_path / "a.csv").columns.label == "genre"


@pytest.mark.parametrize("gold", ["gold_label", "label"])
def test_rows_without_agreement_are_left_out(gold: str, tmp_path: Path) -> None:
    labels = ["neutral", "-", "entailment", "neutral", "-", "entailment"]
    columns = ["sentence1", "sentence2", gold]
    found = written(tmp_path / "a.tsv", columns, labels)
    if gold == "label":  # a class like any other
        assert len(found) == 6
        return
    assert [item.row for item in found.items] == [1, 3, 4, 6]
    assert found.labels is not None
    assert found.labels.names == ("entailment", "neutral")
    assert [str(notice) for notice in found.notices] == ["skipped 2 rows whose gold label is -: no agreement"]


def cola(path: Path, n: int = 8) -> Path:
    sources = ["gj04", "gj04", "bc01", "cj99"]
    lines = []
    for row in range(n):
        bad = row % 3 == 2
        label, mark = str(1 - bad), "*" if bad else ""
        lines.append(f'{sources[row % 4]}\t{label}\t{mark}\tThe "sailors rode breeze number {row}.')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_cola_has_no_header(tmp_path: Path) -> None:
    found = opened(cola(tmp_path / "train.tsv"))
    assert found.table.names == ("column 1", "column 2", "column 3", "column 4")
    described = "columns: text 'column 4', label 'column 2' (inferred from their cells: "
    assert found.columns.describe().startswith(described)
    assert found.table.describe().endswith("8 rows, 4 columns, delimiter tab, no quoting, no header, UTF-8")
    assert found.items[0].texts == ('The "sailors rode breeze number 0.',)
    assert [item.label for item in found.items] == ["1", "1", "0", "1", "1", "0", "1", "1"]
    assert [item.row for item in found.items] == list(range(1, 9))


def test_texts_alone_without_a_header(tmp_path: Path) -> None:
    table = open_table(str(cola(tmp_path / "train.tsv")))
    assert choose_columns(table, labelled=False).texts == ("column 4",)
    assert choose_columns(table, labelled=False).label is None


def test_the_test_part_of_cola_has_a_header(tmp_path: Path) -> None:
    text = "index\tsentence\n0\tBill whistled past the house.\n1\tThe car honked its way down the road.\n"
    (tmp_path / "test.tsv").write_text(text)
    table = open_table(str(tmp_path / "test.tsv"))
    assert choose_columns(table, labelled=False).texts == ("sentence",)


def test_scitail_as_tab_separated_text_and_as_json(tmp_path: Path) -> None:
    pairs = [(f"{TEXTS[row % 4]} It is {row}.", f"A claim about {row} is made here.") for row in range(6)]
    labels = ["neutral", "entails", "entails"] * 2
    rows = [(*pair, label) for pair, label in zip(pairs, labels, strict=True)]
    (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = opened(tmp_path / "a.tsv")
    assert [(item.texts, item.label) for item in found.items] == [(row[:2], row[2]) for row in rows]
    keys = names(f"{PARSES} sentence1 sentence2 annotator_labels gold_label")
    objects = [
        {**dict.fromkeys(keys, f"(S {one} (NP))"), "sentence1": one, "sentence2": other, "gold_label": label}
        | {"annotator_labels": [label]}
        for one, other, label in rows
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in objects))
    found = opened(tmp_path / "a.jsonl")
    assert [(item.texts, item.label) for item in found.items] == [(row[:2], row[2]) for row in rows]
    assert found.columns.ignored == ()


@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        ("question passage idx label", ("question", "passage")),
        ("premise hypothesis label idx", ("premise", "hypothesis")),
        ("word sentence1 sentence2 idx label start1 start2 end1 end2 version", ("sentence1", "sentence2")),
        ("text target idx label", ("text",)),
    ],
)
def test_superglue(keys: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{key: f"a sentence {i}" if key in texts else i % 2 == 0 for key in keys.split()} for i in range(6)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = opened(tmp_path / "a.jsonl")
    assert found.columns.texts == texts
    assert found.columns.label == "label"
    assert found.labels is not None
    assert found.labels.names == ("false", "true")


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
    table = open_table(str(tmp_path / "a.csv"))
    assert table.names == tuple(text.partition("\n")[0].split(","))


def test_a_table_without_header_and_classes_is_refused(tmp_path: Path) -> None:
    rows = [f"{i // 2}\tthis is sentence number {i} of all\n" for i in range(60)]
    (tmp_path / "a.tsv").write_text("".join(rows))
    with pytest.raises(DataError, match="cannot infer which column is the label; found 'column 1', 'column 2'"):
        opened(tmp_path / "a.tsv")
    (tmp_path / "b.tsv").write_text("".join(f"{i % 2}\tthe very same sentence\n" for i in range(60)))
    with pytest.raises(DataError, match="cannot infer which column is the text"):
        opened(tmp_path / "b.tsv")
