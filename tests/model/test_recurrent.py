"""Recurrent layers and decoders equal plain loops; packed computation equals separate rows."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import Batch, Mask
from lmtool.model import DecodeState, build
from lmtool.model.layers.cells import Cell, TextLayout, build_cell
from lmtool.model.layers.memory_attention import MemoryAttention, past_mask, selection_weights
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.recurrent import RecurrentDecoder
from lmtool.model.state import KeyValueCache
from lmtool.recipe.spec.recurrent import Recurrent
from tests.model.recurrent_weights import CELLS, VOCAB, Weights, alignments, built, spec
from tests.reference import recurrent as reference
from tests.support.cases import nightly_but
from tests.support.recurrent import EXACT, SCORES, tokens

cells = pytest.mark.parametrize(("cell", "nonlinearity"), CELLS, ids=[f"{c}-{n}" for c, n in CELLS])
SELECTIONS = [
    *({"select": select, "score": score} for select in ("soft", "hard", "multi-hot") for score in SCORES),
    {"select": "sum"},
    {"select": "mean"},
]
PRESENT = [
    {"select": "sum", "present": True},
    {"select": "mean", "present": True},
    {"select": "hard", "score": "additive", "score_width": 4, "present": True},
    {"select": "soft", "score": "additive", "score_width": 9, "present": True},
]


def cell_of(kind: Any, nonlinearity: str, d_in: int = 3, d_out: int = 4) -> Cell:
    torch.manual_seed(1)
    return build_cell(Recurrent.model_construct(cell=kind, nonlinearity=nonlinearity), d_in, d_out).double()


# Layers


@cells
def test_a_cell_is_that_of_torch_and_of_the_papers(cell: str, nonlinearity: str) -> None:
    own = cell_of(cell, nonlinearity)
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    state = tuple(torch.randn(2, 4, dtype=torch.float64) for _ in own.initial_state(2))
    out, last = own(x, state)
    n_gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    plain = reference.Layer(
        cell,
        nonlinearity,
        *([part.detach().numpy() for part in weight.chunk(n_gates)] for weight in own.kernel.all_weights[0]),
    )
    for row in range(2):
        wanted, wanted_last = plain.run(x[row].numpy(), [part[row].numpy() for part in state])
        np.testing.assert_allclose(out[row].detach(), np.stack(wanted), **EXACT)
        for part, other in zip(last, wanted_last, strict=True):
            np.testing.assert_allclose(part[row].detach(), other, **EXACT)
    if nonlinearity != "sigmoid":
        one = {"rnn": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[cell]
        more = {"nonlinearity": nonlinearity} if cell == "rnn" else {}
        theirs = one(3, 4, **more).double()
        theirs.load_state_dict({name.removesuffix("_l0"): w for name, w in own.kernel.state_dict().items()})
        first = theirs(x[:, 0], state if len(state) == 2 else state[0])
        torch.testing.assert_close(out[:, 0], first[0] if len(state) == 2 else first, **EXACT)


@cells
def test_recurrent_matrices_begin_with_a_spectral_radius(cell: str, nonlinearity: str) -> None:
    """Each gate's by itself, and nothing else."""
    torch.manual_seed(1)
    spec = Recurrent.model_construct(cell=cell, nonlinearity=nonlinearity, recurrent_radius=1.3)
    own, other = build_cell(spec, 3, 4).double(), cell_of(cell, nonlinearity)
    for matrix in own._weights()[1].detach().split(4):
        torch.testing.assert_close(
            torch.linalg.eigvals(matrix).abs(), torch.full((4,), 1.3).double(), rtol=0, atol=1e-5
        )
        torch.testing.assert_close(torch.linalg.svdvals(matrix), torch.full((4,), 1.3).double(), rtol=0, atol=1e-5)
    for which in (0, 2, 3):
        assert torch.equal(own._weights()[which], other._weights()[which])


@cells
def test_steps_equal_the_kernel(cell: str, nonlinearity: str) -> None:
    own = cell_of(cell, nonlinearity)
    x = torch.randn(3, 5, 3, dtype=torch.float64)
    out, last = own(x, own.initial_state(3))
    state = own.initial_state(3)
    for t, gates in enumerate(own.project_input(x).unbind(1)):
        state = own.step(gates, state)
        torch.testing.assert_close(state[0], out[:, t], **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


ROWS, T = 3, 7
PLACES = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=ROWS, max_size=ROWS)
BORDERS = st.lists(st.lists(st.integers(0, 1), min_size=T, max_size=T), min_size=ROWS, max_size=ROWS)


@cells
@settings(max_examples=25, deadline=None)
@given(keep=PLACES, borders=BORDERS, isolated=st.booleans())
def test_packed_texts_equal_each_text_alone(
    cell: str, nonlinearity: str, keep: list[list[bool]], borders: list[list[int]], isolated: bool
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
        for number in numbers[keep_BT[row]].unique():
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


def test_rows_that_are_full_are_not_packed() -> None:
    assert TextLayout.from_masks_unless_full(tokens(2, 3), None, None) is None
    assert TextLayout.from_masks_unless_full(tokens(2, 3), torch.ones(2, 3, dtype=torch.bool), None) is None


@cells
def test_a_recurrence_is_float32_under_autocast(cell: str, nonlinearity: str) -> None:
    own = cell_of(cell, nonlinearity).float()
    x = torch.randn(2, 5, 3)
    plain, _ = own(x, own.initial_state(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, last = own(x, own.initial_state(2))
    assert out.dtype == last[0].dtype == torch.float32
    assert torch.equal(out, plain)


# Memory of past states


def test_what_is_chosen_by_hand() -> None:
    score = torch.tensor([[[0.0, 3.0, 1.0, 2.0]]]).double()
    allowed = torch.tensor([[[True, False, True, True]]])
    nothing = torch.zeros(1, 1, 4, dtype=torch.bool)
    wanted = {
        "sum": [1, 0, 1, 1],
        "mean": [1 / 3, 0, 1 / 3, 1 / 3],
        "hard": [0, 0, 0, 1],
        "multi-hot": [0, 0, 0.5, 0.5],
        "soft": [np.exp(i) / (1 + np.exp(1) + np.exp(2)) if i != 3 else 0 for i in (0, 3, 1, 2)],
    }
    for select, weights in wanted.items():
        np.testing.assert_allclose(selection_weights(score, allowed, select, 2)[0, 0], weights, rtol=1e-12)
        assert not selection_weights(score, nothing, select, 2).any()
    np.testing.assert_allclose(selection_weights(score, allowed, "multi-hot", 9)[0, 0], wanted["mean"], rtol=1e-12)


@pytest.mark.parametrize("select", ["hard", "multi-hot"])
def test_hard_choices_take_the_gradient_of_the_softmax(select: str) -> None:
    """The straight-through estimator: the value of the hard choice, the gradient of the softmax."""
    torch.manual_seed(0)
    value, allowed = torch.randn(2, 3, 5).double(), torch.rand(2, 3, 5) > 0.3
    gradients = []
    for how in (select, "soft"):
        score = torch.linspace(-1, 1, 30).double().view(2, 3, 5).requires_grad_()
        weights = selection_weights(score, allowed, how, 2)
        (weights * value).sum().backward()
        assert score.grad is not None
        gradients.append(score.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


@pytest.mark.parametrize("score", SCORES)
def test_a_memory_is_read_in_float32_under_autocast(score: str) -> None:
    torch.manual_seed(0)
    memory = MemoryAttention(spec(attention={"score": score}).attention, 8)
    h_BTD, contexts = torch.randn(2, 5, 8), []
    for enabled in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            states = KeyValueCache(memory.transform_keys(h_BTD), h_BTD[:, None])
            contexts.append(memory(h_BTD, states, past_mask(Mask(causal=True), 5, 5, h_BTD.device)))
    assert torch.equal(*contexts)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("attention", [*SELECTIONS, *PRESENT], ids=lambda a: "-".join(map(str, a.values())))
def test_a_memory_of_past_states_equals_the_loop(attention: dict[str, Any], tied: bool) -> None:
    of = spec(cell="gru", attention={"k": 3, **attention}, tie_embeddings=tied)
    model = built(of)
    assert isinstance(model, RecurrentDecoder)
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
    assert isinstance(model, RecurrentDecoder)
    weights, tokens_BT = Weights(model, of), tokens(2, 9)
    logits, layers = model.logits(model(Batch(tokens_BT)).hidden_BTD).detach(), model.layer_outputs(Batch(tokens_BT))
    for row in range(2):
        xs = weights.embed(tokens_BT[row])
        every, _ = reference.run_layers(weights.layers("rnn.cells"), xs)
        np.testing.assert_allclose(logits[row], weights.logits(every[-1]), **EXACT)
        for layer, wanted in zip(layers, [xs, *every], strict=True):
            np.testing.assert_allclose(layer[row].detach(), np.stack(wanted), **EXACT)


def test_states_stay_small_without_a_memory_and_grow_with_one() -> None:
    for attention, grows in ((None, False), ({"select": "soft"}, True)):
        model = built(spec(attention=attention))
        state = model.initial_state(Batch(tokens(2, 1)))
        for length in (4, 9):
            _, state = model.forward_incremental(tokens(2, length - state.length), state)
            assert all(part.shape == (2, 6) for layer in state.layers[:2] for part in layer)
            assert isinstance(state.layers[-1], KeyValueCache) == grows
            if grows:
                assert state.layers[-1][0].shape == state.layers[-1][1].shape == (2, 1, length, 6)


def test_dropout_is_of_embeddings_between_layers_and_of_outputs() -> None:
    torch.manual_seed(0)
    model = build(spec(d_model=64, dropout=0.5), VOCAB)
    batch = Batch(tokens(8, 20))
    hidden, plain = model(batch).hidden_BTD, model.eval()(batch).hidden_BTD
    assert 0.4 < float((hidden == 0).float().mean()) < 0.6
    kept = hidden != 0
    assert not torch.allclose(hidden[kept], 2 * plain[kept], rtol=0.1), "what it read was dropped as well"


def test_a_decoder_without_attention_has_no_alignments() -> None:
    model = built(spec())
    assert isinstance(model, RecurrentDecoder)
    with record_attention_weights(model) as weights:
        model(Batch(tokens(1, 2)))
    assert not weights


@pytest.mark.parametrize(
    "changes",
    nightly_but(
        [{"cell": cell, "nonlinearity": nonlinearity} for cell, nonlinearity in CELLS]
        + [{"attention": {"score": score}, "tie_embeddings": i % 2 == 0} for i, score in enumerate(SCORES)]
        + [{"attention": {"select": select}} for select in ("hard", "multi-hot", "sum", "mean")],
        0,
        3,
        7,
        10,
    ),
    ids=str,
)
def test_one_batch_is_learnt_by_heart(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = build(spec(d_model=32, n_layers=1, **changes), VOCAB)
    batch = Batch(tokens(4, 12))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        logits = model.logits(model(batch).hidden_BTD)[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch.tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.1:
            return
    pytest.fail(f"the loss is {loss.item()}")


# Reading in parts, padding, packed rows

DECODERS: dict[str, dict[str, Any]] = {
    **{f"{cell}-{nonlinearity}": {"cell": cell, "nonlinearity": nonlinearity} for cell, nonlinearity in CELLS},
    **{"-".join(attention.values()): {"attention": {"k": 2, **attention}} for attention in SELECTIONS},
    "elmo": {"shape": "bidirectional"},
}
decoders = pytest.mark.parametrize("changes", DECODERS.values(), ids=list(DECODERS))


@decoders
def test_chunks_of_rows_that_come_and_go_equal_one_pass(changes: dict[str, Any]) -> None:
    model = built(spec(**changes))
    texts = [tokens(1, length + 6, seed=length) for length in (2, 5, 3)]
    states = [model.forward_incremental(text[:, :-6], model.initial_state(Batch(text)))[1] for text in texts]
    state = DecodeState.join_rows(states)
    step = torch.cat([text[:, -6:] for text in texts])
    one, state = model.forward_incremental(step[:, :1], state)
    two, state = model.forward_incremental(step[:, 1:4], state)
    picked = torch.tensor([2, 0, 2])
    three, state = model.forward_incremental(step[picked, 4:], state.select_rows(picked.tolist()).trim_common_padding())
    for row, text in enumerate(texts):
        whole = model(Batch(text)).hidden_BTD[0, -6:]
        torch.testing.assert_close(torch.cat((one, two), 1)[row], whole[:4], **EXACT)
        for place in (picked == row).nonzero()[:, 0]:
            torch.testing.assert_close(three[place], whole[4:], **EXACT)


@decoders
def test_padding_and_neighbours_in_a_row_change_nothing(changes: dict[str, Any]) -> None:
    model = built(spec(**changes))
    keep_BT = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 1, 0, 0], [0] * 9]).bool()
    documents_BT = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 0, 3, 3, 3, 3, 4, 4, 4], [0] * 9])
    tokens_BT = tokens(3, 9)
    padded = model(Batch(tokens_BT, keep_BT=keep_BT)).hidden_BTD
    packed = model(Batch(tokens_BT, keep_BT=keep_BT, documents_BT=documents_BT)).hidden_BTD
    full = model(Batch(tokens_BT, documents_BT=documents_BT)).hidden_BTD
    assert torch.isfinite(padded).all()
    for row in range(2):
        kept = keep_BT[row]
        torch.testing.assert_close(padded[row, kept], model(Batch(tokens_BT[row, kept][None])).hidden_BTD[0], **EXACT)
        for number in documents_BT[row].unique():
            inside = documents_BT[row] == number
            alone = model(Batch(tokens_BT[row, inside][None])).hidden_BTD[0]
            torch.testing.assert_close(full[row, inside], alone, **EXACT)
            if (inside & kept).any():
                alone = model(Batch(tokens_BT[row, inside & kept][None])).hidden_BTD[0]
                torch.testing.assert_close(packed[row, inside & kept], alone, **EXACT)


@decoders
def test_a_token_changes_nothing_before_it(changes: dict[str, Any]) -> None:
    model = built(spec(**changes))
    one = tokens(1, 8)
    two = one.clone()
    two[0, 4] = (two[0, 4] + 1) % VOCAB
    before, after = (model(Batch(row)).hidden_BTD[0] for row in (one, two))
    torch.testing.assert_close(before[:4], after[:4], **EXACT)
    assert not torch.allclose(before[4:], after[4:])
