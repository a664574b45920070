"""`lmtool recipes`."""

import json

import pytest
from typer.testing import CliRunner

from lmtool.cli.commands.recipes import app
from lmtool.errors import RecipeError, UsageError
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.dump import dump_yaml, schema
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


def test_show_prints_the_file():
    assert run("show", "tiny") == shipped_recipes()["tiny"].read_text(encoding="utf-8")


def test_show_with_an_override_prints_a_recipe_that_has_it():
    text = run("show", "tiny", "-s", "training.steps=7")
    assert text == dump_yaml(load("tiny", ["training.steps=7"]).recipe)


def test_show_resolved_prints_origins():
    text = run("show", "gpt2-124m", "--resolved", "-s", "training.steps=+7", "-s", "seed=3")
    (steps,) = [line for line in text.splitlines() if line.startswith("  steps:")]
    assert steps.split("#")[1] == " -s training.steps=+7"
    (layers,) = [line for line in text.splitlines() if "n_layers" in line]
    assert layers.split("#")[1].startswith(" gpt2-124m.yaml:")
    assert parse_yaml(text, "f").value["seed"] == 3


def test_schema():
    assert run("schema") == schema()


@pytest.mark.parametrize(
    ("arguments", "error"), [(["show", "tinny"], UsageError), (["show", "tiny", "-s", "steps=1"], RecipeError)]
)
def test_errors_reach_the_main_program(arguments, error):
    with pytest.raises(error):
        run(*arguments)
