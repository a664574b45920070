"""Checksums of what is kept: XXH3, 64 bits, finds damage; SHA-256 names contents."""

import hashlib
import json
from pathlib import Path

import xxhash

from lmtool import durable

BLOCK = 1 << 20
"""Bytes of a block that has a checksum."""


def xxh3(content: bytes | bytearray | memoryview) -> str:
    """XXH3, 64 bits, as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(content)


def xxh3_of_blocks(content: bytes | bytearray | memoryview) -> list[str]:
    """XXH3 of each block; the last one may be short."""
    return [xxh3(content[begin : begin + BLOCK]) for begin in range(0, len(content), BLOCK)]


def with_xxh3(content: bytes) -> bytes:
    """A file whose first line is the checksum of what follows."""
    return f"{xxh3(content)}\n".encode() + content


def without_xxh3(raw: bytes) -> bytes:
    """The content of `with_xxh3`. Raises ValueError when it is not what was written."""
    stated, _, content = raw.partition(b"\n")
    if stated != xxh3(content).encode():
        raise ValueError("has changed since it was written")
    return content


def sha256(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_json(value: object, *, sort_keys: bool = False) -> str:
    """SHA-256 of a value as JSON."""
    return sha256(json.dumps(value, sort_keys=sort_keys).encode())


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a regular file. Raises OSError."""
    with durable.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
