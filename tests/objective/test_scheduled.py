"""Scheduled sampling: which tokens are sampled, in all families, whatever is computed beside them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.objective import CausalObjective, Example, cross_entropy, scheduled
from lmtool.objective.scheduled import draw_scheduled_sampling_numbers, sample_input_tokens, true_token_probability
from lmtool.objective.sources import Seq2SeqObjective, SourceTargetPair, collate_pairs
from lmtool.recipe.spec.objective import Causal, ScheduledSampling, Seq2Seq
from lmtool.training.truncated_bptt import StateCarryingModel
from tests.reference import scheduled as reference
from tests.support import tiny
from tests.support.tiny import FAMILIES, VOCAB
from tests.support.vocabularies import VOCABULARY

BOS, T = 1, 9


# When


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, lambda i: reference.linear(i, 0.01, 0.0)),
        ({"k": 0.02, "floor": 0.3}, lambda i: reference.linear(i, 0.02, 0.3)),
        ({"growth": "exponential"}, lambda i: reference.exponential(i, 0.98)),
        ({"growth": "exponential", "k": 0.9}, lambda i: reference.exponential(i, 0.9)),
        ({"growth": "inverse-sigmoid"}, lambda i: reference.inverse_sigmoid(i, 15)),
        ({"growth": "inverse-sigmoid", "k": 1}, lambda i: reference.inverse_sigmoid(i, 1)),
    ],
)
def test_the_probability_of_a_true_token_falls_as_in_the_paper(
    keys: dict[str, Any], wanted: Callable[[float], float]
) -> None:
    for done in (0.0, 0.003, 0.25, 0.5, 0.9, 1.0):
        assert true_token_probability(ScheduledSampling(**keys), done) == pytest.approx(wanted(100 * done))


@pytest.mark.parametrize(("growth", "k"), [("exponential", 1.0), ("inverse-sigmoid", 0.9)])
def test_a_k_that_never_falls_is_refused(growth: Any, k: float) -> None:
    with pytest.raises(ValidationError, match="k "):
        ScheduledSampling(growth=growth, k=k)


def rows(n: int, length: int, seed: int = 0) -> list[Example]:
    texts = np.random.default_rng(seed).integers(2, VOCAB, (n, length))
    return [Example(text, np.random.default_rng(100 + i)) for i, text in enumerate(texts)]


def test_as_many_are_drawn_as_the_schedule_says() -> None:
    found: Any = draw_scheduled_sampling_numbers(ScheduledSampling(), rows(200, 50), 50, 0.3)
    assert float((found >= 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    numbers = found[found >= 0]
    assert float(numbers.max()) <= 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.02)
    start: Any = draw_scheduled_sampling_numbers(ScheduledSampling(), rows(200, 50), 50, 0.0)
    assert (start == -1).all()
    assert draw_scheduled_sampling_numbers(None, rows(1, 2), 2, 0.5) is None


def test_a_row_draws_the_same_beside_longer_ones() -> None:
    drawn: Any = (draw_scheduled_sampling_numbers(ScheduledSampling(), rows(2, 1), length, 0.6) for length in (7, 12))
    short, long = drawn
    assert torch.equal(short, long[:, :7])


# What


def numbers(*shape: int, seed: int = 0, share: float = 0.6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < share, drawn, -1.0)


def probabilities(model: LanguageModel, hidden: torch.Tensor) -> list[float]:
    found: list[float] = model.logits(hidden).detach().softmax(-1).tolist()
    return found


def plain(model: LanguageModel) -> Callable[..., list[int]]:
    return reference.step_by_step if model.recurrent else reference.two_passes


def causal(tokens_BT: torch.Tensor, draws_BT: torch.Tensor | None) -> Any:
    targets_BT = torch.cat((tokens_BT[:, 1:], torch.full((len(tokens_BT), 1), 2)), 1)
    return Batch(tokens_BT, targets_BT.masked_fill(targets_BT == BOS, IGNORE), draws_BT=draws_BT)


@pytest.mark.parametrize("family", ["gpt2", "modern", "gru", "lstm with a memory"])
def test_own_tokens_are_drawn_as_in_the_papers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(**FAMILIES[family])
    batch = causal(tiny.tokens(3, T), numbers(3, T))
    monkeypatch.setattr(scheduled, "rows_per_chunk", lambda *_: 2)
    found = sample_input_tokens(model, batch)
    changed = False
    for i in range(3):
        row = batch.tokens_BT[i].tolist()
        # a token that begins a document is given
        wanted = [
            -1.0 if token == BOS else number for token, number in zip(row, batch.draws_BT[i].tolist(), strict=True)
        ]

        def after(text: Any) -> list[float]:
            return probabilities(model, model(Batch(torch.tensor([list(text)]))).hidden_BTD[0, -1])

        assert found.tokens_BT[i].tolist() == plain(model)(row, wanted, after)
        changed |= found.tokens_BT[i].tolist() != row
    assert changed
    assert found.targets_BT is batch.targets_BT


@pytest.mark.parametrize("family", ["t5", "prefix", "luong", "bahdanau"])
def test_targets_of_pairs_are_drawn_behind_their_sources(family: str) -> None:
    model = tiny.model(**FAMILIES[family])
    shares_row = FAMILIES[family]["shape"] == "prefix"
    texts = [([3, 1, 4], [5, 9, 2, 6, 5, 3]), ([8], [9, 7]), ([2, 7, 1, 8], [2, 8, 1, 8])]
    pairs = [SourceTargetPair(np.array(source), (BOS,), np.array(target)) for source, target in texts]
    given = collate_pairs(pairs, shares_row, 0)
    batch: Any = replace(given, draws_BT=numbers(*given.tokens_BT.shape, seed=3, share=0.8))
    found = sample_input_tokens(model, batch)
    for i, (source, target) in enumerate(texts):
        first = len(source) if shares_row else 0
        row = [BOS, *target[:-1]]

        def after(text: Any, source: list[int] = source) -> list[float]:
            return probabilities(model, tiny.read(model, torch.tensor([list(text)]), [source])[0, -1])

        wanted = plain(model)(row, batch.draws_BT[i, first : first + len(row)].tolist(), after)
        assert found.tokens_BT[i, first : first + len(row)].tolist() == wanted
        rest = torch.ones(batch.tokens_BT.shape[1], dtype=torch.bool)
        rest[first : first + len(row)] = False
        assert torch.equal(found.tokens_BT[i, rest], batch.tokens_BT[i, rest])


@pytest.mark.parametrize("family", ["gpt2", "window", "lstm", "lstm with a memory"])
def test_documents_of_a_row_that_do_not_see_each_other_draw_as_if_alone(family: str) -> None:
    model = tiny.model(**FAMILIES[family])
    lengths = [4, 1, 6, 3]
    parts = [causal(tiny.tokens(1, n, seed=i), numbers(1, n, seed=i)) for i, n in enumerate(lengths)]
    parts = [replace(part, tokens_BT=torch.cat((torch.full((1, 1), BOS), part.tokens_BT[:, 1:]), 1)) for part in parts]
    alone = [sample_input_tokens(model, causal(part.tokens_BT, part.draws_BT)).tokens_BT for part in parts]
    numbers_BT = torch.cat([part.draws_BT for part in parts], 1)
    row = causal(torch.cat([part.tokens_BT for part in parts], 1), numbers_BT)
    documents_BT = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    both = Batch(row.tokens_BT, row.targets_BT, draws_BT=row.draws_BT, documents_BT=documents_BT)
    both = replace(both, **{f: torch.cat([getattr(both, f)] * 2) for f in ("tokens_BT", "targets_BT", "draws_BT")})
    # a second row that is one document
    both = replace(both, documents_BT=torch.cat([documents_BT, torch.zeros_like(documents_BT)]))
    found = sample_input_tokens(model, both).tokens_BT
    assert torch.equal(found[:1], torch.cat(alone, 1))
    assert torch.equal(found[1:], sample_input_tokens(model, row).tokens_BT)


# The loss


def objective() -> CausalObjective:
    return CausalObjective(Causal(scheduled_sampling=ScheduledSampling(floor=0.2)), BOS, False)


def test_a_recurrent_model_learns_as_if_it_drew_while_it_learns() -> None:
    """The paper's loop: sample or take the true token, step, add the loss of the next token, all with gradients."""
    own, examples = objective(), rows(3, T + 1)
    batch: Any = own.collate(examples, 0.6)
    one, two = (tiny.model(**FAMILIES["gru with a mean of memories"]) for _ in range(2))
    loss = own.loss(one, batch)
    torch.autograd.backward(loss.total)

    state, total = two.initial_state(batch), torch.zeros((), dtype=torch.float64)
    logits_BV = torch.zeros(3, VOCAB)
    for t in range(T):
        token_B = batch.tokens_BT[:, t].clone()
        for i in range(3):
            if t and batch.draws_BT[i, t] >= 0:
                token_B[i] = reference.drawn(logits_BV[i].softmax(-1).tolist(), float(batch.draws_BT[i, t]))
        hidden, state = two.forward_incremental(token_B[:, None], state)
        logits_BV = two.logits(hidden[:, 0])
        total = total + torch.nn.functional.cross_entropy(logits_BV, batch.targets_BT[:, t], reduction="sum")
    torch.autograd.backward(total)
    assert float(loss.total.detach()) == pytest.approx(float(total.detach()), rel=1e-9)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-10)


def test_pairs_learn_from_their_own_tokens_and_are_scored_by_the_true_ones() -> None:
    sampled = Seq2Seq(kind="seq2seq", scheduled_sampling=ScheduledSampling())
    own = Seq2SeqObjective(sampled, VOCABULARY, False)
    plain_one = Seq2SeqObjective(Seq2Seq(kind="seq2seq"), VOCABULARY, False)
    model = tiny.model(**FAMILIES["luong"], vocab_size=VOCABULARY.size)

    def pairs() -> list[Example]:
        texts = np.random.default_rng(0).integers(10, VOCABULARY.size, (4, 2, 8))
        return [Example(a, np.random.default_rng(i), second=b) for i, (a, b) in enumerate(texts)]

    usual = plain_one.loss(model, plain_one.collate(pairs())).total.detach()
    torch.testing.assert_close(own.loss(model, own.collate(pairs(), 0.0)).total.detach(), usual)
    late = own.collate(pairs(), 0.8)
    assert abs(float(own.loss(model, late).total.detach()) - float(usual)) > 1e-3
    torch.testing.assert_close(own.score(model, late).total.detach(), usual)


def test_rows_that_go_on_draw_behind_what_was_read_before() -> None:
    model = tiny.model(**FAMILIES["lstm"])
    tokens_BT, numbers_BT = tiny.tokens(2, 2 * T), numbers(2, 2 * T, seed=4)
    numbers_BT[:, T] = -1  # the first token of a row is never drawn
    whole = sample_input_tokens(model, causal(tokens_BT, numbers_BT)).tokens_BT
    first = sample_input_tokens(model, causal(tokens_BT[:, :T], numbers_BT[:, :T])).tokens_BT
    _, state = model.forward_incremental(first, model.initial_state(Batch(first)))
    second = sample_input_tokens(
        StateCarryingModel(model, state), causal(tokens_BT[:, T:], numbers_BT[:, T:])
    ).tokens_BT
    assert torch.equal(torch.cat((first, second), 1), whole)


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_dropout_is_off_while_tokens_are_drawn_and_on_again(family: str) -> None:
    still = tiny.model(**FAMILIES[family])
    model = tiny.model(**FAMILIES[family], dropout=0.5).train()
    batch = causal(tiny.tokens(3, T), numbers(3, T))
    state = torch.get_rng_state()
    assert torch.equal(sample_input_tokens(model, batch).tokens_BT, sample_input_tokens(still, batch).tokens_BT)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_under_autocast_all_weights_have_gradients(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that autocast cached in the sampling pass have none."""
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 2)
    model = tiny.model(dtype=torch.float32, **FAMILIES[family]).train()
    own = objective()
    with torch.autocast("cpu", torch.bfloat16):
        total = own.loss(model, own.collate(rows(3, T + 1), 0.7)).total
    torch.autograd.backward(total)
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
