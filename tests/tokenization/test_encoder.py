"""The fast encoders give the ids of the `tokenizers` library, whatever the text."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import models, pre_tokenizers

from lmtool.data.corpus import find_last_pretoken_boundary
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.tokenization.decoder import build_byte_alphabet
from lmtool.tokenization.encoder import make_equivalent_tiktoken_encoder, make_reference_encoder
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.examples import examples
from tests.support.texts import HOSTILE, prose
from tests.support.tokenizers import BPE, TOKENIZERS

# Trained on the adversarial texts, so that unusual merges exist.
ODD = Tokenizer.train(BpeTokenizer(vocab_size=1000), [*(text * 2 for text in HOSTILE.values()), prose(2000)])
NASTY = st.text(
    st.sampled_from("ab'st \n\t\r\v\u00a0\u3000\u0301\u00e9\u4e2d1²!_.\x1c\x85\ufeff😀\u200d[]<>"), max_size=30
)


def split(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    bounds = [0, *np.cumsum(lengths).tolist()]
    assert bounds[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(bounds)]


def is_fast(tokenizer: Tokenizer) -> bool:
    return "make_equivalent_tiktoken_encoder" in tokenizer._encoder.__qualname__


def test_byte_level_bpe_is_encoded_fast() -> None:
    assert is_fast(BPE)
    assert is_fast(ODD)


@pytest.mark.parametrize("tokenizer", [ODD, *TOKENIZERS.values()])
def test_texts_alone_and_together_have_the_ids_of_each(tokenizer: Tokenizer) -> None:
    texts = [*HOSTILE.values(), *prose(2000).split("\n")]
    for together in (texts, [" a", "b\n", ""], *([text] for text in HOSTILE.values())):
        assert split(*tokenizer.encode_many(together)) == [tokenizer.encode(text) for text in together]


@given(st.lists(st.one_of(NASTY, st.text(max_size=20)), min_size=1, max_size=5))
@settings(max_examples=examples(120, 300), deadline=None)
def test_any_texts_together(texts: list[str]) -> None:
    assert split(*ODD.encode_many(texts)) == [ODD.encode(text) for text in texts]


@given(st.one_of(NASTY, st.text()))
@settings(max_examples=300, deadline=None)
def test_a_safe_cut_changes_nothing(text: str) -> None:
    cut = find_last_pretoken_boundary(text)
    for tokenizer in ODD, TOKENIZERS["char"], TOKENIZERS["word-lower"], TOKENIZERS["wordpiece-lower"]:
        assert tokenizer.encode(text[:cut]) + tokenizer.encode(text[cut:]) == tokenizer.encode(text)


@pytest.mark.parametrize("run", [*(mark * 300_000 for mark in "a!7é日"), " " * 1_100_000], ids=lambda run: run[0])
def test_very_long_runs_of_one_character(run: str) -> None:
    """Of white space more than the limit of tiktoken."""
    text = f"x{run}y"
    assert split(*BPE.encode_many([text])) == [BPE.encode(text)]


@pytest.mark.slow
def test_both_libraries_class_all_characters_alike() -> None:
    """Letters, digits, white space and the rest: a merge with a leading x or 1 shows whether a character joins it."""
    names = {byte: name for name, byte in build_byte_alphabet().items()}
    vocabulary = {names[b]: b for b in range(256)}
    merges = [(names[lead], names[b]) for lead in b"x1!\n" for b in range(256)]
    for a, b in merges:
        vocabulary[a + b] = len(vocabulary)
    inner = Inner(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = build_byte_alphabet()
    pieces = [bytes(alphabet[c] for c in name) for name in vocabulary]
    encode = make_equivalent_tiktoken_encoder(inner, pieces, make_reference_encoder(inner))
    assert encode is not None
    # Planes 4 to 13 are unassigned, 15 and 16 private.
    points = [c for c in (*range(0xD800), *range(0xE000, 0x32400), *range(0xE0000, 0xE0200)) if chr(c) != "\v"]
    for i in range(0, len(points), 1 << 14):
        text = "".join(f"x{chr(c)}1{chr(c)}" for c in points[i : i + (1 << 14)])
        assert np.array_equal(encode([text])[0], inner.encode(text).ids)


def test_a_vocabulary_that_tiktoken_would_encode_otherwise_is_left_to_the_library() -> None:
    """Here "abc" was learned from (ab, c), but b and c merge first, so the library never forms it; tiktoken would."""
    names = [name for name, _ in sorted(build_byte_alphabet().items(), key=lambda item: item[1])]
    vocabulary = {name: i for i, name in enumerate([*names, "bc", "ab", "abc"])}
    inner = Inner(models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("ab", "c")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert inner.encode("abc").tokens == ["a", "bc"]
    alphabet = build_byte_alphabet()
    pieces = [bytes(alphabet[c] for c in name) for name in vocabulary]
    assert make_equivalent_tiktoken_encoder(inner, pieces, make_reference_encoder(inner)) is None
