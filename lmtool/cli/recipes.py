"""`lmtool recipes`: list recipes, show one, and print their JSON Schema."""

import json
from typing import Annotated

import typer

from lmtool.cli.arguments import Json, Overrides
from lmtool.cli.help import Command, Group, examples

app = typer.Typer(
    cls=Group,
    epilog=examples("lmtool recipes ls", "lmtool recipes show tiny --resolved"),
    no_args_is_help=True,
    help="List and show recipes, and print their schema.",
)


@app.command(cls=Command, epilog=examples("lmtool recipes ls", "lmtool recipes ls --json"))
def ls(as_json: Json = False) -> None:
    """List the recipes that come with lmtool."""
    from lmtool.recipe.load import load, shipped

    recipes = {name: load(name).recipe for name in shipped()}
    width = max(len(name) for name in recipes)
    for name, recipe in recipes.items():
        if as_json:
            typer.echo(json.dumps({"name": name, "description": recipe.description}))
        else:
            typer.echo(f"{name:{width}}  {recipe.description}")


@app.command(
    cls=Command,
    epilog=examples("lmtool recipes show tiny", "lmtool recipes show tiny -s model.d_model=64 --resolved"),
)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe, or a YAML file.")],
    resolved: Annotated[
        bool, typer.Option("--resolved", metavar="", help="Print every value and where it comes from.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Print a recipe as written, or with every value resolved."""
    from lmtool.recipe.dump import dump
    from lmtool.recipe.load import find, load

    recipe = load(name, overrides or ())
    if resolved:
        typer.echo(dump(recipe.recipe, recipe.origins), nl=False)
    elif overrides:
        typer.echo(dump(recipe.recipe), nl=False)
    else:
        typer.echo(find(name).read_text(encoding="utf-8"), nl=False)


@app.command(cls=Command, epilog=examples("lmtool recipes schema > schema.json"))
def schema() -> None:
    """Print the JSON Schema of recipes."""
    from lmtool.recipe.dump import schema

    typer.echo(schema(), nl=False)
