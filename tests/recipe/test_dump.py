"""A recipe written out reads back as the same recipe; and one with other values keeps the rest."""

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from lmtool.recipe.check import validate
from lmtool.recipe.document import Origin, parse_yaml
from lmtool.recipe.dump import dump_yaml, iterate_values, recipe_json_schema
from lmtool.recipe.load import load
from lmtool.recipe.spec.base import find_surrogates_and_too_large_numbers
from lmtool.recipe.spec.recipe import Recipe
from tests.recipe.reading import value
from tests.recipe.strategies import recipes
from tests.support.examples import examples


@cache
def language() -> Any:
    """A validator by the schema, which takes longer to prepare than to ask."""
    return jsonschema.Draft202012Validator(json.loads(recipe_json_schema()))


@settings(max_examples=examples(30, 100), suppress_health_check=[HealthCheck.too_slow])
@given(recipes)
def test_round_trip_is_exact_for_readers_of_yaml_1_1_and_the_schema_too(recipe: Recipe) -> None:
    text = dump_yaml(recipe)
    document = parse_yaml(text, "f")
    assert document.mistakes == []
    read, mistakes = validate(document.value, lambda path: Origin("f"), Recipe)
    assert mistakes == []
    assert isinstance(read, Recipe)
    assert read == recipe
    assert dump_yaml(read) == text
    assert yaml.safe_load(text) == document.value
    language().validate(document.value)


def test_order_is_that_of_the_specs_with_the_kind_first() -> None:
    written = parse_yaml(dump_yaml(load("gpt2-124m").recipe), "f").value
    assert list(written) == list(Recipe.model_fields)
    assert {next(iter(written[part])) for part in ("model", "tokenizer", "optimizer")} == {"kind"}


def test_every_value_has_its_origin_behind_it() -> None:
    resolved = load("tiny", ["training.steps=7", "evaluation.prompts=Once upon"])
    lines = dump_yaml(resolved.recipe, resolved.origins).splitlines()
    (steps,) = [line for line in lines if line.startswith("  steps: 7 ")]
    assert steps.endswith("  # -s training.steps=7")
    assert next(line for line in lines if line.startswith("seed: ")).endswith("  # default")
    assert sum("  # " in line for line in lines) == len(list(iterate_values(resolved.recipe)))
    assert parse_yaml("\n".join(lines), "f").value == parse_yaml(dump_yaml(resolved.recipe), "f").value


def test_a_recipe_with_other_values_has_these_and_keeps_all_others() -> None:
    recipe = load("tiny").recipe
    changes = {"training.steps": 5, "training.epochs": None, "model.position.kind": "other", "seed": 7}
    changed = recipe.with_unvalidated_values(changes)
    assert {key: value(changed, key) for key in changes} == changes
    parts = {"training": recipe.training, "seed": recipe.seed, "model": recipe.model}
    assert changed.with_unvalidated_values(parts) == recipe
    with pytest.raises(AttributeError):
        recipe.with_unvalidated_values({"training.stepps": 5})


@pytest.mark.parametrize(("name", "largest", "next_one"), [("seed", 2**53, 2**53 + 1), ("optimizer.eps", 1e30, 1.1e30)])
def test_numbers_up_to_the_largest_that_all_code_holds_are_accepted(name: str, largest: float, next_one: float) -> None:
    for sign in (1, -1):
        values = {"seed": 1, "optimizer.eps": 1e-8}
        assert list(find_surrogates_and_too_large_numbers(values | {name: sign * largest})) == []
        ((path, _),) = find_surrogates_and_too_large_numbers(values | {name: sign * next_one})
        assert path == (name,)
