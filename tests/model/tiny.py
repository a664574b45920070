"""Small models whose every weight matters, and their weights in the form of tests/reference/transformer.py."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.model import LanguageModel, build
from lmtool.recipe.spec import Transformer
from tests.reference import transformer as reference

VOCAB = 13

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu-tanh"},
    "gpt1": {"activation": "gelu-tanh", "norm": {"kind": "layer", "place": "post"}},
    "vaswani": {
        "activation": "relu",
        "norm": {"kind": "layer", "place": "post", "eps": 1e-3},
        "position": {"kind": "sinusoidal"},
        "scale_embedding": True,
    },
    "modern": {
        "activation": "swiglu",
        "norm": {"kind": "rms", "place": "pre", "eps": 1e-6},
        "position": {"kind": "none"},
        "bias": False,
        "tie_embeddings": False,
        "n_kv_heads": 2,
        "d_ff": 12,
    },
    "multi-query": {"n_kv_heads": 1, "head_bias": True, "position": {"kind": "learned", "size": 40}},
}
"""One model of each kind of part, by name."""


def spec(**changes: Any) -> Transformer:
    """Two layers, 4 heads of width 4, context 24."""
    return Transformer.model_validate(
        {"kind": "transformer", "n_layers": 2, "d_model": 16, "n_heads": 4, "context": 24} | changes
    )


def model(seed: int = 0, dtype: torch.dtype = torch.float64, vocab_size: int = VOCAB, **changes: Any) -> LanguageModel:
    """A model in evaluation mode with large random weights, biases and gains, so that a wrong one shows."""
    built = build(spec(**changes), vocab_size).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * drawn if parameter.ndim > 1 else 0.5 + drawn)
    return built


def tokens(*shape: int, seed: int = 0, vocab_size: int = VOCAB) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def as_reference(built: LanguageModel, of: Transformer) -> reference.Decoder:
    """The weights of `built` copied into the plain decoder."""
    weights = {name: parameter.detach().double().numpy() for name, parameter in built.named_parameters()}
    n_kv_heads = of.n_kv_heads or of.n_heads
    kv_width = of.d_model // of.n_heads * n_kv_heads
    d_ff = of.d_ff or 4 * of.d_model

    def affine(name: str, start: int = 0, stop: int | None = None) -> reference.Affine:
        bias = weights.get(f"{name}.bias")
        return reference.Affine(weights[f"{name}.weight"][start:stop].T, None if bias is None else bias[start:stop])

    def norm(name: str) -> reference.Norm:
        return reference.Norm(of.norm.kind, weights[f"{name}.weight"], weights.get(f"{name}.bias"), of.norm.eps)

    layers = []
    for i in range(of.n_layers):
        attention, ffn = f"stack.sublayers.{2 * i}", f"stack.sublayers.{2 * i + 1}"
        joined, up = f"{attention}.mixer.qkv", f"{ffn}.mixer.up"
        gated = of.activation == "swiglu"
        layers.append(
            reference.Layer(
                query=affine(joined, 0, of.d_model),
                key=affine(joined, of.d_model, of.d_model + kv_width),
                value=affine(joined, of.d_model + kv_width),
                out=affine(f"{attention}.mixer.out"),
                attention_norm=norm(f"{attention}.norm"),
                gate=affine(up, 0, d_ff) if gated else None,
                up=affine(up, d_ff if gated else 0),
                down=affine(f"{ffn}.mixer.out"),
                ffn_norm=norm(f"{ffn}.norm"),
            )
        )
    embedding = weights["inputs.tokens.weight"]
    return reference.Decoder(
        embedding=embedding,
        layers=layers,
        head=embedding if of.tie_embeddings else weights["head.own"],
        n_heads=of.n_heads,
        n_kv_heads=n_kv_heads,
        activation=of.activation,
        place=of.norm.place,
        positions=weights.get("inputs.position.table.weight"),
        sinusoidal=of.position.kind == "sinusoidal",
        final_norm=norm("stack.norm") if of.norm.place == "pre" else None,
        head_bias=weights.get("head.bias"),
        embedding_scale=of.d_model**0.5 if of.scale_embedding else 1.0,
    )


def array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy()
