"""Detokenization, one token at a time.

Byte-level tokens are bytes, and only complete UTF-8 characters are emitted. Words and WordPieces have lost the spaces
of their text, so spaces are restored by the rules of English typography.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

CONTINUATION = "##"
"""Prefix of a WordPiece that continues the word before it (Devlin et al. 2019)."""

_OPENING = frozenset("([{«“‘„¿¡$£€@#")  # noqa: RUF001  typographic marks are meant
_CLOSING = frozenset(".,;:!?%)]}»”…、。，；：！？）」』")  # noqa: RUF001  typographic marks are meant
_JOINING = frozenset("-‐‑–—/_")  # noqa: RUF001  typographic marks are meant
_APOSTROPHES = frozenset("'’")  # noqa: RUF001  typographic marks are meant
_QUOTES = frozenset("\"'")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_UNSPACED = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0010ffff]")
"""A character of a script written without spaces: Chinese and Japanese."""
_ENDINGS = frozenset({"s", "t", "d", "m", "ll", "re", "ve", "em", "n", "er", "st"})


class StreamDecoder(Protocol):
    """Incremental decoder: all that `push` and one last `flush` return, joined, is the text of the tokens."""

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character or a space is still undecided."""

    def flush(self) -> str:
        """Text still held back."""


def byte_alphabet() -> dict[str, int]:
    """The byte that each printable character of a byte-level tokenizer encodes (Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


class ByteDecoder:
    """Decoder of tokens that are bytes. Invalid UTF-8 becomes U+FFFD, as few as the Unicode standard recommends.

    drops_space: omit one space at the very beginning, which SentencePiece added.
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

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


def sentencepiece_bytes(name: str) -> bytes:
    """The bytes of a SentencePiece token: its name with a space for each U+2581, or the byte of <0xNN>."""
    if byte := _BYTE.fullmatch(name):
        return bytes.fromhex(byte[1])
    return name.replace("\u2581", " ").encode()


def word_spellings(name: str) -> tuple[bytes, ...]:
    """The bytes that a word, a mark or a WordPiece may be in a text, the usual ones first."""
    if name.startswith(CONTINUATION) and len(name) > len(CONTINUATION):
        return (name[len(CONTINUATION) :].encode(),)
    with_space, without = f" {name}".encode(), name.encode()
    return () if not name else (with_space, without) if name[0].isalnum() else (without, with_space)


class WordDecoder:
    """Decoder of words, punctuation marks and ## continuations, with spaces as in English typography."""

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
        if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION):
            rest = piece[len(CONTINUATION) :]
            text = self._release() + rest
            self._previous, self._glued = self._previous + rest, False
            return text
        if self._held and piece.lower() in _ENDINGS:
            text, self._held = self._held + piece, ""
            self._previous = piece
            return text
        text = self._release()
        if piece in _APOSTROPHES and not self._glued and self._previous[-1:].isalnum():
            self._held = piece
            return text
        return text + self._place(piece)

    def flush(self) -> str:
        return self._release()

    def _release(self) -> str:
        mark, self._held = self._held, ""
        return self._place(mark) if mark else ""

    def _place(self, piece: str) -> str:
        closes_quote = piece in _QUOTES and piece in self._open_quotes
        follows = piece in _CLOSING or piece in _JOINING or closes_quote
        unspaced = _UNSPACED.match(piece) and _UNSPACED.match(self._previous[-1:])
        space = "" if self._glued or follows or unspaced else " "
        if piece in _QUOTES:
            self._open_quotes ^= {piece}
        self._glued = piece in _OPENING or piece in _JOINING or (piece in _QUOTES and not closes_quote)
        self._previous = piece
        return space + piece


class MarkerDecoder:
    """Another decoder, which also shows some special tokens. names: what is shown of each."""

    def __init__(self, stream: StreamDecoder, names: Mapping[int, str]) -> None:
        self._stream, self._names = stream, names

    def push(self, token: int) -> str:
        return self._stream.flush() + self._names[token] if token in self._names else self._stream.push(token)

    def flush(self) -> str:
        return self._stream.flush()


def decode_bytes(pieces: Sequence[bytes], tokens: Sequence[int]) -> str:
    """The text of a ByteDecoder for all `tokens`, at once."""
    return b"".join(pieces[t] for t in tokens if t < len(pieces)).decode("utf-8", errors="replace")


def code_points(text: str) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """The code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
