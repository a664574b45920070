"""Read a SentencePiece model file: a protobuf of pieces with scores, and of how text is normalized before it is cut.

Only what tokenizers need is read. sentencepiece_model.proto of https://github.com/google/sentencepiece numbers the
fields, https://protobuf.dev/programming-guides/encoding describes the bytes.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmtool import durable
from lmtool.errors import CheckpointError

SPACE = "\u2581"
"""What stands for a space in pieces."""

LARGEST_FILE = 32 << 20
"""Bytes; the largest published models have 5 million."""

LONGEST_PIECE = 256
"""Characters; sentencepiece learns at most 16 unless told otherwise. Recovering merges is quadratic in it."""


class Algorithm(IntEnum):
    """How the pieces of a text are chosen; `trainer_spec.model_type`."""

    UNIGRAM = 1
    BPE = 2


class PieceRole(IntEnum):
    """What a piece stands for; `type` of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ScoredPiece(NamedTuple):
    """An entry of the vocabulary; its id is its place."""

    text: str
    score: float
    role: PieceRole


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a model file.

    An id is -1 where there is no such piece. charsmap: rules of normalization as a double-array trie, may be empty.
    """

    pieces: tuple[ScoredPiece, ...]
    byte_fallback: bool
    unk_id: int
    bos_id: int
    eos_id: int
    unk_piece: str
    bos_piece: str
    eos_piece: str
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def read_sentencepiece(path: Path, algorithm: Algorithm) -> SentencePieceModel:
    """Read a model file. Raises CheckpointError when it is missing, damaged, or of another algorithm."""
    try:
        return _model(memoryview(durable.read(path, LARGEST_FILE)), algorithm)
    except OSError as error:
        raise CheckpointError(f"cannot read the tokenizer: {error.strerror}", where=str(path)) from error
    except ValueError as error:  # also UnicodeDecodeError
        raise CheckpointError(
            f"not a SentencePiece model that can be imported: {error}",
            where=str(path),
            fix="it may be incomplete: download it again",
        ) from error


def check_charsmap(charsmap: bytes) -> None:
    """Raise ValueError when a walk through the trie of normalization rules could leave it.

    The trie (darts-clone) is an array of units: 8 bits of label, whether a value follows, and the offset to the units
    that follow. Its values are places in a blob of strings, each ended by a zero byte.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size < 4 or size % 4 or size > len(charsmap) - 4:
        raise ValueError("the trie of its normalization rules is cut off")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    blob = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    blob.tobytes().decode("utf-8")
    follows = np.arange(len(units)) ^ (units >> 10 << ((units & 0x200) >> 6))
    is_value = units >> 31 == 1
    if ((follows | 0xFF)[~is_value] >= len(units)).any():
        raise ValueError("the trie of its normalization rules points outside itself")
    places = units[follows[~is_value & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    # Each string starts the blob or follows the end of another, so that no character is cut.
    if (places >= len(blob)).any() or (blob[places[places > 0] - 1] != 0).any():
        raise ValueError("a normalization rule has no replacement")


def _model(data: memoryview, wanted: Algorithm) -> SentencePieceModel:
    pieces: list[ScoredPiece] = []
    trainer: dict[int, int | memoryview] = {}
    normalizer: dict[int, int | memoryview] = {}
    for number, value in _fields(data):
        match number, value:
            case 1, memoryview():
                pieces.append(_piece(value))
            case 2, memoryview():
                trainer.update(_fields(value))
            case 3, memoryview():
                normalizer.update(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece is there twice")
    charsmap = bytes(_bytes(normalizer, 2, b""))
    if charsmap:
        check_charsmap(charsmap)
    algorithm = _integer(trainer, 3, Algorithm.UNIGRAM)
    if algorithm != wanted:
        raise ValueError(f"its model_type is {algorithm}, not {wanted} ({wanted.name})")
    unk_id, bos_id, eos_id = (_integer(trainer, 40 + i, i) for i in range(3))
    if not 0 <= unk_id < len(pieces) or max(bos_id, eos_id) >= len(pieces):
        raise ValueError("the id of a special token lies outside the vocabulary")
    return SentencePieceModel(
        pieces=tuple(pieces),
        byte_fallback=bool(_integer(trainer, 35, 0)),
        unk_id=unk_id,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_piece=_text(_bytes(trainer, 45, b"<unk>")),
        bos_piece=_text(_bytes(trainer, 46, b"<s>")),
        eos_piece=_text(_bytes(trainer, 47, b"</s>")),
        charsmap=charsmap,
        add_dummy_prefix=bool(_integer(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_integer(normalizer, 4, 1)),
        escape_whitespaces=bool(_integer(normalizer, 5, 1)),
    )


def _piece(data: memoryview) -> ScoredPiece:
    fields = dict(_fields(data))
    text = _text(_bytes(fields, 1, b""))
    if not 0 < len(text) <= LONGEST_PIECE:
        raise ValueError(f"a piece has {len(text)} characters; 1 to {LONGEST_PIECE} are allowed")
    bits = _integer(fields, 2, 0)
    (score,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))
    if not math.isfinite(score):
        raise ValueError("the score of a piece is not finite")
    role = _integer(fields, 3, PieceRole.NORMAL)
    if role not in _ROLES:
        raise ValueError("the type of a piece is unknown")
    return ScoredPiece(text, score, _ROLES[role])


_ROLES = {int(role): role for role in PieceRole}


def _integer(fields: dict[int, int | memoryview], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is of another type")
    return value


def _bytes(fields: dict[int, int | memoryview], number: int, default: bytes) -> memoryview:
    value = fields.get(number, memoryview(default))
    if isinstance(value, int):
        raise ValueError(f"field {number} is of another type")
    return value


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of the fields of a message: signed 64-bit integers, bits of floats, and bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, place = _varint(data, place)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if wire_type == 2:
            size, place = _varint(data, place)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"there is no wire type {wire_type}")
        if size > len(data) - place:
            raise ValueError("it is cut off")
        part = data[place : place + size]
        place += size
        yield number, part if wire_type == 2 else int.from_bytes(part, "little")


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """(unsigned integer of 7 bits a byte, the least significant first; the place behind it)."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("it is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("an integer has more than 64 bits")
