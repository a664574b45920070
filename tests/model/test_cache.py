"""Cached decoding equals the full forward pass, for any chunks, and states are values that rows can be picked from."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import DecodeState, KeyValue, LanguageModel
from tests.model import tiny
from tests.model.tiny import FAMILIES

EXACT: dict[str, float] = {"rtol": 1e-9, "atol": 1e-9}
quick = settings(max_examples=30, deadline=None)
families = pytest.mark.parametrize("family", FAMILIES)


@cache
def model_of(family: str) -> LanguageModel:
    return tiny.model(**FAMILIES[family])


def full(model: LanguageModel, tokens_BT: Tensor) -> Tensor:
    return model(Batch(tokens_BT)).detach()


def read(model: LanguageModel, tokens_BT: Tensor, cuts: list[int], state: DecodeState | None = None) -> Any:
    """Hidden states of all positions, read in chunks that end at `cuts`, and the last state."""
    state = model.start(Batch(tokens_BT)) if state is None else state
    hidden = []
    for start, stop in zip([0, *cuts], [*cuts, tokens_BT.shape[1]], strict=True):
        chunk, state = model.advance(tokens_BT[:, start:stop], state)
        hidden.append(chunk.detach())
    return torch.cat(hidden, 1), state


@st.composite
def chunkings(draw: st.DrawFn, longest: int = 24) -> tuple[int, list[int]]:
    """A length, and where it is cut."""
    length = draw(st.integers(1, longest))
    return length, sorted(draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []


@families
@quick
@given(chunking=chunkings(), grad=st.booleans())
def test_any_chunks_equal_one_forward_pass(family: str, chunking: tuple[int, list[int]], grad: bool) -> None:
    model, (length, cuts) = model_of(family), chunking
    tokens_BT = tiny.tokens(2, length, seed=length)
    with torch.set_grad_enabled(grad):
        hidden, state = read(model, tokens_BT, cuts)
    torch.testing.assert_close(hidden, full(model, tokens_BT), **EXACT)
    assert state.length == length


@families
def test_token_by_token_and_prefill_in_inference_mode(family: str) -> None:
    model = model_of(family)
    tokens_BT = tiny.tokens(3, 12)
    with torch.inference_mode():
        steps, _ = read(model, tokens_BT, list(range(1, 12)))
        prefill, _ = read(model, tokens_BT, [])
    torch.testing.assert_close(steps, full(model, tokens_BT), **EXACT)
    torch.testing.assert_close(prefill, full(model, tokens_BT), **EXACT)


@families
def test_the_whole_context_can_be_read_and_no_more(family: str) -> None:
    model = model_of(family)
    assert model.context is not None
    hidden, state = read(model, tiny.tokens(1, model.context), [7, 23])
    assert hidden.shape[1] == state.length == model.context


@families
@quick
@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=5), cut=st.integers(1, 7))
def test_rows_of_a_state_can_be_picked_dropped_and_doubled(family: str, rows: list[int], cut: int) -> None:
    model = model_of(family)
    tokens_BT = tiny.tokens(3, 8)
    picked = torch.tensor(rows)
    _, state = read(model, tokens_BT[:, :cut], [])
    hidden, _ = read(model, tokens_BT[picked][:, cut:], [], state[picked])
    torch.testing.assert_close(hidden, full(model, tokens_BT)[picked][:, cut:], **EXACT)


@families
def test_a_state_is_a_value(family: str) -> None:
    """Advancing changes nothing in the state that was given, so two futures can start from it."""
    model = model_of(family)
    tokens_BT = tiny.tokens(2, 5)
    _, state = read(model, tokens_BT[:, :3], [])
    before = [[t.clone() for t in layer] for layer in state.layers]
    model.advance(tokens_BT[:, 3:], state)
    assert state.length == 3
    for layer, copies in zip(state.layers, before, strict=True):
        assert all(torch.equal(t, copy) for t, copy in zip(layer, copies, strict=True))
    again, _ = model.advance(tokens_BT[:, 3:], state)
    torch.testing.assert_close(again, full(model, tokens_BT)[:, 3:], **EXACT)


@families
def test_a_state_before_the_first_token(family: str) -> None:
    model = model_of(family)
    state = model.start(Batch(tiny.tokens(3, 1)))
    assert (state.length, state.padding_B, len(state.layers)) == (0, None, 4)
    for layer in state.layers[0::2]:
        assert isinstance(layer, KeyValue)
        assert layer.k_BNSH.shape[0] == 3
        assert layer.k_BNSH.shape[2] == 0
    assert state.layers[1::2] == ((), ())


@families
def test_grouped_heads_make_the_cache_smaller(family: str) -> None:
    _, state = read(model_of(family), tiny.tokens(2, 5), [])
    n_kv_heads = FAMILIES[family].get("n_kv_heads", 4)
    for layer in state.layers[0::2]:
        assert layer.k_BNSH.shape == layer.v_BNSH.shape == (2, n_kv_heads, 5, 4)


@families
@quick
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    cuts=st.sets(st.integers(1, 4)),
)
def test_joined_rows_equal_each_row_alone(family: str, lengths: list[int], cuts: set[int]) -> None:
    """Rows that read 1 to 9 tokens go on together for 5 more, in any chunks."""
    model = model_of(family)
    rows = [tiny.tokens(1, length + 5, seed=i) for i, length in enumerate(lengths)]
    states = [read(model, row[:, :-5], [])[1] for row in rows]
    joined = DecodeState.join(states)
    assert joined.length == max(lengths)
    assert (joined.padding_B is None) == (len(set(lengths)) == 1)
    hidden, _ = read(model, torch.cat([row[:, -5:] for row in rows]), sorted(cuts), joined)
    for row, together in zip(rows, hidden, strict=True):
        torch.testing.assert_close(together, full(model, row)[0, -5:], **EXACT)


@families
@quick
@given(data=st.data())
def test_rows_that_come_and_go_equal_each_row_alone(family: str, data: st.DataObject) -> None:
    """Any order of joining, advancing and dropping: the last hidden state of a row is its own."""
    model = model_of(family)
    texts: list[list[int]] = []
    state: DecodeState | None = None
    for turn in range(data.draw(st.integers(1, 4))):
        new = data.draw(st.lists(st.integers(1, 5), max_size=2 if texts else 3, min_size=0 if texts else 1))
        arrivals = [tiny.tokens(1, length, seed=10 * turn + i) for i, length in enumerate(new)]
        states = [read(model, arrival, [])[1] for arrival in arrivals]
        state = DecodeState.join(states if state is None else [state, *states])
        texts += [arrival[0].tolist() for arrival in arrivals]
        step = tiny.tokens(len(texts), data.draw(st.integers(1, 3)), seed=100 + turn)
        hidden, state = model.advance(step, state)
        texts = [text + more for text, more in zip(texts, step.tolist(), strict=True)]
        for text, last in zip(texts, hidden[:, -1], strict=True):
            torch.testing.assert_close(last.detach(), full(model, torch.tensor([text]))[0, -1], **EXACT)
        stay = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=3))
        state, texts = state[torch.tensor(stay)], [texts[i] for i in stay]


def test_joining_does_not_look_at_what_stands_in_the_padding() -> None:
    model = model_of("gpt2")
    states = [read(model, tiny.tokens(1, length), [])[1] for length in (2, 6)]
    joined = DecodeState.join(states)
    assert joined.padding_B is not None
    assert joined.padding_B.tolist() == [4, 0]
    spoiled = []
    for layer in joined.layers:
        copies = [t.clone() for t in layer]
        for t in copies:
            t[0, :, :4] = 1e6
        spoiled.append(KeyValue(*copies) if copies else ())
    step = tiny.tokens(2, 3, seed=5)
    one, _ = model.advance(step, joined)
    two, _ = model.advance(step, DecodeState(joined.length, joined.padding_B, tuple(spoiled)))
    torch.testing.assert_close(one, two, **EXACT)
