"""`lmtool recipes`: list recipes, show or draw one, and print their JSON Schema."""

from functools import partial
from pathlib import Path

import typer

from lmtool.cli.arguments import HtmlFile, Json
from lmtool.cli.help import argument, flag, group, register
from lmtool.cli.output import check_new, put, put_json, show_picture
from lmtool.cli.settings import Overrides
from lmtool.errors import UsageError

NAMED = argument("NAME", "A shipped recipe, or a YAML file.", ..., shown=True)


def ls(as_json: Json = False) -> None:
    """List the recipes that come with lmtool.

    Examples:
    lmtool recipes ls
    lmtool recipes ls --json
    """
    from lmtool.recipe.load import load, shipped

    names = shipped()
    for name in names:
        description = load(name).recipe.description
        if as_json:
            put_json({"name": name, "description": description})
        else:
            put(f"{name:{max(map(len, names))}}  {description}")


def show(
    name: str = NAMED,
    resolved: bool = flag("Print every value and where it comes from.", "--resolved"),
    overrides: Overrides = None,
) -> None:
    """Print a recipe as written, or with every value resolved.

    Examples:
    lmtool recipes show tiny
    lmtool recipes show tiny -s model.d_model=64 --resolved
    """
    from lmtool.recipe.dump import dump
    from lmtool.recipe.load import find, load, settings_of

    recipe = load(name, settings_of(overrides or ()))
    origins = recipe.origins if resolved else None
    text = dump(recipe.recipe, origins) if resolved or overrides else find(name).read_text(encoding="utf-8")
    typer.echo(text, nl=False)


def draw(
    name: str = NAMED,
    overrides: Overrides = None,
    numbers: bool = flag("Print numbers instead: position vectors, and an attention head step by step.", "--numbers"),
    output: HtmlFile = None,
) -> None:
    """Draw the model of a recipe: its parts with parameters and FLOPs, its attention masks, its position signal.

    Examples:
    lmtool recipes draw t5-tiny
    lmtool recipes draw longformer-tiny -o longformer.html
    lmtool recipes draw transformer-tiny -s model.d_model=6 -s model.n_heads=1 -s model.context=4 --numbers
    """
    from lmtool.recipe.load import load, settings_of
    from lmtool.report import drawing, matrices

    check_new(output)
    recipe = load(name, settings_of(overrides or ())).recipe
    if numbers and output is not None:
        raise UsageError("--numbers are printed, and are on no page", fix="omit -o, or --numbers")
    if numbers:
        return put(*matrices.as_lines(matrices.worked(recipe)))
    drawn = drawing.draw(recipe, Path(name).stem)
    show_picture(partial(drawing.as_lines, drawn), partial(drawing.as_page, drawn), output)


def schema() -> None:
    """Print the JSON Schema of recipes.

    Examples:
    lmtool recipes schema > schema.json
    """
    from lmtool.recipe.dump import schema

    typer.echo(schema(), nl=False)


app = group(
    "List, show and draw recipes, and print their schema.",
    *("lmtool recipes ls", "lmtool recipes show tiny --resolved", "lmtool recipes draw tiny"),
)
for _command in (ls, show, draw, schema):
    register(app, _command.__name__, _command)
