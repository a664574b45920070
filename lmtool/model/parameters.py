"""Properties of parameters that optimizers need: depth, and which are matrices of layers."""

from typing import cast

from torch import nn
from torch.nn import Parameter

from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import linears_of, widths_of


def depths(model: LanguageModel) -> dict[Parameter, int]:
    """0 for embeddings and positions, 1 to L for the layers from the bottom up, L + 1 for heads.

    A tied matrix is an embedding.
    """
    parts = model.parts()
    found = dict.fromkeys(model.parameters(), len(parts))
    for depth, group in enumerate(parts):
        found |= {p: depth for part in group if part is not None for p in part.parameters()}
    return found


def layer_matrices(model: nn.Module) -> dict[Parameter, list[int]]:
    """Weights of the linear maps inside layers, each with the row counts of its parts; no embeddings or heads."""
    blocks = {cast(Parameter, linear.weight): list(widths_of(linear)) for linear in linears_of(model)}
    for kernel in (module for module in model.modules() if isinstance(module, nn.RNNBase)):
        # one part per gate
        blocks |= {w: [kernel.hidden_size] * (len(w) // kernel.hidden_size) for w in kernel.parameters() if w.ndim == 2}
    return blocks
