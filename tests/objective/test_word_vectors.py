"""CBOW, GloVe and PPMI against loops: what they count, their losses and vectors."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.batch import IGNORE, Batch
from lmtool.model import build
from lmtool.model.word_vectors import GloveModel, PpmiModel, factorize_by_truncated_svd
from lmtool.objective import Example, TextCutSettings, VocabularyInfo
from lmtool.objective import build_objective_for_vocabulary as build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Glove, Ppmi, SkipGram
from lmtool.training.cooccurrences import CooccurrenceExamples
from lmtool.training.windows import Windows
from tests.reference import vectors as reference
from tests.support.examples import examples
from tests.support.training import MemoryStore
from tests.support.word_vectors import BOS, COUNTS, EOS, SPECIALS, TEXT, UNK, WORDS, V, counted, randomised

EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
VOCABULARY = VocabularyInfo(V, 0, BOS, EOS, 4, 5, 6, (BOS,), (), frozenset(range(SPECIALS)), COUNTS)
MODELS = {"cbow": "skipgram", "glove": "glove", "cooccurrence": "ppmi"}
documents = st.lists(
    st.lists(st.sampled_from([UNK, *WORDS]), max_size=12).map(lambda words: [BOS, *words, EOS]), min_size=1, max_size=5
)


def objective(kind: str, **keys: Any) -> Any:
    recipe = {"model": {"kind": MODELS[kind]}, "training": {"steps": 1, "batch_size": 1}}
    return build_objective(Recipe.model_validate(recipe | {"objective": {"kind": kind, **keys}}), VOCABULARY)


def example(tokens: list[int]) -> Example:
    return Example(np.array(tokens, dtype=np.int64), np.random.Generator(np.random.PCG64(0)))


@settings(max_examples=30, deadline=None)
@given(rows=documents, window=st.integers(1, 4), parts=st.integers(1, 4))
def test_pairs_are_counted_within_windows_and_documents(rows: list[list[int]], window: int, parts: int) -> None:
    """In any parts of the text; special tokens keep their place and are in no pair."""
    model = counted(rows, window, parts=parts)
    found = {divmod(key, V): x for key, x in zip(model.keys_P.tolist(), model.sums_P.tolist(), strict=True)}
    assert found == reference.cooccurrences(rows, WORDS, window, by_distance=False)
    assert int(model.n_read) == sum(map(len, rows))


@settings(max_examples=examples(15, 30), deadline=None)
@given(rows=documents, window=st.integers(1, 4))
def test_glove_counts_by_distance_and_reads_every_pair_once_an_epoch(rows: list[list[int]], window: int) -> None:
    expected = reference.cooccurrences(rows, WORDS, window, by_distance=True)
    if not expected:
        return
    store: Any = MemoryStore(rows)
    text = Windows(store, TextCutSettings("stream", 1, 1), 1)
    pairs = CooccurrenceExamples(text, np.isin(np.arange(V), [*WORDS]), window, 1, seed=3)
    assert pairs.examples_per_epoch == len(expected)
    epochs: list[Any] = []
    for start in (0, len(expected)):
        every: list[Any] = pairs.read(np.arange(start, start + len(expected)))
        epochs.append([(int(one.tokens[0]), int(one.second[0]), float(one.label[0])) for one in every])
    for epoch in epochs:
        assert {(i, j): x for i, j, x in epoch} == pytest.approx(expected)
    assert pairs.read(np.array([1]))[0].tokens == epochs[0][1 % len(expected)][0]


def test_vectors_are_factors_of_positive_pmi() -> None:
    """Of full rank their products are PPMI, of a lower rank the nearest matrix of that rank."""
    model = counted(TEXT, 2)
    expected = reference.ppmi(reference.cooccurrences(TEXT, WORDS, 2, by_distance=False), V)
    u, s, v = np.linalg.svd(expected)
    found = (model.words_VD @ model.contexts_VD.T).double().numpy()
    np.testing.assert_allclose(found, (u[:, :6] * s[:6]) @ v[:6], atol=1e-5)
    assert model.words_VD.shape == (V, 6)
    wide = PpmiModel(Ppmi(kind="ppmi", d_model=30, window=2), V)
    wide.counts_V[SPECIALS:] = 1
    store: Any = MemoryStore(TEXT)
    wide.partial_fit_([Windows(store, TextCutSettings("stream", 1, 1), 1).read_span(0, 21, 2)], 21)
    np.testing.assert_allclose((wide.words_VD @ wide.contexts_VD.T).numpy(), expected, atol=1e-5)


def test_a_large_matrix_has_the_factors_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    dense = np.maximum(0, rng.normal(size=(60, 60)))
    rows, columns = dense.nonzero()
    arguments = rows, columns, dense[rows, columns], 60, 5
    small = factorize_by_truncated_svd(*arguments)
    monkeypatch.setattr("lmtool.model.word_vectors.MAX_DENSE_WORDS", 20)
    for one, other in zip(small, factorize_by_truncated_svd(*arguments), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_context_words_have_the_probability_of_the_factors() -> None:
    model = counted(TEXT, 2)
    log_p = model.token_log_probs(model(Batch(torch.tensor([[8]]))).hidden_BTD, torch.tensor([[9]]))
    counts = reference.cooccurrences(TEXT, WORDS, 2, by_distance=False)
    share = np.array([sum(x for (_, j), x in counts.items() if j == word) + 1 for word in range(V)])
    scores = np.log(share) + model.contexts_VD.double().numpy() @ model.words_VD[8].double().numpy()
    assert float(log_p) == pytest.approx(scores[9] - np.log(np.exp(scores).sum()), abs=1e-5)


def test_glove_is_weighted_least_squares_of_logarithms() -> None:
    model = randomised(GloveModel(Glove(kind="glove", d_model=5), V))
    pairs = [(7, 8, 0.5), (9, 7, 250.0), (8, 8, 99.0), (12, 9, 3.0)]
    words, contexts, counts = (np.array(column) for column in zip(*pairs, strict=True))
    rng = np.random.default_rng(0)
    spec = objective("glove", x_max=100.0, power=0.75)
    batch = spec.collate([Example(words, rng, second=contexts, label=counts)])
    loss = spec.loss(model, batch)
    w, u = (table.weight.detach().numpy() for table in (model.centres, model.neighbours))
    b, c = (bias.detach().numpy() for bias in (model.centre_bias_V, model.neighbour_bias_V))
    assert int(loss.count) == 4
    assert float(loss.total.detach()) == pytest.approx(reference.glove(w, u, b, c, pairs, 100.0, 0.75), rel=1e-6)
    np.testing.assert_allclose(model.token_vectors().detach().numpy(), w + u)
    loss.total.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["glove", "cooccurrence"])
def test_both_are_evaluated_by_the_softmax_over_context_words(kind: str) -> None:
    model = counted(TEXT, 5).double() if kind == "cooccurrence" else randomised(GloveModel(Glove(kind="glove"), V))
    spec = objective(kind)
    batch = spec.collate_for_scoring([(np.array([BOS, 7, 8, 9, EOS]), 1)])
    assert batch.negatives_BK is None
    found = spec.score(model, batch)
    total = 0.0
    for (word,), row in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
        log_p = model.logits(model(Batch(torch.tensor([[word]]))).hidden_BTD[0, 0]).log_softmax(-1)
        total -= sum(float(log_p[context].detach()) for context in row if context != IGNORE)
    assert float(found.total.detach()) == pytest.approx(total)


@pytest.mark.parametrize("negatives", [0, 2])
def test_cbow_predicts_a_word_from_the_mean_of_its_context(negatives: int) -> None:
    model: Any = randomised(build(SkipGram(kind="skipgram", d_model=5), V))
    spec = objective("cbow", negatives=negatives, subsample=0.0, window=2)
    batch = spec.collate([example([BOS, 7, 8, UNK, 9, 7, EOS, BOS, 12, EOS])])
    loss = spec.loss(model, batch)
    windows = []
    for i, (word,) in enumerate(batch.targets_BT.tolist()):
        context = [o for o, keep in zip(batch.tokens_BT[i].tolist(), batch.keep_BT[i].tolist(), strict=True) if keep]
        assert (word == IGNORE) == (not context)
        if context:
            windows.append((word, context, None if batch.negatives_BK is None else batch.negatives_BK[i].tolist()))
    assert [word for word, *_ in windows] == [7, 8, 9, 7]  # the twelve is alone
    v, u = (table.weight.detach().numpy() for table in (model.centres, model.neighbours))
    assert int(loss.count) == 4
    assert float(loss.total.detach()) == pytest.approx(reference.cbow(v, u, windows), rel=1e-9)
    loss.total.backward()
    by_centre = model.centres.weight.grad
    assert {i for i in range(V) if by_centre[i].any()} == {o for _, context, _ in windows for o in context}
