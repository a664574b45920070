"""What a recipe computes: the keys of a Transformer that change its logits, to compare what two of them compute."""

from collections.abc import Iterator, Mapping
from typing import Any

from lmtool.interop.family import Inexpressible
from lmtool.recipe.spec import LearnedPosition, Transformer, WindowPattern

IN_TRAINING = {"kind", "context", "init", "dropout", "ffn_dropout"}
"""Keys that change no logits. The context does so by the size of the position table, which is one of its own."""

OF_HEAD = {"tie_embeddings", "head_bias", "head_transform", "scale_head"}
"""Keys of the head that predicts tokens."""


def meaning(model: Transformer, head: bool = True) -> dict[str, object]:
    """The values of all dotted keys that change the logits, with their defaults filled in; in the order of the spec.

    head: whether its head that predicts tokens is used.
    """
    values = model.model_dump(exclude=IN_TRAINING if head else IN_TRAINING | OF_HEAD)
    values["head_width"] = model.head_width or model.d_model // model.n_heads
    values["n_kv_heads"] = model.n_kv_heads or model.n_heads
    values["d_ff"] = model.d_ff or 4 * model.d_model
    values["qkv_bias"] = model.bias if model.qkv_bias is None else model.qkv_bias
    if isinstance(model.position, LearnedPosition):
        values["position"]["size"] = model.position.size or model.context + model.position.offset
    if isinstance(model.pattern, WindowPattern):
        values["pattern"]["full_layers"] = sorted(set(model.pattern.full_layers))
    return dict(_dotted(values))


def check_same(model: Transformer, published: Transformer, family: str, head: bool = True) -> None:
    """Raise Inexpressible with the first key that differs in the model as published by a family, read again."""
    theirs = meaning(published, head)
    for key, value in meaning(model, head).items():
        if theirs[key] != value:
            raise Inexpressible(key, f"{value}, and {family} has {theirs[key]}")


def _dotted(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{key}.")
        else:
            yield before + key, value
