"""The tree of parts: its parameters are the model's, its operations those that torch counts."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch.utils.flop_counter import FlopCounterMode

from lmtool.batch import Batch, Mask
from lmtool.model import build
from lmtool.model.size import build_on_meta
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.transformer import Transformer
from lmtool.training.cost.summary import ModelPart, count_attention_pairs, make_layer_mask, summarize_model
from tests.support.shipped import ONE_OF_EACH_KIND

T, V = 12, 40
DECODER = {"kind": "transformer", "n_layers": 3, "d_model": 16, "n_heads": 4, "context": T}
RECURRENT = {"kind": "recurrent", "n_layers": 2, "d_model": 8, "context": T}


def spec(base: dict[str, Any], **changes: Any) -> Any:
    return TypeAdapter(Model).validate_python(base | changes)


def parts(part: ModelPart) -> Iterator[ModelPart]:
    """A part and all below it, each as often as it is there."""
    for _ in range(part.times):
        yield part
        for child in part.children:
            yield from parts(child)


def own(part: ModelPart) -> tuple[int, int]:
    """Parameters and operations of one copy of a part, without those below it."""
    below = part.children
    parameters = part.parameters // part.times - sum(child.parameters for child in below)
    return parameters, part.flops // part.times - sum(child.flops for child in below)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_parameters_are_those_of_the_built_model(name: str) -> None:
    model = load(name).recipe.model
    built = build_on_meta(model, 500)
    found = summarize_model(model, 500, 16)
    assert found.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert found.parameters == sum(own(part)[0] for part in parts(found))
    assert found.flops == sum(own(part)[1] for part in parts(found))


def counted(model: Any, source: bool) -> int:
    """Operations of a forward pass and all logits, as torch counts them; attention with all pairs."""
    torch.manual_seed(0)
    lm = build(model, V).train()
    tokens = torch.randint(V, (1, T))
    with FlopCounterMode(display=False) as counter:
        lm.logits(lm(Batch(tokens, source_BS=tokens if source else None)).hidden_BTD)
    return int(counter.get_total_flops())


BELOW = T * (T - 1) // 2
WINDOW = {"kind": "window", "size": 3, "dilation": 2, "global_tokens": 1}


@pytest.mark.parametrize(
    ("changes", "unseen"),
    [
        ({"shape": "encoder", "embedding_width": 8, "head_transform": True, "activation": "geglu"}, 0),
        ({"shape": "encoder", "score": "bilinear"}, 0),
        ({"shape": "encoder", "score": "reduced-rank", "rank": 3}, 0),
        ({"n_kv_heads": 2, "activation": "swiglu", "position": {"kind": "rotary"}, "tie_embeddings": False}, 3 * BELOW),
        ({"shape": "prefix", "position": {"kind": "relative"}}, 3 * (BELOW - (T // 2) * (T // 2 - 1) // 2)),
        ({"shape": "encoder", "attention_gate": "elementwise", "x0": True}, 0),
        ({"n_layers": 1, "head_width": 5, "qk_norm": "head"}, BELOW),
        ({"shape": "encoder", "head_width": 3, "value_width": 7}, 0),
        ({"shape": "encoder", "score": "additive", "score_width": 6}, 0),
        ({"shape": "encoder", "position": {"kind": "disentangled", "max_distance": 3}}, 0),
        ({"mixer": "plain-attention"}, 3 * BELOW),
        ({"shape": "encoder-decoder", "n_layers": 2, "value_width": 8, "head_width": 8}, 2 * BELOW),
    ],
)
def test_operations_of_transformers(changes: dict[str, Any], unseen: int) -> None:
    """All that torch counts, less the pairs that a mask excludes: a score and a weighted value each."""
    model = spec(DECODER, **changes)
    width = model.head_width or model.d_model // model.n_heads
    source = model.shape == "encoder-decoder"
    assert summarize_model(model, V, T).flops == counted(model, source) - unseen * model.n_heads * 2 * 2 * width


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(
    ("changes", "unseen"),
    [
        ({"tie_embeddings": False}, 0),
        ({"attention": {"score": "bilinear"}}, T * (T + 1) // 2),
        ({"shape": "encoder-decoder", "bidirectional_encoder": True, "attention": {"score": "dot"}}, 0),
        ({"shape": "encoder-decoder", "attention": {"score": "additive", "feed": "input"}}, 0),
    ],
)
def test_operations_of_recurrent_models(cell: str, changes: dict[str, Any], unseen: int) -> None:
    """Torch counts none in its kernel of LSTMs: there they are two for each weight of a layer and position."""
    model = spec(RECURRENT, cell=cell, **changes)
    expected = counted(model, model.shape == "encoder-decoder")
    if cell == "lstm":
        layers = [(8, 8)] * (2 if model.shape == "decoder" else 4)
        if model.bidirectional_encoder:
            layers = [(8, 8)] * 2 + [(8, 4)] * 4
        if model.attention is not None and model.attention.feed == "input":
            # computed step by step
            layers = layers[1:]
        expected += sum(2 * T * 4 * out * (d_in + out) for d_in, out in layers)
    assert summarize_model(model, V, T).flops == expected - unseen * 2 * 2 * 8


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("prefix", [None, 0, 5])
def test_pairs_are_those_of_the_mask(causal: bool, prefix: int | None) -> None:
    prefix_B = None if prefix is None else torch.tensor([prefix])
    for window, dilation, n_global, length in product([None, 1, 2, 4, 99], [1, 2, 3], [0, 1, 3, 30], [1, 2, 11]):
        mask = Mask(causal, window, dilation, n_global, prefix_B)
        dense = mask.allows_in_each_row(torch.arange(length)[:, None], torch.arange(length)[None])
        assert count_attention_pairs(mask, length) == int(dense.sum()), mask


def test_layers_of_full_attention_between_windows() -> None:
    model = spec(DECODER, pattern=WINDOW | {"full_layers": [1]})
    assert isinstance(model, Transformer)
    assert make_layer_mask(model, T, causal=True).window == 3
    assert make_layer_mask(model, T, causal=True, layer=1) == Mask(causal=True)
    (stack,) = (part for part in summarize_model(model, V, T).children if part.name == "stack")
    assert [part.times for part in stack.children if part.name == "layer"] == [1, 1, 1]
    all_windows = spec(DECODER, pattern=WINDOW)
    seen = count_attention_pairs(Mask(True, 3, 2, 1), T)
    more = summarize_model(model, V, T).flops - summarize_model(all_windows, V, T).flops
    assert more == (T * (T + 1) // 2 - seen) * 4 * 2 * 2 * 4


def test_a_model_of_many_layers_is_described_at_once() -> None:
    model = spec(DECODER, n_layers=10**9, d_model=10**6 * 4)
    (stack,) = (part for part in summarize_model(model, V, T).children if part.name == "stack")
    (layer,) = (part for part in stack.children if part.name == "layer")
    assert layer.times == 10**9
