"""Labels that seem to be misspelt: which are told, and that long or many labels cost no more than reading them."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from lmtool.data.table import RowError, open_table
from lmtool.errors import DataError
from lmtool.recipe.load import Setting, load
from lmtool.tasks import metrics, reading
from lmtool.tasks import notices as module
from lmtool.tasks.labels import MAX_LABEL_CHARACTERS, LabelMap
from lmtool.tasks.merges import read_label_merges
from lmtool.tasks.metrics import format_class_scores
from lmtool.tasks.notices import find_misspelt_labels
from lmtool.tasks.reading import LabelledTable
from lmtool.tasks.schema import choose_columns
from tests.support.errors import refuses
from tests.tasks.labelled import labelled, read


@pytest.mark.parametrize(
    ("rare", "common"),
    [
        *((rare, "positive") for rare in ("postive", "posittive", "positave", "positvie", "Positive", "POSTIVE")),
        *(("X", "x"), ("science-fiction", "science fiction"), ("scifi", "sci-fi"), ("très bein", "très bien")),
        *(("отрицательны", "отрицательный"), ("Straße", "STRASSE"), ("topic 1 sport", "topic 1 sports")),
    ],
)
def test_a_label_that_is_nearly_a_commoner_one(rare: str, common: str) -> None:
    assert find_misspelt_labels({common: 20, rare: 2, "something else": 30}) == {rare: common}
    assert find_misspelt_labels({common: 2, rare: 20}) == {common: rare}


@pytest.mark.parametrize(
    "pair",
    [
        *("x y", "cat car", "en es", "1 2", "class-1 class-2", "level10 level1", "grade-A grade-B", "type_a type_b"),
        *("C C+", "positive negative", "male female", "not no"),
    ],
)
def test_labels_that_are_as_they_should_be(pair: str) -> None:
    one, other = pair.split()
    assert find_misspelt_labels({one: 20, other: 2}) == {}


def test_the_commonest_is_meant_and_of_two_as_common_other_case_is_a_mistake() -> None:
    counts = {"positive": 50, "postive": 3, "Positive": 9, "positve": 1}
    assert find_misspelt_labels(counts) == dict.fromkeys(("Positive", "postive", "positve"), "positive")
    assert find_misspelt_labels({"fiction": 5, "friction": 5}) == {}
    assert find_misspelt_labels({"good": 5, "Good": 5}) == {"Good": "good"}


def test_very_many_and_very_alike_labels_are_compared_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    real = module._differ_in_one_letter_or_swap

    def compare(*pair: str) -> bool:
        compared.append(pair)
        return real(*pair)

    monkeypatch.setattr(module, "_differ_in_one_letter_or_swap", compare)
    names = [f"word{chr(0x4E00 + i)}ending" for i in range(2000)]
    found = find_misspelt_labels({name: 2000 - i for i, name in enumerate(names)})
    assert found == dict.fromkeys(names[1:], names[0])
    assert len(compared) < 50 * len(names)


# In tables


def notices(found: LabelledTable) -> dict[str, Any]:
    return {notice.kind: notice for notice in found.notices}


def test_an_imbalance_counts_similar_labels_together(tmp_path: Path) -> None:
    assert set(notices(labelled(tmp_path, *["positive"] * 20, "postive", *["negative"] * 19))) == {"similar labels"}
    found = notices(labelled(tmp_path, *["positive"] * 19, "postive", "negative", "Negative"))
    assert "'positive' has 20 rows, 'negative' has 2" in str(found["heavy imbalance"])
    # a class with one row that resembles no other is still refused
    with pytest.raises(RowError, match="'neutral'"):
        labelled(tmp_path, *["positive"] * 3, "postive", "neutral")


def test_misspelt_labels_are_told_with_their_first_lines(tmp_path: Path) -> None:
    several = notices(labelled(tmp_path, *["drama;comedy"] * 5, "dramma;comedy", "comedy"))
    assert "'dramma' (1 row: line 7), did you mean 'drama' (5 rows)?" in str(several["similar labels"])
    wrong = [f"positiv{letter}" for letter in "abcdfgh" for _ in range(5)]
    notice = notices(labelled(tmp_path, *["positive"] * 9, *wrong, "other", "other"))["similar labels"]
    assert notice.count == 35
    assert "line 11, line 12, line 13, …" in str(notice)
    assert "; and 4 more labels; " in str(notice)
    assert str(notice).count("--merge-labels") == 3
    # rows are named where there are no lines
    rows = {"text": list("abcde"), "label": ["good", "good", "good", "Good", "Good"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    table = open_table(str(tmp_path / "a.parquet"))
    found = reading.read_labelled_table(table, choose_columns(table))
    assert "(2 rows: row 4, row 5)" in str(notices(found)["similar labels"])


# Long and unknown labels


@pytest.mark.parametrize("known", [None, LabelMap("class", ("a", "b"))])
def test_a_label_as_long_as_a_text_is_no_label(known: LabelMap | None, tmp_path: Path) -> None:
    long = "all work and no play " * 2400
    with pytest.raises(RowError, match="50,399 characters") as caught:
        labelled(tmp_path, "a", "b", long, "a", "b", long[:-9], long, labels=known)
    assert "a.csv:4, row 3, column 'label'" in caught.value.where
    assert len(str(caught.value)) < 400
    assert len(labelled(tmp_path, "a", "b", long, "a", "b", skip_bad_rows=True)) == 4


def test_a_label_may_be_a_sentence_and_a_tag_not_longer(tmp_path: Path) -> None:
    longest = "x" * MAX_LABEL_CHARACTERS
    several = ";".join(f"label {i}" for i in range(MAX_LABEL_CHARACTERS))
    assert len(labelled(tmp_path, longest, longest, "b", "b")) == 4
    assert len(labelled(tmp_path, several, several)) == 2
    with pytest.raises(RowError, match="2,000 characters"):
        read(tmp_path / "a.conll", f"the X\ncat {'Y' * 2000}\n\nthe X\ncat Y\n", columns={"kind": "words"})


def test_long_names_are_cut_before_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def spy(real: Any) -> Any:
        def measure(text: str, *size: int) -> Any:
            measured.append(len(text))
            return real(text, *size)

        return measure

    for name in ("cell_len", "set_cell_size"):
        monkeypatch.setattr(metrics, name, spy(getattr(metrics, name)))
    names = ["日本" * 25_000, "e" + "\u0301" * 50_000]
    lines = format_class_scores(metrics.class_metrics(np.arange(2), np.arange(2), names)["classes"])
    assert lines[1].startswith("日本" * 7 + "…")
    assert all(len(line) < 300 for line in lines)
    assert sum(measured) < 2_000


def test_an_unknown_label_is_compared_with_the_known_ones_for_the_first_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def match(*given: Any, **_: Any) -> list[str]:
        asked.append(given)
        return []

    monkeypatch.setattr("lmtool.tasks.labels.get_close_matches", match)
    known = LabelMap("class", tuple(f"class {i}" for i in range(50)))
    found = labelled(tmp_path, *(f"unknown {i}" for i in range(500)), "class 1", labels=known, skip_bad_rows=True)
    assert found.skipped.count == 500
    assert len(asked) <= 20


# Mended


def test_labels_are_read_as_others_and_told(tmp_path: Path) -> None:
    labels = [*["positive"] * 9, "postive", *["negative"] * 9, "Negative", "postive"]
    merged = {"postive": "positive", "Negative": "negative"}
    found = labelled(tmp_path, *labels, merges=merged)
    assert found.count_classes() == {"negative": 10, "positive": 11}
    assert found.notices == ()
    assert found.merge_summary == "merged labels: 'postive' as 'positive' (2 rows), 'Negative' as 'negative' (1 row)"
    known = LabelMap("class", ("negative", "positive"))
    assert [item.label for item in labelled(tmp_path, "postive", labels=known, merges=merged).items] == ["positive"]
    (absent,) = labelled(tmp_path, *"xyxy", merges={"z": "x"}).notices
    assert (absent.kind, absent.count) == ("absent labels", 1)


def test_the_words_that_a_notice_says_mend_what_it_is_about(tmp_path: Path) -> None:
    labels = [*["very good"] * 9, "very goood", *["it's bad"] * 9, "It's bad"]
    (notice,) = labelled(tmp_path, *labels).notices
    words = shlex.split(str(notice).partition("to merge them: ")[2])
    assert set(words[::2]) == {"--merge-labels"}
    merged = labelled(tmp_path, *labels, merges=read_label_merges(words[1::2]))
    assert merged.count_classes() == {"it's bad": 10, "very good": 10}
    with pytest.raises(RowError, match="--merge-labels 'very goood=very good'"):
        labelled(tmp_path, "very good", "very goood", labels=LabelMap("class", ("it's bad", "very good")))


def test_several_labels_a_row_are_merged_each(tmp_path: Path) -> None:
    found = labelled(tmp_path, "b;c", "a;b", "c", ";", "a", merges={"b": "a"})
    assert [item.label for item in found.items] == [("a", "c"), ("a",), ("c",), (), ("a",)]
    content = '{"text": "a", "label": ["b", "c"]}\n{"text": "b", "label": ["a"]}\n'
    found = read(tmp_path / "a.jsonl", content, merges={"b": "a"})
    assert [item.label for item in found.items] == [("a", "c"), ("a",)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "Positv: positiv\nyes: 'no'\n1: 2\n"),
        ("a.json", '{"Positv": "positiv", "yes": "no", "1": 2}'),
        ("a.csv", "from,to\nPositv,positiv\nyes,no\n1,2\n"),
    ],
)
def test_labels_to_merge_are_read_from_files(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    expected = {"Positv": "positiv", "yes": "no", "1": "2", "a": "b=c"}
    assert read_label_merges([str(tmp_path / name), "a=b=c", "d=d"]) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.yaml", content) for content in ("", "[a, b]", "a: [b]", "a: {b: c}", "{", "a: ''")),
        *(("a.json", content) for content in ("", "[1]", '{"a": null}', "{", '{"": "a"}', "[" * 100_000)),
        *(("a.csv", content) for content in ("", "a,b\n", "from,to\na\n", 'from,to\na,"b\n', "from;to\na;b\n")),
        ("a.csv", b"from,to\na,\xff\n"),
    ],
)
def test_a_file_of_another_form_is_refused(name: str, content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError):
        read_label_merges([str(path)])


@pytest.mark.parametrize("value", ["Positv", "=a", "a=", "", "nothing.txt"])
def test_a_text_that_merges_nothing_is_refused(value: str) -> None:
    with refuses("usage"):
        read_label_merges([value])


def test_a_chain_of_labels_is_refused() -> None:
    with refuses("recipe"):
        load("linear", [Setting("data.merge_labels", {"a": "b", "b": "c"}, "--merge-labels")])
