"""What may change when a run is resumed: every key of the language has a rule, and the page on resuming tells it."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.recipe.changes import (
    CHANGE_RULES,
    ResumeChangeRule,
    checkpoint_selection_values,
    diff_recipes,
    find_change_rule,
    find_unchangeable_keys,
)
from lmtool.recipe.dump import iterate_values
from lmtool.recipe.grammar import iterate_dotted_keys, specs_by_kind, specs_with_key
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from tests.recipe.reading import covering

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"
WHOLE = {"model", "objective", "tokenizer", "tuning", "distillation", "optimizer", "schedule"}
"""Parts that are fixed as a whole, with every key that they will have: they say what is trained, and by what rule."""


def plain_keys() -> list[str]:
    """Each key that holds a plain value, of every kind of every part."""
    fields = {
        key: [owner.model_fields[key.split(".")[-1]] for owner in specs_with_key(tuple(key.split(".")))] for key in ALL
    }
    return [key for key, found in fields.items() if not all(map(specs_by_kind, found))]


ALL = list(dict.fromkeys(iterate_dotted_keys(Recipe)))
PLAIN = plain_keys()


def test_every_key_has_one_rule() -> None:
    """A new key has none, and is to have one."""
    assert len(PLAIN) > 200
    for key in PLAIN:
        assert (key in CHANGE_RULES) != (key.split(".")[0] in WHOLE), f"give {key} a rule in lmtool/recipe/changes.py"
    assert CHANGE_RULES.keys() == WHOLE | {key for key in PLAIN if key.split(".")[0] not in WHOLE}


def test_what_is_fixed_as_a_whole_may_not_change() -> None:
    assert not any(CHANGE_RULES[part].may_change for part in WHOLE)
    assert all(rule.note and not rule.resets for rule in CHANGE_RULES.values() if not rule.may_change)


def changed(recipe: Any, path: tuple[str, ...]) -> Any:
    """The same with another value at a path."""
    name, *rest = path
    value = changed(getattr(recipe, name), tuple(rest)) if rest else ("another", getattr(recipe, name))
    return recipe.model_copy(update={name: value})


@pytest.mark.parametrize("name", covering())
def test_a_change_is_named_and_judged_by_its_rule(name: str) -> None:
    recipe = load(name).recipe
    measured = checkpoint_selection_values(recipe.model_dump())
    for path, _ in iterate_values(recipe):
        key, other = ".".join(map(str, path)), changed(recipe, tuple(map(str, path)))
        found = diff_recipes(recipe, other)
        assert [*found] == [key], key
        assert find_unchangeable_keys(found) == ([] if find_change_rule(key).may_change else [key])
        assert (checkpoint_selection_values(other.model_dump(warnings=False)) != measured) == (
            "best" in find_change_rule(key).resets
        )


def row(keys: list[str], rule: ResumeChangeRule) -> str:
    names = ", ".join(f"`{key}.*`" if key in WHOLE else f"`{key}`" for key in keys)
    resets = {"best": "best step and patience", "scores": "final scores"}
    told = ", ".join(resets[one] for one in rule.resets) or ("nothing" if rule.may_change else "")
    return f"| {names} | {'yes' if rule.may_change else 'no'} | {told} | {rule.note} |"


def test_the_page_has_every_rule() -> None:
    """Keys of one rule share a row, where the first of them stands."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("| key | may change | resets | note |") + 2
    alike: dict[ResumeChangeRule, list[str]] = {}
    for key, rule in CHANGE_RULES.items():
        alike.setdefault(rule, []).append(key)
    expected = [row(keys, rule) for rule, keys in alike.items()]
    assert lines[begin : begin + len(expected) + 1] == [*expected, ""], "\n".join(expected)
