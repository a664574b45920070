"""Recurrent encoder-decoders equal plain loops; sources may be padded anywhere; attention weights are accessible."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model.layers.observing import record_attention_weights
from lmtool.recipe.spec.recurrent import Recurrent
from tests.model.recurrent_weights import CELLS, alignments, built, spec
from tests.support.recurrent import EXACT, SCORES, by_loops, tokens

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
def test_it_equals_the_loop(changes: dict[str, Any]) -> None:
    model, of = seq2seq(**changes)
    tokens_BT, source_BS = tokens(2, 7), tokens(2, 5, seed=1)
    batch = Batch(tokens_BT, source_BS=source_BS)
    logits = model.logits(model(batch).hidden_BTD).detach()
    for row in range(2):
        wanted, aligned = by_loops(model, of, source_BS[row], tokens_BT[row])
        np.testing.assert_allclose(logits[row], wanted, **EXACT)
        if of.attention is not None:
            np.testing.assert_allclose(alignments(model, batch)[row].detach(), aligned, **EXACT)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_padding_of_a_source_gets_no_attention(attention: dict[str, Any]) -> None:
    """Not even where a source is nothing but padding."""
    model, _ = seq2seq(attention=attention, bidirectional_encoder=True)
    keep_BS = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
    batch = Batch(tokens(3, 5), source_BS=tokens(3, 6, seed=2), source_keep_BS=keep_BS)
    weights = alignments(model, batch)
    assert not weights[~keep_BS[:, None].expand_as(weights)].any()
    torch.testing.assert_close(weights[:2].sum(-1), torch.ones(2, 5).double())
    assert torch.isfinite(model(batch).hidden_BTD).all()


def test_without_attention_only_the_last_state_is_seen() -> None:
    """The bottleneck: two sources that end in the same state are the same to the decoder."""
    model, _ = seq2seq(cell="gru")
    state = model.initial_state(Batch(tokens(2, 1), source_BS=tokens(2, 5)))
    assert [tuple(part.shape) for layer in state.layers for part in layer] == [(2, 6), (2, 6)]
    assert state.source_keep_BS is None


@pytest.mark.parametrize("feed", ["output", "input"])
@pytest.mark.parametrize(
    ("select", "n_chosen", "total"), [("hard", 1, 1), ("multi-hot", 3, 1), ("mean", 4, 1), ("sum", 4, 4)]
)
def test_selections_other_than_soft(feed: str, select: str, n_chosen: int, total: int) -> None:
    """Of a source of four tokens and padding, and of one that is nothing else."""
    keep_BS = torch.tensor([[True, True, False, True, True], [False] * 5])
    model, _ = seq2seq(attention={"select": select, "k": 3, "feed": feed})
    weights = alignments(model, Batch(tokens(2, 4), source_BS=tokens(2, 5, seed=1), source_keep_BS=keep_BS))
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
