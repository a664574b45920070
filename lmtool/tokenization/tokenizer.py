"""Tokenizers: byte-level BPE, WordPiece, characters and words, trained and saved by the `tokenizers` library.

Those of published models are read too, SentencePiece ones included. Text that spells a special token is tokenized as
ordinary text by every kind.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Inner

from lmtool import durable
from lmtool.checksum import sha256_of_json
from lmtool.durable import write_file
from lmtool.errors import CheckpointError
from lmtool.printable import plain
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile, TokenizerSpec
from lmtool.tokenization import decoder, encoder
from lmtool.tokenization.inner import (
    WORD,
    inner_of,
    kind_of,
    names_of,
    own_roles,
    published_roles,
    raising_panics,
)
from lmtool.tokenization.training import train

LARGEST_FILE = 256 << 20
"""Bytes of a tokenizer.json."""

_WORD = re.compile(WORD.replace(r"\x{2019}", "\u2019"))
"""A word or a punctuation mark, in Python's spelling."""

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
"""The files of a tokenizer. The second names the roles of a published one's special tokens, as Transformers does."""


class Tokenizer:
    """Text to token ids and back.

    In tokenizers trained here, ids 0 to 6 are [PAD] [BOS] [EOS] [UNK] [MASK] [SEP] [CLS], then come the sentinels, then
    the learned tokens. Those of published models have any.
    """

    def __init__(self, inner: Inner, published: Mapping[str, Any] | None = None) -> None:
        """Wrap a tokenizer of the `tokenizers` library.

        published: the content of a published model's tokenizer_config.json; None for one with lmtool's special tokens.
        Raises ValueError when it is neither.
        """
        # Text that spells a special token is ordinary text. The library does not save this setting.
        inner.encode_special_tokens = True
        self._inner = inner
        self._config: dict[str, Any] = json.loads(inner.to_str())
        self._names = names_of(inner)
        self.published = None if published is None else dict(published)
        """The content of a published model's tokenizer_config.json; None for a tokenizer trained here."""
        self.roles = own_roles(self._names) if published is None else published_roles(inner, self._config, published)
        self.kind = kind_of(self._config)
        self.vocab_size = len(self._names)
        roles = self.roles
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = roles.pad, roles.bos, roles.eos, roles.unk
        self.mask_id, self.sep_id, self.cls_id = roles.mask, roles.sep, roles.cls
        self.sentinel_ids, self.special_ids = roles.sentinels, roles.specials

    @classmethod
    def train(cls, spec: TokenizerSpec, texts: Iterable[str]) -> Self:
        """Train a tokenizer of `spec`'s kind on `texts`. Equal texts give an equal tokenizer.

        The vocabulary may be smaller than requested when the texts have too little. Very long runs of letters, of other
        visible characters or of white space are cut, see `cut_runs`: the time grows with the square of their length.
        Raises UsageError when `spec.vocab_size` is too small for the special tokens and the alphabet, or too large.
        """
        return cls(train(spec, texts))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a tokenizer.json, or the one inside the folder `path`; of a published model with its companion.

        Raises CheckpointError when it is missing, damaged, or neither lmtool's nor a published model's.
        """
        path = Path(path)
        file = path / TOKENIZER if path.is_dir() else path
        companion = file.with_name(TOKENIZER_CONFIG)
        try:
            inner = inner_of(durable.read(file, LARGEST_FILE).decode())
            with raising_panics():
                return cls(inner, json.loads(durable.read(companion)) if companion.exists() else None)
        except FileNotFoundError:
            fix = "name a tokenizer.json, or a folder or run with one"
            raise CheckpointError("there is no tokenizer", where=str(file), fix=fix) from None
        except OSError as error:
            raise CheckpointError(f"cannot read the tokenizer: {error.strerror}", where=str(file)) from error
        except Exception as error:  # the library raises bare Exception for other JSON
            what = f"not a tokenizer that lmtool can use: {str(error)[:120]!r}"
            fix = "train one with `lmtool tokenize`, or take that of a run"
            raise CheckpointError(what, where=str(file), fix=fix) from error

    @classmethod
    def of_json(cls, content: bytes) -> Self:
        """The tokenizer of `to_json`. Raises ValueError when it is none."""
        try:
            with raising_panics():
                return cls(inner_of(content.decode()))
        except Exception as error:  # the library raises bare Exception for other JSON
            raise ValueError(f"it is not a tokenizer: {str(error)[:120]!r}") from error

    def save(self, path: Path | str) -> None:
        """Write tokenizer.json to the file or into the existing folder `path`, atomically, and its companion if any."""
        path = Path(path)
        file = path / TOKENIZER if path.is_dir() else path
        for name, content in self.files().items():
            write_file(file if name == TOKENIZER else file.with_name(name), content)

    def files(self) -> dict[str, bytes]:
        """The content of its files by name; `tokenizers` and `transformers` read them too."""
        files = {TOKENIZER: self.to_json().encode()}
        if self.published is not None:
            files[TOKENIZER_CONFIG] = json.dumps(self.published, ensure_ascii=False, indent=1).encode()
        return files

    def name(self, token: int) -> str:
        """The text that stands for token `token` in tokenizer.json. Raises IndexError outside the vocabulary."""
        return self._names[token]

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return json.dumps(self._config, ensure_ascii=False, indent=1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's canonical JSON, in hexadecimal."""
        whole = self._config if self.published is None else [self._config, self.published]
        return sha256_of_json(whole, sort_keys=True)

    def embedding_rows(self, wanted: int | None) -> int:
        """Rows of a model's embedding: as many as requested, else one for each entry.

        Raises CheckpointError when there are more entries than that.
        """
        rows = wanted or self.vocab_size
        if rows < self.vocab_size:
            what = f"the tokenizer has {self.vocab_size} entries, but the model has rows for {rows}"
            fix = f"omit it, or set it to {self.vocab_size} or more"
            raise CheckpointError(what, where="model.vocab_size", fix=fix)
        return rows

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without [BOS] or [EOS]. Lone surrogates count as U+FFFD."""
        text = without_surrogates(text)
        if len(text) > encoder.LONG_TEXT:
            return cast(list[int], self._encoder([text])[0].tolist())
        ids: list[int] = encoder.encoding_of(self._inner, text).ids
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """Ids of `text` where it stands in another one: without the space that SentencePiece adds in front."""
        before = "\n" if self.kind == "sentencepiece" and self._adds_space else ""
        return self.encode(before + text)[len(self.encode(before)) :]

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` as by `encode`, and their character offsets in it (start, stop)."""
        encoding = encoder.encoding_of(self._inner, without_surrogates(text))
        return encoding.ids, encoding.offsets

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of `text` that are unknown tokens, such as characters, each once. Byte-level BPE knows all."""
        if self.kind == "bpe":
            return []
        ids, places = self.encode_with_places(text)
        unknown = (text[start:stop] for token, (start, stop) in zip(ids, places, strict=True) if token == self.unk_id)
        return list(dict.fromkeys(unknown))

    def encode_many(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all `texts` in one array, and the number of each text; several times faster than `encode`."""
        return self._encoder(texts)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of BPE, by priority."""
        return [(left, right) for left, right in self._config["model"]["merges"]]

    def words(self, text: str) -> list[str]:
        """The parts of `text` that no merge crosses, as byte-level BPE spells them."""
        with encoder.unknown_refused():
            return [word for word, _ in self._inner.pre_tokenizer.pre_tokenize_str(without_surrogates(text))]

    def joins(self) -> NDArray[np.bool_] | None:
        """Whether a token goes on with a word, and whether it leaves one open that the next may go on with: (2, V).

        WordPieces go on where they are marked so (##). Those of other kinds do where they begin, and leave open where
        they end, with a letter, a digit or a part of a character; white space and marks are words of their own. None
        for published WordPieces without a mark.
        """
        if self.kind == "wordpiece":
            mark = self._config["model"]["continuing_subword_prefix"]
            goes_on_V = np.array([name.startswith(mark) for name in self._names])
            return np.stack((goes_on_V, np.ones_like(goes_on_V))) if mark else None
        if self.kind == "word":
            return np.zeros((2, self.vocab_size), dtype=bool)
        texts = [name.decode("utf-8", "surrogateescape") for name in self._bytes]
        return np.array([[_in_word(text[:1]) for text in texts], [_in_word(text[-1:]) for text in texts]])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens are skipped.

        BPE, SentencePiece and characters are lossless, but for the space that SentencePiece may add in front. Words and
        WordPieces have lost the spacing, and get spaces as in English typography.
        """
        if self.kind in ("bpe", "char"):
            return decoder.decode_bytes(self._bytes, ids)
        stream = self.stream()
        return "".join(map(stream.push, ids)) + stream.flush()

    def n_bytes_at_start(self, token: int) -> int:
        """The number of bytes of a text that token `token` stands for when the text begins with it."""
        if self.kind in ("word", "wordpiece"):
            return len(self.decode([token]).encode())
        piece = self._bytes[token]
        if self.kind == "sentencepiece" and self._adds_space:
            piece = piece.removeprefix(b" ")
        return len(piece)

    def stream(self, shown: Mapping[int, str] | None = None) -> decoder.StreamDecoder:
        """An incremental decoder for one sequence. shown: special tokens that are text as well, with their texts."""
        if shown:
            return decoder.MarkerDecoder(self.stream(), shown)
        match self.kind:
            case "bpe" | "char":
                return decoder.ByteDecoder(self._bytes)
            case "sentencepiece":
                return decoder.ByteDecoder(self._bytes, drops_space=self._adds_space)
            case _:
                return decoder.WordDecoder(self._texts)

    def piece(self, token: int) -> str:
        """Token `token` for display: its text with control characters and invalid UTF-8 escaped.

        Special tokens are shown by name. Raises IndexError outside the vocabulary.
        """
        if token in self.special_ids or self.kind not in ("bpe", "sentencepiece"):
            return plain(self._names[token])
        return plain(self._bytes[token].decode("utf-8", errors="backslashreplace"))

    def is_in_word(self, token: int) -> bool:
        """Whether token `token` is letters, their marks, digits and underscores alone. Raises IndexError as `name`."""
        if token in self.special_ids:
            return False
        piece = self.piece(token)
        return piece != "" and all(char == "_" or unicodedata.category(char)[0] in "LMN" for char in piece)

    def spellings(self) -> list[tuple[bytes, ...]]:
        """The bytes that each token may be in a text, the usual ones first; none of special tokens.

        Words and WordPieces that do not continue one are spelled with and without a space before them.
        """
        if self.kind in ("word", "wordpiece"):
            return [decoder.word_spellings(name) for name in self._texts]
        return [(piece,) if piece else () for piece in self._bytes]

    @cached_property
    def _texts(self) -> list[str]:
        return ["" if i in self.special_ids else name for i, name in enumerate(self._names)]

    @cached_property
    def _bytes(self) -> list[bytes]:
        if self.kind != "bpe":
            return [name.encode() if self.kind == "char" else decoder.sentencepiece_bytes(name) for name in self._texts]
        added = {token["id"] for token in self._config["added_tokens"]}
        alphabet = decoder.byte_alphabet()
        # As the library decodes them: a name with characters that stand for no byte is text.
        return [
            name.encode() if i in added or not alphabet.keys() >= set(name) else bytes(alphabet[c] for c in name)
            for i, name in enumerate(self._texts)
        ]

    @cached_property
    def _adds_space(self) -> bool:
        """Whether a space is added in front of every text."""
        return self._bytes[self.encode("a")[0]].startswith(b" ")

    @cached_property
    def _encoder(self) -> encoder.BatchEncoder:
        reference = encoder.batch_encoder(self._inner)
        if self.kind == "bpe" and (self.published is None or encoder.is_plain(self._config)):
            return encoder.fast_encoder(self._inner, self._bytes, reference) or reference
        if self.kind == "char":
            normalizer = self._inner.normalizer
            return encoder.char_encoder(self._texts, self.unk_id, normalizer and normalizer.normalize_str)
        return reference


def _in_word(character: str) -> bool:
    """Whether it is a letter, a digit, or a byte that is no character by itself."""
    return character.isalnum() or "\udc80" <= character <= "\udcff"


def find_words(text: str) -> list[tuple[int, int]]:
    """Start and stop of the words and punctuation marks of `text`, as a word tokenizer divides it."""
    return [match.span() for match in _WORD.finditer(text)]


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def vocabulary_of(recipe: Recipe) -> int | None:
    """Rows of a recipe's embedding; None where only the text knows. Raises as `Tokenizer.load`."""
    match recipe.tokenizer:
        case _ if recipe.model.vocab_size:
            return recipe.model.vocab_size
        case CharTokenizer():
            return None
        case TokenizerFile(path=path):
            return Tokenizer.load(path).vocab_size
        case tokenizer:
            return tokenizer.vocab_size
