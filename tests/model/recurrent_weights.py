"""The weights of built recurrent models in the form of tests/reference/recurrent.py."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.model import LanguageModel, build
from lmtool.model.layers.observing import record_attention_weights
from lmtool.recipe.spec.recurrent import Recurrent
from tests.reference import attention
from tests.reference import recurrent as reference

VOCAB = 11
CELLS = [("rnn", "tanh"), ("rnn", "relu"), ("rnn", "sigmoid"), ("gru", "tanh"), ("lstm", "tanh")]
Array = NDArray[np.float64]


def spec(**changes: Any) -> Recurrent:
    """Two layers of width 6."""
    return Recurrent.model_validate({"kind": "recurrent", "n_layers": 2, "d_model": 6, "context": 12} | changes)


def built(of: Recurrent, seed: int = 0) -> Any:
    """A model in evaluation mode with large random weights and biases, in float64."""
    model: LanguageModel = build(of, VOCAB).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.5 * drawn if parameter.ndim > 1 else drawn)
    return model


class Weights:
    """Weights of a model by the names of its parameters."""

    def __init__(self, model: LanguageModel, of: Recurrent) -> None:
        self.named: dict[str, Array] = {name: p.detach().numpy() for name, p in model.named_parameters()}
        self.of = of

    def layer(self, name: str, context: str | None = None) -> reference.Layer:
        """A layer; `context` names the matrix for a context concatenated to its input."""
        n_gates = {"rnn": 1, "gru": 3, "lstm": 4}[self.of.cell]
        w, u, b, c = (
            self.named[f"{name}.kernel.{part}"] for part in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        )
        if context is not None:
            w = np.concatenate([w, self.named[f"{context}.weight"]], 1)
        parts = (np.split(matrix, n_gates) for matrix in (w, u, b, c))
        return reference.Layer(self.of.cell, self.of.nonlinearity, *parts)

    def layers(self, name: str) -> list[reference.Layer]:
        return [self.layer(f"{name}.{i}") for i in range(self.of.n_layers)]

    def embed(self, tokens: torch.Tensor) -> list[Array]:
        return list(self.named["embedding.weight"][tokens.numpy()])

    def score(self) -> reference.Score:
        assert self.of.attention is not None
        kind, weights = self.of.attention.score, [w[0] for name, w in self.named.items() if ".score." in name]
        return lambda q, k: attention.score(kind, q, k, weights)

    def logits(self, hidden: list[Array]) -> Array:
        """z = W h + b; of a tied head z = E h + b, where h = tanh(W_c [h; c]) if there is a context."""
        if "join.weight" in self.named:
            hidden = [np.tanh(self.named["join.weight"] @ h) for h in hidden]
        head = self.named["embedding.weight" if self.of.tie_embeddings else "head.weight"]
        return np.stack([head @ h + self.named.get("head_bias", 0.0) for h in hidden])


def alignments(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """Attention weights (B, T, S) of each position over the memory: its past states, or the source."""
    with record_attention_weights(model) as weights:
        model(batch)
    (weights_BNTS,) = weights.values()
    return weights_BNTS[:, 0]
