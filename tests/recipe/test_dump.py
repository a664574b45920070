"""A recipe written out reads back as the same recipe."""

import json
from functools import cache

import jsonschema
import yaml
from hypothesis import HealthCheck, given, settings

from lmtool.recipe.check import validate
from lmtool.recipe.document import Origin, parse_yaml
from lmtool.recipe.dump import dump_yaml, iterate_values, recipe_json_schema
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from tests.recipe.strategies import recipes


@cache
def language():
    """A validator by the schema, which takes longer to prepare than to ask."""
    return jsonschema.Draft202012Validator(json.loads(recipe_json_schema()))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(recipes)
def test_round_trip_is_exact_for_readers_of_yaml_1_1_and_the_schema_too(recipe):
    text = dump_yaml(recipe)
    document = parse_yaml(text, "f")
    assert document.mistakes == []
    read, mistakes = validate(document.value, lambda path: Origin("f"), Recipe)
    assert mistakes == []
    assert read == recipe
    assert dump_yaml(read) == text
    assert yaml.safe_load(text) == document.value
    language().validate(document.value)


def test_order_is_that_of_the_specs_with_the_kind_first():
    written = parse_yaml(dump_yaml(load("gpt2-124m").recipe), "f").value
    assert list(written) == list(Recipe.model_fields)
    assert {next(iter(written[part])) for part in ("model", "tokenizer", "optimizer")} == {"kind"}


def test_every_value_has_its_origin_behind_it():
    resolved = load("tiny", ["training.steps=7", "evaluation.prompts=Once upon"])
    lines = dump_yaml(resolved.recipe, resolved.origins).splitlines()
    assert "  steps: 7" in [line.split("#")[0].rstrip() for line in lines]
    assert next(line for line in lines if line.startswith("  steps: 7")).endswith("  # -s training.steps=7")
    assert next(line for line in lines if line.startswith("seed: ")).endswith("  # default")
    assert sum("  # " in line for line in lines) == len(list(iterate_values(resolved.recipe)))
    assert parse_yaml("\n".join(lines), "f").value == parse_yaml(dump_yaml(resolved.recipe), "f").value
