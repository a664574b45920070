"""A model of each kind of weight, and what optimizers do with it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn

from lmtool.recipe.spec.training import Optimizer
from tests.reference import optimizers as reference

Array = NDArray[np.float64]
SHAPES = {"matrix": (3, 4), "vector": (5,), "cube": (2, 3, 2)}
MULTIPLIERS = [0.5, 1.0, 0.25, 0.8, 0.1, 0.7]


def spec_of(fields: dict[str, Any]) -> Optimizer:
    spec: Optimizer = TypeAdapter(Optimizer).validate_python(fields)
    return spec


def plain(fields: dict[str, Any], w: Array, gradients: Sequence[Array], shares: Sequence[float]) -> Array:
    """The reference update of one weight array."""
    rates = [fields["lr"] * share for share in shares]
    decay = fields.get("weight_decay", 0.1 if fields["kind"] == "adamw" else 0.0) if w.ndim >= 2 else 0.0
    if fields["kind"] == "sgd":
        if "momentum" in fields:
            return reference.momentum(w, gradients, rates, fields["momentum"], decay)
        return reference.sgd(w, gradients, rates, decay)
    betas = fields.get("beta1", 0.9), fields.get("beta2", 0.999)
    return reference.adam(w, gradients, rates, *betas, fields.get("eps", 1e-8), decay, fields["kind"] == "adamw")


class Toy(nn.Module):
    """Parameters of one, two and three dimensions."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, shape in SHAPES.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(drawn))

    def parameter_depths(self) -> dict[nn.Parameter, int]:
        return dict.fromkeys(self.parameters(), 0)


def drawn_gradients(model: nn.Module, steps: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(7)
    return [{name: rng.normal(size=p.shape) for name, p in model.named_parameters()} for _ in range(steps)]


def set_gradients(model: nn.Module, gradients: dict[str, Array]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = torch.from_numpy(gradients[name]).to(parameter.dtype)


def weights_of(model: nn.Module) -> dict[str, Array]:
    return {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}


def conditioned(rows: int, columns: int, smallest: float, seed: int) -> Tensor:
    """A matrix with singular values from `smallest` to 1, random singular vectors, and a random size."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)
    left, _ = torch.linalg.qr(torch.randn(rows, rank, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(columns, rank, generator=generator))
    matrix: Tensor = 10 * (left * torch.linspace(smallest, 1, rank)) @ right.T
    return matrix


def gradients_like(shape: tuple[int, int], n: int) -> list[Tensor]:
    return [conditioned(*shape, 0.2, seed) for seed in range(n)]
