import pytest

from lmtool.recipe.load import load


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
