"""The recipes that come with lmtool, and their published schema."""

import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

import lmtool
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.dump import dump_yaml, recipe_json_schema
from lmtool.recipe.load import load, shipped_recipes

FOLDER = Path(__file__).parents[2] / "recipes"


@cache
def published():
    """A validator by the published schema, which is read and prepared once."""
    return jsonschema.Draft202012Validator(json.loads((FOLDER / "schema.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_is_valid_documented_and_passes_the_schema(name):
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert load(name).recipe.description
    published().validate(parse_yaml(text, name).value)


def test_the_published_schema_is_current():
    # lmtool recipes schema > recipes/schema.json
    assert (FOLDER / "schema.json").read_text(encoding="utf-8") == recipe_json_schema()
    jsonschema.Draft202012Validator.check_schema(published().schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": {"n_haeds": 2}},
        {"optimizer": {"kind": "adamw", "momentum": 0.9}},
        {"optimizer": {"kind": "gelu"}},
        {"training": {"steps": 0}},
        {"training": {"steps": "abc"}},
    ],
)
def test_the_schema_refuses_what_the_language_refuses(wrong):
    tree = parse_yaml(dump_yaml(load("tiny").recipe), "f").value
    for part, values in wrong.items():
        tree[part].update(values)
    with pytest.raises(jsonschema.ValidationError):
        published().validate(tree)


def test_a_single_text_passes_the_schema_as_a_list():
    tree = parse_yaml(dump_yaml(load("tiny").recipe), "f").value
    tree["data"]["train"] = "a.txt"
    published().validate(tree)


def test_recipes_of_an_installed_wheel_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "lmtool" / "_bundled" / "recipes"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("description: hello\n")
    monkeypatch.setattr(lmtool, "__file__", str(tmp_path / "lmtool" / "__init__.py"))
    assert shipped_recipes() == {"mine": folder / "mine.yaml"}
