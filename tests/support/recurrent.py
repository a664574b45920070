"""Recurrent models: what tests of their shapes share."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.recipe.spec.recurrent import Recurrent
from tests.model.recurrent_weights import VOCAB, Array, Weights
from tests.reference import recurrent as reference

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
SCORES = ["dot", "scaled-dot", "bilinear", "reduced-rank", "additive"]


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def by_loops(
    model: RecurrentEncoderDecoder, of: Recurrent, source_S: Tensor, tokens_T: Tensor
) -> tuple[Array, list[list[float]]]:
    """Logits (T, V) and weights of one row, by the reference."""
    weights = Weights(model, of)
    xs, sources = weights.embed(tokens_T), weights.embed(source_S)
    if of.bidirectional_encoder:
        memory, lasts = reference.read_both_ways(
            weights.layers("encoder.forth"), weights.layers("encoder.back"), sources
        )
        maps = [
            (weights.named[f"encoder.bridge.{i}.weight"], weights.named[f"encoder.bridge.{i}.bias"])
            for i in range(sum(map(len, lasts)))
        ]
        first = []
        for last in lasts:
            mapped = [w @ part + b for part, (w, b) in zip(last, maps, strict=False)]
            maps = maps[len(last) :]
            first.append([np.tanh(mapped[0]), *mapped[1:]])
    else:
        every, first = reference.run_layers(weights.layers("encoder.forth"), sources)
        memory = every[-1]
    layers = weights.layers("rnn.cells")
    if of.attention is None:
        return weights.logits(reference.run_layers(layers, xs, first)[0][-1]), []
    if of.attention.feed == "output":
        hidden, aligned = reference.luong(layers, xs, first, memory, weights.score())
    else:
        layers[0] = weights.layer("rnn.cells.0", context="feed")
        hidden, aligned = reference.bahdanau(layers, xs, first, memory, weights.score())
    return weights.logits(hidden), aligned
