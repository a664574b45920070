"""Rows that stand in what a model was trained on, against sets of 13-grams."""

import re
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.checking.check import is_data_on_disk
from lmtool.apps.checking.leaks import MIN_SHARED_FRACTION, find_rows_in_training_data
from lmtool.recipe.spec.text import Data
from lmtool.runs.directory import Run
from tests.support.training import Work

DOCUMENTS = [" ".join(f"w{i}x{j}" for j in range(40)) for i in range(40)]
FRESH = " ".join(f"fresh{j}" for j in range(30))


def plainly(train: list[str], rows: dict[int, str]) -> set[int]:
    """The rows of which enough words are in 13-grams of the training text."""

    def grams(text: str) -> list[tuple[int, tuple[str, ...]]]:
        words = re.findall(r"\w+", text.lower())
        n = min(13, len(words))
        return [(i, tuple(words[i : i + n])) for i in range(len(words) - n + 1)] if words else []

    known = {gram for text in train for _, gram in grams(text)}
    found = set()
    for row, text in rows.items():
        shared = {i + k for i, gram in grams(text) if gram in known for k in range(len(gram))}
        if shared and len(shared) >= MIN_SHARED_FRACTION * len(re.findall(r"\w+", text)):
            found.add(row)
    return found


def told_of(run: Path, rows: dict[int, str], **limits: int) -> list[Any]:
    """The notices about rows, each by its number."""
    named = [(f"row {number}", text) for number, text in rows.items()]
    return list(find_rows_in_training_data(Run.open(run), named, **limits))


def named(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"; row (\d+):", text)}


@pytest.fixture
def pretrained(work: Work) -> Work:
    work.text.write_text("\n\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    valid = work.folder / "valid.txt"
    valid.write_text(FRESH + "\n\nanother one\n", encoding="utf-8")
    work.pretrain("training.steps=1", valid=valid)
    return work


def test_rows_in_the_training_text_are_told(pretrained: Work) -> None:
    words = DOCUMENTS[3].split()
    rows = {
        1: FRESH,  # which is validated on
        4: " ".join(words[5:25]).upper() + "!",
        7: " ".join(words[:12]),
        9: " ".join([*words[:16], *FRESH.split()[:3]]),
        11: " ".join([*words[:16], *FRESH.split()[:8]]),
        12: "",
    }
    expected = plainly(DOCUMENTS, rows)
    assert expected == {4, 9}
    (notice,) = told_of(pretrained.run(), rows)
    assert (notice.count, named(notice.text)) == (2, expected)
    assert "2 of 6 rows (33.3 %) are in the training text of run" in notice.text
    assert "looked through" not in notice.text
    assert told_of(pretrained.run(), {1: FRESH}) == []


def test_the_text_of_the_run_that_a_run_begins_with_counts(pretrained: Work) -> None:
    pretrained.finetune("training.steps=1", source=pretrained.run())
    table = (pretrained.folder / "table.csv").read_text().splitlines()[1:]
    rows = {1: DOCUMENTS[0], 2: table[0].partition(",")[0], 3: FRESH}
    of_table, of_text = told_of(pretrained.run("tuned"), rows)
    assert ("table.csv" in of_table.text, named(of_table.text)) == (True, {2})
    assert ("text.txt" in of_text.text, named(of_text.text)) == (True, {1})
    pretrained.text.unlink()
    (left,) = told_of(pretrained.run("tuned"), rows)
    assert left == of_table


def test_rows_that_were_held_out_were_not_trained_on(pretrained: Work) -> None:
    table = pretrained.folder / "rows.csv"
    table.write_text("text,label\n" + "".join(f"word{i} short,{'ab'[i % 2]}\n" for i in range(40)))
    pretrained.finetune("training.steps=1", "data.valid_fraction=0.1", source=pretrained.run(), table=table)
    run = Run.open(pretrained.run("tuned"))
    assert run.saved_split is not None
    held = run.saved_split.split_of_task("")
    assert held is not None
    (notice,) = told_of(run.path, {i + 1: f"word{i} short" for i in range(40)})
    assert notice.count == 40 - len(held.test) == 36
    assert "rows.csv: the whole row, or of 13 words and more 80 % of the words, in 13-grams" in notice.text


def test_a_look_at_a_part_says_so(pretrained: Work) -> None:
    pretrained.text.write_text("\n\n".join([*DOCUMENTS, *(" ".join(["long"] * 30_000) for _ in range(9))]) + "\n")
    run = pretrained.run()
    (notice,) = told_of(run, {1: FRESH}, max_training_chunks=1)
    assert notice.count == 0
    assert re.search(r"0 of 1 row .* only its first [\d,]+ words were looked through", notice.text)
    assert told_of(run, {1: FRESH}, max_training_chunks=1000) == []


def test_a_dataset_that_a_run_names_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    here = str(tmp_path / "a.txt")
    for source, is_here in ((here, True), ("hf:a/b", False), (f"{here}.csv", False)):
        for data in (Data(train=(source,)), Data(mixture={source: 1.0}), Data(tasks=(f"t:{source}:2",))):
            assert is_data_on_disk(data) == is_here
