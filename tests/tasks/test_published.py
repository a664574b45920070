"""Tables in the published form of GLUE: their own columns, quotes and missing headers."""

from pathlib import Path

import pytest

from lmtool.data.rowfile import DelimitedFile
from lmtool.data.table import open_table
from lmtool.errors import DataError
from lmtool.tasks.reading import LabelledTable, read_labelled_table
from lmtool.tasks.schema import choose_columns

PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"

SENTENCES = "sentence1 sentence2"
HEADERS = {
    "MRPC": ("Quality/#1 ID/#2 ID/#1 String/#2 String", "#1 String/#2 String", "Quality"),
    "STS-B": (f"index genre filename year old_index source1 source2 {SENTENCES} score", SENTENCES, "score"),
    "MNLI": (f"index promptID pairID genre {PARSES} {SENTENCES} label1 gold_label", SENTENCES, "gold_label"),
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


@pytest.mark.parametrize("name", HEADERS)
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


def cola(path: Path) -> Path:
    sources = ["gj04", "gj04", "bc01", "cj99"]
    lines = []
    for row in range(8):
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
