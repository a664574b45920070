"""Tables of related texts: which columns they are, and when a rule takes a table for one."""

import csv
from pathlib import Path

import pytest

from lmtool.data.table import Table, open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.objective import Embedding
from lmtool.recipe.spec.text import Data
from lmtool.tasks.embedding import with_inferred_or_checked_loss
from lmtool.tasks.schema import Columns, choose_columns, has_related_texts
from tests.support.errors import refuses

WORDS = ["cat", "dog", "sea", "boat", "rain"]
CLASSES, NUMBERS = ["yes", "no"], ["0.5", "3.25", "1"]


def table(path: Path, texts: str, **columns: list[str]) -> Table:
    """40 rows. texts: names of columns of different texts of several words. columns: their cells in turn."""
    with (path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*texts.split(), *columns])
        for i in range(40):
            prose = (f"{name} about {WORDS[i % 5]} and {i}" for name in texts.split())
            writer.writerow([*prose, *(cells[i % len(cells)] for cells in columns.values())])
    return open_table(str(path / "a.csv"))


@pytest.mark.parametrize(
    ("given", "more", "texts", "label"),
    [
        ("query positive", {"id": ["1"]}, "query positive", None),
        ("anchor negative positive", {}, "anchor positive negative", None),
        ("query passage negative_1 negative_2", {}, "query passage negative_1 negative_2", None),
        ("source target", {}, "source target", None),
        ("de en", {}, "de en", None),
        ("question answer", {"url": ["http://a.b/c"]}, "question answer", None),
        ("left right", {}, "left right", None),
        ("sentence1 sentence2", {"score": NUMBERS}, "sentence1 sentence2", "score"),
        ("text", {"label": CLASSES}, "text", "label"),
    ],
)
def test_columns_by_name(given: str, more: dict[str, list[str]], texts: str, label: str | None, tmp_path: Path) -> None:
    found = choose_columns(table(tmp_path, given, **more), kind="related")
    ignored = tuple(name for name in more if name != label)
    assert found == Columns(tuple(texts.split()), label, kind="related", ignored=ignored)


def test_named_columns_are_kept_in_their_order_and_others_told(tmp_path: Path) -> None:
    """A number under an unusual name would say how near texts are."""
    pairs = table(tmp_path, "left right", agreement=NUMBERS)
    told = choose_columns(pairs, kind="related").describe()
    assert told.endswith("ignored: 'agreement'; --label-column names a number that says how similar the texts are")
    named = choose_columns(pairs, Data(text_columns=("right", "left"), label_column="agreement"), kind="related")
    assert named == Columns(("right", "left"), "agreement", kind="related")
    assert "ignored" not in named.describe()
    directed = choose_columns(pairs, Data(source_column="right", target_column="left"), kind="related")
    assert directed == Columns(("right", "left"), kind="related")
    with refuses("data"):  # one text alone relates to nothing
        choose_columns(table(tmp_path, "text", number=["1"]), kind="related")


@pytest.mark.parametrize(
    ("texts", "more", "alone", "scored"),
    [
        ("anchor positive", {}, True, True),
        ("source target", {}, True, True),
        ("left right", {}, True, True),
        ("sentence1 sentence2", {"score": NUMBERS}, False, True),
        # other columns than these are no labels
        ("anchor positive", {"fits": CLASSES}, True, True),
        ("query passage negative_1", {"fits": CLASSES}, True, True),
        ("left right", {"id": [str(i) for i in range(40)]}, True, True),
        ("left right", {"source": ["web"]}, True, True),
        # what trains a classifier stays one
        ("sentence1 sentence2", {"label": CLASSES}, False, False),
        ("sentence1 sentence2", {"label": ["0", "1"]}, False, False),
        ("text", {"label": CLASSES}, False, False),
        ("review", {"kind": ["lost card", "late fee", "new pin", "old pin"]}, False, False),
        ("instruction input output", {}, False, False),
        # of three unnamed texts none is surely the anchor
        ("left right middle", {}, False, False),
    ],
)
def test_when_rows_are_related(
    texts: str, more: dict[str, list[str]], alone: bool, scored: bool, tmp_path: Path
) -> None:
    found = table(tmp_path, texts, **more)
    assert has_related_texts(found, Data(), allow_scores=False) == alone
    assert has_related_texts(found, Data(), allow_scores=True) == scored


@pytest.mark.parametrize(
    ("pair", "label", "cells"),
    [
        ("telegram sentence", "fits", CLASSES),
        ("sentence1 sentence2", "paraphrase", CLASSES),
        ("question answer", "helps", ["0", "1"]),
        ("left right", "agreement", ["0.5", "3.25"]),
    ],
)
def test_a_column_that_may_be_the_label_of_pairs_is_asked_for(
    pair: str, label: str, cells: list[str], tmp_path: Path
) -> None:
    """Whatever the answer, it is taken."""
    found, texts = table(tmp_path, pair, **{label: cells}), tuple(pair.split())
    for requested in (Data(), Data(text_columns=texts)):
        with pytest.raises(DataError, match=f"'{label}'") as asked:
            has_related_texts(found, requested, allow_scores=False)
        for option in (f"--text-column {texts[0]} --text-column {texts[1]} --label-column {label}", "=embedding"):
            assert option in asked.value.fix
    named = Data(text_columns=texts, label_column=label)
    assert not has_related_texts(found, named, allow_scores=False)
    assert choose_columns(found, named) == Columns(texts, label)
    assert choose_columns(found, kind="related").texts == texts


@pytest.mark.parametrize(
    ("texts", "label", "loss"), [(2, None, "ranking"), (4, None, "ranking"), (2, "n", "cosent"), (1, "n", "labels")]
)
def test_the_loss_of_a_table(texts: int, label: str | None, loss: str) -> None:
    columns = Columns(("a", "b", "c", "d")[:texts], label)
    found = with_inferred_or_checked_loss(Embedding(kind="embedding"), columns)
    assert found.loss == with_inferred_or_checked_loss(found, columns).loss == loss


@pytest.mark.parametrize(
    ("loss", "texts", "label"),
    [("triplet", 2, None), ("cosent", 2, None), ("ranking", 2, "n"), ("labels", 2, "n"), ("auto", 3, "n")],
)
def test_a_loss_that_rows_cannot_train_is_refused(loss: str, texts: int, label: str | None) -> None:
    spec = Embedding.model_validate({"kind": "embedding", "loss": loss})
    with refuses("usage"):
        with_inferred_or_checked_loss(spec, Columns(("a", "b", "c")[:texts], label))
    triplet = Embedding(kind="embedding", loss="triplet")
    assert with_inferred_or_checked_loss(triplet, Columns(("a", "b", "c"))).loss == "triplet"
