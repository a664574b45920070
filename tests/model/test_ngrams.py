"""Embeddings of n-grams: which n-grams have one, that they are trained row by row, and what is refused."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.errors import RecipeError
from lmtool.model import build
from lmtool.model.layers.ngrams import FrequentNgramEmbedding, find_ngram_embeddings
from lmtool.recipe.spec.transformer import FrequentNgramTable
from tests.support import tiny
from tests.support.tiny import VOCAB


def table(**changes: Any) -> FrequentNgramEmbedding:
    return FrequentNgramEmbedding(FrequentNgramTable(**changes), 5, VOCAB)


def found_in(tokens: list[int], longest: int, min_count: int) -> Counter[tuple[int, ...]]:
    """How often each frequent n-gram is in a text."""
    counts = Counter(tuple(tokens[i : i + n]) for n in range(2, longest + 1) for i in range(len(tokens) - n + 1))
    return Counter({ngram: count for ngram, count in counts.items() if count >= min_count})


def entries(embedding: FrequentNgramEmbedding) -> set[tuple[int, ...]]:
    """The n-grams of 2 and 3 tokens that have an entry: by their rows alone, all others being zero."""
    pairs = torch.cartesian_prod(*[torch.arange(VOCAB)] * 2)
    triples = torch.cartesian_prod(*[torch.arange(VOCAB)] * 3)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(1.0, len(embedding.weight) + 1)[:, None].expand_as(embedding.weight))
        last, whole = (embedding(rows, torch.arange(rows.shape[1])[None])[:, -1, 0] for rows in (pairs, triples))
    has_triple = whole > last.repeat(VOCAB)
    return {tuple(row) for row in [*pairs[last > 0].tolist(), *triples[has_triple].tolist()]}


@pytest.mark.parametrize(("longest", "min_count"), [(2, 1), (2, 6), (3, 2)])
def test_the_frequent_ngrams_of_a_text_have_an_entry(longest: int, min_count: int) -> None:
    tokens = tiny.tokens(300, seed=3)
    embedding = table(entries=5000, longest=longest, min_count=min_count)
    embedding.select_ngrams_(tokens)
    wanted = set(found_in(tokens.tolist(), longest, min_count))
    assert entries(embedding) == wanted
    assert wanted


def test_of_too_many_ngrams_the_most_frequent_have_an_entry() -> None:
    tokens = tiny.tokens(500, seed=4)
    embedding = table(entries=12, longest=3, min_count=1)
    embedding.select_ngrams_(tokens)
    counts = found_in(tokens.tolist(), 3, 1)
    have = sorted((counts[ngram] for ngram in entries(embedding)), reverse=True)
    assert have == sorted(counts.values(), reverse=True)[:12]


def test_before_counting_no_ngram_has_an_entry() -> None:
    embedding = table()
    torch.nn.init.ones_(embedding.weight)
    assert not embedding(tiny.tokens(2, 9), torch.arange(9)[None]).any()


def test_ngrams_do_not_go_beyond_the_beginning_of_a_text() -> None:
    """Of two documents in a row, and of a row whose padding is on the left."""
    embedding = table(min_count=1)
    embedding.select_ngrams_(tiny.tokens(400))
    torch.nn.init.normal_(embedding.weight)
    text = tiny.tokens(1, 8, seed=1)
    alone = embedding(text[:, 3:], torch.arange(5)[None])
    in_a_row = embedding(text, torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]))[:, 3:]
    assert torch.equal(alone, in_a_row)
    assert not torch.equal(alone, embedding(text, torch.arange(8)[None])[:, 3:])


def test_embeddings_of_ngrams_change_nothing_at_first() -> None:
    """They begin at zero, and draw no random numbers."""
    torch.manual_seed(0)
    with_them = build(tiny.spec(ngram_embedding={}, position={"kind": "none"}), VOCAB)
    torch.manual_seed(0)
    without = build(tiny.spec(position={"kind": "none"}), VOCAB)
    (ngrams,) = find_ngram_embeddings(with_them)
    ngrams.select_ngrams_(tiny.tokens(400))
    batch = Batch(tiny.tokens(2, 9))
    assert torch.equal(with_them(batch).hidden_BTD, without(batch).hidden_BTD)


@pytest.mark.parametrize("shape", ["encoder", "encoder-decoder", "prefix"])
def test_only_decoders_have_embeddings_of_ngrams(shape: str) -> None:
    with pytest.raises(ValueError, match=f"ngram_embedding is for shape decoder, not for shape {shape}"):
        tiny.spec(shape=shape, ngram_embedding={})


def test_a_key_has_63_bits_at_most() -> None:
    largest = math.isqrt(2**63 - 1) - 1
    with torch.device("meta"), pytest.raises(RecipeError, match="longest: 3 is too long for a vocabulary of 3,"):
        build(tiny.spec(ngram_embedding={}), largest)
    pairs = FrequentNgramEmbedding(FrequentNgramTable(longest=2, entries=8), 1, largest)
    pairs.select_ngrams_(torch.tensor([largest - 1] * 9))
    torch.nn.init.ones_(pairs.weight)
    tokens = torch.tensor([[largest - 1, largest - 1, largest - 2]])
    assert pairs(tokens, torch.arange(3)[None])[0, :, 0].tolist() == [0.0, 1.0, 0.0]


def test_gradients_are_those_of_the_rows_alone() -> None:
    """Sparse on a CPU: of a text of one n-gram, a number for each time it occurs."""
    embedding = table(entries=40, longest=2, min_count=1)
    embedding.select_ngrams_(tiny.tokens(60, seed=2))
    pair_11 = tiny.tokens(60, seed=2)[None, 7:9]
    twice = torch.cat((pair_11, pair_11))
    (grad,) = torch.autograd.grad(embedding(twice, torch.arange(2)[None]).sum(), embedding.weight)
    assert grad.is_sparse
    key = (int(pair_11[0, 0]) + 1) * (VOCAB + 1) + int(pair_11[0, 1]) + 1
    wanted = torch.where(embedding.keys_K == key, 2.0, 0.0)[:, None].expand(40, 5)
    assert torch.equal(grad.to_dense(), wanted)
    assert wanted.any()
