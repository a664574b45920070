"""A learned mix of the layers of a model, which may be another, frozen one (ELMo; Peters et al. 2018).

Shapes: B rows, T positions, D width of hidden states, L layers.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.model.language_model import LanguageModel
from lmtool.recipe.spec.recurrent import Features


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j: a learned scalar mix of all layers at each position.

    Uniform at initialisation (Peters et al. 2018, equation 1).
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.scalars_L = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Returns the scalar mix (B, T, D) of L layers, each (B, T, D)."""
        shares_L = self.scalars_L.softmax(0)
        return self.gamma * torch.stack([share * h for share, h in zip(shares_L, layers, strict=True)]).sum(0)


class FrozenModelScalarMix(nn.Module):
    """Features gamma * sum_j softmax(s)_j h_tj of each token t, from the states h_tj of the layers j of another model.

    Only s and gamma are trained. The other model, which `attach_source` sets, is no submodule: its weights are in no
    optimizer and no checkpoint of this one and get no gradient, and it always computes as in evaluation.

    concatenates: whether features are concatenated to embeddings, or else replace them.
    """

    def __init__(self, spec: Features) -> None:
        super().__init__()
        self.concatenates = spec.beside
        self.mix = ScalarMix(spec.mixed_layers or 1)
        self._source: tuple[LanguageModel, ...] = ()

    def attach_source(self, source: LanguageModel) -> None:
        """Sets the model to compute features with, and freezes it."""
        self._source = (source.requires_grad_(False).eval(),)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the features (B, T, D) of the tokens of a batch. Raises ValueError before `attach_source`."""
        if not self._source:
            raise ValueError("features need the model that computes them")
        with torch.no_grad():
            layers = self._source[0].hidden_states_by_layer(batch)
        return cast(Tensor, self.mix(layers))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves the other model too; torch calls this for moves to another device or dtype."""
        for source in self._source:
            source._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def find_frozen_features(model: nn.Module) -> FrozenModelScalarMix | None:
    """Returns the module of a model that computes features with another model, if it has one."""
    return next((part for part in model.modules() if isinstance(part, FrozenModelScalarMix)), None)
