"""Holding out a part of a table."""

from collections import Counter
from pathlib import Path

from lmtool.runs.files import TrainTestRowNumbers
from lmtool.tasks.reading import make_shared_rows_notice
from lmtool.tasks.split import apply_split, draw_stratified_folds, hold_out_stratified
from tests.support.errors import refuses
from tests.tasks.labelled import labelled, read


def test_a_split_keeps_the_classes_in_proportion(tmp_path: Path) -> None:
    examples = labelled(tmp_path, *["x"] * 600, *["y"] * 300, *["z"] * 2)
    train, test = apply_split(examples, hold_out_stratified(examples, 0.1, 0))
    assert Counter(item.label for item in test.items) == {"x": 60, "y": 30, "z": 1}
    assert sorted([*train.items, *test.items], key=lambda item: item.row) == list(examples.items)
    assert hold_out_stratified(examples, 0.1, 0) == hold_out_stratified(examples, 0.1, 0)
    assert hold_out_stratified(examples, 0.1, 1) != hold_out_stratified(examples, 0.1, 0)
    # Not the first rows of each class
    assert max(item.row for item in test.items if item.label == "x") > 300


def test_a_split_keeps_equal_texts_together(tmp_path: Path) -> None:
    examples = read(tmp_path / "a.csv", "text,label\n" + "".join(f"t{i % 40},{'xy'[i % 2]}\n" for i in range(400)))
    train, test = apply_split(examples, hold_out_stratified(examples, 0.25, 0))
    assert make_shared_rows_notice(train, test, "a.csv") is None
    assert len(test) == 100
    with refuses("data"):
        hold_out_stratified(read(tmp_path / "a.csv", "text,label\n" + "a,x\n" * 5 + "a,y\n" * 5), 0.5, 0)


def test_folds_divide_all_rows_with_the_classes_in_proportion_and_equal_texts_together(tmp_path: Path) -> None:
    content = "text,label\n" + "".join(f"t{i % 90},{'xxy'[i % 3]}\n" for i in range(270)) + "other,z\nanother,z\n"
    examples = read(tmp_path / "a.csv", content)
    folds = draw_stratified_folds(examples, 5, 0)
    assert sorted(row for fold in folds for row in fold) == [item.row for item in examples.items]
    for fold in folds:
        counts = Counter(item.label for item in examples.items if item.row in fold)
        assert abs(counts["x"] - 36) <= 3
        assert abs(counts["y"] - 18) <= 3
        texts = {item.texts for item in examples.items if item.row in fold}
        assert not texts & {item.texts for item in examples.items if item.row not in fold}
    assert draw_stratified_folds(examples, 5, 0) == folds != draw_stratified_folds(examples, 5, 1)
    assert len(draw_stratified_folds(read(tmp_path / "b.csv", "text,label\na,x\na,y\nb,x\nb,y\n"), 5, 0)) == 2


def test_numbers_are_held_out_by_tenths_and_several_labels_in_proportion(tmp_path: Path) -> None:
    numbers = labelled(tmp_path, *[f"{i / 7:.3f}" for i in range(200)])
    tenths = Counter((row - 1) // 20 for row in hold_out_stratified(numbers, 0.1, 0).test)
    assert tenths == dict.fromkeys(range(10), 2)
    several = labelled(tmp_path, *["common"] * 90, *["common;rare"] * 10)
    _, test = apply_split(several, hold_out_stratified(several, 0.1, 0))
    assert Counter(item.label for item in test.items) == {("common",): 9, ("common", "rare"): 1}


def test_a_split_is_restored_from_its_row_numbers(tmp_path: Path) -> None:
    examples = labelled(tmp_path, *["x", "y"] * 30)
    held = hold_out_stratified(examples, 0.2, 3)
    saved = TrainTestRowNumbers.model_validate_json(held.model_dump_json())
    assert apply_split(examples, saved) == apply_split(examples, held)
    for test in saved.test[1:], [*saved.test[1:], 99], [*saved.test[1:], saved.test[1]]:
        with refuses("checkpoint"):
            apply_split(examples, saved.model_copy(update={"test": test}))
