"""Rows that are nearly the same, against all pairs; and the other findings in tables, one by one."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.recipe.load import Setting, load
from lmtool.tasks import findings
from lmtool.tasks.findings import _find_near_duplicates
from lmtool.tasks.prepare import check_tables, open_training_tables
from lmtool.tasks.reading import LabelledRow
from tests.support.examples import examples

TEXTS = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=14).map(" ".join), max_size=8)


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}


def rows(texts: list[str]) -> list[LabelledRow]:
    return [LabelledRow((text,), None, None, number) for number, text in enumerate(texts, 1)]


@given(TEXTS, TEXTS, st.integers(1, 40))
@settings(deadline=None, max_examples=examples(100, 300))
def test_near_rows_are_those_of_all_pairs(train: list[str], held: list[str], block: int) -> None:
    near = [
        number
        for number, text in enumerate(held, 1)
        if text not in train
        and any(len(grams(text) & grams(other)) >= 0.8 * len(grams(text) | grams(other)) for other in train)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(findings, "BLOCK_SHINGLES", block)
        found = list(_find_near_duplicates(rows(train), rows(held), "test"))
    assert [notice.count for notice in found] == ([len(near)] if near else [])
    if near:
        assert f"first: row {near[0]} is nearly" in found[0].text


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return str(path)


def kinds(train: str, test: str) -> dict[str, int]:
    recipe = load("linear", [Setting("data.train", [train], ""), Setting("data.test", test, "")]).recipe
    _, notices = check_tables(recipe, open_training_tables(recipe.data, None), None, None)
    return {notice.kind: notice.count for notice in notices}


def test_rows_that_occur_again_are_counted(tmp_path: Path) -> None:
    lines = [f"a row of number {number},{'ab'[number % 2]}" for number in range(20)]
    train = write(tmp_path / "a.csv", [*lines, *lines[:3], lines[0]])
    assert kinds(train, write(tmp_path / "b.csv", ["x y,a", "z,b"])) == {"duplicate rows": 4}


def test_classes_without_test_rows_are_counted(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", [f"a row of number {number},{'abc'[number % 3]}" for number in range(30)])
    found = kinds(train, write(tmp_path / "b.csv", ["x y,a", "z,a"]))
    assert found == {"classes without rows": 2}


@pytest.mark.parametrize(("n_cut", "expected"), [(4, {}), (5, {"texts cut at one length": 5})])
def test_texts_of_one_length_are_cut(tmp_path: Path, n_cut: int, expected: dict[str, int]) -> None:
    lines = [f"a row of number {number},{'ab'[number % 2]}" for number in range(20)]
    lines += [f"{'word' + str(number):x<120},a" for number in range(n_cut)]
    lines += [f"{'word':y<119},b"]
    assert kinds(write(tmp_path / "a.csv", lines), write(tmp_path / "b.csv", ["x y,a", "z,b"])) == expected
