"""Parses tokenizer.json files with the `tokenizers` library, and refuses content on which it would abort or panic."""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Inner

SPECIAL_TOKENS = ("[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "[SEP]", "[CLS]")
"""The special tokens, in the order of their ids; sentinels <extra_id_0>, <extra_id_1>... follow."""

ROLE_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys of tokenizer_config.json that name special tokens; templates have them as variables."""

MAX_VOCAB_SIZE = 10_000_000
"""More than any text yields. The trainers allocate memory for all entries, and abort if there is too little."""

MAX_GROWTH = 1000
"""Limit of the factor by which normalization lengthens a text. Published tokenizers have up to 648: two compatibility
decompositions, each of up to 18 characters, and lower case."""

_GROWTH_BY_NORMALIZER = {
    **{"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18},  # by Unicode 15; the last make 18 of U+FDFA
    **{"Lowercase": 2, "BertNormalizer": 24, "ByteLevel": 4},
}
"""Characters that one character may become; BERT adds spaces around ideographs and separates accents."""

_NONEMPTY_PATTERN = re.compile(r"(?:(?:\\[dswDSW]|\[[^][\\]+\]|[^][\\(){}|?*+.^$])(?:\+|\{[1-9]\d*(?:,\d*)?\})?)+")
"""Matches patterns that match no empty text: characters and classes, at least once each."""

CHARACTER_PATTERN = r"[\s\S]"
WORD_PATTERN = r"\w+(?:['\x{2019}]\w+)*|[^\w\s]"
TokenizerKind = Literal["bpe", "wordpiece", "char", "word", "sentencepiece"]


class SpecialTokenTemplate(NamedTuple):
    """The special tokens of a published model before, between and after texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class SpecialTokenIdsByRole:
    """Ids of the special tokens by role.

    bos, eos: start and end a document; in published models without a start token, the end token does both, and stands
        between documents.
    starts: begin the target of a source.
    ends: end generated text, `eos` among them.
    specials: all tokens that are no text, with the `sentinels` of removed spans.
    template: see `SpecialTokenTemplate`; None for tokenizers trained here.
    named_bos: the published bos_token, also where the template does not put it before a text.
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
    template: SpecialTokenTemplate | None = None
    named_bos: int | None = None


class LibraryPanic(Exception):
    """Raised when the `tokenizers` library panics."""


@contextmanager
def convert_panics_to_exceptions() -> Iterator[None]:
    """Converts a panic of the library to LibraryPanic, because a panic is no Exception and would pass every handler."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanic(str(error)) from error


def parse_tokenizer_json(content: str) -> Inner:
    """Parses the content of a tokenizer.json.

    Raises ValueError if the library cannot read it, would abort or panic (BPE whose merges do not continue with the
    prefix of continuing pieces, rules of normalization that point outside of themselves, templates with undefined
    tokens), or if normalization makes texts too long; see `check_normalizer_growth`.
    """
    described = json.loads(content)
    if isinstance(described, dict):
        check_normalizer_growth(described)
        _check_merges_continue_with_prefix(described.get("model"))
        _check_post_processor_templates(described.get("post_processor"))
    try:
        with convert_panics_to_exceptions():
            return Inner.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from error


def _check_merges_continue_with_prefix(model: Any) -> None:
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if prefix else None
    for merge in merges if isinstance(merges, list) else ():
        pieces = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pieces, list) or not all(str(piece).startswith(str(prefix)) for piece in pieces[1:]):
            raise ValueError(f"the merge {str(merge)[:40]!r} does not go on with {str(prefix)[:20]!r}")


def check_normalizer_growth(tokenizer_json: dict[str, Any]) -> None:
    """Raises ValueError when normalization may make a text more than MAX_GROWTH times as long.

    Each step can feed the next, so the maximal factors of all steps are multiplied.
    """
    growth = 1.0
    steps = [step for key in ("normalizer", "pre_tokenizer") for step in find_nested_objects(tokenizer_json.get(key))]
    for step in steps:
        try:
            growth *= _normalizer_growth_factor(step)
        except (binascii.Error, TypeError, AttributeError) as error:
            raise ValueError(f"normalizer: {error}") from error
        if growth > MAX_GROWTH:
            kind = str(step.get("type"))[:40]
            raise ValueError(f"its normalizer may make a text over {MAX_GROWTH:,} times as long, by step {kind!r}")
    if sum(len(str(step.get("prepend", ""))) for step in steps) > MAX_GROWTH:
        raise ValueError(f"its normalizer puts over {MAX_GROWTH:,} characters in front of a text")


def _normalizer_growth_factor(step: dict[str, Any]) -> float:
    """Returns the characters that a step may make of one. Raises ValueError, TypeError or AttributeError."""
    kind = step.get("type")
    if kind == "Precompiled":
        charsmap: Any = step.get("precompiled_charsmap")
        return max(1, *map(len, read_charsmap_replacements(base64.b64decode(charsmap, validate=True))))
    if kind != "Replace":
        return _GROWTH_BY_NORMALIZER.get(str(kind), 1)
    pattern, content = step.get("pattern"), step.get("content")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if text:
        return max(1.0, math.ceil(len(content or "") / len(text)))
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    return max(1, len(content or "") + (regex is None or not _NONEMPTY_PATTERN.fullmatch(regex)))


def read_charsmap_replacements(charsmap: bytes) -> list[str]:
    """Returns the replacements of compiled normalization rules. Raises ValueError if they point outside themselves.

    They are a trie (darts-clone), an array of units: 8 bits of label, whether a value follows, and the offset to the
    units that follow. Its values are offsets into a blob of strings, each ended by a zero byte.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size < 4 or size % 4 or size > len(charsmap) - 4:
        raise ValueError("the trie of its normalization rules is cut off")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    blob = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    texts = blob.tobytes().decode("utf-8").split("\0")
    follows = np.arange(len(units)) ^ (units >> 10 << ((units & 0x200) >> 6))
    is_value = units >> 31 == 1
    if ((follows | 0xFF)[~is_value] >= len(units)).any():
        raise ValueError("the trie of its normalization rules points outside itself")
    offsets = units[follows[~is_value & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    # Each string starts the blob or follows the end of another, so that no character is cut.
    if (offsets >= len(blob)).any() or (blob[offsets[offsets > 0] - 1] != 0).any():
        raise ValueError("a normalization rule has no replacement")
    return texts


def _check_post_processor_templates(processor: Any) -> None:
    for template in find_nested_objects(processor, "TemplateProcessing"):
        defined = template.get("special_tokens")
        for row in (template.get("single"), template.get("pair")):
            texts = [
                text.get("id") for part in find_nested_objects(row) if isinstance(text := part.get("Sequence"), dict)
            ]
            if texts.count("A") > 1 or texts.count("B") > 1:
                raise ValueError("the template has a text more than once")
        for part in find_nested_objects([template.get("single"), template.get("pair")]):
            named = part.get("SpecialToken")
            name = named.get("id") if isinstance(named, dict) else None
            if name is not None and not (isinstance(defined, dict) and name in defined):
                raise ValueError(f"the template has a token {str(name)[:40]!r} that it does not define")


def find_nested_objects(component: Any, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields all objects inside a component of a tokenizer.json, such as the normalizer, or those of type `kind`."""
    pending = [component]
    while pending:
        match pending.pop():
            case dict() as part:
                pending.extend(part.values())
                if kind is None or part.get("type") == kind:
                    yield part
            case list() as parts:
                pending.extend(parts)


def list_token_names(inner: Inner) -> list[str]:
    """Returns the name of each id; "" for ids without a name."""
    vocabulary = inner.get_vocab()
    names = [""] * (max(vocabulary.values(), default=-1) + 1)
    if len(names) > MAX_VOCAB_SIZE:
        raise ValueError(f"it has the id {len(names) - 1}")
    for name, i in vocabulary.items():
        names[i] = name
    return names


def trained_special_token_ids_by_role(token_names: list[str]) -> SpecialTokenIdsByRole:
    """Returns the roles of a tokenizer trained by lmtool. Raises ValueError when `token_names` are not those of one."""
    first = len(SPECIAL_TOKENS)
    if tuple(token_names[:first]) != SPECIAL_TOKENS or "" in token_names:
        raise ValueError("its first entries are not lmtool's special tokens")
    n_sentinels = next(
        (n for n, name in enumerate(token_names[first:]) if name != f"<extra_id_{n}>"), len(token_names) - first
    )
    stop = first + n_sentinels
    pad, bos, eos, unk, mask, sep, cls = range(first)
    specials = frozenset(range(stop))
    return SpecialTokenIdsByRole(
        pad, bos, eos, unk, mask, sep, cls, (bos,), frozenset((eos,)), tuple(range(first, stop)), specials
    )


def published_special_token_ids_by_role(
    inner: Inner, tokenizer_json: dict[str, Any], tokenizer_config: Mapping[str, Any]
) -> SpecialTokenIdsByRole:
    """Returns the roles of a published model's special tokens; another token has the roles that are missing.

    tokenizer_json: content of tokenizer.json. tokenizer_config: of tokenizer_config.json. Raises ValueError
    without an end token.
    """
    named = {
        key.removesuffix("_token"): i
        for key in ROLE_KEYS
        if (i := _find_token_id(inner, tokenizer_config.get(key))) is not None
    }
    eos = named.get("eos", named.get("sep"))
    if eos is None:
        raise ValueError("its tokenizer_config.json names no eos_token, which ends a text")
    template = _infer_special_token_template(inner)
    bos = named["bos"] if named.get("bos") in template.before else eos
    starts, ends = (
        [_find_token_id(inner, name) for name in tokenizer_config.get(key, ())]
        for key in ("start_tokens", "end_tokens")
    )
    begin = tuple(i for i in starts if i is not None) or (bos,)
    end = frozenset({eos, *(i for i in ends if i is not None)})
    numbered: Iterator[Any] = (inner.token_to_id(f"<extra_id_{n}>") for n in count())
    sentinels = tuple(takewhile(lambda token: token is not None, numbered))
    marked = {token["id"] for token in tokenizer_json["added_tokens"] if token["special"]}
    specials = frozenset({*marked, *named.values(), *sentinels})
    pad, unk, mask, sep = (named.get(role, eos) for role in ("pad", "unk", "mask", "sep"))
    cls, named_bos = named.get("cls", bos), named.get("bos")
    return SpecialTokenIdsByRole(
        pad, bos, eos, unk, mask, sep, cls, begin, end, sentinels, specials, template, named_bos
    )


def token_content(named: object) -> str | None:
    """Returns the text of a token from its text or an object with `content`; None for other values."""
    text = named.get("content") if isinstance(named, dict) else named
    return text if isinstance(text, str) else None


def _find_token_id(inner: Inner, named: object) -> int | None:
    """Returns the id of a token of this name; see `token_content`."""
    text = token_content(named)
    token: int | None = None if text is None else inner.token_to_id(text)
    return token


def _infer_special_token_template(inner: Inner) -> SpecialTokenTemplate:
    one, two = inner.encode("a"), inner.encode("a", "a")
    alone, first, second = _find_text_positions(one, 0), _find_text_positions(two, 0), _find_text_positions(two, 1)
    if not (alone and first and second):
        raise ValueError("its template loses the text")
    between = two.ids[first[-1] + 1 : second[0]]
    return SpecialTokenTemplate(tuple(one.ids[: alone[0]]), tuple(between), tuple(one.ids[alone[-1] + 1 :]))


def _find_text_positions(encoding: Encoding, part: int) -> list[int]:
    """Returns the positions of the tokens of the first or the second text."""
    tokens = zip(encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    return [i for i, (n, is_special) in enumerate(tokens) if n == part and not is_special]


def infer_tokenizer_kind(tokenizer_json: dict[str, Any]) -> TokenizerKind:
    """Returns the kind of a tokenizer.json. Raises ValueError for other kinds."""
    parts = {
        part.get("type") for part in find_nested_objects([tokenizer_json["pre_tokenizer"], tokenizer_json["decoder"]])
    }
    match tokenizer_json["model"]["type"]:
        case "BPE" if "ByteLevel" in parts:
            return "bpe"
        case "BPE" | "Unigram":
            return "sentencepiece"
        case "WordPiece":
            return "wordpiece"
        case "WordLevel" if tokenizer_json["pre_tokenizer"]["type"] == "Split":
            return "char" if tokenizer_json["pre_tokenizer"]["pattern"]["Regex"] == CHARACTER_PATTERN else "word"
    raise ValueError("its model is neither BPE, WordPiece nor Unigram")
