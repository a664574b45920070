"""Checksums of files: XXH3 with 64 bits finds damage, SHA-256 identifies contents."""

import hashlib
import json
from pathlib import Path

import xxhash

from lmtool.storage import durable

CHECKSUM_BLOCK_BYTES = 1 << 20
"""Bytes that share one checksum of `xxh3_by_block`."""


def xxh3(content: bytes | bytearray | memoryview) -> str:
    """Returns the XXH3 checksum of 64 bits as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(content)


def xxh3_by_block(content: bytes | bytearray | memoryview) -> list[str]:
    """Returns the XXH3 checksum of each block of CHECKSUM_BLOCK_BYTES; the last one may be shorter."""
    return [
        xxh3(content[begin : begin + CHECKSUM_BLOCK_BYTES]) for begin in range(0, len(content), CHECKSUM_BLOCK_BYTES)
    ]


def prepend_checksum(content: bytes) -> bytes:
    """Returns the content after a first line with its XXH3 checksum."""
    return f"{xxh3(content)}\n".encode() + content


def verify_and_strip_checksum(raw: bytes) -> bytes:
    """Returns the content that `prepend_checksum` was given. Raises ValueError when it has changed since."""
    stated, _, content = raw.partition(b"\n")
    if stated != xxh3(content).encode():
        raise ValueError("has changed since it was written")
    return content


def sha256(content: bytes) -> str:
    """Returns the SHA-256 checksum in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_json(value: object, *, sort_keys: bool = False) -> str:
    """Returns the SHA-256 checksum of a value as JSON."""
    return sha256(json.dumps(value, sort_keys=sort_keys).encode())


def sha256_of_file(path: Path) -> str:
    """Returns the SHA-256 checksum of a regular file. Raises OSError."""
    with durable.open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
