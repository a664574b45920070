"""Recurrent encoder-decoders equal plain loops; sources may be padded anywhere; attention weights are accessible."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.layers.observing import record_attention_weights
from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.recipe.spec.recurrent import Recurrent
from tests.model.recurrent_weights import CELLS, VOCAB, alignments, built, spec
from tests.support.cases import nightly_but
from tests.support.recurrent import EXACT, SCORES, by_loops, tokens

ATTENTIONS: list[dict[str, Any] | None] = [
    None,
    *({"score": score} for score in SCORES),
    *({"score": score, "feed": "input"} for score in SCORES),
]


def seq2seq(**changes: Any) -> tuple[RecurrentEncoderDecoder, Recurrent]:
    of = spec(shape="encoder-decoder", **changes)
    model = built(of)
    return model, of


CASES: list[dict[str, Any]] = [
    {"attention": attention, "bidirectional_encoder": both, "cell": cell}
    for cell in ("gru", "rnn", "lstm")
    for both in (False, True)
    for attention in ATTENTIONS
]
CASES += [
    {"cell": cell, "nonlinearity": nonlinearity, "attention": {"feed": feed}, "n_layers": n, "tie_embeddings": tied}
    for cell, nonlinearity in CELLS
    for feed in ("output", "input")
    for n, tied in ((1, True), (3, False))
]


N = len(ATTENTIONS)
DAILY = [*range(2 * N), 5 * N, *range(6 * N, len(CASES))]
"""Those of GRUs, an LSTM that reads in both directions, and each cell with any number of layers and any head."""


@pytest.mark.parametrize("changes", nightly_but(CASES, *DAILY), ids=str)
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


@pytest.mark.parametrize("attention", ATTENTIONS[1:], ids=str)
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


def test_selections_other_than_soft() -> None:
    source_BS, tokens_BT = tokens(2, 5, seed=1), tokens(2, 4)
    batch = Batch(tokens_BT, source_BS=source_BS)
    for feed in ("output", "input"):
        for select, n_chosen, total in (("hard", 1, 1), ("multi-hot", 3, 1), ("mean", 5, 1), ("sum", 5, 5)):
            model, _ = seq2seq(attention={"select": select, "k": 3, "feed": feed})
            weights = alignments(model, batch)
            assert ((weights != 0).sum(-1) == n_chosen).all()
            torch.testing.assert_close(weights.sum(-1), torch.full((2, 4), float(total)).double())


def test_a_source_is_needed_and_attention_for_alignments() -> None:
    model, _ = seq2seq()
    with pytest.raises(ValueError, match="source"):
        model(Batch(tokens(1, 3)))
    with record_attention_weights(model) as weights:
        model(Batch(tokens(1, 3), source_BS=tokens(1, 3)))
    assert not weights


@pytest.mark.parametrize("feed", ["output", pytest.param("input", marks=pytest.mark.slow)])
def test_it_learns_to_reverse(feed: str) -> None:
    """With the right alignment: the weights are on the anti-diagonal."""
    torch.manual_seed(0)
    of = spec(
        shape="encoder-decoder",
        cell="gru",
        d_model=32,
        n_layers=1,
        bidirectional_encoder=True,
        attention={"score": "additive", "feed": feed},
    )
    model = build(of, VOCAB)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(250):
        source_BS = tokens(32, 6, seed=step)
        target_BT = source_BS.flip(1)
        inputs_BT = torch.cat((torch.zeros(32, 1, dtype=torch.int64), target_BT[:, :-1]), 1)
        logits = model.logits(model(Batch(inputs_BT, source_BS=source_BS)).hidden_BTD)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
    found = alignments(model, Batch(inputs_BT, source_BS=source_BS)).argmax(-1)
    wanted = torch.arange(5, -1, -1)
    assert float(((found - wanted).abs() <= 1).float().mean()) > 0.7
