"""What may not change a logit: later tokens, padding, neighbours in the batch and in a packed row."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtool.batch import Batch
from tests.model import tiny
from tests.model.test_cache import EXACT, families, model_of, quick

T = 10
NEIGHBOURS = st.lists(st.integers(0, tiny.VOCAB - 1), min_size=T, max_size=T)


@families
@quick
@given(t=st.integers(0, T - 1), shift=st.integers(1, tiny.VOCAB - 1), grad=st.booleans())
def test_a_token_changes_nothing_before_it(family: str, t: int, shift: int, grad: bool) -> None:
    model = model_of(family)
    one = tiny.tokens(2, T)
    two = one.clone()
    two[0, t] = (two[0, t] + shift) % tiny.VOCAB
    with torch.set_grad_enabled(grad):
        before, after = (model.logits(model(Batch(tokens))).detach() for tokens in (one, two))
    torch.testing.assert_close(after[0, :t], before[0, :t], **EXACT)
    torch.testing.assert_close(after[1], before[1], **EXACT)
    for position in range(t, T):
        assert not torch.allclose(after[0, position], before[0, position], rtol=1e-6, atol=1e-6)


@families
@quick
@given(rows=st.lists(NEIGHBOURS, max_size=3), place=st.integers(0, 3))
def test_neighbours_in_the_batch_change_nothing(family: str, rows: list[list[int]], place: int) -> None:
    model = model_of(family)
    row = tiny.tokens(1, T)
    place = min(place, len(rows))
    batch = torch.cat([torch.tensor(rows, dtype=torch.int64).view(-1, T)[:place], row])
    batch = torch.cat([batch, torch.tensor(rows, dtype=torch.int64).view(-1, T)[place:]])
    torch.testing.assert_close(model(Batch(batch))[place], model(Batch(row))[0], **EXACT)


@families
@quick
@given(keep=st.lists(st.booleans(), min_size=T, max_size=T).filter(any), filler=NEIGHBOURS, grad=st.booleans())
def test_padding_anywhere_changes_nothing(family: str, keep: list[bool], filler: list[int], grad: bool) -> None:
    """A row with padding in front, behind and between equals its text alone."""
    model = model_of(family)
    text = tiny.tokens(1, sum(keep))
    keep_BT = torch.tensor([keep, [True] * T])
    tokens_BT = torch.stack([torch.tensor(filler), tiny.tokens(T, seed=1)])
    tokens_BT[0, keep_BT[0]] = text[0]
    with torch.set_grad_enabled(grad):
        hidden = model(Batch(tokens_BT, keep_BT=keep_BT))
    torch.testing.assert_close(hidden[0, keep_BT[0]], model(Batch(text))[0], **EXACT)
    torch.testing.assert_close(hidden[1], model(Batch(tokens_BT[1:]))[0], **EXACT)
    assert torch.isfinite(hidden).all()


@families
@quick
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), first=st.integers(0, 9), grad=st.booleans())
def test_isolated_documents_of_a_packed_row_equal_each_alone(
    family: str, lengths: list[int], first: int, grad: bool
) -> None:
    model = model_of(family)
    documents = [tiny.tokens(1, length, seed=i) for i, length in enumerate(lengths)]
    numbers = torch.repeat_interleave(torch.arange(first, first + len(lengths)), torch.tensor(lengths))
    row = torch.cat(documents, 1)[:, :24]
    numbers = numbers[None, :24]
    # a second row whose documents are cut elsewhere
    tokens_BT, documents_BT = torch.cat([row, row]), torch.cat([numbers, torch.zeros_like(numbers)])
    with torch.set_grad_enabled(grad):
        hidden = model(Batch(tokens_BT, documents_BT=documents_BT))
    start = 0
    for document in documents:
        alone = model(Batch(document))[0]
        own = hidden[0, start : start + document.shape[1]]
        torch.testing.assert_close(own, alone[: len(own)], **EXACT)
        start += document.shape[1]
    torch.testing.assert_close(hidden[1], model(Batch(row))[0], **EXACT)


@families
def test_without_isolation_documents_see_each_other(family: str) -> None:
    model = model_of(family)
    row = tiny.tokens(1, 6)
    apart = model(Batch(row, documents_BT=torch.tensor([[0, 0, 0, 1, 1, 1]])))
    assert not torch.allclose(apart[0, 3:], model(Batch(row))[0, 3:], atol=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "vaswani"])
def test_positions_matter_and_without_them_order_of_the_past_does_not(family: str) -> None:
    forth = torch.tensor([[1, 2, 3, 4]])
    back = torch.tensor([[2, 1, 3, 4]])
    model = model_of(family)
    assert not torch.allclose(model(Batch(forth))[0, 3], model(Batch(back))[0, 3], atol=1e-3)
    # in a single layer without positions, the last token sees a set
    blind = tiny.model(n_layers=1, position={"kind": "none"})
    torch.testing.assert_close(blind(Batch(forth))[0, 3], blind(Batch(back))[0, 3], **EXACT)
