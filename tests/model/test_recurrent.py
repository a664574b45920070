"""Recurrent layers, decoders, encoder-decoders and models of both directions equal plain loops, packed or padded."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import Batch, Mask
from lmtool.model import build
from lmtool.model.features import ScalarMix
from lmtool.model.layers.cells import TextLayout, build_cell
from lmtool.model.layers.memory_attention import RecurrentStateAttention, past_mask, selection_weights
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.state import KeyValueCache
from lmtool.recipe.spec.recurrent import Recurrent
from tests.model.recurrent_weights import CELLS, VOCAB, Weights, alignments, built, spec
from tests.reference import recurrent as reference
from tests.support.recurrent import EXACT, SCORES, by_loops, tokens

cells = pytest.mark.parametrize(("cell", "nonlinearity"), CELLS, ids=[f"{c}-{n}" for c, n in CELLS])
MEMORIES: list[dict[str, Any]] = [
    *({"select": select, "score": score} for select in ("soft", "hard", "multi-hot") for score in SCORES),
    *({"select": select, "present": present} for select in ("sum", "mean") for present in (False, True)),
    {"select": "hard", "score": "additive", "score_width": 4, "present": True},
    {"select": "soft", "score": "additive", "score_width": 9, "present": True},
]


def cell_of(kind: Any, nonlinearity: str) -> Any:
    torch.manual_seed(1)
    return build_cell(Recurrent.model_construct(cell=kind, nonlinearity=nonlinearity), 3, 4).double()


@cells
def test_a_cell_is_that_of_the_papers_at_once_and_in_steps(cell: str, nonlinearity: str) -> None:
    own = cell_of(cell, nonlinearity)
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    state = tuple(torch.randn(2, 4, dtype=torch.float64) for _ in own.initial_state(2))
    out, last = own(x, state)
    n_gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    parts = ([part.detach().numpy() for part in weight.chunk(n_gates)] for weight in own.kernel.all_weights[0])
    plain = reference.Layer(cell, nonlinearity, *parts)
    for row in range(2):
        wanted, wanted_last = plain.run(list(x[row].numpy()), [part[row].numpy() for part in state])
        np.testing.assert_allclose(out[row].detach(), np.stack(wanted), **EXACT)
        for part, other in zip(last, wanted_last, strict=True):
            np.testing.assert_allclose(part[row].detach(), other, **EXACT)
    for t, gates in enumerate(own.project_input(x).unbind(1)):
        state = own.step(gates, state)
        torch.testing.assert_close(state[0], out[:, t], **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


@cells
def test_recurrent_matrices_begin_with_a_spectral_radius(cell: str, nonlinearity: str) -> None:
    """Each gate's by itself, and nothing else."""
    torch.manual_seed(1)
    spec = Recurrent.model_construct(cell=cell, nonlinearity=nonlinearity, recurrent_radius=1.3)
    own, other = build_cell(spec, 3, 4).double(), cell_of(cell, nonlinearity)
    radii = torch.full((4,), 1.3).double()
    for matrix in torch.split(own._weights()[1].detach(), 4):
        torch.testing.assert_close(torch.linalg.eigvals(matrix).abs(), radii, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.linalg.svdvals(matrix), radii, rtol=0, atol=1e-5)
    for which in (0, 2, 3):
        assert torch.equal(own._weights()[which], other._weights()[which])


ROWS, T = 3, 7
PLACES = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=ROWS, max_size=ROWS)


@pytest.mark.parametrize(("cell", "nonlinearity"), [("rnn", "sigmoid"), ("gru", "tanh"), ("lstm", "tanh")])
@settings(max_examples=25, deadline=None)
@given(keep=PLACES, borders=PLACES, isolated=st.booleans())
def test_packed_texts_equal_each_text_alone(
    cell: str, nonlinearity: str, keep: list[list[bool]], borders: list[list[bool]], isolated: bool
) -> None:
    """In both directions, for any padding values; only the first text of a row continues from its state."""
    own = cell_of(cell, nonlinearity)
    keep_BT, documents_BT = torch.tensor(keep), torch.tensor(borders).cumsum(1)
    x = torch.randn(ROWS, T, 3, dtype=torch.float64)
    x[~keep_BT] = torch.nan
    texts = TextLayout.from_masks_unless_full(keep_BT.long(), keep_BT, documents_BT if isolated else None)
    state = tuple(torch.randn(ROWS, 4, dtype=torch.float64) for _ in own.initial_state(1))
    out, last = own(x, state, texts)
    back, _ = own.forward_right_to_left(x, own.initial_state(ROWS), texts)
    assert torch.isfinite(out).all()
    for row in range(ROWS):
        now = tuple(part[row : row + 1] for part in state)
        numbers = documents_BT[row] if isolated else torch.zeros(T, dtype=torch.int64)
        for number in sorted(set(numbers[keep_BT[row]].tolist())):
            places = keep_BT[row] & (numbers == number)
            alone, now = own(x[row : row + 1, places], now)
            torch.testing.assert_close(out[row, places], alone[0], **EXACT)
            reversed_alone, _ = own(x[row : row + 1, places].flip(1), own.initial_state(1))
            torch.testing.assert_close(back[row, places], reversed_alone[0].flip(0), **EXACT)
            after, now = now, own.initial_state(1)
        if keep_BT[row].any():
            now = after
        for part, other in zip(last, now, strict=True):
            torch.testing.assert_close(part[row], other[0], **EXACT)
    if texts is not None:
        assert not out[~keep_BT].any(), "padding gets zeros"


@cells
def test_a_recurrence_is_float32_under_autocast(cell: str, nonlinearity: str) -> None:
    own = cell_of(cell, nonlinearity).float()
    x = torch.randn(2, 5, 3)
    plain, _ = own(x, own.initial_state(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, last = own(x, own.initial_state(2))
    assert out.dtype == last[0].dtype == torch.float32
    assert torch.equal(out, plain)


@pytest.mark.parametrize("select", ["hard", "multi-hot"])
def test_hard_choices_take_the_gradient_of_the_softmax(select: Any) -> None:
    """The straight-through estimator: the value of the hard choice, the gradient of the softmax."""
    torch.manual_seed(0)
    value, allowed = torch.randn(2, 3, 5).double(), torch.rand(2, 3, 5) > 0.3
    score = torch.linspace(-1, 1, 30).double().view(2, 3, 5).requires_grad_()
    gradients = [
        torch.autograd.grad((selection_weights(score, allowed, how, 2) * value).sum(), score)
        for how in (select, "soft")
    ]
    torch.testing.assert_close(*gradients)
    assert gradients[0][0].any()


@pytest.mark.parametrize("score", SCORES)
def test_a_memory_is_read_in_float32_under_autocast(score: str) -> None:
    attention = spec(attention={"score": score}).attention
    assert attention is not None
    memory = RecurrentStateAttention(attention, 8)
    h_BTD, contexts = torch.randn(2, 5, 8), []
    for enabled in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            states = KeyValueCache(memory.transform_keys(h_BTD), h_BTD[:, None])
            contexts.append(memory(h_BTD, states, past_mask(Mask(causal=True), 5, 5, h_BTD.device)))
    assert torch.equal(*contexts)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("attention", MEMORIES, ids=lambda a: "-".join(map(str, a.values())))
def test_a_memory_of_past_states_equals_the_loop(attention: dict[str, Any], tied: bool) -> None:
    of = spec(cell="gru", attention={"k": 3, **attention}, tie_embeddings=tied)
    model = built(of)
    weights, tokens_BT = Weights(model, of), tokens(2, 9)
    logits = model.logits(model(Batch(tokens_BT)).hidden_BTD).detach()
    aligned = alignments(model, Batch(tokens_BT)).detach()
    score = weights.score()
    last = int(attention.get("present", False))
    for row in range(2):
        xs = weights.embed(tokens_BT[row])
        hidden, shares = reference.remembering(
            weights.layers("rnn.cells"), xs, score, attention["select"], 3, bool(last)
        )
        assert bool(hidden[0][6:].any()) == bool(last), "the first memory is empty but for the present state"
        np.testing.assert_allclose(logits[row], weights.logits(hidden), **EXACT)
        for t, share in enumerate(shares):
            np.testing.assert_allclose(aligned[row, t, : t + last], share, **EXACT)
            assert not aligned[row, t, t + last :].any()


@cells
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_decoder_equals_the_loop(cell: str, nonlinearity: str, tied: bool) -> None:
    of = spec(cell=cell, nonlinearity=nonlinearity, tie_embeddings=tied, head_bias=tied, n_layers=3)
    model = built(of)
    weights, tokens_BT = Weights(model, of), tokens(2, 9)
    logits = model.logits(model(Batch(tokens_BT)).hidden_BTD).detach()
    layers = model.hidden_states_by_layer(Batch(tokens_BT))
    for row in range(2):
        xs = weights.embed(tokens_BT[row])
        every, _ = reference.run_layers(weights.layers("rnn.cells"), xs)
        np.testing.assert_allclose(logits[row], weights.logits(every[-1]), **EXACT)
        for layer, wanted in zip(layers, [xs, *every], strict=True):
            np.testing.assert_allclose(layer[row].detach(), np.stack(wanted), **EXACT)


def test_dropout_is_of_embeddings_between_layers_and_of_outputs() -> None:
    torch.manual_seed(0)
    model: Any = build(spec(d_model=64, dropout=0.5), VOCAB)
    batch = Batch(tokens(8, 20))
    hidden, plain = model(batch).hidden_BTD, model.eval()(batch).hidden_BTD
    assert 0.4 < float((hidden == 0).float().mean()) < 0.6
    kept = hidden != 0
    assert not torch.allclose(hidden[kept], 2 * plain[kept], rtol=0.1), "what it read was dropped as well"


ATTENTIONS: list[dict[str, Any]] = [{"score": score, "feed": feed} for feed in ("output", "input") for score in SCORES]
CASES: list[dict[str, Any]] = [
    *(
        {"cell": "gru", "attention": attention, "bidirectional_encoder": both}
        for both in (False, True)
        for attention in (None, *ATTENTIONS)
    ),
    {"cell": "lstm", "bidirectional_encoder": True},
    *(
        {"cell": cell, "nonlinearity": nonlinearity, "attention": {"feed": feed}, "n_layers": n, "tie_embeddings": tied}
        for cell, nonlinearity in CELLS
        for feed, n, tied in (("output", 1, True), ("input", 3, False))
    ),
]


def seq2seq(**changes: Any) -> tuple[Any, Recurrent]:
    of = spec(shape="encoder-decoder", **changes)
    return built(of), of


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_an_encoder_decoder_equals_the_loop(changes: dict[str, Any]) -> None:
    model, of = seq2seq(**changes)
    tokens_BT, source_BS = tokens(2, 7), tokens(2, 5, seed=1)
    batch = Batch(tokens_BT, source_BS=source_BS)
    logits = model.logits(model(batch).hidden_BTD).detach()
    for row in range(2):
        wanted, aligned = by_loops(model, of, source_BS[row], tokens_BT[row])
        np.testing.assert_allclose(logits[row], wanted, **EXACT)
        if of.attention is not None:
            np.testing.assert_allclose(alignments(model, batch)[row].detach(), aligned, **EXACT)


def test_without_attention_only_the_last_state_is_seen() -> None:
    """The bottleneck: two sources that end in the same state are the same to the decoder."""
    model, _ = seq2seq(cell="gru")
    state = model.initial_state(Batch(tokens(2, 1), source_BS=tokens(2, 5)))
    assert [tuple(part.shape) for layer in state.layers for part in layer] == [(2, 6), (2, 6)]
    assert state.source_keep_BS is None


@pytest.mark.parametrize("feed", ["output", "input"])
@pytest.mark.parametrize(
    ("select", "n_chosen", "total"),
    [("soft", 4, 1), ("hard", 1, 1), ("multi-hot", 3, 1), ("mean", 4, 1), ("sum", 4, 4)],
)
def test_padding_of_a_source_is_not_selected(feed: str, select: str, n_chosen: int, total: int) -> None:
    """Of a source of four tokens and padding, and of one that is nothing else."""
    keep_BS = torch.tensor([[True, True, False, True, True], [False] * 5])
    model, _ = seq2seq(attention={"select": select, "k": 3, "feed": feed}, bidirectional_encoder=True)
    batch = Batch(tokens(2, 4), source_BS=tokens(2, 5, seed=1), source_keep_BS=keep_BS)
    weights = alignments(model, batch)
    assert torch.isfinite(model(batch).hidden_BTD).all()
    assert not weights[~keep_BS[:, None].expand_as(weights)].any()
    assert ((weights[0] != 0).sum(-1) == n_chosen).all()
    torch.testing.assert_close(weights[0].sum(-1), torch.full((4,), float(total)).double())


def test_a_source_is_needed_and_attention_for_alignments() -> None:
    model, _ = seq2seq()
    with pytest.raises(ValueError, match="source"):
        model(Batch(tokens(1, 3)))
    with record_attention_weights(model) as weights:
        model(Batch(tokens(1, 3), source_BS=tokens(1, 3)))
    assert not weights


def half(model: Any, name: str, **changes: Any) -> Any:
    """A decoder with the weights of one direction."""
    decoder = build(spec(**changes), VOCAB).double().eval()
    weights = {key.replace(f"{name}.", "rnn."): w for key, w in model.state_dict().items()}
    decoder.load_state_dict({key: weights[key] for key in decoder.state_dict()})
    return decoder


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_it_is_two_models_one_of_which_reads_the_reversed_text(cell: str, nonlinearity: str, tied: bool) -> None:
    changes: dict[str, Any] = {"cell": cell, "nonlinearity": nonlinearity, "tie_embeddings": tied}
    model = built(spec(shape="bidirectional", **changes))
    forth, back = (half(model, name, **changes) for name in ("forth", "back"))
    batch, reversed_batch = Batch(tokens(2, 8)), Batch(tokens(2, 8).flip(1))
    torch.testing.assert_close(model(batch).hidden_BTD, forth(batch).hidden_BTD, **EXACT)
    torch.testing.assert_close(
        model.forward_right_to_left(batch).hidden_BTD, back(reversed_batch).hidden_BTD.flip(1), **EXACT
    )
    layers = model.hidden_states_by_layer(batch)
    assert len(layers) == 3
    pairs = zip(layers, forth.hidden_states_by_layer(batch), back.hidden_states_by_layer(reversed_batch), strict=True)
    for joined, one, other in pairs:
        torch.testing.assert_close(joined, torch.cat((one, other.flip(1)), -1), **EXACT)


def test_a_residual_layer_adds_what_it_reads() -> None:
    """The outputs of the second layer less those of the first are states of a plain layer that reads the first."""
    of = spec(shape="bidirectional", residual=True)
    model = built(of)
    weights, batch = Weights(model, of), Batch(tokens(1, 8))
    first_TD, second_TD = (layer[0].detach().numpy() for layer in model.hidden_states_by_layer(batch)[1:])
    forth, _ = weights.layer("forth.cells.1").run(list(first_TD[:, :6]))
    back, _ = weights.layer("back.cells.1").run(list(first_TD[::-1, 6:]))
    np.testing.assert_allclose(second_TD - first_TD, np.concatenate((forth, back[::-1]), 1), **EXACT)


def test_a_mix_equals_the_paper() -> None:
    layers = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0), msg="all layers weigh the same at first")
    with torch.no_grad():
        mix.scalars_L.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    wanted = reference.scalar_mix([h.detach().numpy() for h in layers], [0.5, -1.0, 2.0], 1.7)
    np.testing.assert_allclose(mix(layers).detach(), wanted, **EXACT)
    assert all(gradient.any() for gradient in torch.autograd.grad(mix(layers).square().sum(), [*mix.parameters()]))
