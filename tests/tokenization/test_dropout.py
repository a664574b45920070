"""BPE dropout: other segmentations of the same text, as often as is said, and the same ones for the same generator."""

import numpy as np
import pytest

from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer
from lmtool.tokenization.merging import SEGMENTATIONS_PER_WORD, BpeDropout
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.texts import HOSTILE, prose

TEXT = prose(4000)
BPE = Tokenizer.train(BpeTokenizer(vocab_size=600), [TEXT])


def segmented(dropout: BpeDropout, text: str, seed: int = 0) -> list[int]:
    ids: list[int] = dropout(text, np.random.default_rng(seed)).tolist()
    return ids


@pytest.mark.parametrize("name", HOSTILE)
def test_any_segmentation_is_of_the_same_text(name: str) -> None:
    for rate in (0.0, 0.3, 1.0):
        assert BPE.decode(segmented(BpeDropout(BPE, rate, 1), HOSTILE[name])) == HOSTILE[name]


def test_without_dropout_it_is_that_of_the_tokenizer() -> None:
    dropout = BpeDropout(BPE, 0.0, 1)
    for text in (TEXT, *HOSTILE.values()):
        assert segmented(dropout, text) == BPE.encode(text)


def test_with_all_merges_dropped_it_is_bytes() -> None:
    assert len(segmented(BpeDropout(BPE, 1.0, 1), "größer")) == len("größer".encode())


@pytest.mark.slow
def test_a_single_merge_is_dropped_as_often_as_is_said() -> None:
    """Of a word of two letters that are merged, the share of segmentations in two, over many seeds."""
    left, right = next(merge for merge in BPE.merges if all(len(x) == 1 and x.isascii() for x in merge))
    word = left + right
    assert len(BPE.encode(word)) == 1
    n, rate = 2000, 0.3
    split = sum(len(segmented(BpeDropout(BPE, rate, seed), word)) == 2 for seed in range(n))
    assert abs(split / n - rate) < 5 * (rate * (1 - rate) / n) ** 0.5


def test_it_depends_on_seed_and_generator_alone() -> None:
    """Not on what was read before."""
    used = BpeDropout(BPE, 0.2, 1)
    for seed in range(20):
        segmented(used, TEXT[:500], seed)
    fresh = BpeDropout(BPE, 0.2, 1)
    assert segmented(used, TEXT[:300], 7) == segmented(fresh, TEXT[:300], 7)
    assert segmented(fresh, TEXT[:300], 7) != segmented(fresh, TEXT[:300], 8)
    assert segmented(fresh, TEXT[:300], 7) != segmented(BpeDropout(BPE, 0.2, 2), TEXT[:300], 7)


def test_a_word_has_many_segmentations() -> None:
    dropout = BpeDropout(BPE, 0.5, 1)
    word = max(TEXT.split(), key=len)
    found = {tuple(segmented(dropout, word, seed)) for seed in range(200)}
    assert 5 < len(found) <= SEGMENTATIONS_PER_WORD


def test_only_tokenizers_with_merges_have_it() -> None:
    with pytest.raises(ValueError, match="kind char"):
        BpeDropout(Tokenizer.train(CharTokenizer(kind="char"), ["abc"]), 0.1, 1)
