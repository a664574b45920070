"""Defaults of fine-tuning that follow from the size of the model."""

import pytest

from lmtool.recipe.finetuning import ParentRun, TableProperties, make_table_recipe
from lmtool.recipe.spec.recipe import Recipe

SHAPES: dict[str, tuple[dict[str, object], int]] = {
    # a gigabyte of 12 x (18 x 768 + 4 x 3072) = 313,344 bytes for each position
    "BERT-base": ({"kind": "transformer", "shape": "encoder", "n_layers": 12, "d_model": 768, "n_heads": 12}, 3191),
    "MiniLM": ({"kind": "transformer", "shape": "encoder", "n_layers": 6, "d_model": 384, "n_heads": 12}, 8192),
}


@pytest.mark.parametrize("name", SHAPES)
def test_micro_batches_of_large_models_are_small(name: str) -> None:
    model, wanted = SHAPES[name]
    base = Recipe.model_validate(
        {
            "model": model | {"context": 128},
            "objective": {"kind": "classification"},
            "training": {"steps": 1, "batch_size": 1},
        }
    )
    assert make_table_recipe(ParentRun(base, "run"), TableProperties(1000)).training.micro_tokens == wanted
