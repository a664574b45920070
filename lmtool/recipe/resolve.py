"""Resolves a name, settings and facts about the data to a full recipe, for pretrain, finetune, resume and plan."""

from collections.abc import Sequence

from lmtool.recipe.finetuning import (
    FEW_ROWS,
    ParentRun,
    TableProperties,
    requests_gradient_training,
    resolve_continued_training,
    resolve_finetuning,
)
from lmtool.recipe.load import ResolvedRecipe, Setting, apply_settings, load, parse_settings, read_recipe_value
from lmtool.recipe.pretraining import DEFAULT_RECIPE, TextStatistics, resolve_default_recipe
from lmtool.recipe.spec.recipe import Recipe

LINEAR_RECIPE = "linear"
"""Recipe of labelled tables without a model to fine-tune."""

CHARACTER_SETTINGS = ("tokenizer.kind=char", "model.ngrams=5", "model.context=2048")
"""Settings of LINEAR_RECIPE for texts whose words do not recur."""

GRADIENT_SETTINGS = (
    "optimizer={kind: adam, lr: 3e-2}",
    "schedule.kind=linear",
    "training.steps=1000",
    "training.epochs=10",
    "training.min_steps=400",
    "evaluation.every=200",
    "evaluation.epochs=1",
    "evaluation.patience=5",
    "checkpoint.every=1000",
)
"""Settings that replace the fitting of a head if the user asks for training by gradients."""


def is_default_recipe(recipe: str | Recipe | None) -> bool:
    """Returns whether the recipe is the default one, which depends on the text."""
    return recipe in (None, DEFAULT_RECIPE)


def resolve(
    recipe: str | Recipe | None,
    settings: Sequence[Setting],
    facts: TextStatistics | TableProperties | None = None,
    parent: ParentRun | None = None,
) -> ResolvedRecipe:
    """Resolves all values of the recipe of a training session, and their origins.

    recipe: name of a shipped recipe or a path; the recipe of a run to resume; None for the default.
    settings: of the command line, which override the recipe.
    facts: about the data, on which the default recipe depends; None before the data are read.
    parent: the run to initialize from, whose model and tokenizer are kept.
    Raises UsageError when there is no such recipe, or for a model that cannot be trained on such tables; RecipeError
    with a line for each mistake.
    """
    if isinstance(recipe, Recipe):
        return apply_settings(recipe, "recipe.yaml", "recipe", settings)
    match facts:
        case TableProperties() if parent is not None:
            return resolve_finetuning(parent, facts, settings)
        case TableProperties() if recipe in (None, LINEAR_RECIPE):
            defaults = ["data.valid_fraction=0"] if facts.n_rows < FEW_ROWS else []
            return _load_with_inferred_settings(
                LINEAR_RECIPE, settings, [*defaults, *(() if facts.has_words else CHARACTER_SETTINGS)]
            )
    if parent is not None:
        return resolve_continued_training(parent, None if recipe is None else load(recipe).recipe, settings)
    if recipe is not None and not is_default_recipe(recipe):
        return _load_with_inferred_settings(recipe, settings)
    return resolve_default_recipe(settings, facts if isinstance(facts, TextStatistics) else None)


def _load_with_inferred_settings(
    name: str, settings: Sequence[Setting], inferred_settings: Sequence[str] = ()
) -> ResolvedRecipe:
    """Loads a recipe by name or path. inferred_settings: settings that replace its values."""
    if read_recipe_value(name, ("optimizer", "kind")) == "lbfgs" and requests_gradient_training(settings):
        inferred_settings = [
            *GRADIENT_SETTINGS,
            *(setting for setting in inferred_settings if not setting.startswith("data.valid_fraction")),
        ]
    return load(name, settings, inferred=parse_settings(inferred_settings))
