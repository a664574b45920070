"""Tokenizers of GGUF files: tokenizer.json of the library `tokenizers`, both ways.

`gpt2` is byte-level BPE, cut into words as `tokenizer.ggml.pre` names it; `llama` is BPE of SentencePiece with byte
fallback, whose merges follow from the scores of its tokens. Where llama.cpp leaves out what the model's own
tokenizer.json does, such as the normalization of Qwen, this follows the model's own. Every token is in the vocabulary,
so that its id is its place in the file.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from gguf import TokenType
from tokenizers import Tokenizer

from lmtool.interop.families.config import Config
from lmtool.interop.gguf.container import Container
from lmtool.interop.gguf.files import inexpressible
from lmtool.interop.tokenization.converting import SPACE, sentencepiece_decoder
from lmtool.interop.tokenization.reading import PublishedTokenizer
from lmtool.printable import printable
from lmtool.tokenization.inner import parse_tokenizer_json

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, {**_BYTES, "use_regex": False}]}


@dataclass(frozen=True)
class _Words:
    """How a byte-level tokenizer cuts text into words, by its names in `tokenizer.ggml.pre`.

    whole: a word that is a token stays whole. begins: text begins with `bos` where the file does not say.
    """

    names: tuple[str, ...]
    cut: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    whole: bool = False
    begins: bool = False


def _words(names: str, regex: str = "", digits: bool = False, nfc: bool = False, **options: bool) -> _Words:
    """names: parted by spaces. regex: of words, those of GPT-2 without one. digits: each is a word."""
    cut: dict[str, Any] = _split(regex) if regex else _BYTES
    if digits:
        cut = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]}
    return _Words(tuple(names.split()), cut, {"type": "NFC"} if nfc else None, **options)


_WORDS = [_words(**words) for words in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))]
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos", "eot", "eom")
"""Tokens that end a text, a turn, and a message."""
_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""Where a file does not say."""
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREFIX = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _REPLACE]}
_GEMMA_CUT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def describe_tokenizer(
    container: Container, architecture: str, vocab_size: int
) -> tuple[PublishedTokenizer, dict[str, Any]]:
    """The tokenizer of a file, and keys of its config.json, such as `eos_token_id`.

    Raises CheckpointError when it is of an unknown kind, or does not fit together.

    SentencePiece puts a space before any text, also before one that begins with a space, as the original does.
    """
    keys = Config(container.values, printable(str(container.path)))
    tokens: list[str] = list(keys.take("tokenizer.ggml.tokens", list))
    model = keys.take("tokenizer.ggml.model", str)
    special = _special_ids(keys, len(tokens), model)
    kinds = _numbers(keys, "tokenizer.ggml.token_type", len(tokens)) or [int(TokenType.NORMAL)] * len(tokens)
    if architecture == "gemma":
        _spell_spaces(tokens, kinds)
    if len(tokens) > vocab_size or len(set(tokens)) < len(tokens):
        raise keys.refusal(
            f"it has {len(tokens)} tokens, {len(set(tokens))} different ones, and {vocab_size} embeddings"
        )
    match model:
        case "gpt2":
            document, begins = _byte_level(keys, tokens)
        case "llama":
            document, begins = _sentencepiece(keys, tokens, kinds, special, architecture)
        case _:
            raise keys.refusal(f"its tokenizer is {printable(model)[:40]}, not gpt2 or llama")
    marked = {special[name] for name in ("bos", "eos", "unknown") if name in special}
    document["added_tokens"] = [
        _added_token(n, token, special=kind == TokenType.CONTROL or n in marked)
        for n, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if token and (kind in (TokenType.CONTROL, TokenType.USER_DEFINED) or n in marked)
    ]
    before = _prompt_format(keys, "bos", tokens, special, begins)
    after = _prompt_format(keys, "eos", tokens, special, False)
    document["post_processor"] = _template(before, after)
    try:
        text = parse_tokenizer_json(json.dumps(document)).to_str()
    except Exception as error:  # the library raises nothing more special
        raise keys.refusal(f"its tokenizer does not fit together: {printable(str(error))[:100]}") from error
    config: dict[str, Any] = {key: tokens[special[name]] for key, name in _SPECIAL.items() if name in special}
    template = keys.optional("tokenizer.chat_template", str)
    if template is not None:
        config["chat_template"] = template
    ends = list(dict.fromkeys(special[name] for name in _ENDS if name in special))
    ids: dict[str, Any] = {f"{key}_id": special[name] for key, name in _SPECIAL.items() if name in special}
    ids.pop("unk_token_id", None)
    if ends:
        ids["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    return PublishedTokenizer(text, config), ids


def _special_ids(keys: Config, n_tokens: int, model: str) -> dict[str, int]:
    special = {}
    for name in (*_SPECIAL.values(), *_ENDS[1:]):
        n = keys.optional(f"tokenizer.ggml.{name}_token_id", int)
        if n is not None and not 0 <= n < n_tokens:
            raise keys.refusal(f"tokenizer.ggml.{name}_token_id is {n} of {n_tokens} tokens")
        if n is None and model == "llama" and _SENTENCEPIECE_IDS.get(name, n_tokens) < n_tokens:
            n = _SENTENCEPIECE_IDS[name]
        if n is not None:
            special[name] = n
    return special


def _numbers(keys: Config, name: str, length: int) -> list[Any] | None:
    """A list of numbers, one for each token; None when the file has none."""
    values = keys.optional(name, np.ndarray)
    if values is None:
        return None
    if len(values) != length:
        raise keys.refusal(f"{name} has {len(values)} items for {length} tokens")
    numbers: list[Any] = values.tolist()
    return numbers


def _spell_spaces(tokens: list[str], kinds: list[int]) -> None:
    """Spell runs of spaces as Gemma's own tokenizer does: they are ordinary tokens there, with merges."""
    for n, token in enumerate(tokens):
        if len(token) > 1 and not token.strip(" "):
            tokens[n] = SPACE * len(token)
            kinds[n] = int(TokenType.NORMAL)


def _byte_level(keys: Config, tokens: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """A document without added tokens; and whether text begins with `bos` where the file does not say."""
    name = keys.take("tokenizer.ggml.pre", str, "default")
    words = next((one for one in _WORDS if name in one.names), None)
    if words is None:
        known = ", ".join(name for one in _WORDS for name in one.names)
        raise keys.refusal(f"its pre-tokenizer {printable(name)[:40]} is none of {known}")
    merges = [merge.split(" ") for merge in keys.take("tokenizer.ggml.merges", list) if type(merge) is str]
    if any(len(merge) != 2 for merge in merges):
        raise keys.refusal("a merge in tokenizer.ggml.merges is not of two parts")
    decoder = {**_BYTES, "add_prefix_space": True}
    model = _bpe(tokens, merges, ignore_merges=words.whole)
    parts = {"normalizer": words.normalizer, "pre_tokenizer": words.cut, "decoder": decoder, "model": model}
    return parts, words.begins


def _sentencepiece(
    keys: Config, tokens: Sequence[str], kinds: Sequence[int], special: Mapping[str, int], architecture: str
) -> tuple[dict[str, Any], bool]:
    """A document without added tokens; and whether text begins with `bos` where the file does not say."""
    scores = _numbers(keys, "tokenizer.ggml.scores", len(tokens))
    if scores is None or not all(type(score) is float for score in scores):
        raise keys.refusal("tokenizer.ggml.scores is not a list of floats")
    unknown = tokens[special["unknown"]] if "unknown" in special else None
    merges = recovered_merges(tokens, kinds, scores, architecture)
    model = _bpe(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    prefixed = keys.take("tokenizer.ggml.add_space_prefix", bool, True)
    cut = _GEMMA_CUT if architecture == "gemma" else None
    spaced, decoder = _PREFIX if prefixed else _REPLACE, sentencepiece_decoder(prefixed=prefixed)
    return {"normalizer": spaced, "pre_tokenizer": cut, "decoder": decoder, "model": model}, True


def recovered_merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], architecture: str
) -> list[list[str]]:
    """All ways to make an ordinary token of two, best score first; Gemma's scores say less than its order does.

    Tokens of other kinds are neither parts nor results, so that text spells no control token.
    """
    normal = {token: n for n, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == TokenType.NORMAL}
    ranked = []
    for token, n in normal.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in normal and right in normal]
        rank = -n if architecture == "gemma" else scores[n]
        ranked += [(rank, len(left), len(right), left, right) for left, right in pairs]
    ranked.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in ranked]


def _bpe(tokens: Sequence[str], merges: Sequence[Sequence[str]], **options: object) -> dict[str, Any]:
    return {"type": "BPE", **options, "vocab": {token: n for n, token in enumerate(tokens)}, "merges": merges}


def _added_token(n: int, token: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": n, "content": token, **flags}


def _prompt_format(
    keys: Config, name: str, tokens: Sequence[str], special: Mapping[str, int], default: bool
) -> list[tuple[str, int]]:
    """The token that is put before (`bos`) or after (`eos`) every text, if one is."""
    if not keys.take(f"tokenizer.ggml.add_{name}_token", bool, default):
        return []
    if name not in special:
        raise keys.refusal(f"text gets a token {name}, and tokenizer.ggml.{name}_token_id is missing")
    return [(tokens[special[name]], special[name])]


def _template(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]) -> dict[str, Any] | None:
    if not before and not after:
        return None

    def framed(sequence: str, segment: int) -> list[dict[str, Any]]:
        def added(bos_eos: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
            return [{"SpecialToken": {"id": token, "type_id": segment}} for token, _ in bos_eos]

        return [*added(before), {"Sequence": {"id": sequence, "type_id": segment}}, *added(after)]

    known = {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in (*before, *after)}
    pair = [*framed("A", 0), *framed("B", 1)]
    return {"type": "TemplateProcessing", "single": framed("A", 0), "pair": pair, "special_tokens": known}


def express_tokenizer(
    tokenizer_json: str, tokenizer_config: Mapping[str, Any], architecture: str, vocab_size: int, ends: Sequence[int]
) -> dict[str, Any]:
    """The inverse of `describe_tokenizer`: values by their key in a file, lists in the place of arrays.

    ends: ids that end a text, of a config.json. Raises UsageError naming a key that no GGUF file has.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    if model["type"] != "BPE":
        raise inexpressible("model.type", model["type"])
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[key]:
            raise inexpressible(f"model.{key}", str(model[key]))
    tokens, kinds = _tokens(document, vocab_size)
    if architecture == "gemma":
        runs = zip(tokens, kinds, strict=True)
        tokens = [token.replace(SPACE, " ") if kind == TokenType.USER_DEFINED else token for token, kind in runs]
    values: dict[str, Any] = {"tokens": tokens, "token_type": kinds}
    if model["byte_fallback"]:
        values |= _express_sentencepiece(document, tokens, kinds, architecture)
    else:
        values |= {"model": "gpt2", "pre": _words_of(document).names[0], "add_space_prefix": False}
        values["merges"] = [" ".join(merge) for merge in model["merges"]]
        if not values["merges"] or any(merge.count(" ") != 1 for merge in values["merges"]):
            raise inexpressible("model.merges", "empty, or of tokens with spaces")
    special = _ids_of(tokenizer_config, tokens)
    rest = [n for n in ends if n != special.get("eos")]
    if len(rest) >= len(_ENDS) or not all(type(n) is int and 0 <= n < vocab_size for n in rest):
        raise inexpressible("eos_token_id", f"{list(ends)}")
    special |= dict(zip(_ENDS[1:] if "eos" in special else _ENDS, rest, strict=False))
    values |= {f"{name}_token_id": n for name, n in special.items()}
    values |= _express_framing(tokenizer, special)
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    if (template := tokenizer_config.get("chat_template")) is not None:
        keys["tokenizer.chat_template"] = template
    return keys


def _tokens(document: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """All tokens by their id, and their kinds. As llama.cpp does, ids without a token get one that is never used."""
    model = document["model"]
    at: dict[int, tuple[str, int]] = {n: (token, int(TokenType.NORMAL)) for token, n in model["vocab"].items()}
    for token in document["added_tokens"]:
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            raise inexpressible("added_tokens", f"{token['content']!r}, which takes in what is around it")
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        at[token["id"]] = (token["content"], int(kind))
    if model["byte_fallback"]:
        at |= {n: (token, int(TokenType.BYTE)) for n, (token, _) in at.items() if _BYTE.fullmatch(token)}
        at |= {n: (token, int(TokenType.UNKNOWN)) for n, (token, _) in at.items() if token == model["unk_token"]}
    if max(at, default=0) >= vocab_size:
        raise inexpressible("vocab_size", f"{vocab_size}, less than the tokenizer has")
    unused = int(TokenType.UNUSED)
    tokens, kinds = zip(*(at.get(n, (f"[PAD{n}]", unused)) for n in range(vocab_size)), strict=True)
    return list(tokens), list(kinds)


def _words_of(document: Mapping[str, Any]) -> _Words:
    """How a byte-level tokenizer cuts text into words, if llama.cpp has a name for it."""
    normalizer = document["normalizer"]
    if normalizer == {"type": "Sequence", "normalizers": []}:
        normalizer = None
    cut, whole = document["pre_tokenizer"], document["model"]["ignore_merges"]
    same_cut = [one for one in _WORDS if _without_offsets(one.cut) == _without_offsets(cut)]
    if not same_cut:
        raise inexpressible("pre_tokenizer", json.dumps(cut))
    same_text = [one for one in same_cut if one.normalizer == normalizer]
    if not same_text:
        raise inexpressible("normalizer", json.dumps(normalizer))
    words = next((one for one in same_text if one.whole == whole), None)
    if words is None:
        raise inexpressible("model.ignore_merges", str(whole))
    return words


def _without_offsets(part: Any) -> Any:
    """A part of a tokenizer.json without what only says where in the text tokens lie."""
    if isinstance(part, list):
        return [_without_offsets(one) for one in part]
    if isinstance(part, dict):
        return {key: _without_offsets(value) for key, value in part.items() if key != "trim_offsets"}
    return part


def _express_sentencepiece(
    document: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], architecture: str
) -> dict[str, Any]:
    normalizer, cut = document["normalizer"], document["pre_tokenizer"]
    if normalizer is None and cut is not None and cut["type"] == "Metaspace" and not cut["split"]:
        prefixed = cut["prepend_scheme"] != "never"
    elif normalizer in (_PREFIX, _REPLACE) and cut in (None, _GEMMA_CUT):
        prefixed = normalizer == _PREFIX
    else:
        raise inexpressible("normalizer", json.dumps(normalizer))
    ordinary = {token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.NORMAL}
    merges = [merge for merge in document["model"]["merges"] if {*merge, "".join(merge)} <= ordinary]
    rank: dict[str, int] = {}
    for left, right in merges:
        rank.setdefault(left + right, len(rank))
    scores = [float(-rank.get(token, len(rank))) for token in tokens]
    # Scores say what these merges do when those of a token stand together, and are all that there could be. Merges of
    # other tokens do nothing: those are cut out of the text before.
    if _by_result(merges) != _by_result(recovered_merges(tokens, kinds, scores, architecture)):
        raise inexpressible("model.merges", "not what the scores of tokens could express")
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefixed}


def _by_result(merges: Sequence[Sequence[str]]) -> list[tuple[str, set[str]]]:
    """Merged tokens in the order of their first merge, each with its left parts."""
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in merges:
        parts[left + right].add(left)
    return list(parts.items())


def _ids_of(tokenizer_config: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, int]:
    ids = {token: n for n, token in enumerate(tokens)}
    named = {key: token for key in _SPECIAL if (token := tokenizer_config.get(key)) is not None}
    for key, token in named.items():
        if token not in ids:
            raise inexpressible(key, f"{token!r}, which is not a token")
    return {_SPECIAL[key]: ids[token] for key, token in named.items()}


def _express_framing(tokenizer: Tokenizer, special: Mapping[str, int]) -> dict[str, bool]:
    """Whether tokens are put around every text."""
    bare: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    framed: list[int] = tokenizer.encode("a").ids
    for begins, ends in itertools.product((False, True), repeat=2):
        if framed == [*[special.get("bos")] * begins, *bare, *[special.get("eos")] * ends]:
            return {"add_bos_token": begins, "add_eos_token": ends}
    raise inexpressible("post_processor", "not only bos_token and eos_token around a text")
