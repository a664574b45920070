"""Cached decoding equals the full forward pass, for any chunks, and states are immutable and support row selection.

Over all families that decode. Those with a source have a different one in each row, of different length.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtool.batch import Batch
from lmtool.model import DecodeState
from lmtool.model import state as state_module
from lmtool.model.state import KeyValueCache, Memory, RowTokens
from tests.support import tiny
from tests.support.chunks import EXACT, chunkings, full, model_of, quick, read, search
from tests.support.tiny import CACHED, FAMILIES

families = pytest.mark.parametrize("family", tiny.of_each_kind(CACHED))
kinds_of_state = pytest.mark.parametrize(
    "family",
    [
        *("gpt2", "full layers among windows", "n-grams", "smear", "t5", "prefix with windows"),
        *("gru with a memory", "bahdanau", "3-gram"),
        *(name for name in CACHED if name.startswith("example")),
    ],
)
"""Families of each kind of state, for tests that take long."""


@families
@quick
@given(chunking=chunkings(), grad=st.booleans())
def test_any_chunks_equal_one_forward_pass(family: str, chunking: tuple[int, list[int]], grad: bool) -> None:
    model, (length, cuts) = model_of(family), chunking
    tokens_BT = tiny.tokens(2, length, seed=length)
    before = tiny.start(model, 2).length
    with torch.set_grad_enabled(grad):
        hidden, state = read(model, tokens_BT, cuts)
    torch.testing.assert_close(hidden, full(model, tokens_BT), **EXACT)
    assert state.length == before + length


@families
def test_the_whole_context_can_be_read(family: str) -> None:
    model, source = model_of(family), [[3, 1, 4]]
    context = model.context or 24
    state = tiny.start(model, 1, source)
    tokens_BT = tiny.tokens(1, context - state.length)
    hidden, after = read(model, tokens_BT, [7, 20], state)
    torch.testing.assert_close(hidden, full(model, tokens_BT, source), **EXACT)
    assert after.length == context
    assert after.select_rows([]).n_rows == 0


@pytest.mark.parametrize("family", ["prefix with windows", "prefix with relative positions"])
@pytest.mark.parametrize("texts", [[[], []], [[], [3, 1, 4]]], ids=str)
def test_a_prefix_may_be_empty(family: str, texts: list[list[int]]) -> None:
    model = model_of(family)
    hidden, _ = read(model, tiny.tokens(2, 6), [2], tiny.start(model, 2, texts))
    torch.testing.assert_close(hidden, full(model, tiny.tokens(2, 6), texts), **EXACT)
    without_source, _ = read(model, tiny.tokens(2, 6), [2], model.initial_state(Batch(tiny.tokens(2, 1))))
    torch.testing.assert_close(hidden[0], without_source[0], **EXACT)


@kinds_of_state
@quick
@given(data=st.data())
def test_rows_that_come_and_go_equal_each_row_alone(family: str, data: st.DataObject) -> None:
    """Any order of joining, advancing and dropping: the last hidden state of a row is its own."""
    model = model_of(family)
    rows: list[tuple[list[int], list[int]]] = []
    state: DecodeState | None = None
    for turn in range(data.draw(st.integers(1, 3))):
        new = data.draw(st.lists(st.integers(1, 4), max_size=2 if rows else 3, min_size=0 if rows else 1))
        arrivals = [tiny.tokens(1, length, seed=10 * turn + i) for i, length in enumerate(new)]
        texts = tiny.sources(len(new), seed=turn)
        states = [
            read(model, arrival, [], tiny.start(model, 1, [text]))[1]
            for arrival, text in zip(arrivals, texts, strict=True)
        ]
        state = DecodeState.join_rows(states if state is None else [state, *states])
        rows += [(text, arrival[0].tolist()) for text, arrival in zip(texts, arrivals, strict=True)]
        step = tiny.tokens(len(rows), data.draw(st.integers(1, 3)), seed=100 + turn)
        hidden, state = model.forward_incremental(step, state)
        rows = [(text, own + more) for (text, own), more in zip(rows, step.tolist(), strict=True)]
        for (text, own), last in zip(rows, hidden[:, -1], strict=True):
            torch.testing.assert_close(last.detach(), full(model, torch.tensor([own]), [text])[0, -1], **EXACT)
        stay = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=3))
        state, rows = state.select_rows(stay).trim_common_padding(), [rows[i] for i in stay]


@pytest.mark.parametrize("family", tiny.of_each_kind(name for name in CACHED if name in tiny.TRANSFORMERS))
def test_joining_does_not_look_at_what_stands_in_the_padding(family: str) -> None:
    model = model_of(family)
    states = [
        read(model, tiny.tokens(1, length), [], tiny.start(model, 1, [text]))[1]
        for length, text in ((2, [3, 1]), (6, [4, 1, 5, 9]))
    ]
    joined = DecodeState.join_rows(states)
    missing = states[1].length - states[0].length
    assert joined.padding_B is not None
    assert joined.padding_B.tolist() == [missing, 0]
    spoiled = []
    for layer in joined.layers:
        copies = [t.clone() for t in layer]
        for t in copies:
            if isinstance(layer, RowTokens):
                t[0, :missing] = 3
            else:
                t[0, :, slice(0, missing) if isinstance(layer, KeyValueCache) else slice(2, None)] = 1e6
        spoiled.append(type(layer)(*copies) if copies else ())
    step = tiny.tokens(2, 3, seed=5)
    one, _ = model.forward_incremental(step, joined)
    two, _ = model.forward_incremental(step, replace(joined, layers=tuple(spoiled)))
    torch.testing.assert_close(one, two, **EXACT)


def test_joined_texts_of_one_length_keep_their_padding() -> None:
    model = model_of("rotary")
    state = read(model, tiny.tokens(2, 6), [], tiny.start(model, 2, [[1], [1]]))[1]
    padded = replace(state, padding_B=torch.tensor([2, 0]))
    for states, wanted in (((padded, padded), [2, 0, 2, 0]), ((state, padded), [0, 0, 2, 0])):
        joined = DecodeState.join_rows(states)
        assert joined.padding_B is not None
        assert joined.padding_B.tolist() == wanted
    assert DecodeState.join_rows([state, state]).padding_B is None


def keeps_lines(state: DecodeState) -> bool:
    return any(isinstance(layer, KeyValueCache | Memory) for layer in state.layers)


@kinds_of_state
@quick
@given(
    parents=st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=6),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=2),
)
def test_rows_that_share_a_line_equal_each_row_alone(family: str, parents: list[list[int]], lengths: list[int]) -> None:
    """As in a beam search: any reordering of hypotheses, each of which attends to its own past only."""
    with torch.inference_mode():
        state = search(model_of(family), parents, 3, lengths)
    assert state.rows_per_line == (3 if keeps_lines(state) else 1)
    assert state.n_rows == 3 * len(lengths)


@families
def test_rows_that_share_a_line_may_part_and_read_several_tokens(family: str) -> None:
    model = model_of(family)
    tokens_BT = tiny.tokens(3, 9)
    tokens_BT[:, :3] = tokens_BT[0, :3]
    text = [[3, 1, 4]]
    with torch.inference_mode():
        _, state = read(model, tokens_BT[:1, :3], [], tiny.start(model, 1, text))
        shared, state = read(model, tokens_BT[:, 3:6], [2], state.select_rows([0, 0, 0]))
        apart = state.select_rows([2, 0])
        assert apart.rows_per_line == (2 if keeps_lines(state) else 1)
        apart = apart.select_rows([1, 0], separate_lines=True)
        assert apart.shared_lines is None
        alone, _ = read(model, tokens_BT[[0, 2], 6:], [1], apart)
    wanted = full(model, tokens_BT, text * 3)
    torch.testing.assert_close(shared, wanted[:, 3:6], **EXACT)
    torch.testing.assert_close(alone, wanted[[0, 2], 6:], **EXACT)


@pytest.mark.parametrize("family", ["gpt2", "window", "2017"])
def test_slots_of_texts_that_are_given_up_do_not_pile_up(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MIN_SPARE_SLOTS", 0)
    with torch.inference_mode():
        state = search(model_of(family), [[0, 0, 0]] * 16, 3, (2, 4))
    assert state.shared_lines is not None
    assert state.shared_lines.seen_BS.shape[1] < 2 * (state.length + 3)


@families
def test_a_search_copies_no_keys_and_values(family: str) -> None:
    """Neither to append nor to reorder; a common prefix is stored once, and heads that several queries share, too."""
    model = model_of(family)

    def places(state: DecodeState) -> list[int]:
        return [t.data_ptr() for layer in state.layers if isinstance(layer, KeyValueCache | Memory) for t in layer]

    with torch.inference_mode():
        _, state = read(model, tiny.tokens(1, 3), [], tiny.start(model, 1))
        state = state.select_rows([0, 0, 0])
        _, state = model.forward_incremental(tiny.tokens(3, 1), state)
        before = places(state)
        for parents in ([0, 0, 2], [2, 1, 0], [1, 1, 1]):
            _, state = model.forward_incremental(tiny.tokens(3, 1), state.select_rows(parents))
    assert places(state) == before
    kept = [layer.k_BNSH.shape[:2] for layer in state.layers if isinstance(layer, KeyValueCache | Memory)]
    n_kv_heads = FAMILIES[family].get("n_kv_heads")
    assert all(rows == 1 and heads == (n_kv_heads or heads) for rows, heads in kept)


@families
def test_two_futures_of_one_state(family: str) -> None:
    """The second finds the spare slots taken, does not change the first, which goes on outside of inference mode."""
    model, tokens_BT = model_of(family), tiny.tokens(2, 8)
    other_BT = torch.cat((tokens_BT[:, :3], tiny.tokens(2, 5, seed=9)), 1)
    with torch.inference_mode():
        _, state = read(model, tokens_BT[:, :3], [])
        one, first = read(model, tokens_BT[:, 3:6], [1], state)
        two, _ = read(model, other_BT[:, 3:], [2, 4], state)
    with torch.no_grad():
        more_one, _ = model.forward_incremental(tokens_BT[:, 6:], first)
    torch.testing.assert_close(torch.cat((one, more_one), 1), full(model, tokens_BT)[:, 3:], **EXACT)
    torch.testing.assert_close(two, full(model, other_BT)[:, 3:], **EXACT)


def test_caches_grow_by_half_at_a_time() -> None:
    """So that copies for n tokens are O(n), not O(n^2)."""
    with torch.inference_mode():
        state, rooms = KeyValueCache(torch.zeros(1, 1, 0, 1), torch.zeros(1, 1, 0, 2)), set()
        for i in range(2000):
            state = state.append(torch.full((1, 1, 1, 1), float(i)), torch.full((1, 1, 1, 2), -float(i)))
            rooms.add(state.k_BNSH.data_ptr())
    assert len(rooms) < 12
    assert torch.equal(state.k_BNSH.flatten(), torch.arange(2000.0))
    assert torch.equal(state.v_BNSH[0, 0], -torch.arange(2000.0)[:, None].expand(-1, 2))


@families
def test_rows_of_other_lengths_are_read_at_once(family: str) -> None:
    """With padding behind the shorter ones, which is forgotten, each row goes on as alone."""
    model, tokens_BT = model_of(family), tiny.tokens(3, 12)
    lengths = (4, 6, 2)
    with torch.inference_mode():
        _, together = read(model, tokens_BT[:, :6], [])
        if not together.can_rewind:
            return
        n_source = together.length - 6  # of a prefix
        hidden, _ = read(model, tokens_BT[:, 6:9], [2], together.truncate_rows([n_source + n for n in lengths]))
        for row, n in enumerate(lengths):
            _, alone = read(model, tokens_BT[:, :n], [])
            expected, _ = read(model, tokens_BT[:, 6:9], [2], alone)
            torch.testing.assert_close(hidden[row], expected[row], **EXACT)


@families
def test_states_that_hold_all_positions_go_back(family: str) -> None:
    """And go on in the same slots when they are reclaimed; those of recurrent models and of n-grams cannot."""
    model, tokens_BT = model_of(family), tiny.tokens(1, 12)
    with torch.inference_mode():
        _, before = read(model, tokens_BT[:, :5], [])
        _, after = read(model, tiny.tokens(1, 4, seed=9), [], before)
        kept = after.truncate(before.length)
        assert after.can_rewind == (kept is not None)
        if kept is None:
            assert any(layer and not isinstance(layer, KeyValueCache | Memory) for layer in after.layers)
            return
        expected = full(model, tokens_BT)[:, 5:]
        hidden, _ = read(model, tokens_BT[:, 5:], [3], kept)
        torch.testing.assert_close(hidden, expected, **EXACT)
        hidden, later = read(model, tokens_BT[:, 5:], [3], kept.invalidate_continuations_())
        torch.testing.assert_close(hidden, expected, **EXACT)
        for old, new in zip(after.layers, later.layers, strict=True):
            if isinstance(old, KeyValueCache) and isinstance(new, KeyValueCache):
                assert old.k_BNSH.data_ptr() == new.k_BNSH.data_ptr()
