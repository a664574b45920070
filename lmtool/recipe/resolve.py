"""From a name, settings and facts of the data to a recipe: what pretrain, finetune, resume and plan resolve by."""

from collections.abc import Sequence

from lmtool.recipe.finetuning import FEW, Parent, TableShape, are_of_steps, continued, fine_tuned
from lmtool.recipe.load import Resolved, Setting, lay_over, load, settings_of, written
from lmtool.recipe.pretraining import NAME, TextShape, default_recipe
from lmtool.recipe.spec.recipe import Recipe

LINEAR = "linear"
"""The recipe of labelled tables where there is nothing to fine-tune."""

CHARACTERS = ("tokenizer.kind=char", "model.ngrams=5", "model.context=2048")
"""Its settings for texts whose words do not recur."""

BY_STEPS = (
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
"""What replaces the fitting of its head where settings are of steps."""


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
        case TableShape() if recipe in (None, LINEAR):
            usual = ["data.valid_fraction=0"] if facts.n_rows < FEW else []
            return _loaded(LINEAR, settings, [*usual, *(() if facts.has_words else CHARACTERS)])
    if parent is not None:
        return continued(parent, None if recipe is None else load(recipe).recipe, settings)
    if recipe is not None and not is_default(recipe):
        return _loaded(recipe, settings)
    return default_recipe(settings, facts if isinstance(facts, TextShape) else None)


def _loaded(name: str, settings: Sequence[Setting], usual: Sequence[str] = ()) -> Resolved:
    """A shipped recipe, or a file. usual: settings in place of its own."""
    if written(name, ("optimizer", "kind")) == "lbfgs" and are_of_steps(settings):
        usual = [*BY_STEPS, *(setting for setting in usual if not setting.startswith("data.valid_fraction"))]
    return load(name, settings, chosen=settings_of(usual))
