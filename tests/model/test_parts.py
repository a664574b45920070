"""What a comparison with the plain model (tests/model/test_transformer.py) does not show of its parts."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lmtool.batch import Mask
from lmtool.model.language_model import LayerState
from lmtool.model.layers.attention import AttentionOp, Mixer, MixerOutput
from lmtool.model.layers.blocks import FeedForward
from lmtool.model.layers.norms import build_norm
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.model.layers.stack import Sublayer
from lmtool.recipe.spec.transformer import Norm
from tests.reference import transformer as reference

ATTEND = AttentionOp(Mask(), 1, torch.arange(1)[None])


@pytest.mark.parametrize(
    ("shape", "trained"), [((7,), (True, True)), ((3, 7), (True, False)), ((2, 3, 7), (False, True))]
)
def test_gradients_of_rms_norm(shape: tuple[int, ...], trained: tuple[bool, bool]) -> None:
    """Those of torch's own formula, whichever are wanted, also of inputs and gradients that are not contiguous."""
    torch.manual_seed(0)
    norm: Any = build_norm(Norm.model_validate({"kind": "rms", "eps": 0.01}), 7, False).double()
    nn.init.normal_(norm.weight)
    x, grad = (torch.randn(*shape[:-1], 14, dtype=torch.float64)[..., ::2] for _ in range(2))
    found = []
    for forward in (norm, lambda x: F.rms_norm(x, (7,), norm.weight, 0.01)):
        input_, norm.weight.grad = x.clone().requires_grad_(trained[0]), None
        norm.weight.requires_grad_(trained[1])
        y = forward(input_)
        y.backward(grad)
        found.append((y, input_.grad, norm.weight.grad))
    for own, theirs in zip(*found, strict=True):
        assert (own is None) == (theirs is None)
        if own is not None:
            torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)


def test_rms_norm_is_the_same_with_and_without_gradients() -> None:
    norm = build_norm(Norm.model_validate({"kind": "rms"}), 48, False)
    x = torch.randn(5, 48)
    with torch.no_grad():
        alone = norm(x)
    assert torch.equal(norm(x), alone)


def test_dropout_inside_the_network_scales_what_it_keeps() -> None:
    network = FeedForward(64, 64, "relu", False, 0.2)
    nn.init.eye_(network.up.weight)
    nn.init.eye_(network.out.weight)
    torch.manual_seed(0)
    y, _, _ = network(torch.ones(200, 64), ATTEND, None)
    assert torch.isclose(y, torch.tensor(0.0)).logical_or(torch.isclose(y, torch.tensor(1 / 0.8))).all()
    assert float(y.detach().mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(network.eval()(torch.ones(2, 64), ATTEND, None)[0], torch.ones(2, 64))


class Double(Mixer):
    """f(x) = 2 x."""

    def initial_state(self, n_rows: int) -> LayerState:
        return ()

    def forward(self, x_BTD: torch.Tensor, attend: AttentionOp, past: LayerState | None) -> MixerOutput:
        return MixerOutput(2 * x_BTD, past)


def test_dropout_of_a_sublayer_leaves_the_stream_whole() -> None:
    x = torch.ones(50, 4, 16)
    torch.manual_seed(0)
    y, _, _ = Sublayer(Double(), nn.Identity(), "pre", 0.2)(x, ATTEND, None)
    joined = y - x
    assert torch.isclose(joined, torch.tensor(0.0)).logical_or(torch.isclose(joined, torch.tensor(2 / 0.8))).all()
    assert float(joined.mean()) == pytest.approx(2, abs=0.1)


def test_sinusoids_keep_their_phase_in_float32() -> None:
    far = 100_003
    wave = SinusoidalPositions(8)(torch.zeros(1, 1, 8), torch.tensor([[far]]))
    assert wave.dtype == torch.float32
    assert wave[0, 0].numpy() == pytest.approx(reference.sinusoid(far, 8), abs=1e-6)
