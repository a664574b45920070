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
from lmtool.recipe.spec.training import Lora, Training
from lmtool.training.cost.summary import ModelPart, summarize_model
from tests.support import tiny
from tests.support.errors import refuses


def test_attention_alone_is_linear_in_the_values() -> None:
    """With weights that do not depend on the text, layers without a network add up (S f(x) + S f(y) = S f(x + y))."""
    model: Any = tiny.model(**tiny.TRANSFORMERS["bare"], bias=False)
    with torch.no_grad():
        for sublayer in model.stack.sublayers:
            sublayer.mixer.qkv.weight[: 2 * 16] = 0.0  # queries and keys: all scores are equal
        x_BTD, y_BTD = torch.randn(2, 1, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        positions, mask = torch.arange(5)[None], model.stack.mask
        f = [model.stack(x, positions, mask)[0].hidden_BTD for x in (x_BTD, y_BTD, x_BTD + y_BTD)]
    torch.testing.assert_close(f[0] + f[1], f[2], rtol=1e-9, atol=1e-9)


def test_plain_attention_alone_has_no_weights_and_takes_no_adapters() -> None:
    keys = {"mixer": "plain-attention", "score": "dot", "n_heads": 1, "d_ff": 0, "n_layers": 1, "residual": False}
    model = tiny.model(**keys, norm={"kind": "none"}, position={"kind": "none"})
    assert [name for name, _ in model.named_parameters()] == ["inputs.tokens.weight"]
    with refuses("usage"):
        add_adapters_and_freeze_(model, Lora())


def test_without_positions_an_encoder_reads_a_bag_of_words() -> None:
    model = tiny.model(shape="encoder", position={"kind": "none"})
    tokens_BT, order = tiny.tokens(1, 6), torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        one, other = (model(Batch(tokens)).hidden_BTD for tokens in (tokens_BT, tokens_BT[:, order]))
    torch.testing.assert_close(one[:, order], other, rtol=1e-9, atol=1e-9)


def test_without_its_mask_a_decoder_sees_what_it_predicts_and_writes_nothing() -> None:
    model, batch = tiny.model(causal_mask=False), tiny.tokens(1, 6)
    other = batch.clone()
    other[0, 5] = (other[0, 5] + 1) % tiny.VOCAB
    with torch.no_grad():
        assert not torch.allclose(model(Batch(batch)).hidden_BTD[:, 0], model(Batch(other)).hidden_BTD[:, 0])
    with refuses("usage"):
        model.initial_state(Batch(batch))
    with refuses("usage"):
        model.forward_incremental(batch, None)


def test_shared_layers_are_saved_and_updated_once() -> None:
    shared, apart = (build(tiny.spec(n_layers=5, share_layers=yes), tiny.VOCAB) for yes in (True, False))
    one = build(tiny.spec(n_layers=1), tiny.VOCAB)
    assert shared.state_dict().keys() == one.state_dict().keys()
    assert (
        len(find_layer_matrices_and_part_rows(shared))
        == len(find_layer_matrices_and_part_rows(one))
        == len(find_layer_matrices_and_part_rows(apart)) // 5
    )
    assert count_parameters(tiny.spec(n_layers=5, share_layers=True), tiny.VOCAB) == count_parameters(
        tiny.spec(n_layers=1), tiny.VOCAB
    )
    hidden = [model.eval()(Batch(tiny.tokens(1, 4))).hidden_BTD for model in (shared, one)]
    assert len(shared.hidden_states_by_layer(Batch(tiny.tokens(1, 4)))) == 6
    assert hidden[0].shape == hidden[1].shape


def test_their_weights_count_where_they_first_occur() -> None:
    def layers(part: ModelPart) -> list[ModelPart]:
        return [part] if part.name == "layer" else [one for child in part.children for one in layers(child)]

    first, others = layers(summarize_model(tiny.spec(n_layers=5, share_layers=True), tiny.VOCAB, 8))
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
def test_keys_of_parts_that_are_not_there(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        tiny.spec(**changes)


def test_no_loss_of_an_unmasked_decoder_is_compared() -> None:
    training = Training(steps=1, batch_size=1)
    with pytest.raises(ValidationError, match=r"evaluation\.baseline"):
        Recipe.model_validate(
            {"model": tiny.spec(causal_mask=False), "training": training, "evaluation": {"baseline": True}}
        )
