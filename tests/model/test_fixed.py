"""A state of fixed size gives what a growing one gives, for every Transformer with a decoding state."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lmtool.model import DecodeState
from lmtool.model import fixed as module
from lmtool.model.fixed import DecodeStateShape, StaticDecodeState
from tests.support import tiny
from tests.support.tiny import CACHED, TRANSFORMERS

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
families = pytest.mark.parametrize("family", tiny.of_each_kind(name for name in CACHED if name in TRANSFORMERS))


@pytest.fixture(autouse=True)
def _few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_SLOTS", 16)
    monkeypatch.setattr(module, "SOURCE_LENGTH_MULTIPLE", 4)


def state_of(family: str, lengths: tuple[int, ...], seed: int = 0) -> tuple[Any, DecodeState]:
    """A model, and rows that have read so many tokens each, with left padding."""
    model = tiny.model(**TRANSFORMERS[family])
    states = []
    for row, length in enumerate(lengths):
        texts = [tiny.sources(4, seed)[row]]
        _, state = model.forward_incremental(tiny.tokens(1, length, seed=seed + row), tiny.start(model, 1, texts))
        states.append(state)
    return model, DecodeState.join_rows(states).trim_common_padding()


def fixed_of(state: DecodeState) -> StaticDecodeState:
    fixed = StaticDecodeState.empty_like(state, DecodeStateShape.from_state(state))
    fixed.copy_from_(state)
    return fixed


@families
@pytest.mark.parametrize("lengths", [(3,), (2, 5, 4)], ids=str)
@torch.inference_mode()
def test_steps_equal_those_of_a_growing_cache(family: str, lengths: tuple[int, ...]) -> None:
    model, state = state_of(family, lengths)
    fixed: Any = fixed_of(state)
    # what was there before another state was loaded changes nothing
    fixed.copy_from_(state_of(family, lengths, seed=40)[1])
    model.forward_incremental(tiny.tokens(len(lengths), 1, seed=3), fixed)
    fixed.copy_from_(state)
    for step in range(5):
        tokens_B1 = tiny.tokens(len(lengths), 1, seed=50 + step)
        wanted, state = model.forward_incremental(tokens_B1, state)
        found, fixed = model.forward_incremental(tokens_B1, fixed)
        torch.testing.assert_close(found, wanted, **EXACT)
        torch.testing.assert_close(model.logits(found), model.logits(wanted), **EXACT)


@families
@torch.inference_mode()
def test_a_fixed_state_can_grow_again(family: str) -> None:
    """Rows that leave, rows that join, and longer texts need a growing state again."""
    model, state = state_of(family, (2, 4, 3))
    fixed = fixed_of(state)
    tokens_B1 = tiny.tokens(3, 1, seed=9)
    _, state = model.forward_incremental(tokens_B1, state)
    _, stepped = model.forward_incremental(tokens_B1, replace(fixed, length=state.length - 1))
    other = state_of(family, (5,), seed=7)[1]
    for before, after in (
        (state, stepped.to_growable()),
        (state.select_rows([2, 0]), stepped.select_rows([2, 0])),
        (DecodeState.join_rows([state, other]), DecodeState.join_rows([stepped, other])),
    ):
        tokens_BT = tiny.tokens(before.n_rows, 3, seed=11)
        wanted, _ = model.forward_incremental(tokens_BT, before)
        torch.testing.assert_close(model.forward_incremental(tokens_BT, after)[0], wanted, **EXACT)


@torch.inference_mode()
def test_nothing_is_allocated_for_a_longer_text() -> None:
    model, state = state_of("gpt2", (3,))
    fixed = fixed_of(state)
    before = [tensor.data_ptr() for layer in fixed.layers for tensor in layer]
    for step in range(4):
        _, after = model.forward_incremental(tiny.tokens(1, 1, seed=step), fixed)
        assert [tensor.data_ptr() for layer in after.layers for tensor in layer] == before
    assert int(fixed.newest_position_1) == 6


def test_slots_are_powers_of_two_with_one_for_the_next_position_and_one_more() -> None:
    for length, n_slots in ((14, 16), (15, 32)):
        assert DecodeStateShape.from_state(state_of("alibi", (length,))[1]) == (1, n_slots, 0)
    model, state = state_of("2017", (2, 2, 2))
    assert DecodeStateShape.from_state(state).n_source == 4
    assert DecodeStateShape.from_state(tiny.start(model, 1, [[1, 2, 3, 4, 5]])).n_source == 8
