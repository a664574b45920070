"""Recipes whose runs are written as GGUF."""

from typing import Any

from lmtool.recipe.spec.recipe import Recipe
from tests.interop.runs import recipe_of, shipped

LLAMA = {**shipped("llama-tiny"), "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_ff": 96, "n_layers": 2}


def llama(**changes: Any) -> Recipe:
    return recipe_of({**LLAMA, "context": 40, **changes}, {"kind": "causal"}, data={"split": "document"})
