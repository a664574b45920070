"""Attention weights as a forward pass computes them, for whoever asks; nobody else pays for them.

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
    """A module that computes attention weights. attends: whether its recipe makes it do so.

    observer: gets the weights of each forward pass; without one they are not formed where the kernel does not need
        them. n_layers: layers that have this module in common, and so compute it in turn in each forward pass.
    """

    attends: bool = True
    observer: Observer | None = None
    n_layers: int = 1


def find_attention_modules(model: nn.Module) -> dict[str, ObservableAttention]:
    """The modules of a model that attend, by name, in module order; none for a model without attention.

    A module of several layers is there once for each; see `strip_layer_number`.
    """
    parts = [
        (name, part) for name, part in model.named_modules() if isinstance(part, ObservableAttention) and part.attends
    ]
    return {_with_layer_number(name, layer): part for name, part in parts for layer in range(part.n_layers)}


def _with_layer_number(name: str, layer: int) -> str:
    return f"{name}@{layer}" if layer else name


def strip_layer_number(name: str) -> str:
    """The name of the module itself, without the number of one of its layers."""
    return name.partition("@")[0]


@contextmanager
def record_attention_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collects the attention weights (B, N, T, S) of the forward passes in the context, by the name of the module.

    Passes of one module are successive queries over the same keys, as of a decoder that goes step by step. The weights
    are in float32 or wider, after the softmax or the selection, and before dropout.
    """
    weights: dict[str, Tensor] = {}

    def observer(name: str, part: ObservableAttention) -> Observer:
        layers = cycle(_with_layer_number(name, layer) for layer in range(part.n_layers))

        def observe(weights_BNTS: Tensor) -> None:
            name = next(layers)
            weights[name] = torch.cat((weights[name], weights_BNTS), 2) if name in weights else weights_BNTS

        return observe

    parts = {strip_layer_number(name): part for name, part in find_attention_modules(model).items()}
    try:
        for name, part in parts.items():
            part.observer = observer(name, part)
        yield weights
    finally:
        for part in parts.values():
            part.observer = None
