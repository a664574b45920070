"""Rows in which each pair of values of two axes that the recipe language accepts together meets at least once."""

import random
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import combinations
from pathlib import Path

from lmtool.errors import LmtoolError
from lmtool.recipe.load import load
from tests.crossings.axes import AXES, TASKS, USUAL, Row, chosen, is_named, is_possible, settings

Value = tuple[str, str]
"""An axis and one of its values."""
Pair = frozenset[Value]


class Language:
    """What the recipe language accepts; asked once for each combination."""

    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe
        self._refused: list[Pair] = []
        self._known: dict[tuple[str, ...], bool] = {}
        self.unnamed: list[str] = []
        """Messages of refusals without the name of a key of the row."""

    def without(self, refused: Iterable[Pair]) -> "Language":
        """The same without combinations that commands have refused later than the language does."""
        narrower = copy(self)
        narrower._refused = list(refused)
        return narrower

    def accepts(self, values: Iterable[Value]) -> bool:
        """Whether a recipe with these values, a task among them, and else the usual ones, is one."""
        named = dict(values)
        row = {**USUAL, **({"base": "a run"} if named.get("tuning", "").startswith("lora") else {}), **named}
        if not is_possible(row) or any(pair <= row.items() for pair in self._refused):
            return False
        key = tuple(settings(row))
        if key not in self._known:
            try:
                load(self._recipe, key)
                self._known[key] = True
            except LmtoolError as error:
                self._known[key] = False
                message = " ".join(error.lines())
                if not any(is_named(axis, value, message) for axis, value in chosen(row).items()):
                    self.unnamed.append(message)
        return self._known[key]

    def tasks_with(self, values: Sequence[Value]) -> list[str]:
        """The tasks that accept all these values together."""
        named = [value for axis, value in values if axis == "task"] or list(TASKS)
        singly = [task for task in named if all(self.accepts([("task", task), value]) for value in values)]
        return [task for task in singly if self.accepts([("task", task), *values])]


def pairs_of(row: Row) -> Iterator[Pair]:
    return map(frozenset, combinations(row.items(), 2))


def all_pairs() -> list[Pair]:
    values = [(axis, value) for axis in AXES for value in AXES[axis]]
    return [frozenset(pair) for pair in combinations(values, 2) if pair[0][0] != pair[1][0]]


def covering(language: Language, wanted: Iterable[Pair], rng: random.Random) -> Iterator[Row]:
    """Rows that the language accepts and that together hold each wanted pair which it accepts in any task.

    Greedy: each row begins with a pair that no row holds yet; then each axis, in an order drawn anew, takes the value
    which completes most such pairs.
    """
    left = {pair: None for pair in wanted}
    while left:
        first = next(iter(left))
        del left[first]
        tasks = language.tasks_with(sorted(first))
        if not tasks:
            continue
        row = {"task": rng.choice(tasks)} | dict(sorted(first))
        for axis in rng.sample([axis for axis in AXES if axis not in row], len(AXES) - len(row)):
            gains = {
                value: sum(frozenset(((axis, value), item)) in left for item in row.items()) for value in AXES[axis]
            }
            best = sorted(gains, key=lambda value: (-gains[value], rng.random()))
            row[axis] = next(value for value in best if language.accepts({**row, axis: value}.items()))
        for pair in pairs_of(row):
            left.pop(pair, None)
        yield {axis: row[axis] for axis in AXES}


def drawn(language: Language, rng: random.Random) -> Row:
    """A row at random: a task, and of each axis a value that fits those before it."""
    row = {"task": rng.choice(list(TASKS))}
    for axis in rng.sample([axis for axis in AXES if axis != "task"], len(AXES) - 1):
        values = rng.sample(list(AXES[axis]), len(AXES[axis]))
        row[axis] = next(value for value in values if language.accepts({**row, axis: value}.items()))
    return {axis: row[axis] for axis in AXES}
