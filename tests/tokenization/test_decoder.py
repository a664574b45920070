"""Decoding token by token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner

from tests.support.tokenizers import BPE, TOKENIZERS


def streamed(name: str, ids: list[int]) -> list[str]:
    decoder = TOKENIZERS[name].make_stream_decoder()
    return [*map(decoder.push, ids), decoder.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None)
def test_the_parts_of_a_stream_are_the_decoding_and_the_characters_of_each_prefix_are_counted(
    name: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    parts = streamed(name, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    prefixes = [len(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]
    assert tokenizer.count_characters_of_decoded_prefixes(ids) == prefixes
    "".join(parts).encode()  # no half characters


@given(st.lists(st.integers(10, BPE.vocab_size - 1), max_size=40))
@settings(deadline=None)
def test_bytes_decode_as_in_the_library(ids: list[int]) -> None:
    assert BPE.decode(ids) == Inner.from_str(BPE.to_json()).decode(ids, skip_special_tokens=True)


def test_broken_utf8_becomes_replacement_characters() -> None:
    ids = BPE.encode("👍")[:-1]
    assert len(ids) > 1
    assert streamed("bpe", [*ids, *BPE.encode("x")])[-2:] == ["\ufffdx", ""]
    assert streamed("bpe", ids)[-1] == "\ufffd"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_give_no_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("the king")
    marked = [tokenizer.bos_id, *ids[:1], tokenizer.mask_id, tokenizer.sentinel_ids[0], *ids[1:], tokenizer.eos_id]
    assert tokenizer.decode(marked) == tokenizer.decode(ids) == "the king"
