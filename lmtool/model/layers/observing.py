"""Attention weights as a forward pass computes them, for whoever asks; nobody else pays for them.

Shapes: B rows, N heads, T queries, S keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Observer = Callable[[Tensor], None]
"""Called with attention weights (B, N, T, S)."""


class Attending(nn.Module):
    """A module that computes attention weights. attends: whether its recipe makes it do so.

    observer: gets the weights of each forward pass; without one they are not formed where the kernel does not need
        them.
    """

    attends: bool = True
    observer: Observer | None = None


def attending(model: nn.Module) -> dict[str, Attending]:
    """The modules of a model that attend, by name, in module order; none for a model without attention."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Attending) and part.attends}


@contextmanager
def observed(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collects the attention weights (B, N, T, S) of the forward passes in the context, by the name of the module.

    Passes of one module are successive queries over the same keys, as of a decoder that goes step by step. The weights
    are in float32 or wider, after the softmax or the selection, and before dropout.
    """
    found: dict[str, Tensor] = {}

    def observer(name: str) -> Observer:
        def observe(weights_BNTS: Tensor) -> None:
            found[name] = torch.cat((found[name], weights_BNTS), 2) if name in found else weights_BNTS

        return observe

    parts = attending(model)
    try:
        for name, part in parts.items():
            part.observer = observer(name)
        yield found
    finally:
        for part in parts.values():
            part.observer = None
