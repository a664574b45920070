"""Decodes tokens to text, one token at a time.

Byte-level tokens are bytes, of which only complete UTF-8 characters are returned. Words and WordPieces have lost the
spaces of their text, which are restored by the rules of English typography.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Protocol

import numpy as np

CONTINUATION_PREFIX = "##"
"""Prefix of a WordPiece that continues the word before it (Devlin et al. 2019)."""

_OPENING_MARKS = frozenset("([{«“‘„¿¡$£€@#")  # noqa: RUF001  typographic marks are meant
_CLOSING_MARKS = frozenset(".,;:!?%)]}»”…、。，；：！？）」』")  # noqa: RUF001  typographic marks are meant
_JOINING_MARKS = frozenset("-‐‑–—/_")  # noqa: RUF001  typographic marks are meant
_APOSTROPHES = frozenset("'’")  # noqa: RUF001  typographic marks are meant
_QUOTES = frozenset("\"'")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_UNSPACED_SCRIPT = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0010ffff]")
"""A character of a script written without spaces: Chinese and Japanese."""
_CONTRACTION_ENDINGS = frozenset({"s", "t", "d", "m", "ll", "re", "ve", "em", "n", "er", "st"})


class StreamDecoder(Protocol):
    """Incremental decoder: the results of `push`, and of one last `flush`, concatenate to the text of the tokens."""

    def push(self, token: int) -> str:
        """Returns the text that this token completes; "" while a character or a space is undecided."""

    def peek(self) -> str:
        """Returns the text that is held back."""

    def flush(self) -> str:
        """Returns the text that is held back, and no longer holds it."""


def build_byte_alphabet() -> dict[str, int]:
    """Returns the byte that each printable character of a byte-level tokenizer encodes (Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


class ByteDecoder:
    """Decodes tokens that are bytes. Invalid UTF-8 becomes U+FFFD, as the Unicode standard recommends.

    drops_space: omits one space at the very beginning, which SentencePiece has added.
    """

    def __init__(self, pieces: Sequence[bytes], *, drops_space: bool = False) -> None:
        self._pieces = pieces
        self._drops_space = drops_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        piece = self._pieces[token] if token < len(self._pieces) else b""
        if piece and self._drops_space:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def peek(self) -> str:
        return self._utf8.getstate()[0].decode("utf-8", errors="replace")

    def flush(self) -> str:
        text = self.peek()
        self._utf8.reset()
        return text


def decode_sentencepiece_name(name: str) -> bytes:
    """Returns the bytes of a SentencePiece token: its name with a space for each U+2581, or the byte of <0xNN>."""
    if byte := _BYTE.fullmatch(name):
        return bytes.fromhex(byte[1])
    return name.replace("\u2581", " ").encode()


def spell_with_and_without_space(word_or_wordpiece: str) -> tuple[bytes, ...]:
    """Returns the bytes that a word, a mark or a WordPiece may be in a text, the most common first."""
    if word_or_wordpiece.startswith(CONTINUATION_PREFIX) and len(word_or_wordpiece) > len(CONTINUATION_PREFIX):
        return (word_or_wordpiece[len(CONTINUATION_PREFIX) :].encode(),)
    with_space, without = f" {word_or_wordpiece}".encode(), word_or_wordpiece.encode()
    if not word_or_wordpiece:
        return ()
    return (with_space, without) if word_or_wordpiece[0].isalnum() else (without, with_space)


class WordDecoder:
    """Decodes words, punctuation marks and ## continuations, with spaces as in English typography."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._previous = ""
        self._held = ""
        self._glued = True
        self._open_quotes: set[str] = set()

    def push(self, token: int) -> str:
        piece = self._pieces[token] if token < len(self._pieces) else ""
        if not piece:
            return ""
        if piece.startswith(CONTINUATION_PREFIX) and len(piece) > len(CONTINUATION_PREFIX):
            rest = piece[len(CONTINUATION_PREFIX) :]
            text = self._flush_held_mark() + rest
            self._previous, self._glued = self._previous + rest, False
            return text
        if self._held and piece.lower() in _CONTRACTION_ENDINGS:
            text, self._held = self._held + piece, ""
            self._previous = piece
            return text
        text = self._flush_held_mark()
        if piece in _APOSTROPHES and not self._glued and self._previous[-1:].isalnum():
            self._held = piece
            return text
        return text + self._record_with_space_if_needed(piece)

    def peek(self) -> str:
        return copy(self)._flush_held_mark()

    def flush(self) -> str:
        return self._flush_held_mark()

    def _flush_held_mark(self) -> str:
        mark, self._held = self._held, ""
        return self._record_with_space_if_needed(mark) if mark else ""

    def _record_with_space_if_needed(self, piece: str) -> str:
        closes_quote = piece in _QUOTES and piece in self._open_quotes
        follows = piece in _CLOSING_MARKS or piece in _JOINING_MARKS or closes_quote
        unspaced = _UNSPACED_SCRIPT.match(piece) and _UNSPACED_SCRIPT.match(self._previous[-1:])
        space = "" if self._glued or follows or unspaced else " "
        if piece in _QUOTES:
            self._open_quotes = self._open_quotes ^ {piece}
        self._glued = piece in _OPENING_MARKS or piece in _JOINING_MARKS or (piece in _QUOTES and not closes_quote)
        self._previous = piece
        return space + piece


class VisibleSpecialTokenDecoder:
    """Wraps a decoder to show some special tokens. names: the text of each."""

    def __init__(self, stream: StreamDecoder, names: Mapping[int, str]) -> None:
        self._stream, self._names = stream, names

    def push(self, token: int) -> str:
        return self._stream.flush() + self._names[token] if token in self._names else self._stream.push(token)

    def peek(self) -> str:
        return self._stream.peek()

    def flush(self) -> str:
        return self._stream.flush()


def to_code_points(text: str) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Returns the code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
