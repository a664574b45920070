"""`lmtool recipes`: list recipes, show or draw one, show what its model is given, and print their JSON Schema."""

import os
from functools import partial
from pathlib import Path

from lmtool.cli.arguments import HtmlFile, Json, Quiet
from lmtool.cli.help import argument, flag, group, option, register
from lmtool.cli.output import check_new, print_json, print_lines, print_text, show_picture
from lmtool.cli.settings import Overrides, is_recipe, with_stdin
from lmtool.errors import UsageError

STORIES = "data/stories.txt"
"""The bundled text that a tokenizer is trained on for texts that are typed."""

NAMED = argument("RECIPE", "A shipped recipe, or a YAML file.", ..., shown=True)


def ls(as_json: Json = False) -> None:
    """List the recipes that come with lmtool.

    Examples:
    lmtool recipes ls
    lmtool recipes ls --json
    """
    from lmtool.recipe.load import load, shipped_recipes

    names = shipped_recipes()
    for name in names:
        description = load(name).recipe.description
        if as_json:
            print_json({"name": name, "description": description})
        else:
            print_lines(f"{name:{max(map(len, names))}}  {description}")


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
    from lmtool.recipe.dump import dump_yaml
    from lmtool.recipe.load import find_recipe, load, parse_settings

    recipe = load(name, parse_settings(overrides or ()))
    origins = recipe.origins if resolved else None
    text = dump_yaml(recipe.recipe, origins) if resolved or overrides else find_recipe(name).read_text(encoding="utf-8")
    print_text(text, end="")


def draw(
    name: str = NAMED,
    overrides: Overrides = None,
    numbers: bool = flag(
        "Print numbers instead: the input, an attention head and a feed-forward network.", "--numbers"
    ),
    output: HtmlFile = None,
) -> None:
    """Draw the model of a recipe: its parts with parameters and FLOPs, its attention masks, its position signal.

    Examples:
    lmtool recipes draw t5-tiny
    lmtool recipes draw longformer-tiny -o longformer.html
    lmtool recipes draw transformer-tiny -s model.d_model=6 -s model.n_heads=1 -s model.context=4 --numbers
    """
    from lmtool.recipe.load import load, parse_settings
    from lmtool.report import drawing, matrices

    check_new(output)
    recipe = load(name, parse_settings(overrides or ())).recipe
    if numbers and output is not None:
        raise UsageError("--numbers prints, and writes no page", fix="omit -o, or --numbers")
    if numbers:
        return print_lines(*matrices.format_matrix_lines(matrices.compute_first_layer_matrices(recipe)))
    drawn = drawing.draw_model(recipe, Path(name).stem)
    show_picture(partial(drawing.format_model_lines, drawn), partial(drawing.render_model_page, drawn), output)


def batch(
    name: str = argument("RECIPE|RUN", "A shipped recipe, a YAML file, or a run.", ..., shown=True),
    text: list[str] = argument("TEXT", "A text file, a table, -, or texts themselves, each a document.", ...),
    rows: int = option("N", "Rows of the batch to show.", default=1, min=1),
    step: int = option("N", "Show the batch of this step, counted from 1.", default=1, min=1),
    overrides: Overrides = None,
    output: HtmlFile = None,
    quiet: Quiet = False,
) -> None:
    """Show what a model is given in training: tokens, what is masked or replaced, targets, and who attends to whom.

    A tokenizer is trained on the text, or for texts on the command line on the bundled stories. Tables are read as
    `lmtool finetune` reads them.

    Examples:
    lmtool recipes batch bert-tiny data/stories.txt -s model.context=32
    lmtool recipes batch t5-tiny "Once upon a time there was a fox that lived in a red house."
    lmtool recipes batch tagger data/tags.conll --rows 2 -o batch.html
    """
    from lmtool.data.files import FORMATS
    from lmtool.recipe.load import Setting, check_settings, parse_settings
    from lmtool.recipe.resolve import resolve

    check_new(output)
    (text,) = with_stdin("text or table", text)
    # several words that name no file are a text themselves
    is_typed = all(len(one.split()) > 1 and not one.endswith(FORMATS) and not os.path.exists(one) for one in text)
    texts = text if is_typed else []
    sources = [STORIES] if texts else text
    settings = parse_settings(overrides or (), [Setting("data.train", sources, "TEXT")])
    recipe, run = (name, None) if is_recipe(name) else (None, name)
    # mistakes are reported before anything heavy is imported
    check_settings(settings) if recipe is None else resolve(recipe, settings)

    from lmtool.cli.progress import Display
    from lmtool.report import batch as described
    from lmtool.training.finetuning import plan_training_for_data
    from lmtool.training.plan import plan_pretraining

    with Display(shown=True, quiet=quiet) as display:
        if texts:
            plan = plan_pretraining(run, recipe, settings, display.report)
        else:
            plan = plan_training_for_data(run, recipe, settings, display.report)
        collated = described.collate_batch_of_step(plan, texts, step, rows, display.report)
    show_picture(
        lambda width, *, ascii_only: described.format_batch_lines(collated, ascii_only=ascii_only),
        partial(described.render_batch_page, collated),
        output,
    )


def schema() -> None:
    """Print the JSON Schema of recipes.

    Examples:
    lmtool recipes schema > schema.json
    """
    from lmtool.recipe.dump import recipe_json_schema

    print_text(recipe_json_schema(), end="")


app = group(
    "List, show and draw recipes, show what models are given, and print the schema.",
    *("lmtool recipes ls", "lmtool recipes show tiny --resolved", "lmtool recipes draw tiny"),
)
for _command in (ls, show, draw, batch, schema):
    register(app, _command.__name__, _command)
