"""The mixer interface: fixed-size states without attention, and auxiliary losses.

Shapes: B rows, T positions, D model width.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lmtool.batch import Batch, Mask
from lmtool.model import build
from lmtool.model.language_model import LayerState
from lmtool.model.layers import stack
from lmtool.model.layers.attention import AttentionOp, Mixer, MixerOutput
from lmtool.model.layers.blocks import FeedForward
from lmtool.model.lora import LoraLinear, add_adapters_and_freeze_, merge_adapters_
from lmtool.model.packed import PackedMatrix, pack_weights_
from lmtool.recipe.spec.training import Lora
from lmtool.recipe.spec.transformer import Transformer
from tests.support import tiny
from tests.support.chunks import EXACT, full, read, search
from tests.support.errors import refuses

T = 10
KEEP = torch.tensor([[True] * T, [False, True, True, False, True, True, True, True, False, False]])


class Traces(Mixer):
    """W h_t of h_t = h_{t-1} / 2 + x_t, position by position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, width)

    def initial_state(self, n_rows: int) -> LayerState:
        return (self.out.weight.new_zeros(n_rows, self.out.in_features),)

    def forward(self, x_BTD: Tensor, attend: AttentionOp, past: LayerState | None) -> MixerOutput:
        h_BD = past[0] if past else x_BTD.new_zeros(len(x_BTD), x_BTD.shape[2])
        assert len(h_BD) == len(x_BTD), "a row of its own for each state"
        steps = []
        for t, x_BD in enumerate(x_BTD.unbind(1)):
            before_BD = h_BD
            if attend.is_later_document_start_BT is not None:
                before_BD = before_BD.masked_fill(attend.is_later_document_start_BT[:, t, None], 0.0)
            after_BD = before_BD / 2 + x_BD
            h_BD = after_BD if attend.keep_BT is None else torch.where(attend.keep_BT[:, t, None], after_BD, h_BD)
            steps.append(h_BD)
        return MixerOutput(self.out(torch.stack(steps, 1)), (h_BD,) if past else None)


class Team(Mixer):
    """The sum of two networks, and 0.1 for each token of a row."""

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.members = nn.ModuleList(FeedForward(spec.d_model, 8, "relu", True, 0.0) for _ in range(2))

    def output_projections(self) -> list[nn.Linear]:
        return [member.out for member in self.members if isinstance(member, FeedForward)]

    def initial_state(self, n_rows: int) -> LayerState:
        return ()

    def forward(self, x_BTD: Tensor, attend: AttentionOp, past: LayerState | None) -> MixerOutput:
        mixed_BTD = sum(member(x_BTD, attend, None).x_BTD for member in self.members)
        if past is not None:
            return MixerOutput(mixed_BTD, past)
        keep_BT = torch.ones_like(x_BTD[..., 0]) if attend.keep_BT is None else attend.keep_BT
        return MixerOutput(mixed_BTD, None, 0.1 * keep_BT.sum(1))


@pytest.fixture
def with_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "build_mixer", lambda spec: Traces(spec.d_model))


@pytest.fixture
def with_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "build_feed_forward", Team)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_a_state_of_fixed_size_equals_the_forward_pass_at_any_chunks_and_in_any_order_of_rows(
    with_traces: None, shape: str
) -> None:
    """An encoder-decoder keeps one copy of the source for all rows that share a line."""
    model, tokens_BT = tiny.model(shape=shape), tiny.tokens(2, T)
    for cuts in ([1], [3, 4], list(range(1, T))):
        hidden, _ = read(model, tokens_BT, cuts)
        torch.testing.assert_close(hidden, full(model, tokens_BT), **EXACT)
    with torch.inference_mode():
        state = search(model, [[0, 0, 2], [2, 1, 0], [1, 1, 1], [0, 2, 2]], 3, [2, 4])
    assert state.rows_per_line == (3 if shape == "encoder-decoder" else 1)


def test_padding_and_other_documents_are_told_without_a_mask_of_pairs(
    with_traces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model()
    tokens_BT = tiny.tokens(2, T)
    documents_BT = torch.tensor([[4] * 3 + [5] * 2 + [6] * 5, [7] * 5 + [8] * 5])
    monkeypatch.setattr(Mask, "to_tensor", None)
    hidden = model(Batch(tokens_BT, keep_BT=KEEP, documents_BT=documents_BT)).hidden_BTD
    for row in range(2):
        for document in set(documents_BT[row].tolist()):
            places = KEEP[row] & (documents_BT[row] == document)
            alone = model(Batch(tokens_BT[row, places][None])).hidden_BTD[0]
            torch.testing.assert_close(hidden[row, places], alone, **EXACT)


@pytest.mark.parametrize("shape", ["decoder", "prefix", "encoder", "encoder-decoder"])
def test_auxiliary_losses_of_all_layers_add_up(with_teams: None, shape: str) -> None:
    model: Any = tiny.model(shape=shape, n_layers=3)
    batch, wanted = Batch(tiny.tokens(2, T), keep_BT=KEEP), 3 * 0.1 * KEEP.sum(1)
    if shape == "encoder-decoder":
        source_keep_BS = torch.arange(4) < torch.tensor([[4], [2]])
        batch = replace(batch, source_BS=tiny.tokens(2, 4), source_keep_BS=source_keep_BS)
        wanted = wanted + 3 * 0.1 * source_keep_BS.sum(1)
    torch.testing.assert_close(model(batch).auxiliary_B, wanted)
    if shape in ("decoder", "encoder"):
        torch.testing.assert_close(model.hidden_states_by_layer_and_auxiliary(batch)[1], wanted)


def test_mixers_may_be_made_of_mixers(with_teams: None) -> None:
    """Their residual projections are scaled down, and all of their matrices are packed and adapted, once."""
    torch.manual_seed(0)
    built: Any = build(tiny.spec(d_model=64), tiny.VOCAB)
    for name, parameter in built.stack.named_parameters():
        if name.endswith("weight") and parameter.ndim > 1:
            wanted = 0.02 * (4**-0.5 if ".out." in name else 1.0)
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.15)
    model = tiny.model()
    batch = Batch(tiny.tokens(2, T))
    whole = model(batch).hidden_BTD
    add_adapters_and_freeze_(model, Lora(targets=("feed-forward",)))
    assert sum(isinstance(module, LoraLinear) for module in model.modules()) == 2 * 2 * 2
    merge_adapters_(model)
    torch.testing.assert_close(model(batch).hidden_BTD, whole, **EXACT)

    model = tiny.model(dtype=torch.float32)
    whole = model(batch).hidden_BTD
    pack_weights_(model, "float32", torch.device("cpu"))
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 2 * (2 + 2 * 2)
    assert all(isinstance(linear.weight, PackedMatrix) for linear in linears)
    torch.testing.assert_close(model(batch).hidden_BTD, whole, rtol=1e-5, atol=1e-5)


def test_a_mixer_that_no_adapter_knows_is_left_as_it_is(with_traces: None) -> None:
    model = tiny.model()
    add_adapters_and_freeze_(model, Lora(targets=("query", "feed-forward")))
    assert sum(isinstance(module, LoraLinear) for module in model.modules()) == 2 * 2
    with refuses("usage"):
        add_adapters_and_freeze_(tiny.model(), Lora())
