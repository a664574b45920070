"""Recipes as tests read them: values by their keys, and what is said of wrong ones."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import RecipeError
from lmtool.recipe.load import Setting, load
from lmtool.recipe.spec.recipe import Recipe

RECIPE = """\
description: test
model:
  kind: transformer
  n_layers: 2
  d_model: 32
  n_heads: 4
  context: 16
  position:
    kind: learned
    size: 64
training: {steps: 100, batch_size: 8}
optimizer:
  kind: adamw
  lr: 1e-3
  beta1: 0.8
schedule:
  kind: cosine
  warmup_steps: 10
  final_fraction: 0.2
"""


def value(recipe: Recipe, key: str) -> Any:
    return reduce(getattr, key.split("."), recipe)


def mistakes(name: str | Path, overrides: Sequence[str | Setting] = ()) -> list[str]:
    """What is said of a recipe with overrides, line by line."""
    with pytest.raises(RecipeError) as caught:
        load(name, list(overrides))
    return list(caught.value.mistakes)
