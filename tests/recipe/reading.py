"""Recipes as tests read them: values by their keys, what is said of wrong ones, and few that have every key."""

from collections.abc import Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import RecipeError
from lmtool.recipe.dump import iterate_values
from lmtool.recipe.load import Setting, load, shipped_recipes
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


@cache
def covering() -> list[str]:
    """Names of shipped recipes that together have every key, and every kind of a part, that some shipped recipe has."""
    has = {}
    for name in shipped_recipes():
        recipe: Any = load(name).recipe
        paths = [path for path, _ in iterate_values(recipe)]
        has[name] = {(path, value(recipe, ".".join(map(str, path))) if path[-1] == "kind" else "") for path in paths}
    names: list[str] = []
    lacking = set().union(*has.values())
    while lacking:
        names.append(max(has, key=lambda name: len(has[name] & lacking)))
        lacking -= has[names[-1]]
    return names
