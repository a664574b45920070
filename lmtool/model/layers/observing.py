"""Attention weights as a forward pass computes them, which cost nothing unless somebody records them.

Shapes: B rows, N heads, T queries, S keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import Tensor, nn

Observer = Callable[[Tensor], None]
"""Called with attention weights (B, N, T, S)."""


class ObservableAttention(nn.Module):
    """A module that computes attention weights.

    attends: whether it does so under its recipe.
    observer: gets the weights of each forward pass. Without one, weights are not formed unless the kernel needs them.
    n_layers: number of layers that share this module, which computes them in turn in each forward pass.
    """

    attends: bool = True
    observer: Observer | None = None
    n_layers: int = 1


def find_attention_modules(model: nn.Module) -> dict[str, ObservableAttention]:
    """Returns the modules of a model that compute attention weights, by name, in module order.

    A module that several layers share occurs once for each; see `strip_layer_number`.
    """
    return {
        f"{name}@{layer}" if layer else name: module
        for name, module in model.named_modules()
        if isinstance(module, ObservableAttention) and module.attends
        for layer in range(module.n_layers)
    }


def strip_layer_number(name: str) -> str:
    """Returns the name of the module itself, without the number of the layer."""
    return name.partition("@")[0]


@contextmanager
def record_attention_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Records the attention weights (B, N, T, S) of the forward passes in the context, by the name of the module.

    Several passes are taken as successive queries over the same keys, as of a decoder that goes step by step. The
    weights are in float32 or wider, after the softmax or the selection, and before dropout.
    """
    weights: dict[str, Tensor] = {}
    names_of: dict[ObservableAttention, list[str]] = {}
    for name, module in find_attention_modules(model).items():
        names_of.setdefault(module, []).append(name)

    def make_observer(names: list[str]) -> Observer:
        layers = cycle(names)

        def observe(weights_BNTS: Tensor) -> None:
            name = next(layers)
            weights[name] = torch.cat((weights[name], weights_BNTS), 2) if name in weights else weights_BNTS

        return observe

    try:
        for module, names in names_of.items():
            module.observer = make_observer(names)
        yield weights
    finally:
        for module in names_of:
            module.observer = None
