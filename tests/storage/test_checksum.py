"""Checksums: damage of any byte is found, and contents are identified by published algorithms."""

import hashlib
import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lmtool.storage.checksum import (
    CHECKSUM_BLOCK_BYTES,
    prepend_checksum,
    sha256_of_json,
    verify_and_strip_checksum,
    xxh3_by_block,
)
from lmtool.storage.records import encode_with_checksum


@given(st.binary(min_size=1, max_size=40))
def test_content_comes_back_and_no_byte_may_change(content: bytes) -> None:
    raw = prepend_checksum(content)
    assert verify_and_strip_checksum(raw) == content
    for i in range(len(raw)):
        for damaged in (raw[:i], raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :]):
            with pytest.raises(ValueError, match="changed"):
                verify_and_strip_checksum(damaged)


@pytest.mark.parametrize("n_bytes", [0, 1, CHECKSUM_BLOCK_BYTES, CHECKSUM_BLOCK_BYTES + 1])
def test_each_block_has_a_checksum(n_bytes: int) -> None:
    content = bytes(range(256)) * (n_bytes // 256) + bytes(n_bytes % 256)
    blocks = [content[begin : begin + CHECKSUM_BLOCK_BYTES] for begin in range(0, n_bytes, CHECKSUM_BLOCK_BYTES)]
    assert xxh3_by_block(content) == [xxhash.xxh3_64(block).hexdigest() for block in blocks]


def test_a_json_value_is_identified_by_its_text() -> None:
    value = {"b": [1, None], "a": "é"}
    assert sha256_of_json(value) == hashlib.sha256(json.dumps(value).encode()).hexdigest()
    assert sha256_of_json(value) != sha256_of_json({"a": "é", "b": [1, None]})
    assert sha256_of_json(value, sort_keys=True) == sha256_of_json({"a": "é", "b": [1, None]}, sort_keys=True)


def test_a_json_file_states_the_checksum_of_its_other_values() -> None:
    """As docs/data.md describes it."""
    content = {"a": 1, "b": ["é"]}
    plain = json.dumps(content, indent=1).encode() + b"\n"
    with_checksum = content | {"checksum": xxhash.xxh3_64(plain).hexdigest()}
    assert encode_with_checksum(content) == json.dumps(with_checksum, indent=1).encode() + b"\n"
