"""Skip-gram: which pairs a text gives, and losses and gradients against loops and closed forms."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import IGNORE, Batch
from lmtool.errors import DataError
from lmtool.model import build
from lmtool.objective import Example, VocabularyInfo
from lmtool.objective import skipgram as module
from lmtool.objective.skipgram import SkipGramObjective
from lmtool.recipe.spec.objective import SkipGramPrediction
from lmtool.recipe.spec.words import SkipGram
from tests.reference import skipgram as reference

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
V, SPECIALS, BOS, EOS, UNK = 20, 7, 1, 2, 3
COUNTS = np.array([0, 9, 9, 50, 0, 0, 0, *range(1, 13), 0])


def objective(counts: Any = COUNTS, **keys: Any) -> SkipGramObjective:
    vocabulary = VocabularyInfo(V, 0, BOS, EOS, 4, 5, 6, (BOS,), (), frozenset(range(SPECIALS)), counts)
    return SkipGramObjective(SkipGramPrediction.model_validate({"kind": "skip-gram", **keys}), vocabulary)


def model(d_model: int = 5) -> Any:
    built = build(SkipGram(kind="skipgram", d_model=d_model), V).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return built


def example(tokens: list[int], seed: int = 0) -> Example:
    return Example(np.array(tokens, dtype=np.int64), np.random.Generator(np.random.PCG64(seed)))


def test_vectors_begin_within_half_of_one_over_their_width_as_in_word2vec() -> None:
    for weights in build(SkipGram(kind="skipgram", d_model=8), 500).state_dict().values():
        if weights.dim() == 2:
            torch.testing.assert_close(torch.stack(weights.aminmax()), torch.tensor([-1, 1]) / 16, rtol=0.01, atol=0)


def pairs_of(batch: Any) -> list[tuple[int, int]]:
    return [
        (int(centre), int(o))
        for (centre,), row in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)
        for o in row
        if o != IGNORE
    ]


texts = st.lists(st.sampled_from([BOS, EOS, UNK, *range(SPECIALS, V - 1)]), max_size=25)


def words_and_documents(tokens: list[int]) -> tuple[list[int], list[int]]:
    """The words of a text, without special tokens, and the number of the document of each."""
    places = [i for i, t in enumerate(tokens) if t >= SPECIALS]
    return [tokens[i] for i in places], [tokens[: i + 1].count(BOS) for i in places]


@settings(max_examples=60, deadline=None)
@given(tokens=texts, window=st.integers(1, 4), seed=st.integers(0, 99), fixed=st.booleans())
def test_pairs_are_those_of_the_windows(tokens: list[int], window: int, seed: int, fixed: bool) -> None:
    """Special tokens are skipped, documents do not mix, and a window from 1 to the maximum is drawn for each word."""
    words, documents = words_and_documents(tokens)
    reaches = np.random.Generator(np.random.PCG64(seed))
    reaches.random(len(words))  # what subsampling draws
    reach = reaches.integers(1, window, len(words), endpoint=True).tolist()
    batch: Any = objective(window=window, subsample=0.0, fixed=fixed).collate([example(tokens, seed)])
    expected = reference.window_pairs(words, documents, [window] * len(words) if fixed else reach)
    assert sorted(pairs_of(batch)) == sorted(expected)
    assert batch.n_targets == len(expected)


def test_noise_apart_is_that_of_the_other_words() -> None:
    tokens = [7, 18, 12] * 700
    batch: Any = objective(negatives=40, subsample=0.0, window=1, fixed=True, apart=True).collate([example(tokens)])
    for centre, near in ((7, {18, 12}), (18, {7, 12}), (12, {7, 18})):
        rows = (batch.tokens_BT[:, 0] == centre) & (batch.targets_BT != IGNORE).all(1)
        found = np.bincount(batch.negatives_BK[rows].flatten(), minlength=V) / batch.negatives_BK[rows].numel()
        mass = [0 if w < SPECIALS or w in near else COUNTS[w] ** 0.75 for w in range(V)]
        np.testing.assert_allclose(found, np.array(mass) / sum(mass), atol=0.012)
        assert not found[sorted(near)].any()


def test_where_all_words_are_neighbours_noise_is_as_ever() -> None:
    counts = np.where(np.isin(np.arange(V), (7, 8)), 5, 0)
    keys = {"subsample": 0.0, "window": 2, "fixed": True, "negatives": 3}
    tokens = [7, 8, 7, 8]
    apart: Any = objective(counts, apart=True, **keys).collate([example(tokens)])
    plain: Any = objective(counts, **keys).collate([example(tokens)])
    assert torch.equal(apart.negatives_BK, plain.negatives_BK)


def test_noise_has_the_power_of_the_counts_and_no_special_tokens() -> None:
    batch: Any = objective(negatives=40, subsample=0.0).collate([example([7, 8] * 1000)])
    found = np.bincount(batch.negatives_BK.flatten(), minlength=V) / batch.negatives_BK.numel()
    wanted = np.where(np.arange(V) >= SPECIALS, COUNTS**0.75, 0)
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=0.005)


def test_frequent_words_are_left_out_as_often_as_they_should() -> None:
    """sqrt(t / f) + t / f of the occurrences are kept (word2vec.c)."""
    t = 0.05
    tokens = list(range(SPECIALS, V - 1)) * 800
    batch: Any = objective(subsample=t, negatives=0).collate([example(tokens)])
    stayed = Counter(batch.tokens_BT[:, 0].tolist())
    for word in range(SPECIALS, V - 1):
        share = COUNTS[word] / COUNTS[SPECIALS:].sum()
        assert stayed[word] / 800 == pytest.approx(min(1, (t / share) ** 0.5 + t / share), abs=0.06)


def test_measuring_is_the_same_every_time_and_leaves_nothing_out() -> None:
    spans = [(np.array([BOS, 7, 8, 9, 10, EOS]), 1), (np.array([9, 8, 7]), 1)]
    one, two = (objective(subsample=1e-9).collate_for_scoring(spans) for _ in range(2))
    assert one.tokens_BT[:, 0].tolist() == [7, 8, 9, 10, 9, 8, 7]
    for name in ("targets_BT", "negatives_BK"):
        assert torch.equal(getattr(one, name), getattr(two, name))


BATCH: Any = Batch(
    torch.tensor([[7], [9], [7], [12]]),
    torch.tensor([[8, 9, IGNORE], [IGNORE, 7, IGNORE], [IGNORE, IGNORE, IGNORE], [7, 7, 12]]),
    negatives_BK=torch.tensor([[8, 15], [9, 9], [10, 11], [12, 7]]),
)


def assert_loss(negatives: int, wanted: Any, examples: Any) -> None:
    """Loss and gradients of BATCH are those of a plain reference."""
    built, batch = model(), BATCH if negatives else replace(BATCH, negatives_BK=None)
    loss: Any = objective(negatives=negatives).loss(built, batch)
    v, u = built.centres.weight.detach().numpy(), built.neighbours.weight.detach().numpy()
    expected, by_v, by_u = wanted(v, u, examples)
    assert int(loss.count) == 6
    torch.testing.assert_close(loss.total, torch.tensor(expected, dtype=torch.float64), **EXACT)
    loss.total.backward()
    torch.testing.assert_close(built.centres.weight.grad, torch.from_numpy(by_v), **EXACT)
    torch.testing.assert_close(built.neighbours.weight.grad, torch.from_numpy(by_u), **EXACT)


def test_softmax_is_minus_log_p_and_its_gradient_expected_less_observed() -> None:
    assert_loss(0, reference.full_softmax, pairs_of(BATCH))


@pytest.mark.parametrize("cached_rows", [1, 3, 256])
def test_negative_sampling_equals_loops_and_closed_form(cached_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CENTRES_PER_CHUNK", cached_rows)
    rows = zip(BATCH.tokens_BT.tolist(), BATCH.targets_BT.tolist(), BATCH.negatives_BK.tolist(), strict=True)
    triples = [(centre, o, noise) for (centre,), row, noise in rows for o in row if o != IGNORE]
    assert_loss(2, reference.negative_sampling, triples)


def test_a_batch_without_pairs_has_no_loss_and_no_gradient() -> None:
    built = model()
    for negatives in (0, 5):
        wanted = objective(negatives=negatives)
        loss: Any = wanted.loss(built, wanted.collate([example([BOS, EOS, UNK])]))
        assert (float(loss.total.detach()), int(loss.count)) == (0.0, 0)
        loss.total.backward()


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="no word"):
        objective(np.array([0, 5, 5, 70] + [0] * (V - 4)))
