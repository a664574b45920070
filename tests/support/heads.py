"""A small Transformer with a head, examples of its labels, and a model with its objective as a recipe has them."""

from typing import Any

import torch

from lmtool.model import add_objective_head, build
from lmtool.objective import VocabularyInfo
from lmtool.objective import build_objective_for_vocabulary as build_objective
from lmtool.recipe.spec.recipe import Recipe
from tests.support.vocabularies import COUNTED

MODEL: dict[str, Any] = {"kind": "transformer", "n_layers": 1, "d_model": 16, "n_heads": 4, "context": 24}
HEAD: dict[str, Any] = {"kind": "classification", "task": "class", "labels": ["a", "b"], "dropout": 0.0}
LABELS = {"labels_B": torch.tensor([0, 1, 1])}


def built(model: dict[str, Any], objective: dict[str, Any], vocabulary: VocabularyInfo = COUNTED) -> tuple[Any, Any]:
    """The model with its initial weights and the head of the objective, in double precision; and the objective."""
    recipe = Recipe.model_validate(
        {
            "model": model,
            "objective": objective,
            "tokenizer": {"kind": "bpe", "sentinels": 2},
            "training": {"steps": 1, "batch_size": 3},
        }
    )
    torch.manual_seed(0)
    whole = add_objective_head(recipe, build(recipe.model, vocabulary.size))
    return whole.double(), build_objective(recipe, vocabulary)
