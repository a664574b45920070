"""Tokenizers: byte-level BPE, WordPiece, characters and words, trained and saved by the `tokenizers` library.

Also reads those of published models, with SentencePiece. All kinds tokenize text that spells a special token as
ordinary text.
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

from lmtool.errors import CheckpointError
from lmtool.printable import printable
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile, TrainedTokenizerSpecBase
from lmtool.storage import durable
from lmtool.storage.checksum import sha256_of_json
from lmtool.storage.durable import write_file
from lmtool.tokenization import decoder, encoder
from lmtool.tokenization.inner import (
    WORD_PATTERN,
    convert_panics_to_exceptions,
    infer_tokenizer_kind,
    list_token_names,
    parse_tokenizer_json,
    published_special_token_ids_by_role,
    trained_special_token_ids_by_role,
)
from lmtool.tokenization.training import train_inner_tokenizer

MAX_TOKENIZER_BYTES = 256 << 20
"""Limit of the size of a tokenizer.json."""

_WORD_REGEX = re.compile(WORD_PATTERN.replace(r"\x{2019}", "\u2019"))
"""A word or a punctuation mark, in the regex syntax of Python."""

TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
"""The files of a tokenizer. The second has the roles of a published one's special tokens, as in Transformers."""


class Tokenizer:
    """Encodes text to token ids, and decodes them.

    In tokenizers trained by lmtool, ids 0 to 6 are [PAD] [BOS] [EOS] [UNK] [MASK] [SEP] [CLS], then come the sentinels
    and the learned tokens. Those of published models have any order.
    """

    def __init__(self, inner: Inner, published: Mapping[str, Any] | None = None) -> None:
        """Wraps a tokenizer of the `tokenizers` library.

        published: content of a published model's tokenizer_config.json; None for lmtool's special tokens.
        Raises ValueError for other tokenizers.
        """
        # Text that spells a special token is ordinary text. The library does not save this setting.
        inner.encode_special_tokens = True
        self._inner = inner
        self._config: dict[str, Any] = json.loads(inner.to_str())
        self._names = list_token_names(inner)
        self.published = None if published is None else dict(published)
        self.roles = (
            trained_special_token_ids_by_role(self._names)
            if published is None
            else published_special_token_ids_by_role(inner, self._config, published)
        )
        self.kind = infer_tokenizer_kind(self._config)
        self.vocab_size = len(self._names)
        roles = self.roles
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = roles.pad, roles.bos, roles.eos, roles.unk
        self.mask_id, self.sep_id, self.cls_id = roles.mask, roles.sep, roles.cls
        self.sentinel_ids, self.special_ids = roles.sentinels, roles.specials

    @classmethod
    def train(cls, spec: TrainedTokenizerSpecBase, texts: Iterable[str]) -> Self:
        """Trains a tokenizer of the kind of `spec` on texts. Equal texts give an equal tokenizer.

        The vocabulary is smaller than requested if the texts have too little. Very long runs of letters, other visible
        characters or of white space are split, see `split_long_runs`: the time grows with the square of their length.
        Raises UsageError when `spec.vocab_size` is too small for the special tokens and the alphabet, or too large.
        """
        return cls(train_inner_tokenizer(spec, texts))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Loads a tokenizer.json, or the one in the folder `path`; for a published model also tokenizer_config.json.

        Raises CheckpointError when it is missing, damaged, or neither lmtool's nor a published model's.
        """
        path = Path(path)
        file = path / TOKENIZER_FILE if path.is_dir() else path
        companion = file.with_name(TOKENIZER_CONFIG_FILE)
        try:
            inner = parse_tokenizer_json(durable.read_file(file, MAX_TOKENIZER_BYTES).decode())
            with convert_panics_to_exceptions():
                return cls(inner, json.loads(durable.read_file(companion)) if companion.exists() else None)
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
    def from_json(cls, content: bytes) -> Self:
        """Parses the result of `to_json`. Raises ValueError."""
        try:
            with convert_panics_to_exceptions():
                return cls(parse_tokenizer_json(content.decode()))
        except Exception as error:  # the library raises bare Exception for other JSON
            raise ValueError(f"it is not a tokenizer: {str(error)[:120]!r}") from error

    def save(self, path: Path | str) -> None:
        """Writes tokenizer.json to the file or existing folder `path` atomically, with tokenizer_config.json if any."""
        path = Path(path)
        file = path / TOKENIZER_FILE if path.is_dir() else path
        for name, content in self.serialize_files().items():
            write_file(file if name == TOKENIZER_FILE else file.with_name(name), content)

    def serialize_files(self) -> dict[str, bytes]:
        """Returns the content of the files by name, which `tokenizers` and `transformers` read too."""
        files = {TOKENIZER_FILE: self.to_json().encode()}
        if self.published is not None:
            files[TOKENIZER_CONFIG_FILE] = json.dumps(self.published, ensure_ascii=False, indent=1).encode()
        return files

    def token_name(self, token: int) -> str:
        """Returns the name of a token in tokenizer.json. Raises IndexError outside the vocabulary."""
        return self._names[token]

    def to_json(self) -> str:
        """Returns the content of tokenizer.json."""
        return json.dumps(self._config, ensure_ascii=False, indent=1)

    @cached_property
    def fingerprint(self) -> str:
        """Returns the SHA-256 of the canonical JSON, in hexadecimal."""
        whole = self._config if self.published is None else [self._config, self.published]
        return sha256_of_json(whole, sort_keys=True)

    def resolve_embedding_rows(self, requested: int | None) -> int:
        """Returns the requested number of rows of an embedding, by default one for each entry.

        Raises CheckpointError when the vocabulary has more entries.
        """
        rows = requested or self.vocab_size
        if rows < self.vocab_size:
            what = f"the tokenizer has {self.vocab_size} entries, but the model has rows for {rows}"
            fix = f"omit it, or set it to {self.vocab_size} or more"
            raise CheckpointError(what, where="model.vocab_size", fix=fix)
        return rows

    def encode(self, text: str) -> list[int]:
        """Encodes a text without [BOS] or [EOS]. Lone surrogates become U+FFFD."""
        text = replace_surrogates(text)
        if len(text) > encoder.LONG_TEXT_CHARACTERS:
            return cast(list[int], self._encoder([text])[0].tolist())
        ids: list[int] = encoder.encode_without_special_tokens(self._inner, text).ids
        return ids

    def encode_without_prefix_space(self, text: str) -> list[int]:
        """Encodes a part of another text, without the space that SentencePiece adds in front."""
        before = "\n" if self.kind == "sentencepiece" and self._adds_space else ""
        return self.encode(before + text)[len(self.encode(before)) :]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text, and returns ids and their character offsets (start, stop)."""
        encoding = encoder.encode_without_special_tokens(self._inner, replace_surrogates(text))
        return encoding.ids, encoding.offsets

    def find_unknown_parts(self, text: str) -> list[str]:
        """Returns the parts of `text` that are unknown tokens, each once. Byte-level BPE knows all."""
        if self.kind == "bpe":
            return []
        ids, places = self.encode_with_offsets(text)
        unknown = (text[start:stop] for token, (start, stop) in zip(ids, places, strict=True) if token == self.unk_id)
        return list(dict.fromkeys(unknown))

    def encode_many(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encodes all texts to one array, with the number of ids of each; several times faster than `encode`."""
        return self._encoder(texts)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Returns the merges of BPE by priority."""
        return [(left, right) for left, right in self._config["model"]["merges"]]

    def pre_tokenize(self, text: str) -> list[str]:
        """Splits a text into the parts that no merge crosses, as byte-level BPE spells them."""
        with encoder.convert_encoding_errors():
            return [word for word, _ in self._inner.pre_tokenizer.pre_tokenize_str(replace_surrogates(text))]

    def find_continuing_and_continuable_tokens(self) -> NDArray[np.bool_] | None:
        """Returns (2, V): whether each token can continue a word, and whether the next token can continue its word.

        WordPieces continue a word if they have a mark (##). Other tokens do if they begin, and can be continued if they
        end, with a letter, a digit or a part of a character; white space and marks are words of their own. Returns None
        for published WordPieces without a mark.
        """
        if self.kind == "wordpiece":
            mark = self._config["model"]["continuing_subword_prefix"]
            continues_V = np.array([name.startswith(mark) for name in self._names])
            return np.stack((continues_V, np.ones_like(continues_V))) if mark else None
        if self.kind == "word":
            return np.zeros((2, self.vocab_size), dtype=bool)
        texts = [name.decode("utf-8", "surrogateescape") for name in self._bytes]
        return np.array(
            [[_is_word_character(text[:1]) for text in texts], [_is_word_character(text[-1:]) for text in texts]]
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids to text, and skips special tokens.

        BPE, SentencePiece and characters are lossless, except for the space that SentencePiece may add in front. Words
        and WordPieces get spaces as in English typography.
        """
        if self.kind in ("bpe", "char"):
            pieces = (self._bytes[token] for token in ids if token < len(self._bytes))
            return b"".join(pieces).decode("utf-8", errors="replace")
        stream = self.make_stream_decoder()
        return "".join(map(stream.push, ids)) + stream.flush()

    def count_characters_of_decoded_prefixes(self, ids: Sequence[int]) -> list[int]:
        """Returns the length of the decoded text of the first n ids, for each n from 0 to the number of ids."""
        stream, n_decided = self.make_stream_decoder(), 0
        lengths = [0]
        for token in ids:
            n_decided += len(stream.push(token))
            lengths.append(n_decided + len(stream.peek()))
        return lengths

    def count_bytes_at_text_start(self, token: int) -> int:
        """Counts the bytes of a token at the beginning of a text."""
        if self.kind in ("word", "wordpiece"):
            return len(self.decode([token]).encode())
        piece = self._bytes[token]
        if self.kind == "sentencepiece" and self._adds_space:
            piece = piece.removeprefix(b" ")
        return len(piece)

    def make_stream_decoder(self, visible_tokens: Mapping[int, str] | None = None) -> decoder.StreamDecoder:
        """Returns an incremental decoder for one sequence. visible_tokens: text of special tokens that are shown."""
        if visible_tokens:
            return decoder.VisibleSpecialTokenDecoder(self.make_stream_decoder(), visible_tokens)
        match self.kind:
            case "bpe" | "char":
                return decoder.ByteDecoder(self._bytes)
            case "sentencepiece":
                return decoder.ByteDecoder(self._bytes, drops_space=self._adds_space)
            case _:
                return decoder.WordDecoder(self._texts)

    def display_token(self, token: int) -> str:
        """Formats a token for display: its text with control characters and invalid UTF-8 escaped.

        Returns the name of a special token. Raises IndexError outside the vocabulary.
        """
        if token in self.special_ids or self.kind not in ("bpe", "sentencepiece"):
            return printable(self._names[token])
        return printable(self._bytes[token].decode("utf-8", errors="backslashreplace"))

    def has_only_word_characters(self, token: int) -> bool:
        """Returns whether a token is letters, their marks, digits and underscores only. Raises IndexError."""
        if token in self.special_ids:
            return False
        piece = self.display_token(token)
        return piece != "" and all(char == "_" or unicodedata.category(char)[0] in "LMN" for char in piece)

    def list_spellings(self) -> list[tuple[bytes, ...]]:
        """Returns the bytes that each token may be in a text, the most common first; none for special tokens.

        Words and WordPieces that begin a word are spelled with and without a space before them.
        """
        if self.kind in ("word", "wordpiece"):
            return [decoder.spell_with_and_without_space(name) for name in self._texts]
        return [(piece,) if piece else () for piece in self._bytes]

    @cached_property
    def _texts(self) -> list[str]:
        return ["" if i in self.special_ids else name for i, name in enumerate(self._names)]

    @cached_property
    def _bytes(self) -> list[bytes]:
        if self.kind != "bpe":
            return [
                name.encode() if self.kind == "char" else decoder.decode_sentencepiece_name(name)
                for name in self._texts
            ]
        added = {token["id"] for token in self._config["added_tokens"]}
        alphabet = decoder.build_byte_alphabet()
        # As in the library, a name with characters that encode no byte is text.
        return [
            name.encode() if i in added or not alphabet.keys() >= set(name) else bytes(alphabet[c] for c in name)
            for i, name in enumerate(self._texts)
        ]

    @cached_property
    def _adds_space(self) -> bool:
        """Returns whether a space is added in front of every text."""
        return self._bytes[self.encode("a")[0]].startswith(b" ")

    @cached_property
    def _encoder(self) -> encoder.BatchEncoder:
        reference = encoder.make_reference_encoder(self._inner)
        if self.kind == "bpe" and (self.published is None or encoder.is_gpt2_bpe(self._config)):
            return encoder.make_equivalent_tiktoken_encoder(self._inner, self._bytes, reference) or reference
        if self.kind == "char":
            normalizer = self._inner.normalizer
            return encoder.make_char_encoder(self._texts, self.unk_id, normalizer and normalizer.normalize_str)
        return reference


def _is_word_character(character: str) -> bool:
    """Returns whether it is a letter, a digit, or a byte of an incomplete character."""
    return character.isalnum() or "\udc80" <= character <= "\udcff"


def find_word_spans(text: str) -> list[tuple[int, int]]:
    """Returns start and stop of the words and punctuation marks of a text, as a word tokenizer splits it."""
    return [match.span() for match in _WORD_REGEX.finditer(text)]


def replace_surrogates(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def resolve_recipe_embedding_rows(recipe: Recipe) -> int | None:
    """Returns the rows of a recipe's embedding; None if they depend on the text. Raises as `Tokenizer.load` does."""
    match recipe.tokenizer:
        case _ if recipe.model.vocab_size:
            return recipe.model.vocab_size
        case CharTokenizer():
            return None
        case TokenizerFile(path=path):
            return Tokenizer.load(path).vocab_size
        case tokenizer:
            return tokenizer.vocab_size
