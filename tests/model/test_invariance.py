"""Logits are invariant to later tokens, padding, other rows of a batch, packed documents and source padding."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lmtool.batch import Batch
from tests.support import tiny
from tests.support.chunks import EXACT, model_of, quick
from tests.support.tiny import FAMILIES, ONE_SIDE

T = 10
FILLERS = st.lists(st.integers(0, tiny.VOCAB - 1), min_size=T, max_size=T)
KEEPS = st.lists(st.booleans(), min_size=T, max_size=T).filter(any)
families = pytest.mark.parametrize("family", tiny.of_each_kind(FAMILIES))
WITH_SOURCE = [name for name, of in FAMILIES.items() if of.get("shape") in ("encoder-decoder", "prefix")]
PACKED = [name for name in FAMILIES if name not in WITH_SOURCE]
"""Families whose rows may hold several documents."""
REACH = {"longformer": 1, "prefix with windows": 1, "3-gram": 2, "skip-gram": 1}
"""Number of positions, its own included, that a token certainly affects, for families with limited memory.

An n-gram model depends on the last n - 1 tokens, a skip-gram model on one word.
"""


@pytest.mark.parametrize("family", tiny.of_each_kind(ONE_SIDE))
@quick
@given(t=st.integers(0, T - 1), shift=st.integers(1, tiny.VOCAB - 1), grad=st.booleans())
def test_a_token_changes_nothing_before_it(family: str, t: int, shift: int, grad: bool) -> None:
    model = model_of(family)
    one = tiny.tokens(2, T)
    two = one.clone()
    two[0, t] = (two[0, t] + shift) % tiny.VOCAB
    with torch.set_grad_enabled(grad):
        before, after = (model.logits(tiny.read(model, tokens)).detach() for tokens in (one, two))
    torch.testing.assert_close(after[0, :t], before[0, :t], **EXACT)
    torch.testing.assert_close(after[1], before[1], **EXACT)
    for position in range(t, min(T, t + REACH.get(family, T))):
        assert not torch.allclose(after[0, position], before[0, position], rtol=1e-6, atol=1e-8)


@families
@quick
@given(keep=KEEPS, filler=FILLERS, grad=st.booleans())
def test_padding_anywhere_changes_nothing(family: str, keep: list[bool], filler: list[int], grad: bool) -> None:
    """A row with left, right and inner padding equals its text alone, as does its neighbour."""
    model = model_of(family)
    text = tiny.tokens(1, sum(keep))
    keep_BT = torch.tensor([keep, [True] * T])
    tokens_BT = torch.stack([torch.tensor(filler), tiny.tokens(T, seed=1)])
    tokens_BT[0, keep_BT[0]] = text[0]
    texts = [[3, 1, 4], [5]]
    with torch.set_grad_enabled(grad):
        hidden = tiny.read(model, tokens_BT, texts, keep_BT=keep_BT)
    torch.testing.assert_close(hidden[0, keep_BT[0]], tiny.read(model, text, texts[:1])[0], **EXACT)
    torch.testing.assert_close(hidden[1], tiny.read(model, tokens_BT[1:], texts[1:])[0], **EXACT)
    assert torch.isfinite(hidden).all()


@pytest.mark.parametrize("family", tiny.of_each_kind(WITH_SOURCE))
@quick
@given(keep=KEEPS, filler=FILLERS, grad=st.booleans())
def test_padding_anywhere_in_a_source_changes_nothing(
    family: str, keep: list[bool], filler: list[int], grad: bool
) -> None:
    """In a forward pass of an encoder-decoder, and in what is decoded behind the source or prefix."""
    model = model_of(family)
    text, answer = tiny.tokens(1, sum(keep), seed=3), tiny.tokens(1, 4)
    source_BS, keep_BS = torch.tensor([filler]), torch.tensor([keep])
    source_BS[keep_BS] = text[0]
    batch = Batch(answer, source_BS=source_BS, source_keep_BS=keep_BS)
    with torch.set_grad_enabled(grad):
        alone = tiny.read(model, answer, text.tolist())
        if FAMILIES[family]["shape"] == "encoder-decoder":
            torch.testing.assert_close(model(batch).hidden_BTD, alone, **EXACT)
    torch.testing.assert_close(model.forward_incremental(answer, model.initial_state(batch))[0], alone, **EXACT)


@pytest.mark.parametrize("family", tiny.of_each_kind(PACKED))
@quick
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), first=st.integers(0, 9), grad=st.booleans())
def test_isolated_documents_of_a_packed_row_equal_each_alone(
    family: str, lengths: list[int], first: int, grad: bool
) -> None:
    model = model_of(family)
    documents = [tiny.tokens(1, length, seed=i) for i, length in enumerate(lengths)]
    numbers = torch.repeat_interleave(torch.arange(first, first + len(lengths)), torch.tensor(lengths))[None, :24]
    row = torch.cat(documents, 1)[:, :24]
    # a second row whose documents are cut elsewhere
    tokens_BT, documents_BT = torch.cat([row, row]), torch.cat([numbers, torch.zeros_like(numbers)])
    with torch.set_grad_enabled(grad):
        hidden = model(Batch(tokens_BT, documents_BT=documents_BT)).hidden_BTD
    start = 0
    for document in documents:
        own = hidden[0, start : start + document.shape[1]]
        if len(own) == document.shape[1]:  # an encoder's text that is cut off is another one
            torch.testing.assert_close(own, model(Batch(document)).hidden_BTD[0], **EXACT)
        start += document.shape[1]
    torch.testing.assert_close(hidden[1], model(Batch(row)).hidden_BTD[0], **EXACT)


@families
def test_saved_and_loaded_weights_give_the_same_logits(family: str, tmp_path: Path) -> None:
    model, other = model_of(family), tiny.model(seed=1, **FAMILIES[family])
    tokens_BT = tiny.tokens(2, 5)
    wanted = model.logits(tiny.read(model, tokens_BT))
    assert not torch.equal(other.logits(tiny.read(other, tokens_BT)), wanted)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other.logits(tiny.read(other, tokens_BT)), wanted)
