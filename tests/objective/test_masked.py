"""Masked language modelling: shares, special tokens untouched, fresh masks, pseudo-likelihood."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import IGNORE, Batch
from lmtool.errors import UsageError
from lmtool.objective import Example, VocabularyInfo, build_objective
from lmtool.objective.masked import MaskedObjective, select_positions
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Masked, SpanMasking
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer
from lmtool.tokenization.tokenizer import Tokenizer
from tests.reference import masking as reference_masking
from tests.reference import objectives as reference
from tests.support import tiny

V = 60
PAD, BOS, EOS, MASK, SEP, CLS, SPECIALS = 0, 1, 2, 4, 5, 6, 7
VOCABULARY = VocabularyInfo(V, PAD, BOS, EOS, MASK, SEP, CLS, (BOS,), (), frozenset(range(SPECIALS)))


def objective(**changes: Any) -> Any:
    return MaskedObjective(Masked.model_validate({"kind": "masked"} | changes), VOCABULARY)


def example(tokens: np.ndarray, seed: int = 0) -> Example:
    return Example(tokens, np.random.default_rng(seed))


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 200),
    n_special=st.integers(0, 5),
    rate=st.sampled_from([0.15, 0.3, 0.5]),
    seed=st.integers(0, 1000),
    spans=st.booleans(),
)
def test_shares_are_exact_and_special_tokens_stay(n: int, n_special: int, rate: float, seed: int, spans: bool) -> None:
    rng = np.random.default_rng(seed)
    tokens = np.concatenate((rng.integers(SPECIALS, V, n), rng.integers(0, SPECIALS, n_special)))
    rng.shuffle(tokens)
    own = objective(rate=rate, spans={} if spans else None)
    batch = own.collate([example(tokens, seed)])
    row, targets = batch.tokens_BT[0].tolist(), batch.targets_BT[0].tolist()
    assert (row[0], row[-1], targets[0], targets[-1]) == (CLS, SEP, IGNORE, IGNORE)
    chosen = [t for t, target in enumerate(targets) if target != IGNORE]
    assert len(chosen) == max(1, round(rate * n))
    masked = [t for t in chosen if row[t] == MASK]
    assert abs(len(masked) - 0.8 * len(chosen)) < 1
    # of the rest, a random token may by chance be the true one
    changed = [t for t in chosen if row[t] not in (MASK, targets[t])]
    assert len(changed) < 0.1 * len(chosen) + 1
    for t in range(1, len(row) - 1):
        truth = tokens[t - 1]
        if t in chosen:
            assert targets[t] == truth >= SPECIALS
            assert row[t] == MASK or row[t] >= SPECIALS
        else:
            assert row[t] == truth


def collated(own: Any, n: int, rows: int) -> tuple[torch.Tensor, float, float]:
    """Of as many equal rows the chosen places, and the shares of them that are masked and changed."""
    tokens = np.arange(SPECIALS, SPECIALS + n)
    batch = own.collate([example(tokens, seed) for seed in range(rows)])
    chosen = batch.targets_BT != IGNORE
    masked = chosen & (batch.tokens_BT == MASK)
    changed = chosen & ~masked & (batch.tokens_BT != batch.targets_BT)
    return chosen, float(masked.sum() / chosen.sum()), float(changed.sum() / chosen.sum())


@pytest.mark.parametrize("n", [1, 16])
def test_short_rows_have_the_shares_on_average(n: int) -> None:
    """16 tokens have two targets, of which rounding would always mask both."""
    _, masked, changed = collated(objective(), n, 3000)
    assert masked == pytest.approx(0.8, abs=0.025)
    assert changed == pytest.approx(0.1 - 0.1 / (V - SPECIALS), abs=0.02)


def test_independent_tokens_have_the_shares_on_average_and_short_rows_see_all_three() -> None:
    n, rows = 4, 4000
    chosen, masked, changed = collated(objective(independent=True), n, rows)
    assert chosen.any(1).all()
    # one token stands in for none, which happens with probability 0.85^4; a random token is the true one in 1 of V - 7
    wanted = (n * 0.15 + 0.85**n) / n
    assert float(chosen.sum()) / (rows * n) == pytest.approx(wanted, abs=0.012)
    assert masked == pytest.approx(0.8, abs=0.025)
    assert changed == pytest.approx(0.1 * (1 - 1 / (V - SPECIALS)), abs=0.018)
    counts = np.bincount(chosen.sum(1).numpy(), minlength=3) / rows
    assert counts[2] == pytest.approx(6 * 0.15**2 * 0.85**2, abs=0.018)


def test_masks_differ_from_epoch_to_epoch_and_not_in_validation() -> None:
    tokens = np.arange(SPECIALS, SPECIALS + 40)
    one, two = (objective().collate([example(tokens, seed)]).tokens_BT for seed in (0, 1))
    assert not torch.equal(one, two)
    first, second = (objective().collate_validation([(tokens, 1)]).tokens_BT for _ in range(2))
    assert torch.equal(first, second)


def test_lengths_of_spans_are_geometric() -> None:
    """Joshi et al. 2020: p = 0.2, cut off at 10, mean about 3.8."""
    spans, rng = SpanMasking(), np.random.default_rng(0)
    places = np.arange(100_000)
    chosen = np.sort(select_positions(places, 0.02, spans, rng))
    runs = np.diff(np.flatnonzero(np.concatenate(([True], np.diff(chosen) > 1, [True]))))
    shares = Counter(runs.tolist())
    weights = {k: 0.2 * 0.8 ** (k - 1) for k in range(1, 11)}
    for length in (1, 2, 3, 5):
        wanted = weights[length] / sum(weights.values())
        assert shares[length] / len(runs) == pytest.approx(wanted, abs=0.05)
    assert runs.mean() == pytest.approx(3.8, abs=0.4)


WORDS = {
    "bpe": BpeTokenizer(vocab_size=320),
    "wordpiece": WordPieceTokenizer(kind="wordpiece", vocab_size=120),
    "char": CharTokenizer(kind="char"),
    "word": WordTokenizer(kind="word", vocab_size=60),
}
SAID = "The rabbit's 12 carrots, Größe (and\nmore) résumés: мир? rabbits rabbited on "
LEARNT = {name: Tokenizer.train(spec, [SAID * 4]) for name, spec in WORDS.items()}


def of_words(name: str, **changes: Any) -> Any:
    tokenizer = LEARNT[name]
    vocabulary = replace(
        VocabularyInfo.from_tokenizer(tokenizer, None),
        word_continuations_2V=tokenizer.find_continuing_and_continuable_tokens(),
    )
    return MaskedObjective(Masked.model_validate({"kind": "masked", "whole_words": True} | changes), vocabulary)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("changes", [{}, {"independent": True}, {"spans": {"p": 0.5, "max_length": 3}}])
@settings(max_examples=12)
@given(texts=st.lists(st.sampled_from([*SAID.split(), *SAID, "\n", "r", "x-ray"]), min_size=1), seed=st.integers(0, 99))
def test_all_tokens_of_a_word_are_masked_replaced_or_kept_together(
    name: str, changes: dict[str, Any], texts: list[str], seed: int
) -> None:
    """Against the words of the text itself."""
    text, own = " ".join(texts), of_words(name, rate=0.4, mask_share=0.5, random_share=0.25, **changes)
    ids, places = LEARNT[name].encode_with_offsets(text)
    words = reference_masking.words(text, places, [i in own.vocabulary.specials for i in ids])
    batch = own.collate([example(np.array(ids, dtype=np.int64), seed)])
    read, targets = batch.tokens_BT[0, 1:-1].tolist(), batch.targets_BT[0, 1:-1].tolist()
    chosen = []
    for word in words:
        assert len({targets[t] != IGNORE for t in word}) <= 1
        assert len({read[t] == own.vocabulary.mask for t in word}) <= 1
        chosen += [word] if targets[word[0]] != IGNORE else []
    assert sum(map(len, chosen)) == sum(target != IGNORE for target in targets)
    if not changes.get("independent") and words:
        assert len(chosen) == max(1, round(0.4 * len(words)))
        masked = [word for word in chosen if read[word[0]] == own.vocabulary.mask]
        assert abs(len(masked) - 0.5 * len(chosen)) < 1


def test_a_word_ends_with_the_first_of_two_texts() -> None:
    own = of_words("char", rate=0.01)
    a = np.array(LEARNT["char"].encode("rabbit"), dtype=np.int64)
    for seed in range(20):
        batch = own.collate([Example(a, np.random.default_rng(seed), second=a)])
        assert batch.n_targets == len(a)


def test_words_of_a_tokenizer_without_marks_are_refused() -> None:
    config = json.loads(LEARNT["wordpiece"].to_json())
    config["model"]["continuing_subword_prefix"] = ""
    unmarked = Tokenizer.from_json(json.dumps(config).encode())
    recipe = load("roberta-tiny", ["objective.whole_words=true"]).recipe
    with pytest.raises(UsageError) as caught:
        build_objective(recipe, unmarked)
    assert caught.value.where == "objective.whole_words"
    assert isinstance(build_objective(recipe, LEARNT["wordpiece"]), MaskedObjective)


def encoder() -> Any:
    return tiny.model(shape="encoder", vocab_size=V, position={"kind": "rotary"})


def test_pseudo_likelihood_masks_one_token_at_a_time() -> None:
    model, own = encoder(), objective()
    texts = [np.array([BOS, 9, 30, 12, EOS]), np.array([8, 55, 21])]

    def log_p(row: list[int], t: int) -> Any:
        return model.logits(model(Batch(torch.tensor([row]))).hidden_BTD).detach().log_softmax(-1)[0, t]

    found = own.score_text(model, own.collate_for_scoring([(text, 1) for text in texts]))
    rows, scored = [[CLS, *text.tolist(), SEP] for text in texts], [(2, 3, 4), (2, 3)]
    wanted = sum(reference.pseudo_nll(log_p, row, MASK, places) for row, places in zip(rows, scored, strict=True))
    assert int(found.count) == 5
    assert float(found.total.detach()) == pytest.approx(wanted, rel=1e-6)


def test_the_longest_rows_fill_the_context() -> None:
    own, of_pairs = objective(), objective(next_sentence=True)
    tokens = np.arange(own.max_scored_tokens(16) + 1) + SPECIALS
    cut = of_pairs.choose_text_cut(16)
    assert cut.unit == "pair"
    measured = (own.collate_for_scoring([(tokens, 1)]), own.collate_validation([(tokens, 1)]))
    for batch in (*measured, of_pairs.collate([pair(5, cut.length - 5, True)])):
        assert batch.tokens_BT.shape == (1, 16)


# Boundaries of spans

SPANS = {"spans": {"p": 0.3, "max_length": 4}, "span_boundary": True, "rate": 0.4}
SPANBERT: dict[str, dict[str, Any]] = {
    "as bert": {**tiny.BERT, "next_sentence_head": False, "span_boundary_head": True},
    "untied": {"shape": "encoder", "tie_embeddings": False, "span_boundary_head": True},
    "narrow": {"shape": "encoder", "embedding_width": 6, "head_transform": True, "span_boundary_head": True},
}


def of_spans() -> Any:
    rng = np.random.default_rng(3)
    return objective(**SPANS).collate([example(rng.integers(SPECIALS, V, n), i) for i, n in enumerate((12, 5, 17, 1))])


@pytest.mark.parametrize("name", SPANBERT)
def test_the_loss_from_the_boundaries_of_spans_is_added(name: str) -> None:
    batch = of_spans()
    model: Any = tiny.model(vocab_size=V, **SPANBERT[name])
    head = model.span_boundary
    of = {"places": head.positions.weight.tolist()}
    for part in ("inner", "outer"):
        dense, norm = getattr(head, part), getattr(head, f"{part}_norm")
        of |= {f"{part}.matrix": dense.weight.tolist(), f"{part}.bias": [dense.bias.tolist()]}
        of |= {f"{part}.gain": [norm.weight.tolist()], f"{part}.shift": [norm.bias.tolist()]}
    matrix = model.head.own if name == "untied" else model.inputs.tokens.weight
    bias = torch.zeros(V, dtype=torch.float64) if model.head.bias is None else model.head.bias
    output = torch.cat((matrix, bias[:, None]), 1).tolist()
    states = model(batch).hidden_BTD.tolist()
    wanted: Any = sum(
        reference_masking.span_boundary_loss(row, targets, of, output)
        for row, targets in zip(states, batch.targets_BT.tolist(), strict=True)
    )
    own, plain = objective(**SPANS), objective(**{**SPANS, "span_boundary": False})
    found, masked = own.loss(model, batch), plain.loss(model, batch)
    assert float((found.total - masked.total).detach()) == pytest.approx(wanted, rel=1e-9)
    assert int(found.count) == int(masked.count)
    torch.testing.assert_close(own.score(model, batch).total, plain.score(model, batch).total)


def test_a_head_of_boundaries_without_a_loss_is_not_trained() -> None:
    model: Any = tiny.model(vocab_size=V, **SPANBERT["as bert"])
    assert len(objective(**SPANS).unused_parameters(model)) == 0
    assert objective().unused_parameters(model) == list(model.span_boundary.parameters())
    with pytest.raises(ValueError, match="span_boundary_head"):
        objective(**SPANS).loss(bert(), of_spans())


# Permutations

PERMUTED: dict[str, dict[str, Any]] = {
    "bert": {**tiny.BERT, "next_sentence_head": False},
    "relative": {"shape": "encoder", "position": {"kind": "relative", "buckets": 6}},
    "disentangled": {"shape": "encoder", "position": {"kind": "disentangled", "max_distance": 5}},
}


@pytest.mark.parametrize("name", PERMUTED)
def test_two_streams_are_the_passes_of_the_order_one_by_one(name: str) -> None:
    model = tiny.model(vocab_size=V, **PERMUTED[name])
    plain = tiny.as_reference(model, tiny.spec(**PERMUTED[name]))
    own, rng = objective(permutation=True, rate=0.4), np.random.default_rng(0)
    texts = [rng.integers(SPECIALS, V, n) for n in (9, 4, 1)]
    batch = own.collate([example(text, i) for i, text in enumerate(texts)])
    wanted = 0.0
    for i, text in enumerate(texts):
        row, queries = [CLS, *text.tolist(), SEP], batch.targets_BT[i] != IGNORE
        order = batch.positions_BT[i][queries].tolist()
        assert len(set(order)) == len(order) == max(1, round(0.4 * len(text)))
        assert batch.targets_BT[i][queries].tolist() == [row[t] for t in order]
        assert batch.tokens_BT[i, : len(row)].tolist() == row
        wanted += plain.permuted(row, order, MASK)
    assert float(own.loss(model, batch).total.detach()) == pytest.approx(wanted, rel=1e-9)
    measured = own.score_text(model, own.collate_for_scoring([(texts[0], 0), (texts[1], 1)]))
    scored = [(texts[0], range(1, 10)), (texts[1], range(2, 5))]
    each = (plain.permuted([CLS, *text.tolist(), SEP], [t], MASK) for text, places in scored for t in places)
    assert float(measured.total.detach()) == pytest.approx(sum(each), rel=1e-6)
    assert int(measured.count) == 12


def test_orders_are_new_each_time_and_of_words_spans_and_any_share() -> None:
    tokens = np.arange(SPECIALS, SPECIALS + 20)
    for changes in ({}, {"spans": {"p": 0.3}}, {"independent": True}):
        batches = [
            objective(permutation=True, rate=0.5, **changes).collate([example(tokens, seed)]) for seed in (0, 0, 1)
        ]
        one, same, other = (batch.targets_BT[batch.targets_BT != IGNORE].tolist() for batch in batches)
        assert one == same != other
        assert sorted(one) != one
    # every order of two tokens is as frequent
    first = [objective(permutation=True, rate=0.9).collate([example(tokens[:2], s)]).targets_BT for s in range(400)]
    assert sum(int(targets[targets != IGNORE][0]) == tokens[0] for targets in first) / 400 == pytest.approx(
        0.5, abs=0.1
    )


# Next sentences


def pair(first: int, second: int, follows: bool, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    texts = (rng.integers(SPECIALS, V, n) for n in (first, second))
    return Example(next(texts), rng, second=next(texts), second_follows=follows)


def bert() -> Any:
    return tiny.model(**tiny.BERT, vocab_size=V)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_rows_of_two_texts(lengths: list[tuple[int, int]]) -> None:
    examples = [pair(*length, follows=i % 2 == 0, seed=i) for i, length in enumerate(lengths)]
    texts = [(e.tokens.tolist(), e.second.tolist()) for e in examples]
    batch = objective(next_sentence=True, rate=0.3).collate(examples)
    assert batch.labels_B.tolist() == [int(e.second_follows) for e in examples]
    T = max(first + second for first, second in lengths) + 3
    for i, (first, second) in enumerate(texts):
        truth = [CLS, *first, SEP, *second, SEP]
        row, targets = batch.tokens_BT[i].tolist(), batch.targets_BT[i].tolist()
        assert len(row) == T
        assert [target if target != IGNORE else token for token, target in zip(row, targets, strict=True)] == [
            *truth,
            *[PAD] * (T - len(truth)),
        ]
        for place in (0, len(first) + 1, *range(len(truth) - 1, T)):
            assert targets[place] == IGNORE
        assert sum(target != IGNORE for target in targets) == max(1, round(0.3 * (len(first) + len(second))))
        assert batch.segments_BT[i, : len(truth)].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        kept = [True] * T if batch.keep_BT is None else batch.keep_BT[i].tolist()
        assert kept == [place < len(truth) for place in range(T)]


def test_whether_a_text_follows_is_added_to_the_loss() -> None:
    model, own = bert(), objective(next_sentence=True, rate=0.4)
    batch = own.collate([pair(4, 6, True), pair(3, 2, False, 1), pair(8, 5, False, 2)])
    hidden = model(batch).hidden_BTD.detach()
    logits = tiny.array(model.logits(hidden))
    scores = tiny.array(model.next_sentence_logits(hidden))
    targets, labels = batch.targets_BT.tolist(), batch.labels_B.tolist()
    loss, score = own.loss(model, batch), own.score(model, batch)
    masked, both = reference.masked_and_next(logits, targets, scores, labels, IGNORE)
    assert float(loss.total.detach()) == pytest.approx(both, rel=1e-9)
    assert float(score.total.detach()) == pytest.approx(masked, rel=1e-9)
    assert int(loss.count) == int(score.count) == batch.n_targets
    right, rows = score.metrics["next-sentence-accuracy"]
    assert (int(right), rows) == (sum(scores[i].argmax() == labels[i] for i in range(3)), 3)
    assert list(score.metrics) == list(own.metric_names)
