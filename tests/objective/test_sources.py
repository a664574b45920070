"""Prefixes and removed spans: no token is lost, the loss is on the target only, and likelihoods are consistent."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import IGNORE, Batch
from lmtool.objective import Example, VocabularyInfo
from lmtool.objective.sources import PrefixObjective, Seq2SeqObjective, SpanCorruptionObjective, _random_composition
from lmtool.recipe.spec.objective import Prefix, Seq2Seq, SpanCorruption
from tests.reference import losses
from tests.reference import objectives as reference
from tests.support import tiny

V, BOS, EOS = 60, 1, 2
SENTINELS = tuple(range(7, 27))
VOCABULARY = VocabularyInfo(V, 0, BOS, EOS, 4, 5, 6, (BOS,), SENTINELS, frozenset(range(27)))
FORMS = ("prefix", "encoder-decoder")


def example(tokens: np.ndarray, seed: int = 0) -> Example:
    return Example(tokens, np.random.default_rng(seed))


def text(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(27, V, n)


def corruption(**changes: Any) -> SpanCorruptionObjective:
    spec = SpanCorruption.model_validate({"kind": "span-corruption"} | changes)
    return SpanCorruptionObjective(spec, VOCABULARY, False)


def prefix(form: str, **changes: Any) -> PrefixObjective:
    return PrefixObjective(Prefix.model_validate({"kind": "prefix"} | changes), VOCABULARY, form == "prefix")


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 120), rate=st.floats(0.05, 0.6), mean=st.floats(1, 6), seed=st.integers(0, 1000))
def test_source_and_target_reassemble(n: int, rate: float, mean: float, seed: int) -> None:
    own, tokens = corruption(rate=rate, mean_length=mean), text(n, seed)
    source, target = own.corrupt_to_source_and_target(tokens, np.random.default_rng(seed))
    assert reference.reassembled(source.tolist(), target.tolist(), SENTINELS, (EOS,)) == tokens.tolist()
    noise = [t for t in target.tolist() if t >= 27]
    assert len(noise) == min(max(1, round(rate * n)), max(1, n - 1))
    used = [t for t in source.tolist() if t < 27]
    assert used == list(SENTINELS[: len(used)]), "in their order, each once"
    assert target.tolist()[0] == SENTINELS[0]


@pytest.mark.parametrize(("end", "tail"), [("sentinel", [9]), ("eos", [EOS]), ("both", [9, EOS])])
def test_targets_end_as_asked(end: str, tail: list[int]) -> None:
    own, tokens = corruption(rate=0.4, mean_length=2, end=end), text(10)
    source, target = own.corrupt_to_source_and_target(tokens, np.random.default_rng(0))
    assert [t for t in source.tolist() if t < 27] == [7, 8]
    assert target.tolist()[-len(tail) :] == tail
    assert len(target) == 4 + 2 + len(tail)
    length = own.choose_text_cut(40).length
    rows = [own.corrupt_to_source_and_target(text(length, seed), np.random.default_rng(seed)) for seed in range(5)]
    assert all(len(source) <= 40 for source, _ in rows)
    assert {len(target) for _, target in rows} == {own._source_and_target_lengths(length)[1]}


@pytest.mark.parametrize(("rate", "end"), [(0.15, "sentinel"), (0.3, "eos"), (0.5, "both")])
def test_source_and_target_that_share_a_row_fill_it(rate: float, end: str) -> None:
    """One token more would exceed the context."""
    spec = SpanCorruption.model_validate({"kind": "span-corruption", "rate": rate, "end": end})
    for context in range(12, 60):
        own = SpanCorruptionObjective(spec, VOCABULARY, True)
        length = own.choose_text_cut(context).length
        assert sum(own._source_and_target_lengths(length)) <= context < sum(own._source_and_target_lengths(length + 1))


def test_lengths_are_t5s() -> None:
    """512 tokens of source come from 569, one more than in Raffel et al. 2020, whose source has an end token."""
    many = VocabularyInfo(400, 0, 1, 2, 4, 5, 6, (1,), tuple(range(7, 107)), frozenset(range(107)))
    own = SpanCorruptionObjective(SpanCorruption(kind="span-corruption"), many, False)
    length = own.choose_text_cut(512).length
    source, target = own.corrupt_to_source_and_target(
        np.arange(107, 107 + length) % 290 + 107, np.random.default_rng(0)
    )
    assert length == 569
    assert len(source) == 512
    assert len(target) == 85 + 28 + 1


def test_every_way_to_cut_is_alike() -> None:
    rng = np.random.default_rng(0)
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        sizes = tuple(_random_composition(5, 3, rng))
        assert sum(sizes) == 5
        assert min(sizes) >= 1
        seen[sizes] = seen.get(sizes, 0) + 1
    assert len(seen) == 6
    assert max(seen.values()) < 1.2 * min(seen.values())


@settings(max_examples=60, deadline=None)
@given(n=st.integers(3, 40), seed=st.integers(0, 500), form=st.sampled_from(FORMS), fixed=st.booleans())
def test_the_loss_is_on_what_follows_the_prefix(n: int, seed: int, form: str, fixed: bool) -> None:
    tokens = text(n, seed)
    own = prefix(form, fraction=0.5 if fixed else None)
    batch: Any = own.collate([example(tokens, seed)])
    targets = batch.targets_BT[0].tolist()
    if form == "prefix":
        split = int(batch.prefix_B[0])
        assert batch.tokens_BT[0].tolist() == tokens[:-1].tolist()
        assert targets == [IGNORE] * split + tokens[split + 1 :].tolist()
    else:
        split = batch.source_BS.shape[1]
        assert batch.source_BS[0].tolist() == tokens[:split].tolist()
        assert batch.tokens_BT[0].tolist() == [BOS, *tokens[split:-1].tolist()]
        assert targets == tokens[split:].tolist()
    assert 1 <= split < n
    if fixed and n > 4:
        assert split == round(0.5 * n)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_scored_whole(form: str) -> None:
    """Every token from the first one that is scored, given all before it, whatever the batch."""
    own = prefix(form)
    spans = [(np.array([BOS, *text(6)]), 1), (text(9, 1), 4)]
    batch = own.collate_for_scoring(spans)
    assert batch.n_targets == 6 + 5
    model = tiny.model(shape=form, vocab_size=V)
    together = own.score(model, batch)
    alone = [own.score(model, own.collate_for_scoring([span])) for span in spans]
    assert int(together.count) == 11
    assert float(together.total.detach()) == pytest.approx(sum(float(one.total.detach()) for one in alone), rel=1e-6)


SIZES = ((5, 3), (1, 7), (8, 1))
"""Tokens of source and target."""


def nats_by_decoding(model: Any, batch: Batch, given: Any, targets: Any, smoothing: float) -> float:
    """The loss of targets each of which is given the tokens before it, decoded one by one from a state."""
    state, logits = model.initial_state(batch), []
    for token in given:
        hidden, state = model.forward_incremental(torch.tensor([[int(token)]]), state)
        logits.append(model.logits(hidden)[0, 0].detach().numpy())
    return losses.cross_entropy(np.array(logits), list(targets), smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
def test_targets_are_predicted_token_by_token_from_their_sources(form: str, smoothing: float) -> None:
    """One pair after the other, without teacher forcing, batches or padding."""
    own = Seq2SeqObjective(Seq2Seq(kind="seq2seq", label_smoothing=smoothing), VOCABULARY, form == "prefix")
    model = tiny.model(shape=form, vocab_size=V)
    examples, expected, count = [], 0.0, 0
    for i, (n_source, n_target) in enumerate(SIZES):
        source, target = text(n_source, i), np.append(text(n_target, i + 9), EOS)
        examples.append(Example(source, np.random.default_rng(0), second=target))
        first = Batch(torch.tensor([[BOS]]), source_BS=torch.from_numpy(source)[None])
        expected += nats_by_decoding(model, first, [BOS, *target[:-1]], target, smoothing)
        count += len(target)
    found = own.loss(model, own.collate(examples))
    assert int(found.count) == count
    assert float(found.total.detach()) == pytest.approx(expected, rel=1e-9)
    if not smoothing:
        assert float(own.score(model, own.collate(examples)).total.detach()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("family", "smoothing"), [("transformer", 0.1), ("lstm with a memory", 0.0)])
def test_a_decoder_predicts_answers_as_it_decodes_them(family: str, smoothing: float) -> None:
    """Each target given all before it in its row; of two rows some tokens of the source are learnt, as answers are."""
    own = Seq2SeqObjective(Seq2Seq(kind="seq2seq", label_smoothing=smoothing), VOCABULARY, False, is_causal=True)
    model = tiny.model(vocab_size=V, **tiny.FAMILIES.get(family, {}))
    examples, expected, count = [], 0.0, 0
    for i, (n_source, n_target) in enumerate(SIZES):
        source, target = text(n_source, i), np.append(text(n_target, i + 9), EOS)
        learned = (np.arange(n_source) % 4 == 2) & (i != 2)
        examples.append(Example(source, np.random.default_rng(0), second=target, has_loss=learned if i != 2 else None))
        row = np.concatenate((source, target))
        targets = np.concatenate((np.where(learned, source, IGNORE), target))[1:]
        expected += nats_by_decoding(model, Batch(torch.from_numpy(row[None, :1])), row[:-1], targets, smoothing)
        count += int((targets != IGNORE).sum())
    batch = own.collate(examples)
    assert batch.prefix_B is batch.source_BS is None
    found = own.loss(model, batch)
    assert int(found.count) == own.count_targets(batch) == count
    assert float(found.total.detach()) == pytest.approx(expected, rel=1e-9)
