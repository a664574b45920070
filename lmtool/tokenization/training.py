"""Training tokenizers by the `tokenizers` library."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

from lmtool.errors import UsageError
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, TokenizerSpec, WordPieceTokenizer, WordTokenizer
from lmtool.tokenization.decoder import CONTINUATION, code_points
from lmtool.tokenization.inner import CHARACTER, LARGEST_VOCABULARY, SPECIALS, WORD

LONGEST_RUN = 1024
"""Characters of a run of one class from which it is cut. Ordinary text has none: long words have some 50 letters."""

_LETTER_OR_SPACE = re.compile(r"[^\W_]|\s")


def train(spec: TokenizerSpec, texts: Iterable[str]) -> Inner:
    """A tokenizer of `spec`'s kind, see `Tokenizer.train`."""
    pieces = (piece for text in texts for piece in cut_runs(text))
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


def cut_runs(text: str) -> Iterator[str]:
    """`text` in pieces without long runs of letters and digits, of other visible characters, or of white space.

    Every run of twice LONGEST_RUN characters or more is cut, none below LONGEST_RUN is, and a text without one is
    yielded as it is. The pieces concatenated are the text. A tokenizer trained on them is as one trained on the text,
    but for tokens of more than LONGEST_RUN characters.
    """
    done = 0
    for start in range(0, len(text) - LONGEST_RUN + 1, LONGEST_RUN):
        part = text[start : start + LONGEST_RUN]
        if part.isalnum() or part.isspace() or not _LETTER_OR_SPACE.search(part):
            if start > done:
                yield text[done:start]
            yield part
            done = start + LONGEST_RUN
    if done < len(text) or not text:
        yield text[done:]


def _special_names(spec: TokenizerSpec) -> list[str]:
    return [*SPECIALS, *(f"<extra_id_{i}>" for i in range(spec.sentinels))]


def _added(names: list[str]) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False) for name in names]


def _check_room(vocab_size: int, n_specials: int, alphabet: int) -> None:
    if vocab_size > LARGEST_VOCABULARY:
        what = f"a vocabulary of {vocab_size:,} entries is too large: at most {LARGEST_VOCABULARY:,} can be trained"
        fix = "4,096 suits a megabyte of text, 50,000 suits gigabytes"
        raise UsageError(what, where="tokenizer.vocab_size", fix=fix)
    if vocab_size < n_specials + alphabet:
        what = f"vocab_size {vocab_size} is too small: {n_specials} special tokens and at least {alphabet} others"
        raise UsageError(what, where="tokenizer.vocab_size", fix=f"set it to {n_specials + alphabet} or more")


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
    seen, lowercase = np.zeros(0x110000, dtype=bool), normalizers.Lowercase()
    for text in texts:
        seen[code_points(lowercase.normalize_str(text) if spec.lowercase else text)] = True
    names = _special_names(spec) + [chr(c) for c in np.flatnonzero(seen)]
    return _whole_pieces(names, len(names) - int(seen.sum()), CHARACTER, lowercase=spec.lowercase)


def _train_word(spec: WordTokenizer, texts: Iterator[str]) -> Inner:
    names = _special_names(spec)
    _check_room(spec.vocab_size, len(names), 1)
    counter = _whole_pieces(names, len(names), WORD, lowercase=spec.lowercase)
    # else a text that spells a special token counts it as a word
    counter.encode_special_tokens = True
    counter.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=spec.vocab_size, special_tokens=_added(names), show_progress=False)
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
