"""Tokenizers: byte-level BPE, WordPiece, characters and words, trained and saved by the `tokenizers` library.

Those of published models are read too, SentencePiece ones included. Text that spells a special token is tokenized as
ordinary text by every kind.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from lmtool import durable
from lmtool.errors import CheckpointError, UsageError
from lmtool.printable import plain
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TokenizerFile,
    TokenizerSpec,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.text.decoder import (
    CONTINUATION,
    ByteDecoder,
    CharDecoder,
    StreamDecoder,
    WordDecoder,
    byte_alphabet,
    code_points,
    decode_bytes,
    sentencepiece_bytes,
)
from lmtool.text.disk import write_file
from lmtool.text.encoder import (
    LONG_TEXT,
    BatchEncoder,
    batch_encoder,
    char_encoder,
    encoding_of,
    fast_encoder,
    is_plain,
)
from lmtool.text.inner import inner_of
from lmtool.text.runs import LONGEST_RUN, cut_runs

SPECIALS = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "[SEP]", "[CLS]")
"""The special tokens, in the order of their ids; sentinels <extra_id_0>, <extra_id_1>... follow."""

LARGEST_FILE = 256 << 20
"""Bytes of a tokenizer.json."""

LARGEST_VOCABULARY = 10_000_000
"""More than any text yields. The trainers allocate memory for all requested entries, and abort when there is too
little."""

_CHARACTER = r"[\s\S]"
_WORD = r"\w+(?:['\x{2019}]\w+)*|[^\w\s]"
_WORD_HERE = re.compile(_WORD.replace(r"\x{2019}", "\u2019"))
"""The same in Python's spelling."""

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
"""The files of a tokenizer. The second names the roles of a published one's special tokens, as Transformers does."""

TokenizerKind = Literal["bpe", "wordpiece", "char", "word", "sentencepiece"]


class RowTemplate(NamedTuple):
    """The special tokens of a published model around a text, and between two."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Roles:
    """The special tokens by their roles.

    bos, eos: start and end a document; in published models without a start token, the end token does both, and stands
    between documents. starts: begin the target of a source. ends: end generated text, `eos` among them. specials:
    tokens that are no text, `sentinels` of removed spans among them. template: see `RowTemplate`; None for tokenizers
    trained here.
    """

    pad: int
    bos: int
    eos: int
    unk: int
    mask: int
    sep: int
    cls: int
    starts: tuple[int, ...]
    ends: frozenset[int]
    sentinels: tuple[int, ...]
    specials: frozenset[int]
    template: RowTemplate | None = None


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
        self._names = _names_of(inner)
        self._published = None if published is None else dict(published)
        self.roles = _own_roles(self._names) if published is None else _published_roles(inner, self._config, published)
        self.kind: TokenizerKind = _kind(self._config)
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
        pieces = (piece for text in texts for piece in cut_runs(text))
        match spec:
            case BpeTokenizer():
                inner = _train_bpe(spec, pieces)
            case WordPieceTokenizer():
                inner = _train_wordpiece(spec, pieces)
            case CharTokenizer():
                inner = _train_char(spec, pieces)
            case WordTokenizer():
                inner = _train_word(spec, pieces)
            case _:
                raise TypeError(f"{type(spec).__name__} cannot be trained")
        return cls(inner)

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
            return cls(inner, json.loads(durable.read(companion)) if companion.exists() else None)
        except FileNotFoundError:
            raise CheckpointError(
                "there is no tokenizer", where=str(file), fix="name a tokenizer.json, or a folder or run with one"
            ) from None
        except OSError as error:
            raise CheckpointError(f"cannot read the tokenizer: {error.strerror}", where=str(file)) from error
        except Exception as error:  # the library raises bare Exception for other JSON
            raise CheckpointError(
                f"not a tokenizer that lmtool can use: {str(error)[:120]!r}",
                where=str(file),
                fix="train one with `lmtool tokenize`, or take that of a run",
            ) from error

    @classmethod
    def of_json(cls, content: bytes) -> Self:
        """The tokenizer of `to_json`. Raises ValueError when it is none."""
        try:
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
        if self._published is not None:
            files[TOKENIZER_CONFIG] = json.dumps(self._published, ensure_ascii=False, indent=1).encode()
        return files

    @property
    def published(self) -> Mapping[str, Any] | None:
        """The content of a published model's tokenizer_config.json; None for a tokenizer trained here."""
        return self._published

    def name(self, token: int) -> str:
        """The text that stands for token `token` in tokenizer.json. Raises IndexError outside the vocabulary."""
        return self._names[token]

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return json.dumps(self._config, ensure_ascii=False, indent=1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's canonical JSON, in hexadecimal."""
        whole = self._config if self._published is None else [self._config, self._published]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

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
        text = without_surrogates(text)
        if len(text) > LONG_TEXT:
            return cast(list[int], self._encoder([text])[0].tolist())
        ids: list[int] = encoding_of(self._inner, text).ids
        return ids

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` as by `encode`, and their character offsets in it (start, stop)."""
        encoding = encoding_of(self._inner, without_surrogates(text))
        return encoding.ids, encoding.offsets

    def encode_many(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all `texts` in one array, and the number of each text; several times faster than `encode`."""
        return self._encoder(texts)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of BPE, by priority."""
        return [(left, right) for left, right in self._config["model"]["merges"]]

    def words(self, text: str) -> list[str]:
        """The parts of `text` that no merge crosses, as byte-level BPE spells them."""
        return [word for word, _ in self._inner.pre_tokenizer.pre_tokenize_str(without_surrogates(text))]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens are skipped.

        BPE, SentencePiece and characters are lossless, but for the space that SentencePiece may add in front. Words and
        WordPieces have lost the spacing, and get spaces as in English typography.
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
            case "sentencepiece":
                return ByteDecoder(self._bytes, drops_space=self._adds_space)
            case "char":
                return CharDecoder(self._texts)
            case _:
                return WordDecoder(self._texts)

    def piece(self, token: int) -> str:
        """Token `token` for display: its text with control characters and invalid UTF-8 escaped.

        Special tokens are shown by name. Raises IndexError outside the vocabulary.
        """
        if token in self.special_ids or self.kind not in ("bpe", "sentencepiece"):
            return plain(self._names[token])
        return plain(self._bytes[token].decode("utf-8", errors="backslashreplace"))

    @cached_property
    def _texts(self) -> list[str]:
        return ["" if i in self.special_ids else name for i, name in enumerate(self._names)]

    @cached_property
    def _bytes(self) -> list[bytes]:
        if self.kind == "sentencepiece":
            return list(map(sentencepiece_bytes, self._texts))
        added = {token["id"] for token in self._config["added_tokens"]}
        alphabet = byte_alphabet()
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
    def _encoder(self) -> BatchEncoder:
        reference = batch_encoder(self._inner)
        if self.kind == "bpe" and (self._published is None or is_plain(self._config)):
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


def _names_of(inner: Inner) -> list[str]:
    """The names of all ids; empty for ids that have none."""
    vocabulary = inner.get_vocab()
    names = [""] * (max(vocabulary.values(), default=-1) + 1)
    if len(names) > LARGEST_VOCABULARY:
        raise ValueError(f"it has the id {len(names) - 1}")
    for name, i in vocabulary.items():
        names[i] = name
    return names


def _own_roles(names: list[str]) -> Roles:
    """The roles of a tokenizer trained here."""
    if tuple(names[: len(SPECIALS)]) != SPECIALS or "" in names:
        raise ValueError("its first entries are not lmtool's special tokens")
    n_sentinels = 0
    while names[len(SPECIALS) + n_sentinels : len(SPECIALS) + n_sentinels + 1] == [f"<extra_id_{n_sentinels}>"]:
        n_sentinels += 1
    pad, bos, eos, unk, mask, sep, cls = range(len(SPECIALS))
    sentinels = tuple(range(len(SPECIALS), len(SPECIALS) + n_sentinels))
    specials = frozenset(range(len(SPECIALS) + n_sentinels))
    return Roles(pad, bos, eos, unk, mask, sep, cls, (bos,), frozenset((eos,)), sentinels, specials)


def _published_roles(inner: Inner, config: dict[str, Any], published: Mapping[str, Any]) -> Roles:
    """The roles of a published model's special tokens; a token stands in for those that it does not have."""
    named = {role: _token(inner, published.get(f"{role}_token")) for role in _ROLES}
    eos = named["sep"] if named["eos"] is None else named["eos"]
    if eos is None:
        raise ValueError("its tokenizer_config.json names no eos_token, which ends a text")
    template = _template(inner)
    bos = named["bos"] if named["bos"] in template.before else None
    sentinels = list(iter_sentinels(inner))
    marked = {token["id"] for token in config["added_tokens"] if token["special"]}
    given = {i for i in named.values() if i is not None}
    starts = tuple(_token(inner, name) for name in published.get("start_tokens", ()))
    ends = {_token(inner, name) for name in published.get("end_tokens", ())}
    return Roles(
        pad=_or(named["pad"], eos),
        bos=_or(bos, eos),
        eos=eos,
        unk=_or(named["unk"], eos),
        mask=_or(named["mask"], eos),
        sep=_or(named["sep"], eos),
        cls=_or(named["cls"], _or(bos, eos)),
        starts=tuple(i for i in starts if i is not None) or (_or(bos, eos),),
        ends=frozenset({eos, *(i for i in ends if i is not None)}),
        sentinels=tuple(sentinels),
        specials=frozenset({*marked, *given, *sentinels}),
        template=template,
    )


def _or(found: int | None, other: int) -> int:
    return other if found is None else found


_ROLES = ("pad", "bos", "eos", "unk", "mask", "sep", "cls")


def _token(inner: Inner, named: object) -> int | None:
    """The id of a token that is named by its text, or by an object with it."""
    name = named.get("content") if isinstance(named, dict) else named
    found: int | None = inner.token_to_id(name) if isinstance(name, str) else None
    return found


def _template(inner: Inner) -> RowTemplate:
    one, two = inner.encode("a"), inner.encode("a", "a")
    own = [i for i, is_special in enumerate(one.special_tokens_mask) if not is_special]
    first, second = (
        [
            i
            for i, (n, is_special) in enumerate(zip(two.sequence_ids, two.special_tokens_mask, strict=True))
            if n == part and not is_special
        ]
        for part in (0, 1)
    )
    if not (own and first and second):
        raise ValueError("its template loses the text")
    return RowTemplate(
        tuple(one.ids[: own[0]]), tuple(two.ids[first[-1] + 1 : second[0]]), tuple(one.ids[own[-1] + 1 :])
    )


def iter_sentinels(inner: Inner) -> Iterator[int]:
    """Ids of <extra_id_0>, <extra_id_1>..."""
    n = 0
    while (found := inner.token_to_id(f"<extra_id_{n}>")) is not None:
        yield found
        n += 1


def _kind(config: dict[str, Any]) -> TokenizerKind:
    parts = set(_types(config["pre_tokenizer"])) | set(_types(config["decoder"]))
    match config["model"]["type"]:
        case "BPE" if "ByteLevel" in parts:
            return "bpe"
        case "BPE" | "Unigram":
            return "sentencepiece"
        case "WordPiece":
            return "wordpiece"
        case "WordLevel" if config["pre_tokenizer"]["type"] == "Split":
            return "char" if config["pre_tokenizer"]["pattern"]["Regex"] == _CHARACTER else "word"
    raise ValueError("its model is neither BPE, WordPiece nor Unigram")


def _types(part: object) -> Iterator[str]:
    """The types of all parts of a pre-tokenizer or decoder."""
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "type")
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _types(one)


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
        min_frequency=spec.min_frequency,
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
            # letters with combining marks between them are a word here, and no run of one class
            for start in range(0, len(word), LONGEST_RUN):
                counts[word[start : start + LONGEST_RUN]] += n
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
    # else a text that spells a special token counts it as a word
    counter.encode_special_tokens = True
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
