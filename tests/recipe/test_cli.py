"""`lmtool recipes`; tests/cli/outputs.txt has what `show` prints."""

import json

from typer.testing import CliRunner

from lmtool.cli.commands.recipes import app
from lmtool.recipe.dump import dump_yaml, recipe_json_schema
from lmtool.recipe.load import load, shipped_recipes


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_ls_names_every_recipe_with_its_description():
    lines = run("ls").splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_recipes())
    assert all(load(line.split()[0]).recipe.description in line for line in lines)
    records = [json.loads(line) for line in run("ls", "--json").splitlines()]
    assert [record["name"] for record in records] == list(shipped_recipes())


def test_show_with_an_override_prints_a_recipe_that_has_it():
    shown = run("show", "tiny", "-s", "training.steps=7")
    assert shown == dump_yaml(load("tiny", ["training.steps=7"]).recipe)


def test_schema():
    assert run("schema") == recipe_json_schema()
