"""Holding out a part of a table."""

from collections import Counter
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError, DataError
from lmtool.run.files import HeldRows
from lmtool.tables.reading import shared_rows
from lmtool.tables.split import restore_split, split_rows
from tests.tables.labelled import labelled, read


@pytest.mark.parametrize("seed", range(3))
def test_a_split_keeps_the_classes_in_proportion(seed: int, tmp_path: Path) -> None:
    examples = labelled(tmp_path, *["x"] * 600, *["y"] * 300, *["z"] * 2)
    split = split_rows(examples, 0.1, seed)
    assert Counter(item.label for item in split.test.items) == {"x": 60, "y": 30, "z": 1}
    assert len(split.train) + len(split.test) == len(examples)
    assert sorted([*split.train.items, *split.test.items], key=lambda item: item.row) == list(examples.items)
    assert split_rows(examples, 0.1, seed) == split
    assert split_rows(examples, 0.1, seed + 1) != split
    # Not the first rows of each class
    assert max(item.row for item in split.test.items if item.label == "x") > 300


def test_a_split_keeps_equal_texts_together(tmp_path: Path) -> None:
    content = "text,label\n" + "".join(f"t{i % 40},{'xy'[i % 2]}\n" for i in range(400))
    split = split_rows(read(tmp_path / "a.csv", content), 0.25, 0)
    assert shared_rows(split.train, split.test, "a.csv") is None
    assert len(split.test) == 100
    content = "text,label\n" + "a,x\n" * 5 + "a,y\n" * 5
    with pytest.raises(DataError, match="all have the same text"):
        split_rows(read(tmp_path / "a.csv", content), 0.5, 0)


def test_strata_of_numbers_and_several_labels(tmp_path: Path) -> None:
    numbers = labelled(tmp_path, *[f"{i / 7:.3f}" for i in range(200)])
    split = split_rows(numbers, 0.1, 0)
    tenths = Counter(int(item.row - 1) // 20 for item in split.test.items)
    assert tenths == dict.fromkeys(range(10), 2)
    several = labelled(tmp_path, *["common"] * 90, *["common;rare"] * 10)
    split = split_rows(several, 0.1, 0)
    assert sum("rare" in item.label for item in split.test.items) == 1  # type: ignore[operator]
    assert len(split.test) == 10


def test_a_split_is_restored_from_its_row_numbers(tmp_path: Path) -> None:
    examples = labelled(tmp_path, *["x", "y"] * 30)
    split = split_rows(examples, 0.2, 3)
    saved = HeldRows.model_validate_json(split.held_rows().model_dump_json())
    assert restore_split(examples, saved) == split
    for test in saved.test[1:], [*saved.test[1:], 99], [*saved.test[1:], saved.test[1]]:
        with pytest.raises(CheckpointError, match="does not fit"):
            restore_split(examples, saved.model_copy(update={"test": test}))
