"""The recipes that come with lmtool, and their published schema."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import lmtool
from lmtool.cli.commands.recipes import app
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.dump import dump_yaml, recipe_json_schema
from lmtool.recipe.load import load, shipped_recipes

FOLDER = Path(__file__).parents[2] / "recipes"


@cache
def published() -> Any:
    """A validator by the published schema, which is read and prepared once."""
    return jsonschema.Draft202012Validator(json.loads((FOLDER / "schema.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_is_valid_documented_and_passes_the_schema(name: str) -> None:
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert load(name).recipe.description
    published().validate(parse_yaml(text, name).value)


def test_the_published_schema_is_current() -> None:
    # lmtool recipes schema > recipes/schema.json
    assert (FOLDER / "schema.json").read_text(encoding="utf-8") == recipe_json_schema()
    assert CliRunner().invoke(app, ["schema"]).stdout == recipe_json_schema()
    jsonschema.Draft202012Validator.check_schema(published().schema)


def test_ls_names_every_recipe_with_its_description() -> None:
    lines = CliRunner().invoke(app, ["ls"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_recipes())
    assert all(load(line.split()[0]).recipe.description in line for line in lines[:5])


@pytest.mark.parametrize(
    ("part", "values", "fits"),
    [
        ("model", {"n_haeds": 2}, False),
        ("optimizer", {"kind": "adamw", "momentum": 0.9}, False),
        ("optimizer", {"kind": "gelu"}, False),
        ("training", {"steps": 0}, False),
        ("training", {"steps": "abc"}, False),
        ("data", {"train": "a.txt"}, True),  # as a list
    ],
)
def test_the_schema_refuses_what_the_language_refuses(part: str, values: dict[str, Any], fits: bool) -> None:
    tree = parse_yaml(dump_yaml(load("tiny").recipe), "f").value
    tree[part].update(values)
    assert published().is_valid(tree) == fits


def test_recipes_of_an_installed_wheel_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lmtool" / "_bundled" / "recipes"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("description: hello\n")
    monkeypatch.setattr(lmtool, "__file__", str(tmp_path / "lmtool" / "__init__.py"))
    assert shipped_recipes() == {"mine": folder / "mine.yaml"}
