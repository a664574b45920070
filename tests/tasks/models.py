"""A task of a recipe, and a small model for it."""

from typing import Any

import torch

from lmtool.compute.device import configure_compute
from lmtool.objective import build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import build_model
from lmtool.tasks.build import build_task
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import ModelWithObjective
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer

SIZE = {"n_layers": 1, "d_model": 16, "context": 24}


def recipe_of(model: dict[str, Any], objective: dict[str, Any], **more: Any) -> Recipe:
    """model: what it has beside its size; a Transformer unless it has a kind."""
    whole = SIZE | model if "kind" in model else {"kind": "transformer", "n_heads": 2} | SIZE | model
    training = {"steps": 1, "batch_size": 1, "device": "cpu"}
    return Recipe.model_validate({"model": whole, "objective": objective, "training": training} | more)


def task_of(
    recipe: Recipe,
    tokenizer: Tokenizer,
    columns: Columns = Columns(("text",)),  # noqa: B008 - it is frozen
    name: str = "",
    labels: tuple[str, ...] = (),
) -> Any:
    return build_task(recipe, PromptFormat.from_recipe(recipe, tokenizer), name, columns, labels)


def model_of(recipe: Recipe, tokenizer: Tokenizer) -> ModelWithObjective:
    compute = configure_compute("cpu", "float32")
    torch.manual_seed(0)
    return ModelWithObjective(build_model(recipe, tokenizer, compute), build_objective(recipe, tokenizer), compute)
