"""Seeded mutations of valid files: of their bytes, of their lines, and of the values of JSON."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

ODD_BYTES = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b"\t", b"\x1b[2J"),
    *(b"\xed\xa0\x80", b"\xf0\x9f\x8c\x99"),
    *b"\" ' \\ , ; : { } [ ] ( &a *a !!python/none % # |".split(),
    *b"{{ }} {% %} null true .nan -.inf NaN Infinity -1 0 1e999".split(),
    *(b"9" * 5000, b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"-" + b"9" * 25),
    *(b"a" * 3000, b"[" * 2000, b"{" * 500),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf")),
    *("", " ", "\0", "a" * 3000, "\ud800", "[PAD]", "../../etc/passwd", "1", "null"),
    *([], {}, [[]], [None], [-1], {"": None}, {"kind": "x"}, {"type": "x"}, [0] * 100, ["a", 1, None]),
    {"a": {"b": {"c": []}}},
)


def mutated(seeds: Sequence[bytes], draw: random.Random) -> bytes:
    """One of the valid files with one to eight mutations."""
    content = draw.choice(seeds)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5, 8))):
        content = draw.choice(_KINDS)(content, draw, seeds)
    return content[:900_000]


def _bits(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    changed = bytearray(content or b"\0")
    for _unused in range(draw.choice((1, 1, 4, 32))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _header_bits(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    """Both ends, where binary formats say what comes."""
    changed = bytearray(content or b"\0")
    at = draw.randrange(min(len(changed), 256))
    changed[at if draw.random() < 0.7 else -1 - at] = draw.randrange(256)
    return bytes(changed)


def _inserted(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    at = draw.randint(0, len(content))
    return content[:at] + draw.choice(ODD_BYTES) + content[at + draw.choice((0, 0, 1, 8)) :]


def _number(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    """Eight bytes that are a little-endian integer, as of lengths and offsets."""
    at = draw.randint(0, max(0, min(len(content), 4096) - 8))
    size = draw.choice((1, 2, 4, 8))
    value = draw.choice((0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1))
    return content[:at] + (value % (1 << 8 * size)).to_bytes(size, "little") + content[at + size :]


def _truncated(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    return content[: draw.randint(0, len(content))]


def _deleted(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    start = draw.randint(0, len(content))
    return content[:start] + content[start + draw.choice((1, 2, 8, 64, 512)) :]


def _repeated(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    start = draw.randint(0, len(content))
    part = content[start : start + draw.choice((1, 4, 32, 256))]
    return content[:start] + part * draw.choice((2, 3, 50, 1000)) + content[start:]


def _spliced(content: bytes, draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    other = draw.choice(seeds)
    return content[: draw.randint(0, len(content))] + other[draw.randint(0, len(other)) :]


def _lines(content: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            lines[i], lines[j] = lines[j], lines[i]
        case 1:
            del lines[i]
        case 2:
            lines.insert(i, lines[j])
        case 3:
            # another value of the same key
            key, colon, _rest = lines[i].partition(b":")
            lines[i] = key + colon + b" " + draw.choice(ODD_BYTES)
    return b"\n".join(lines)


def _json(content: bytes, draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Another value, or none, at a place of a JSON document or of one of its lines."""
    lines = content.split(b"\n") if draw.random() < 0.5 else [content]
    i = draw.randrange(len(lines))
    try:
        document = json.loads(lines[i])
    except (ValueError, RecursionError):
        return _bits(content, draw, seeds)
    try:
        lines[i] = json.dumps(_changed(document, draw, 0)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return _bits(content, draw, seeds)
    return b"\n".join(lines)


def _changed(value: Any, draw: random.Random, depth: int) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        match draw.randrange(10):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {draw.choice(("x", "", key + "x")) if k == key else k: v for k, v in value.items()}
        return value | {key: _changed(value[key], draw, depth + 1)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        i = draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                return value[:i] + value[i + 1 :]
            case 1:
                return [*value, value[i]]
        return [*value[:i], _changed(value[i], draw, depth + 1), *value[i + 1 :]]
    return draw.choice(ODD_VALUES)


_KINDS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    *(_bits, _header_bits, _inserted, _inserted, _number, _truncated, _deleted, _repeated, _spliced, _lines),
    *(_json, _json, _json),
)
