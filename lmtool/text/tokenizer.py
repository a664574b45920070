"""Tokenizers: byte-level BPE, WordPiece, characters and words, trained and saved by the `tokenizers` library.

Special tokens have the first ids, and text that spells one is tokenized as ordinary text by every kind.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from lmtool.errors import CheckpointError, UsageError
from lmtool.printable import plain
from lmtool.recipe.spec import BpeTokenizer, CharTokenizer, TokenizerSpec, WordPieceTokenizer, WordTokenizer
from lmtool.text.decoder import (
    CONTINUATION,
    ByteDecoder,
    CharDecoder,
    StreamDecoder,
    WordDecoder,
    byte_alphabet,
    code_points,
    decode_bytes,
)
from lmtool.text.disk import write_file
from lmtool.text.encoder import BatchEncoder, batch_encoder, char_encoder, fast_encoder

SPECIALS = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "[SEP]", "[CLS]")
"""The special tokens, in the order of their ids; sentinels <extra_id_0>, <extra_id_1>... follow."""

LARGEST_VOCABULARY = 10_000_000
"""More than any text yields. The trainers allocate memory for all requested entries, and abort when there is too
little."""

_CHARACTER = r"[\s\S]"
_WORD = r"\w+(?:['\x{2019}]\w+)*|[^\w\s]"
_WORD_HERE = re.compile(_WORD.replace(r"\x{2019}", "\u2019"))
"""The same in Python's spelling."""

TokenizerKind = Literal["bpe", "wordpiece", "char", "word"]


class Tokenizer:
    """Text to token ids and back.

    Ids 0 to 6 are [PAD] [BOS] [EOS] [UNK] [MASK] [SEP] [CLS], then come the sentinels, then the learned tokens.
    """

    pad_id, bos_id, eos_id, unk_id, mask_id, sep_id, cls_id = range(len(SPECIALS))

    def __init__(self, inner: Inner) -> None:
        """Wrap a tokenizer of the `tokenizers` library that has lmtool's special tokens; else raises ValueError."""
        vocabulary = sorted(inner.get_vocab().items(), key=lambda item: item[1])
        names = [name for name, _ in vocabulary]
        if tuple(names[: len(SPECIALS)]) != SPECIALS or vocabulary[-1][1] != len(names) - 1:
            raise ValueError("its first entries are not lmtool's special tokens")
        # Text that spells a special token is ordinary text. The library does not save this setting.
        inner.encode_special_tokens = True
        self._inner = inner
        self._names = names
        self._config: dict[str, Any] = json.loads(inner.to_str())
        self.kind: TokenizerKind = _kind(self._config)
        n_sentinels = 0
        while names[len(SPECIALS) + n_sentinels : len(SPECIALS) + n_sentinels + 1] == [f"<extra_id_{n_sentinels}>"]:
            n_sentinels += 1
        self.n_specials = len(SPECIALS) + n_sentinels
        self.sentinel_ids = tuple(range(len(SPECIALS), self.n_specials))
        self.vocab_size = len(names)

    @classmethod
    def train(cls, spec: TokenizerSpec, texts: Iterable[str]) -> Self:
        """Train a tokenizer of `spec`'s kind on `texts`. Equal texts give an equal tokenizer.

        The vocabulary may be smaller than requested when the texts have too little.
        Raises UsageError when `spec.vocab_size` is too small for the special tokens and the alphabet, or too large.
        """
        match spec:
            case BpeTokenizer():
                inner = _train_bpe(spec, iter(texts))
            case WordPieceTokenizer():
                inner = _train_wordpiece(spec, iter(texts))
            case CharTokenizer():
                inner = _train_char(spec, iter(texts))
            case WordTokenizer():
                inner = _train_word(spec, iter(texts))
            case _:
                raise TypeError(f"{type(spec).__name__} cannot be trained")
        return cls(inner)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a tokenizer.json, or the one inside the folder `path`.

        Raises CheckpointError when it is missing, damaged, or was not written by lmtool.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            return cls(Inner.from_str(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise CheckpointError(
                "there is no tokenizer", where=str(file), fix="name a tokenizer.json, or a folder or run with one"
            ) from None
        except OSError as error:
            raise CheckpointError(f"cannot read the tokenizer: {error.strerror}", where=str(file)) from error
        except Exception as error:  # the library raises bare Exception for other JSON
            raise CheckpointError(
                f"not a tokenizer of lmtool: {str(error)[:120]!r}",
                where=str(file),
                fix="train one with `lmtool tokenize`",
            ) from error

    def save(self, path: Path | str) -> None:
        """Write tokenizer.json to the file or into the existing folder `path`, atomically."""
        path = Path(path)
        write_file(path / "tokenizer.json" if path.is_dir() else path, self.to_json().encode())

    def to_json(self) -> str:
        """The whole tokenizer as JSON text; `tokenizers` and `transformers` read it too."""
        return json.dumps(self._config, ensure_ascii=False, indent=1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's canonical JSON, in hexadecimal."""
        return hashlib.sha256(json.dumps(self._config, sort_keys=True).encode()).hexdigest()

    def embedding_rows(self, wanted: int | None) -> int:
        """Rows of a model's embedding: as many as requested, else one for each entry.

        Raises CheckpointError when there are more entries than that.
        """
        rows = wanted or self.vocab_size
        if rows < self.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {self.vocab_size} entries, but the model has rows for {rows}",
                where="model.vocab_size",
                fix=f"omit it, or set it to {self.vocab_size} or more",
            )
        return rows

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without [BOS] or [EOS]. Lone surrogates count as U+FFFD."""
        ids: list[int] = self._inner.encode(without_surrogates(text), add_special_tokens=False).ids
        return ids

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` as by `encode`, and their character offsets in it (start, stop)."""
        encoding = self._inner.encode(without_surrogates(text), add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_many(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all `texts` in one array, and the number of each text; several times faster than `encode`."""
        return self._encoder(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens are skipped.

        BPE and characters are lossless. Words and WordPieces have lost the spacing, and get spaces as in English
        typography.
        """
        if self.kind == "bpe":
            return decode_bytes(self._bytes, ids)
        decoder = self.stream()
        return "".join(map(decoder.push, ids)) + decoder.flush()

    def stream(self) -> StreamDecoder:
        """An incremental decoder for one sequence."""
        match self.kind:
            case "bpe":
                return ByteDecoder(self._bytes)
            case "char":
                return CharDecoder(self._texts)
            case _:
                return WordDecoder(self._texts)

    def piece(self, token: int) -> str:
        """Token `token` for display: its text with control characters and invalid UTF-8 escaped.

        Special tokens are shown by name. Raises IndexError outside the vocabulary.
        """
        if token < self.n_specials or self.kind != "bpe":
            return plain(self._names[token])
        return plain(self._bytes[token].decode("utf-8", errors="backslashreplace"))

    @cached_property
    def _texts(self) -> list[str]:
        return [""] * self.n_specials + self._names[self.n_specials :]

    @cached_property
    def _bytes(self) -> list[bytes]:
        alphabet = byte_alphabet()
        return [bytes(alphabet[c] for c in name) for name in self._texts]

    @cached_property
    def _encoder(self) -> BatchEncoder:
        reference = batch_encoder(self._inner)
        if self.kind == "bpe":
            return fast_encoder(self._inner, self._bytes, reference) or reference
        if self.kind == "char":
            return char_encoder(self._texts, self.unk_id)
        return reference


def find_words(text: str) -> list[tuple[int, int]]:
    """Start and stop of the words and punctuation marks of `text`, as a word tokenizer divides it."""
    return [match.span() for match in _WORD_HERE.finditer(text)]


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(config: dict[str, Any]) -> TokenizerKind:
    match config["model"]["type"]:
        case "BPE" if config["pre_tokenizer"]["type"] == "ByteLevel":
            return "bpe"
        case "WordPiece":
            return "wordpiece"
        case "WordLevel":
            return "char" if config["pre_tokenizer"]["pattern"]["Regex"] == _CHARACTER else "word"
    raise ValueError("its model is not one that lmtool trains")


def _special_names(spec: TokenizerSpec) -> list[str]:
    return [*SPECIALS, *(f"<extra_id_{i}>" for i in range(spec.sentinels))]


def _added(names: list[str]) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False) for name in names]


def _check_room(vocab_size: int, n_specials: int, alphabet: int) -> None:
    if vocab_size > LARGEST_VOCABULARY:
        raise UsageError(
            f"a vocabulary of {vocab_size:,} entries is too large: at most {LARGEST_VOCABULARY:,} can be trained",
            where="tokenizer.vocab_size",
            fix="4,096 suits a megabyte of text, 50,000 suits gigabytes",
        )
    if vocab_size < n_specials + alphabet:
        raise UsageError(
            f"vocab_size {vocab_size} is too small: {n_specials} special tokens and at least {alphabet} others",
            where="tokenizer.vocab_size",
            fix=f"set it to {n_specials + alphabet} or more",
        )


def _train_bpe(spec: BpeTokenizer, texts: Iterator[str]) -> Inner:
    names = _special_names(spec)
    _check_room(spec.vocab_size, len(names), 256)
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,
        special_tokens=_added(names),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return inner


def _train_wordpiece(spec: WordPieceTokenizer, texts: Iterator[str]) -> Inner:
    """WordPieces as the library trains them: by merges, like BPE.

    It assigns ids to ## characters in the random order of a hash table, and breaks ties by id. So that equal texts
    give an equal tokenizer, they are passed as special tokens, and a clean tokenizer is built afterwards.
    """
    names = _special_names(spec)
    _check_room(spec.vocab_size, len(names), 2)
    inner = _wordpieces({"[UNK]": 0}, spec)
    counts = _count_words(texts, inner)
    characters: Counter[str] = Counter()
    for word, n in counts.items():
        for character in word:
            characters[character] += n
    by_frequency = sorted(characters, key=lambda c: (-characters[c], c))
    # Each character has two entries, at the start of a word and inside it.
    alphabet = sorted(by_frequency[: (spec.vocab_size - len(names)) // 2])
    known = set(alphabet)
    trainer = trainers.WordPieceTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=2,
        special_tokens=[*names, *alphabet, *(CONTINUATION + c for c in alphabet)],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.normalizer = None
    inner.train_from_iterator(_repeated((w, n) for w, n in counts.items() if known.issuperset(w)), trainer)
    trained = _wordpieces(inner.get_vocab(), spec)
    trained.add_special_tokens(_added(names))
    return trained


def _wordpieces(vocabulary: dict[str, int], spec: WordPieceTokenizer) -> Inner:
    model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION)
    inner = Inner(model)
    inner.normalizer = normalizers.BertNormalizer(lowercase=spec.lowercase, strip_accents=spec.lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=True)
    return inner


def _count_words(texts: Iterator[str], inner: Inner) -> Counter[str]:
    """Counts of the words that `inner` splits texts into."""
    spaced: Counter[str] = Counter()
    for text in texts:
        spaced.update(text.split())
    counts: Counter[str] = Counter()
    for words, n in spaced.items():
        for word, _ in inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(words)):
            counts[word] += n
    return counts


def _repeated(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Texts with each word repeated by its count, since the library does not take counts."""
    for word, n in counts:
        for done in range(0, n, 1000):
            yield " ".join([word] * min(1000, n - done))


def _train_char(spec: CharTokenizer, texts: Iterator[str]) -> Inner:
    seen = np.zeros(0x110000, dtype=bool)
    for text in texts:
        seen[code_points(text)] = True
    names = _special_names(spec) + [chr(c) for c in np.flatnonzero(seen)]
    return _whole_pieces(names, len(names) - int(seen.sum()), _CHARACTER, lowercase=False)


def _train_word(spec: WordTokenizer, texts: Iterator[str]) -> Inner:
    names = _special_names(spec)
    _check_room(spec.vocab_size, len(names), 1)
    counter = _whole_pieces(names, len(names), _WORD, lowercase=spec.lowercase)
    counter.train_from_iterator(
        texts,
        trainers.WordLevelTrainer(vocab_size=spec.vocab_size, special_tokens=_added(names), show_progress=False),
    )
    return counter


def _whole_pieces(names: list[str], n_specials: int, pattern: str, *, lowercase: bool) -> Inner:
    """A tokenizer whose tokens are the whole matches of `pattern`."""
    inner = Inner(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    if lowercase:
        inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(_added(names[:n_specials]))
    return inner
