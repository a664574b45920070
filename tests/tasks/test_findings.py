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
from tests.support.training import write_table

TEXTS = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=14).map(" ".join), max_size=8)


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}


def rows(texts: list[str]) -> list[LabelledRow]:
    return [LabelledRow((text,), None, None, number) for number, text in enumerate(texts, 1)]


@given(TEXTS, TEXTS, st.integers(1, 40))
@settings(deadline=None, max_examples=examples(60, 300))
def test_near_rows_are_those_of_all_pairs(train: list[str], held: list[str], block: int) -> None:
    held += [f"{text} {text[0]}" for text in train]  # some of which are near
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


LINES = [f"a row of number {number},{'abc'[number % 3]}" for number in range(20)]
ALL = ["x y,a", "z,b", "w,c"]


@pytest.mark.parametrize(
    ("more", "test", "found"),
    [
        ([*LINES[:3], LINES[0]], ALL, {"duplicate rows": 4}),
        ([], ALL[:1], {"classes without rows": 2}),
        ([f"{'word' + str(number):x<120},a" for number in range(4)], ALL, {}),
        ([f"{'word' + str(number):x<120},a" for number in range(5)], ALL, {"texts cut at one length": 5}),
    ],
)
def test_what_a_table_has_wrong_is_counted(
    more: list[str], test: list[str], found: dict[str, int], tmp_path: Path
) -> None:
    train = str(write_table(tmp_path / "a.csv", [*LINES, f"{'word':y<119},b", *more]))
    measured = str(write_table(tmp_path / "b.csv", test))
    recipe = load("linear", [Setting("data.train", [train], ""), Setting("data.test", measured, "")]).recipe
    _, notices = check_tables(recipe, open_training_tables(recipe.data, None), None, None)
    assert {notice.kind: notice.count for notice in notices} == found
