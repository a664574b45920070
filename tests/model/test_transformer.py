"""The Transformers against a plain reference, their gradients, initial weights and dropout."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lmtool.batch import Batch, Mask
from lmtool.model import build
from lmtool.model.language_model import LayerState
from lmtool.model.layers.attention import AttentionOp, Mixer, MixerOutput
from lmtool.model.layers.blocks import FeedForward
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.model.layers.stack import Sublayer
from tests.reference import transformer as reference
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.tiny import TRANSFORMERS, VOCAB

CASES: dict[str, dict[str, Any]] = {
    **TRANSFORMERS,
    "one head of keys and values, narrow network": {"n_kv_heads": 1, "d_ff": 3, "n_layers": 1},
    "a decoder with all parts of a head": {"head_transform": True, "head_bias": True, "scale_head": True},
    "an encoder-decoder with all parts of a head": {
        **{"shape": "encoder-decoder", "head_transform": True, "head_bias": True, "scale_head": True},
        "tie_embeddings": False,
    },
}
SOURCES = [[3, 1, 4, 1], [5]]
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the attention weights of each layer, in the order of computation."""
    weights: list[Any] = []
    by_loops = reference.attention_weights

    def kept(*arguments: Any) -> Any:
        weights.append(by_loops(*arguments))
        return weights[-1]

    monkeypatch.setattr(reference, "attention_weights", kept)
    spec, tokens_BT = tiny.spec(**CASES[name]), tiny.tokens(2, 5)
    model: Any = tiny.model(**CASES[name])
    segments = SEGMENTS if spec.n_segments else None
    more = {"segments_BT": segments} if spec.shape == "encoder" else {}
    hidden = tiny.read(model, tokens_BT, SOURCES, **more)
    logits_BTV = model.logits(hidden)
    with torch.no_grad(), record_attention_weights(model) as observed:
        without_grad = model.logits(tiny.read(model, tokens_BT, SOURCES, **more))
    torch.testing.assert_close(without_grad, logits_BTV, rtol=1e-9, atol=1e-9)
    assert logits_BTV.shape == (2, 5, VOCAB)
    plain = tiny.as_reference(model, spec)
    for i, row in enumerate(tokens_BT.tolist()):
        weights.clear()
        match spec.shape:
            case "decoder":
                wanted = plain.causal(row)
            case "prefix":
                wanted = plain.prefix([*SOURCES[i], *row], len(SOURCES[i]))[len(SOURCES[i]) :]
            case "encoder-decoder":
                wanted = plain.answer(SOURCES[i], row)
            case "encoder":
                wanted, pair = plain.both_sides(row, None if segments is None else segments[i].tolist())
                if pair is not None:
                    found = tiny.array(model.next_sentence_logits(hidden)[i])
                    np.testing.assert_allclose(found, pair, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(tiny.array(logits_BTV[i]), wanted, rtol=1e-8, atol=1e-9)
        for weights_BNTS, one in zip(observed.values(), weights, strict=True):
            _, T, S = one.shape  # the other row may be longer
            np.testing.assert_allclose(weights_BNTS[i, :, :T, :S], one, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("n", [0, 3, 5])
def test_a_prefix_of_any_length_equals_the_plain_model(n: int) -> None:
    """Also the scores inside the prefix."""
    changes: dict[str, Any] = {"shape": "prefix", "position": {"kind": "relative"}}
    model, tokens_BT = tiny.model(**changes), tiny.tokens(1, 5)
    logits = model.logits(model(Batch(tokens_BT, prefix_B=torch.tensor([n]))).hidden_BTD)
    wanted = tiny.as_reference(model, tiny.spec(**changes)).prefix(tokens_BT[0].tolist(), n)
    np.testing.assert_allclose(tiny.array(logits[0]), wanted, rtol=1e-8, atol=1e-9)


def test_without_segments_all_tokens_belong_to_the_first() -> None:
    model, tokens_BT = tiny.model(**tiny.BERT), tiny.tokens(2, 5)
    alone, first, second = (
        model(Batch(tokens_BT, segments_BT=segments)).hidden_BTD
        for segments in (None, torch.zeros_like(tokens_BT), torch.ones_like(tokens_BT))
    )
    torch.testing.assert_close(alone, first)
    assert not torch.allclose(alone, second)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_gets_a_gradient_and_those_of_the_head_from_logits(name: str) -> None:
    spec = tiny.spec(**CASES[name])
    model: Any = tiny.model(**CASES[name])
    torch.autograd.backward(model.logits(torch.randn(3, 16, dtype=torch.float64)).sum())
    used = {id(parameter) for parameter in model.parameters() if parameter.grad is not None}
    assert used == set(map(id, model.head_parameters()))
    more = {"segments_BT": SEGMENTS} if spec.n_segments else {}
    hidden = tiny.read(model, tiny.tokens(2, 5), [[3, 1, 4, 1, 5, 9], [5, 0, 2]], **more)
    torch.autograd.backward(model.logits(hidden).log_softmax(-1)[..., 1].sum())
    if spec.next_sentence_head:
        torch.autograd.backward(model.next_sentence_logits(hidden.detach()).log_softmax(-1)[..., 1].sum())
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        grad = parameter.grad.to_dense()
        assert torch.isfinite(grad).all(), parameter_name
        assert grad.abs().sum() > 0, parameter_name


def test_what_a_shape_does_not_have_is_refused() -> None:
    encoder: Any = tiny.model(shape="encoder")
    batch = Batch(tiny.tokens(1, 3))
    with refuses("usage"):
        encoder.forward_incremental(batch.tokens_BT, None)
    with pytest.raises(ValueError, match="next_sentence_head"):
        encoder.next_sentence_logits(encoder(batch).hidden_BTD)
    with pytest.raises(ValueError, match="source"):
        tiny.model(shape="encoder-decoder")(batch)


def deviation(parameter: torch.Tensor) -> float:
    return float(parameter.detach().square().mean().sqrt())


@pytest.mark.parametrize(
    ("changes", "std", "scale_residual"),
    [({}, 0.02, True), ({"tie_embeddings": False, "activation": "swiglu", "n_kv_heads": 2}, 0.1, False)],
)
def test_initial_weights_have_their_deviation_and_gains_are_ones(
    changes: dict[str, Any], std: float, scale_residual: bool
) -> None:
    torch.manual_seed(1)
    init = {"std": std, "scale_residual": scale_residual}
    model = build(tiny.spec(n_layers=3, d_model=64, context=64, init=init, head_bias=True, **changes), 211)
    n_into_stream = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            is_gain = name.endswith("norm.weight")
            assert torch.equal(parameter, torch.ones_like(parameter) if is_gain else torch.zeros_like(parameter)), name
        else:
            into_stream = name.endswith("mixer.out.weight")
            n_into_stream += into_stream
            wanted = std * (2 * 3) ** -0.5 if into_stream and scale_residual else std
            assert deviation(parameter) == pytest.approx(wanted, rel=0.05), name
            assert abs(float(parameter.detach().mean())) < 4 * wanted * parameter.numel() ** -0.5, name
    assert n_into_stream == 2 * 3


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_may_start_wider_than_matrices(tied: bool) -> None:
    init = {"std": 0.02, "embedding_std": 1.5}
    more: dict[str, Any] = {"tie_embeddings": tied, "position": {"kind": "learned"}}
    model = build(tiny.spec(shape="encoder", n_segments=40, d_model=64, context=64, init=init, **more), 211)
    wide = {name for name, parameter in model.named_parameters() if parameter.ndim > 1 and deviation(parameter) > 0.2}
    assert wide == {"inputs.tokens.weight", "inputs.segments.weight", "inputs.position.table.weight"}
    for name in wide:
        assert deviation(model.get_parameter(name)) == pytest.approx(1.5, rel=0.05), name


class Double(Mixer):
    """f(x) = 2 x."""

    def initial_state(self, n_rows: int) -> LayerState:
        return ()

    def forward(self, x_BTD: torch.Tensor, attend: AttentionOp, past: LayerState | None) -> MixerOutput:
        return MixerOutput(2 * x_BTD, past)


@pytest.mark.parametrize("place", ["embeddings", "network", "sublayer"])
def test_dropout_zeroes_some_scales_the_rest_and_is_off_in_evaluation(place: str) -> None:
    """Of a sublayer the output alone is dropped, not the stream, which the embeddings begin."""
    attend, x_BTD, p = AttentionOp(Mask(), 20, torch.arange(20)[None]), torch.ones(50, 20, 16), 0.25
    match place:
        case "embeddings":
            model: Any = tiny.model(dropout=p)
            for sublayer in model.stack.sublayers:
                nn.init.zeros_(sublayer.mixer.out.weight)
                nn.init.zeros_(sublayer.mixer.out.bias)
            model.stack.norm = nn.Identity()
            found = [model.train(is_on)(Batch(tiny.tokens(50, 20))).hidden_BTD for is_on in (True, False)]
        case "network":
            network: Any = FeedForward(16, 16, "relu", False, p)
            nn.init.eye_(network.up.weight)
            nn.init.eye_(network.out.weight)
            found = [network.train(is_on)(x_BTD, attend, None).x_BTD for is_on in (True, False)]
        case _:
            layer = Sublayer(Double(), nn.Identity(), "pre", p)
            found = [layer.train(is_on)(x_BTD, attend, None)[0] - x_BTD for is_on in (True, False)]
            assert torch.equal(found[1], 2 * x_BTD)
    ratio = (found[0] / found[1]).detach().float()
    assert torch.isclose(ratio, torch.tensor(0.0)).logical_or(torch.isclose(ratio, torch.tensor(1 / 0.75))).all()
    assert float(ratio.mean()) == pytest.approx(1, abs=0.03)


def test_sinusoids_keep_their_phase_in_float32() -> None:
    far = 100_003
    wave = SinusoidalPositions(8)(torch.zeros(1, 1, 8), torch.tensor([[far]]))
    assert wave.dtype == torch.float32
    assert wave[0, 0].numpy() == pytest.approx(reference.sinusoid(far, 8), abs=1e-6)
