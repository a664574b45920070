"""From a name, settings and facts of the data to a recipe: what pretrain, finetune, resume and plan resolve by."""

from collections.abc import Sequence

from lmtool.recipe.finetuning import Parent, TableShape, continued, fine_tuned, held_out
from lmtool.recipe.load import Resolved, Setting, lay_over, load, settings_of
from lmtool.recipe.pretraining import NAME, TextShape, default_recipe
from lmtool.recipe.spec.recipe import Recipe

LINEAR = "linear"
"""The recipe of labelled tables where there is nothing to fine-tune."""

CHARACTERS = ("tokenizer.kind=char", "model.ngrams=5", "model.context=2048")
"""Its settings for texts whose words do not recur."""


def is_default(recipe: str | Recipe | None) -> bool:
    """Whether the recipe is the default one, which depends on the text."""
    return recipe in (None, NAME)


def resolve(
    recipe: str | Recipe | None,
    settings: Sequence[Setting],
    facts: TextShape | TableShape | None = None,
    parent: Parent | None = None,
) -> Resolved:
    """The recipe of a training session, with all its values, and where they come from.

    recipe: the name of a shipped one or a path; that of a run, to go on with; None for the usual one.
    settings: of the command line, over it.
    facts: of the data, on which the usual recipe depends; None before they are read.
    parent: the run to begin with. Its model and tokenizer are kept; a recipe is for the rest.
    Raises UsageError when there is no such recipe, or for a model that cannot be trained on such tables; RecipeError
    with a line for each mistake.
    """
    if isinstance(recipe, Recipe):
        return lay_over(recipe, "recipe.yaml", "recipe", settings)
    match facts:
        case TableShape() if parent is not None:
            return fine_tuned(parent, facts, settings)
        case TableShape() if recipe is None:
            usual = [f"{key}={value}" for key, value in held_out(facts.n_rows).items()]
            return load(LINEAR, settings_of([*usual, *(() if facts.has_words else CHARACTERS)], settings))
    if parent is not None:
        return continued(parent, None if recipe is None else load(recipe).recipe, settings)
    if recipe is not None and not is_default(recipe):
        return load(recipe, settings)
    return default_recipe(settings, facts if isinstance(facts, TextShape) else None)
