"""Trains tokenizers with the `tokenizers` library."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from lmtool.errors import UsageError
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.tokenization.decoder import CONTINUATION_PREFIX, to_code_points
from lmtool.tokenization.inner import CHARACTER_PATTERN, MAX_VOCAB_SIZE, SPECIAL_TOKENS, WORD_PATTERN

MAX_RUN_CHARACTERS = 1024
"""Longer runs of one class are split. Ordinary text has none, because long words have some 50 letters."""

_LETTER_OR_SPACE = re.compile(r"[^\W_]|\s")


def train_inner_tokenizer(spec: TrainedTokenizerSpecBase, texts: Iterable[str]) -> Inner:
    """Trains a tokenizer of the kind of `spec`; see `Tokenizer.train`."""
    pieces = (piece for text in texts for piece in split_long_runs(text))
    match spec:
        case BpeTokenizer():
            return _train_bpe(spec, pieces)
        case WordPieceTokenizer():
            return _train_wordpiece(spec, pieces)
        case CharTokenizer():
            return _train_char(spec, pieces)
        case WordTokenizer():
            return _train_word(spec, pieces)
    raise TypeError(f"{type(spec).__name__} cannot be trained")


def split_long_runs(text: str) -> Iterator[str]:
    """Splits a text within long runs of letters and digits, of other visible characters, or of white space.

    Splits every run of twice MAX_RUN_CHARACTERS or more, and none below MAX_RUN_CHARACTERS. The pieces concatenate to
    the text. A tokenizer trained on them equals one trained on the text, except for tokens above MAX_RUN_CHARACTERS.
    """
    done = 0
    for start in range(0, len(text) - MAX_RUN_CHARACTERS + 1, MAX_RUN_CHARACTERS):
        part = text[start : start + MAX_RUN_CHARACTERS]
        if part.isalnum() or part.isspace() or not _LETTER_OR_SPACE.search(part):
            if start > done:
                yield text[done:start]
            yield part
            done = start + MAX_RUN_CHARACTERS
    if done < len(text) or not text:
        yield text[done:]


def _list_special_tokens(spec: TrainedTokenizerSpecBase) -> list[str]:
    return [*SPECIAL_TOKENS, *(f"<extra_id_{i}>" for i in range(spec.sentinels))]


def _make_special_tokens(names: list[str]) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False) for name in names]


def _check_vocab_size(vocab_size: int, n_specials: int, n_alphabet: int) -> None:
    if vocab_size > MAX_VOCAB_SIZE:
        what = f"a vocabulary of {vocab_size:,} entries is too large: at most {MAX_VOCAB_SIZE:,} can be trained"
        fix = "4,096 suits a megabyte of text, 50,000 suits gigabytes"
        raise UsageError(what, where="tokenizer.vocab_size", fix=fix)
    if vocab_size < n_specials + n_alphabet:
        what = f"vocab_size {vocab_size} is too small: {n_specials} special tokens and at least {n_alphabet} others"
        raise UsageError(what, where="tokenizer.vocab_size", fix=f"set it to {n_specials + n_alphabet} or more")


def _train_bpe(spec: BpeTokenizer, texts: Iterator[str]) -> Inner:
    names = _list_special_tokens(spec)
    _check_vocab_size(spec.vocab_size, len(names), 256)
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        min_frequency=spec.min_frequency,
        special_tokens=_make_special_tokens(names),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return inner


def _train_wordpiece(spec: WordPieceTokenizer, texts: Iterator[str]) -> Inner:
    """Trains WordPieces as the library does: by merges, like BPE.

    The library assigns ids to ## characters in the random order of a hash table, and breaks ties by id. So that equal
    texts give an equal tokenizer, they are passed as special tokens, and a clean tokenizer is built afterwards.
    """
    names = _list_special_tokens(spec)
    _check_vocab_size(spec.vocab_size, len(names), 2)
    inner = _build_wordpiece({"[UNK]": 0}, spec)
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
        special_tokens=[*names, *alphabet, *(CONTINUATION_PREFIX + c for c in alphabet)],
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=False,
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.normalizer = None
    repeated = (  # because the library takes no counts
        " ".join([word] * min(1000, n - done))
        for word, n in counts.items()
        if known.issuperset(word)
        for done in range(0, n, 1000)
    )
    inner.train_from_iterator(repeated, trainer)
    trained = _build_wordpiece(inner.get_vocab(), spec)
    trained.add_special_tokens(_make_special_tokens(names))
    return trained


def _build_wordpiece(vocabulary: dict[str, int], spec: WordPieceTokenizer) -> Inner:
    model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION_PREFIX)
    inner = Inner(model)
    inner.normalizer = normalizers.BertNormalizer(lowercase=spec.lowercase, strip_accents=spec.lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX, cleanup=True)
    return inner


def _count_words(texts: Iterator[str], inner: Inner) -> Counter[str]:
    """Counts the words that `inner` splits texts into."""
    spaced: Counter[str] = Counter()
    for text in texts:
        spaced.update(text.split())
    counts: Counter[str] = Counter()
    for words, n in spaced.items():
        for word, _ in inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(words)):
            # letters with combining marks between them are a word here, and no run of one class
            for start in range(0, len(word), MAX_RUN_CHARACTERS):
                counts[word[start : start + MAX_RUN_CHARACTERS]] += n
    return counts


def _train_char(spec: CharTokenizer, texts: Iterator[str]) -> Inner:
    seen, lowercase = np.zeros(0x110000, dtype=bool), normalizers.Lowercase()
    for text in texts:
        seen[to_code_points(lowercase.normalize_str(text) if spec.lowercase else text)] = True
    names = _list_special_tokens(spec) + [chr(c) for c in np.flatnonzero(seen)]
    return _build_word_level(names, len(names) - int(seen.sum()), CHARACTER_PATTERN, lowercase=spec.lowercase)


def _train_word(spec: WordTokenizer, texts: Iterator[str]) -> Inner:
    names = _list_special_tokens(spec)
    _check_vocab_size(spec.vocab_size, len(names), 1)
    counter = _build_word_level(names, len(names), WORD_PATTERN, lowercase=spec.lowercase)
    # otherwise a text that spells a special token would count it as a word
    counter.encode_special_tokens = True
    counter.train_from_iterator(
        texts,
        trainers.WordLevelTrainer(
            vocab_size=spec.vocab_size, special_tokens=_make_special_tokens(names), show_progress=False
        ),
    )
    return counter


def _build_word_level(names: list[str], n_leading_specials: int, token_pattern: str, *, lowercase: bool) -> Inner:
    """Builds a tokenizer whose tokens are the matches of `token_pattern`."""
    inner = Inner(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    if lowercase:
        inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(token_pattern), behavior="removed", invert=True)
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(_make_special_tokens(names[:n_leading_specials]))
    return inner
