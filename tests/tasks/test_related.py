"""Tables of related texts: which columns they are, and when a rule takes a table for one."""

import csv
from pathlib import Path

import pytest

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.objective import Embedding
from lmtool.recipe.spec.text import Data
from lmtool.tasks.embedding import with_inferred_or_checked_loss
from lmtool.tasks.schema import Columns, choose_columns, has_related_texts

WORDS = ["cat", "dog", "sea", "boat", "rain"]


def table(path: Path, **columns: list[str] | str) -> Table:
    """40 rows. columns: their cells in turn; "text" for different texts of several words."""
    with (path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for i in range(40):
            writer.writerow(
                f"{name} about {WORDS[i % 5]} and {i}" if cells == "text" else cells[i % len(cells)]
                for name, cells in columns.items()
            )
    return open_table(str(path / "a.csv"))


CLASSES, NUMBERS = ["yes", "no"], ["0.5", "3.25", "1"]


@pytest.mark.parametrize(
    ("columns", "texts", "label"),
    [
        ({"anchor": "text", "positive": "text"}, ["anchor", "positive"], None),
        ({"id": ["1"], "query": "text", "positive": "text"}, ["query", "positive"], None),
        ({"anchor": "text", "negative": "text", "positive": "text"}, ["anchor", "positive", "negative"], None),
        (
            {"query": "text", "passage": "text", "negative_1": "text", "negative_2": "text"},
            ["query", "passage", "negative_1", "negative_2"],
            None,
        ),
        ({"source": "text", "target": "text"}, ["source", "target"], None),
        ({"de": "text", "en": "text"}, ["de", "en"], None),
        ({"question": "text", "answer": "text", "url": ["http://a.b/c"]}, ["question", "answer"], None),
        ({"left": "text", "right": "text"}, ["left", "right"], None),
        ({"sentence1": "text", "sentence2": "text", "score": NUMBERS}, ["sentence1", "sentence2"], "score"),
        ({"text": "text", "label": CLASSES}, ["text"], "label"),
    ],
)
def test_columns_by_name(columns: dict[str, list[str]], texts: list[str], label: str | None, tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, **columns), kind="related")
    ignored = tuple(name for name in columns if name not in (*texts, label))
    assert found == Columns(tuple(texts), label, kind="related", ignored=ignored)


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    """A number under an unusual name would say how near texts are."""
    found = choose_columns(table(tmp_path, left="text", right="text", agreement=NUMBERS), kind="related")
    assert found.describe().endswith(
        "; ignored: 'agreement'; --label-column names a number that says how similar the texts are"
    )
    named = Data(text_columns=("left", "right"), label_column="agreement")
    assert (
        "ignored" not in choose_columns(table(tmp_path, left="text", right="text", agreement=NUMBERS), named).describe()
    )


def test_named_columns_are_kept_in_their_order(tmp_path: Path) -> None:
    named = Data(text_columns=("right", "left"), label_column="n")
    found = choose_columns(table(tmp_path, left="text", right="text", n=NUMBERS), named, kind="related")
    assert found == Columns(("right", "left"), "n", kind="related")
    named = Data(source_column="right", target_column="left")
    found = choose_columns(table(tmp_path, left="text", right="text", n=NUMBERS), named, kind="related")
    assert found == Columns(("right", "left"), kind="related")


def test_one_text_alone_relates_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another text or a label"):
        choose_columns(table(tmp_path, text="text", number=["1"]), kind="related")


@pytest.mark.parametrize(
    ("columns", "alone", "scored"),
    [
        ({"anchor": "text", "positive": "text"}, True, True),
        ({"source": "text", "target": "text"}, True, True),
        ({"left": "text", "right": "text"}, True, True),
        ({"sentence1": "text", "sentence2": "text", "score": NUMBERS}, False, True),
        # what trains a classifier stays one
        ({"sentence1": "text", "sentence2": "text", "label": CLASSES}, False, False),
        ({"sentence1": "text", "sentence2": "text", "label": ["0", "1"]}, False, False),
        ({"text": "text", "label": CLASSES}, False, False),
        ({"review": "text", "kind": CLASSES}, False, False),
        ({"review": "text", "kind": ["lost card", "late fee", "new pin", "old pin"]}, False, False),
        ({"instruction": "text", "input": "text", "output": "text"}, False, False),
        # of three unnamed texts none is surely the anchor
        ({"left": "text", "right": "text", "middle": "text"}, False, False),
    ],
)
def test_when_rows_are_related(columns: dict[str, list[str]], alone: bool, scored: bool, tmp_path: Path) -> None:
    found = table(tmp_path, **columns)
    assert has_related_texts(found, Data(), allow_scores=False) == alone
    assert has_related_texts(found, Data(), allow_scores=True) == scored


@pytest.mark.parametrize(
    "columns",
    [
        {"telegram": "text", "sentence": "text", "fits": CLASSES},
        {"sentence1": "text", "sentence2": "text", "paraphrase": CLASSES},
        {"question": "text", "answer": "text", "helps": ["0", "1"]},
        {"left": "text", "right": "text", "agreement": ["0.5", "3.25"]},
    ],
)
def test_a_column_that_may_be_the_label_of_pairs_is_asked_for(columns: dict[str, list[str]], tmp_path: Path) -> None:
    """Whatever the answer, it is taken."""
    found = table(tmp_path, **columns)
    *texts, label = columns
    for requested in (Data(), Data(text_columns=tuple(texts))):
        with pytest.raises(DataError, match="cannot infer whether these texts have a label") as asked:
            has_related_texts(found, requested, allow_scores=False)
        assert f"'{label}'" in str(asked.value)
        for option in (f"--text-column {texts[0]} --text-column {texts[1]} --label-column {label}", "=embedding"):
            assert option in asked.value.fix
    named = Data(text_columns=tuple(texts), label_column=label)
    assert not has_related_texts(found, named, allow_scores=False)
    assert choose_columns(found, named) == Columns(tuple(texts), label)
    assert choose_columns(found, kind="related").texts == tuple(texts)


@pytest.mark.parametrize(
    "columns",
    [
        {"anchor": "text", "positive": "text", "fits": CLASSES},
        {"query": "text", "passage": "text", "negative_1": "text", "fits": CLASSES},
        {"left": "text", "right": "text", "id": [str(i) for i in range(40)]},
        {"left": "text", "right": "text", "source": ["web"]},
    ],
)
def test_other_columns_of_related_texts_are_no_labels(columns: dict[str, list[str]], tmp_path: Path) -> None:
    assert has_related_texts(table(tmp_path, **columns), Data(), allow_scores=False)


@pytest.mark.parametrize(
    ("texts", "label", "loss"), [(2, None, "ranking"), (4, None, "ranking"), (2, "n", "cosent"), (1, "n", "labels")]
)
def test_the_loss_of_a_table(texts: int, label: str | None, loss: str) -> None:
    spec, columns = Embedding(kind="embedding"), Columns(("a", "b", "c", "d")[:texts], label)
    assert with_inferred_or_checked_loss(spec, columns).loss == loss
    assert with_inferred_or_checked_loss(with_inferred_or_checked_loss(spec, columns), columns).loss == loss


@pytest.mark.parametrize(
    ("loss", "texts", "label", "word"),
    [
        ("triplet", 2, None, "take ranking"),
        ("cosent", 2, None, "take ranking"),
        ("ranking", 2, "n", "take cosent"),
        ("labels", 2, "n", "take cosent"),
        ("auto", 3, "n", "omit the label"),
    ],
)
def test_a_loss_that_rows_cannot_train_is_refused(loss: str, texts: int, label: str | None, word: str) -> None:
    spec = Embedding.model_validate({"kind": "embedding", "loss": loss})
    with pytest.raises(UsageError, match=word):
        with_inferred_or_checked_loss(spec, Columns(("a", "b", "c")[:texts], label))
    assert (
        with_inferred_or_checked_loss(Embedding(kind="embedding", loss="triplet"), Columns(("a", "b", "c"))).loss
        == "triplet"
    )
