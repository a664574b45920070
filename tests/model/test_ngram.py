"""The n-gram model against dictionaries and loops, and as a language model like any other."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmtool.batch import Batch
from lmtool.model import NGramModel, build
from lmtool.model import ngram as module
from lmtool.recipe.spec.words import NGram
from tests.reference.ngram import KneserNey, relative_frequency
from tests.support import tiny
from tests.support.chunks import quick
from tests.support.ngrams import BOS, VOCAB, counted, log_p, some_documents

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
orders = pytest.mark.parametrize("order", [1, 2, 5])
TEXTS = [*(document[:8] for document in some_documents()[:3]), [BOS, 4, 4, 4, 12, 3], [12, 0, 2, 2]]


def assert_probabilities(model: NGramModel, text: list[int], p_TV: list[list[float]]) -> None:
    """Of all tokens at once, and of each alone."""
    wanted = torch.tensor(p_TV, dtype=torch.float64).log()
    torch.testing.assert_close(log_p(model, text), wanted, **EXACT)
    hidden_BTC = model(Batch(torch.tensor([text]))).hidden_BTD
    for token in range(len(p_TV[0])):
        targets_BT = torch.full((1, len(text)), token)
        torch.testing.assert_close(model.token_log_probs(hidden_BTC, targets_BT)[0], wanted[:, token], **EXACT)


@orders
@pytest.mark.parametrize("kind", ["few", "without marks", "many"])
def test_probabilities_equal_the_plain_ones(order: int, kind: str) -> None:
    """Of many documents discounts are estimated, of few they are fixed."""
    documents, vocab_size = some_documents(), VOCAB
    if kind == "without marks":
        documents = [[t for d in documents for t in d[1:]]]
    elif kind == "many":
        documents, vocab_size = some_documents(400, vocab_size=60), 60
    model, plain = counted(documents, order, vocab_size), KneserNey(order, documents, vocab_size)
    assert kind != "many" or plain.discounts[order] != module.FALLBACK_DISCOUNTS
    for text in TEXTS if kind != "many" else [[BOS, 2, 3, 2, 5, 50]]:
        places = range(1, len(text) + 1)
        assert_probabilities(model, text, [[plain.probability(text[:n], w) for w in range(vocab_size)] for n in places])


@orders
@pytest.mark.parametrize("k", [0.0, 0.25])
def test_plain_and_add_k_probabilities_equal_the_formula(order: int, k: float) -> None:
    documents = some_documents()
    keys: dict[str, Any] = {"smoothing": "add-k", "k": k} if k else {"smoothing": "none"}
    model = counted(documents, order, cuts=(20, 50), **keys)
    for text in TEXTS:
        places = range(1, len(text) + 1)
        plain = [[relative_frequency(order, documents, VOCAB, text[:n], w, k) for w in range(VOCAB)] for n in places]
        assert_probabilities(model, text, plain)


@orders
@pytest.mark.parametrize("smoothing", ["kneser-ney", "none"])
def test_n_grams_never_counted_are_known(order: int, smoothing: str) -> None:
    documents = some_documents(20)
    model = counted(documents, order, smoothing=smoothing)
    seen = {
        tuple(document[max(0, end - n + 1) : end + 1])
        for document in documents
        for end in range(1, len(document))
        for n in range(1, order + 1)
    }
    for text in (text for text in TEXTS if len(text) > 1):
        inputs, targets = torch.tensor([text[:-1]]), torch.tensor([text[1:]])
        found = model.has_counted_targets(model(Batch(inputs)).hidden_BTD, targets)[0].tolist()
        assert found == [tuple(text[max(0, end - order + 1) : end + 1]) in seen for end in range(1, len(text))]


def test_before_anything_is_counted_all_tokens_are_alike() -> None:
    model = build(NGram(kind="ngram", order=3), VOCAB)
    assert isinstance(model, NGramModel)
    assert_probabilities(model, [2, 5, 3], [[1 / VOCAB] * VOCAB] * 3)


@orders
@quick
@given(cuts=st.sets(st.integers(1, 300), max_size=6), merge=st.sampled_from([1, 100, 10_000]))
def test_how_the_text_is_cut_changes_no_count(order: int, cuts: set[int], merge: int) -> None:
    documents = some_documents()
    cut = tuple(sorted(c for c in cuts if c < sum(map(len, documents))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_BUFFERED_NGRAMS", merge)
        parts = counted(documents, order, cuts=cut)
    whole = counted(documents, order)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_wide_vocabularies_are_packed_into_several_words() -> None:
    """Five ids of a vocabulary of ten million take 117 bits."""
    documents = some_documents(20)
    wide = [[token if token < 3 else 10_000_000 - token for token in document] for document in documents]
    model, plain = counted(wide, 5, 10_000_000), KneserNey(5, wide, 10_000_000)
    assert sorted(model.counts_G.tolist()) == sorted(counted(documents, 5).counts_G.tolist())
    text = wide[0]
    found = model.token_log_probs(model(Batch(torch.tensor([text]))).hidden_BTD, torch.tensor([text]))[0]
    expected = [math.log(plain.probability(text[: t + 1], text[t])) for t in range(len(text))]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("base", [2, 50_258, 10_000_001, 2**31 - 1])
def test_packed_n_grams_sort_as_their_tokens_do(base: int) -> None:
    """The highest ids, too, whose integers must not overflow."""
    rng = np.random.default_rng(0)
    grams_GN = (base - 2 - rng.integers(0, min(base, 4) - 1, (300, 9))).astype(np.int32)
    words = module._pack_ngrams_into_integers(grams_GN, base)
    assert all((word >= 0).all() for word in words)
    order_G = np.lexsort(words[::-1])
    assert grams_GN[order_G].tolist() == sorted(grams_GN.tolist())
    assert len(words) == -(-9 // int(63 / math.log2(base)))


def test_what_stands_before_a_document_does_not_count() -> None:
    """No n-gram crosses a [BOS], so earlier documents change nothing, also without document ids."""
    model = counted(some_documents(), 5)
    torch.testing.assert_close(log_p(model, [5, 3, 2, BOS, 4])[3:], log_p(model, [BOS, 4]), **EXACT)


def test_a_batch_without_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to count"):
        counted([[BOS, 2]], 2).partial_fit_([Batch(tiny.tokens(1, 3))], 3)
