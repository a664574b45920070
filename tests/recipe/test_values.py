import pytest

from lmtool.recipe.load import load
from lmtool.recipe.spec.base import find_surrogates_and_too_large_numbers


def test_a_recipe_with_other_values_has_these_and_keeps_all_others():
    recipe = load("tiny").recipe
    changed = recipe.with_unvalidated_values(
        {"training.steps": 5, "training.epochs": None, "model.position.kind": "other", "seed": 7}
    )
    assert (changed.training.steps, changed.seed, changed.model.position.kind) == (5, 7, "other")
    restored = changed.with_unvalidated_values(
        {"training": recipe.training, "seed": recipe.seed, "model": recipe.model}
    )
    assert restored == recipe


def test_no_value_is_given_to_a_key_that_there_is_not():
    with pytest.raises(AttributeError):
        load("tiny").recipe.with_unvalidated_values({"training.stepps": 5})


@pytest.mark.parametrize(("name", "largest", "next_one"), [("seed", 2**53, 2**53 + 1), ("optimizer.eps", 1e30, 1.1e30)])
def test_numbers_up_to_the_largest_that_all_code_holds_are_accepted(name: str, largest: float, next_one: float) -> None:
    values = {"seed": 1, "optimizer.eps": 1e-8} | {name: largest}
    assert list(find_surrogates_and_too_large_numbers(values)) == []
    ((path, _),) = find_surrogates_and_too_large_numbers(values | {name: next_one})
    assert path == (name,)
    assert list(find_surrogates_and_too_large_numbers({name: -largest})) == []
    assert len(list(find_surrogates_and_too_large_numbers({name: -next_one}))) == 1
