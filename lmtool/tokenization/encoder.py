"""Encodes batches of texts fast.

A BatchEncoder returns the same ids as the tokenizer's own `encode`. Byte-level BPE uses tiktoken if that is proven
equivalent; the library `tokenizers` is the reference and the fallback.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Inner

from lmtool.errors import CheckpointError
from lmtool.printable import printable
from lmtool.tokenization.decoder import to_code_points
from lmtool.tokenization.inner import LibraryPanic, convert_panics_to_exceptions

Ids = NDArray[np.uint32]
Lengths = NDArray[np.int64]
BatchEncoder = Callable[[Sequence[str]], tuple[Ids, Lengths]]
"""Converts texts to all their ids in one array, and the number of ids of each text. Thread-safe."""

_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""GPT-2's pattern as tiktoken writes it: the same pieces as the original of ByteLevel, with less backtracking."""

LONG_TEXT_CHARACTERS = 4096
"""Length from which other threads run while a text is encoded."""

_SEPARATOR = "\v"
_MAX_SPACE_RUN = 1 << 16

_ADVERSARIAL_TEXTS = (
    "a  b   c\t\td \n\n e\r\n\r\nf  \n",
    "don't DON'T 'tis rock'n'roll we'll'd've 's's ''s '",
    "x1y22z333 ٣٤ ²½Ⅷ ४५ 1,000.5e-3",
    "e\u0301a\u0308o\u0308\u0323 \u0301 \u200d\u200b\u00ad\ufeff\u2028\u2029\u0085\u00a0\u3000 \u180e x",
    "👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪 ❤️ 日本語テキスト。中文 עברית العربية हिन्दी ไทย",
    "[PAD][BOS] [EOS]<extra_id_0><|endoftext|> [UNK]",
    "\x01\x7f\x1c\x1d\x1e\x1f \ufffd\ufffe\uffff\U0010ffff\ue000 \U000e0001",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 40 + "!" * 40 + "\n" * 40 + "0" * 40 + "é" * 40,
)


@contextmanager
def convert_encoding_errors() -> Iterator[None]:
    """Converts errors of encoding a text to a CheckpointError.

    The tokenizer may have no token for unknown characters, or a pattern that backtracks too much.
    """
    try:
        with convert_panics_to_exceptions():
            yield
    except LibraryPanic as error:
        fix = "divide the text into shorter ones, or take another tokenizer"
        raise CheckpointError(f"the tokenizer fails on this text: {printable(str(error))[:120]}", fix=fix) from error
    except Exception as error:  # the library raises bare Exception
        fix = "its vocabulary lacks a token for what is unknown: take another tokenizer, or another text"
        raise CheckpointError(f"the tokenizer cannot encode this text: {str(error)[:120]}", fix=fix) from error


def encode_without_special_tokens(inner: Inner, text: str) -> Encoding:
    """Encodes a text with `inner`, and lets other threads run if it is long."""
    with convert_encoding_errors():
        if len(text) > LONG_TEXT_CHARACTERS:
            return inner.encode_batch([text], add_special_tokens=False)[0]
        return inner.encode(text, add_special_tokens=False)


def make_reference_encoder(inner: Inner) -> BatchEncoder:
    """Returns the reference encoder, of the library `tokenizers`."""

    def encode(texts: Sequence[str]) -> tuple[Ids, Lengths]:
        with convert_encoding_errors():
            encodings = inner.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        lengths = np.array([len(i) for i in ids], dtype=np.int64)
        return np.concatenate(ids) if ids else np.empty(0, np.uint32), lengths

    return encode


def make_char_encoder(characters: Sequence[str], unk_id: int, normalize: Callable[[str], str] | None) -> BatchEncoder:
    """Returns the encoder of a tokenizer whose token i is `characters[i]`, if that is one character.

    normalize: is applied to each text first.
    """
    id_of = np.full(0x110000, unk_id, dtype=np.uint32)
    for i, character in enumerate(characters):
        if len(character) == 1:
            id_of[ord(character)] = i

    def encode(texts: Sequence[str]) -> tuple[Ids, Lengths]:
        if normalize is not None:
            texts = [normalize(text) for text in texts]
        return id_of[to_code_points("".join(texts))], np.array([len(text) for text in texts], dtype=np.int64)

    return encode


def make_equivalent_tiktoken_encoder(
    inner: Inner, pieces: Sequence[bytes], reference: BatchEncoder
) -> BatchEncoder | None:
    """Returns an encoder of the byte-level BPE `inner` that uses tiktoken, or None if its ids might differ.

    tiktoken merges two tokens whenever their concatenation is a token, `tokenizers` only when the merge was learned.
    The two agree if every token, encoded alone, is itself: then the learned merge is the only one that yields a token,
    since a span that no merge crosses is merged as if it were alone. That leaves the split pattern, where the
    libraries may use different versions of Unicode; adversarial texts must be encoded equally.
    """
    ranks = {piece: i for i, piece in enumerate(pieces) if piece}
    if len(ranks) != sum(map(bool, pieces)) or any(bytes([b]) not in ranks for b in range(256)):
        return None
    names = (inner.id_to_token(i) for i in ranks.values())
    if any(len(inner.model.tokenize(name)) != 1 for name in names):
        return None
    twin = tiktoken.Encoding("lmtool", pat_str=_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    if any(
        twin.encode_ordinary(text) != inner.encode(text, add_special_tokens=False).ids for text in _ADVERSARIAL_TEXTS
    ):
        return None

    def encode_one(text: str) -> Ids:
        if _has_long_space_run(text):
            return reference([text])[0]
        ids: Ids = twin.encode_to_numpy(text, disallowed_special=())
        return ids

    def encode(texts: Sequence[str]) -> tuple[Ids, Lengths]:
        if len(texts) == 1:
            ids = encode_one(texts[0])
            return ids, np.array([len(ids)], dtype=np.int64)
        return _encode_joined(texts, encode_one, ranks[_SEPARATOR.encode()])

    return encode


def is_gpt2_bpe(tokenizer_json: dict[str, Any]) -> bool:
    """Returns whether a published tokenizer.json is byte-level BPE like that of GPT-2.

    It has only the pattern of GPT-2, no text among its added tokens, and ids in the order of merges, which tiktoken
    takes for their priorities.
    """
    model, split = tokenizer_json["model"], tokenizer_json["pre_tokenizer"] or {}
    gpt2_split = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    ranks = [model["vocab"].get("".join(merge)) for merge in model["merges"]]
    return (
        tokenizer_json["normalizer"] is None
        and {key: split.get(key) for key in gpt2_split} == gpt2_split
        and not any(model.get(option) for option in options)
        and all(token["special"] for token in tokenizer_json["added_tokens"])
        and None not in ranks
        and all(a < b for a, b in pairwise(ranks))
    )


def _has_long_space_run(text: str) -> bool:
    """Returns whether `text` may have a run of white space that overflows the stack of tiktoken's regex engine.

    That takes about a million characters. A run of twice _MAX_SPACE_RUN covers at least one of the tested slices.
    """
    return any(text[i : i + _MAX_SPACE_RUN].isspace() for i in range(0, len(text) - _MAX_SPACE_RUN, _MAX_SPACE_RUN))


def _encode_joined(texts: Sequence[str], encode_one: Callable[[str], Ids], separator_id: int) -> tuple[Ids, Lengths]:
    """Encodes short texts in one call, joined by a white-space character that occurs in none of them.

    Between two non-white-space characters the separator is a piece of its own, and no piece extends across it.
    Texts that begin or end with white space, or have the separator, are encoded separately.
    """
    joinable = [bool(t) and not (t[0].isspace() or t[-1].isspace() or _SEPARATOR in t) for t in texts]
    joined = encode_one(_SEPARATOR.join([t for t, j in zip(texts, joinable, strict=True) if j]))
    is_separator = joined == separator_id
    ends = np.append(np.flatnonzero(is_separator), len(joined))
    joined_lengths = np.diff(ends, prepend=-1) - 1
    joined = joined[~is_separator]
    if all(joinable):
        return joined, joined_lengths
    alone = [encode_one(t) for t, j in zip(texts, joinable, strict=True) if not j]
    is_joinable = np.array(joinable)
    lengths = np.empty(len(texts), dtype=np.int64)
    lengths[~is_joinable] = [len(ids) for ids in alone]
    if is_joinable.any():
        lengths[is_joinable] = joined_lengths
    ids = np.empty(int(lengths.sum()), dtype=np.uint32)
    from_joined = np.repeat(is_joinable, lengths)
    ids[from_joined] = joined
    ids[~from_joined] = np.concatenate(alone)
    return ids, lengths
