"""A small model of any family in double precision, and a text for it."""

from typing import Any

import torch
from pydantic import TypeAdapter

from lmtool.model import build
from lmtool.recipe.spec.recipe import Model

V, D = 13, 6
TOKENS = [3, 1, 4, 5, 9, 2, 6]


def model(**spec: Any) -> Any:
    torch.manual_seed(1)
    common: dict[str, Any] = {"d_model": D, "context": 16, "n_layers": 1, "tie_embeddings": False}
    return build(TypeAdapter(Model).validate_python(common | spec), V).double()
