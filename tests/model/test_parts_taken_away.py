"""Transformers without some of their parts: what is left computes, trains and refuses what it says.

What they compute is held to the plain formulas with all other families (tests/model/test_transformer.py).
"""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.layers.attention import find_layer_matrices_and_part_rows
from lmtool.model.lora import add_adapters_and_freeze_
from lmtool.model.size import count_parameters
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lora
from lmtool.training.cost.summary import ModelPart, summarize_model
from tests.support import tiny
from tests.support.errors import refuses


def test_plain_attention_alone_has_no_weights_and_takes_no_adapters() -> None:
    keys: dict[str, Any] = {
        "mixer": "plain-attention",
        "score": "dot",
        "n_heads": 1,
        "d_ff": 0,
        "n_layers": 1,
        "residual": False,
    }
    model = tiny.model(**keys, norm={"kind": "none"}, position={"kind": "none"})
    assert [name for name, _ in model.named_parameters()] == ["inputs.tokens.weight"]
    with refuses("usage"):
        add_adapters_and_freeze_(model, Lora())


def test_without_its_mask_a_decoder_sees_what_it_predicts_and_writes_nothing() -> None:
    model, batch = tiny.model(causal_mask=False), tiny.tokens(1, 6)
    other: Any = batch.clone()
    other[0, 5] = (other[0, 5] + 1) % tiny.VOCAB
    with torch.no_grad():
        assert not torch.allclose(model(Batch(batch)).hidden_BTD[:, 0], model(Batch(other)).hidden_BTD[:, 0])
    with refuses("usage"):
        model.initial_state(Batch(batch))
    with refuses("usage"):
        model.forward_incremental(batch, tiny.start(tiny.model(), 1))


def test_shared_layers_are_saved_and_updated_once() -> None:
    """Where they first occur; what they compute counts each time."""
    one, of = tiny.spec(n_layers=1), tiny.spec(n_layers=5, share_layers=True)
    single, shared = build(one, tiny.VOCAB), build(of, tiny.VOCAB)
    assert shared.state_dict().keys() == single.state_dict().keys()
    assert len(find_layer_matrices_and_part_rows(shared)) == len(find_layer_matrices_and_part_rows(single))
    assert count_parameters(of, tiny.VOCAB) == count_parameters(one, tiny.VOCAB)
    assert len(shared.hidden_states_by_layer(Batch(tiny.tokens(1, 4)))) == 6

    def layers(part: ModelPart) -> list[ModelPart]:
        return [part] if part.name == "layer" else [one for child in part.children for one in layers(child)]

    first, others = layers(summarize_model(of, tiny.VOCAB, 8))
    assert (first.times, others.times) == (1, 4)
    assert others.parameters == 0
    assert others.flops == 4 * first.flops > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"norm": {"kind": "none", "embedding": True}}, "norm.embedding"),
        ({"norm": {"kind": "none", "first": False}}, "norm.first"),
        ({"norm": {"kind": "none", "unit_offset": True}}, "unit_offset"),
        ({"norm": {"kind": "none", "bias": True}}, "norm.bias"),
        ({"d_ff": 0, "ffn_dropout": 0.1}, "ffn_dropout"),
        ({"d_ff": 0, "parallel": True}, "parallel"),
        ({"residual": False, "parallel": True}, "parallel"),
        ({"residual": False, "norm": {"place": "output"}}, "norm.place output"),
        ({"residual": False, "residual_from": "layer"}, "residual_from"),
        ({"parallel": True, "residual_from": "layer"}, "residual_from"),
        ({"d_ff": 0, "residual_from": "layer"}, "residual_from"),
        ({"shape": "encoder-decoder", "residual_from": "layer"}, "residual_from"),
        *(({"mixer": "plain-attention", key: 2}, key) for key in ("head_width", "value_width", "n_kv_heads")),
        ({"mixer": "plain-attention", "qkv_bias": True}, "qkv_bias"),
        ({"mixer": "plain-attention", "qk_norm": "head"}, "qk_norm"),
        ({"mixer": "plain-attention", "attention_gate": "headwise"}, "attention_gate"),
        ({"share_layers": True, "norm": {"first": False}}, "norm.first"),
        ({"shape": "encoder", "causal_mask": False}, "causal_mask"),
    ],
)
def test_keys_of_parts_that_are_not_there_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        tiny.spec(**changes)


def test_no_loss_of_an_unmasked_decoder_is_compared() -> None:
    recipe = {"model": tiny.spec(causal_mask=False), "training": {"steps": 1, "batch_size": 1}}
    with pytest.raises(ValidationError, match=r"evaluation\.baseline"):
        Recipe.model_validate({**recipe, "evaluation": {"baseline": True}})
