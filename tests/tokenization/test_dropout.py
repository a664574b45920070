"""BPE dropout: other segmentations of the same text, as often as is said, and the same ones for the same generator."""

import numpy as np
import pytest

from lmtool.tokenization.merging import SEGMENTATIONS_PER_WORD, BpeDropout
from tests.support.texts import HOSTILE, prose
from tests.support.tokenizers import BPE, TOKENIZERS

TEXT = prose(4000)


def segmented(dropout: BpeDropout, text: str, seed: int = 0) -> list[int]:
    ids: list[int] = dropout(text, np.random.default_rng(seed)).tolist()
    return ids


@pytest.mark.parametrize("name", HOSTILE)
def test_any_segmentation_is_of_the_same_text(name: str) -> None:
    """Without dropout that of the tokenizer, and with all merges dropped bytes."""
    text = HOSTILE[name]
    assert segmented(BpeDropout(BPE, 0.0, 1), text) == BPE.encode(text)
    assert BPE.decode(segmented(BpeDropout(BPE, 0.3, 1), text)) == text
    in_bytes = segmented(BpeDropout(BPE, 1.0, 1), text)
    assert (BPE.decode(in_bytes), len(in_bytes)) == (text, len(text.encode()))


def test_a_single_merge_is_dropped_at_its_rate() -> None:
    """Of a word of two letters that are merged, the share of segmentations in two, over many seeds."""
    left, right = next(merge for merge in BPE.merges if all(len(x) == 1 and x.isascii() for x in merge))
    word = left + right
    assert len(BPE.encode(word)) == 1
    n, rate = 400, 0.3
    split = sum(len(segmented(BpeDropout(BPE, rate, seed), word)) == 2 for seed in range(n))
    assert abs(split / n - rate) < 5 * (rate * (1 - rate) / n) ** 0.5


def test_a_segmentation_depends_on_seed_and_generator_alone() -> None:
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


def test_only_tokenizers_with_merges_have_dropout() -> None:
    with pytest.raises(ValueError, match="kind char"):
        BpeDropout(TOKENIZERS["char"], 0.1, 1)
