"""`lmtool recipes`: list recipes, show or draw one, and print their JSON Schema."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import HtmlFile, Json, Overrides
from lmtool.cli.help import Command, Group, examples
from lmtool.cli.output import check_new, show_lines

app = typer.Typer(
    cls=Group,
    epilog=examples("lmtool recipes ls", "lmtool recipes show tiny --resolved", "lmtool recipes draw tiny"),
    no_args_is_help=True,
    help="List, show and draw recipes, and print their schema.",
)


Named = Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe, or a YAML file.")]


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
    name: Named,
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


@app.command(
    cls=Command,
    epilog=examples("lmtool recipes draw t5-tiny", "lmtool recipes draw longformer-tiny -o longformer.html"),
)
def draw(
    name: Named,
    overrides: Overrides = None,
    output: HtmlFile = None,
) -> None:
    """Draw the model of a recipe: its parts with parameters and FLOPs, its attention masks, its position signal."""
    from lmtool.printable import plain
    from lmtool.recipe.load import load
    from lmtool.report import drawing
    from lmtool.report.page import write_page

    check_new(output)
    drawn = drawing.draw(load(name, overrides or ()).recipe, Path(name).stem)
    if output is not None:
        write_page(output, drawing.as_page(drawn))
        typer.echo(plain(str(output)))
        return
    show_lines(partial(drawing.as_lines, drawn))


@app.command(cls=Command, epilog=examples("lmtool recipes schema > schema.json"))
def schema() -> None:
    """Print the JSON Schema of recipes."""
    from lmtool.recipe.dump import schema

    typer.echo(schema(), nl=False)
