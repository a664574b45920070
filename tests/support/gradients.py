"""A small model of any family in double precision, and a text for it."""

import torch
from pydantic import TypeAdapter

from lmtool.model import build
from lmtool.recipe.spec.recipe import Model

V, D = 13, 6
TOKENS = [3, 1, 4, 5, 9, 2, 6]


def model(**spec):
    torch.manual_seed(1)
    common = {"d_model": D, "context": 16, "n_layers": 1, "tie_embeddings": False}
    return build(TypeAdapter(Model).validate_python(common | spec), V).double()
