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
from tokenizers.processors import TemplateProcessing

from lmtool.interop.families.config import PublishedConfig
from lmtool.interop.gguf.container import GgufContainer
from lmtool.interop.gguf.writing import inexpressible_error
from lmtool.interop.tokenization.converting import SENTENCEPIECE_SPACE, sentencepiece_decoder_json
from lmtool.interop.tokenization.reading import PublishedTokenizer
from lmtool.printable import printable
from lmtool.tokenization.inner import parse_tokenizer_json

JsonObject = dict[str, Any]

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True)
class _WordSplitting:
    """How a byte-level tokenizer cuts text into words.

    names: in `tokenizer.ggml.pre`. parts: of a tokenizer.json, by their keys. adds_bos: text begins with `bos` where
    the file does not say.
    """

    names: Sequence[str]
    parts: JsonObject
    adds_bos: bool


def _build_word_splitting(
    names: str, regex: str = "", digits: bool = False, nfc: bool = False, whole: bool = False, begins: bool = False
) -> _WordSplitting:
    """Builds it of a row of words.yaml, which says what the arguments mean."""
    pre_tokenizer: JsonObject = _BYTE_LEVEL
    if regex:
        split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, {**_BYTE_LEVEL, "use_regex": False}]}
    if digits:
        split = {"type": "Digits", "individual_digits": True}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, _BYTE_LEVEL]}
    normalizer = {"type": "NFC"} if nfc else None
    parts = {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer, "model.ignore_merges": whole}
    return _WordSplitting(names.split(), parts, begins)


_WORD_SPLITTINGS = [
    _build_word_splitting(**row) for row in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
]
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names of special tokens in GGUF files, by those of tokenizer_config.json."""
_END_ROLES = ("eos", "eot", "eom")
"""Tokens that end a text, a turn, and a message."""
_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""Ids of special tokens where a file does not say."""
_REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SENTENCEPIECE_SPACE}
_PREFIX_SPACE = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": SENTENCEPIECE_SPACE}, _REPLACE_SPACES],
}
_GEMMA_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_TOKEN_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def read_gguf_tokenizer(
    container: GgufContainer, architecture: str, vocab_size: int
) -> tuple[PublishedTokenizer, dict[str, Any]]:
    """Reads the tokenizer of a file, and keys of its config.json, such as `eos_token_id`.

    SentencePiece puts a space before any text, also before one that begins with a space, as the original does. Raises
    CheckpointError when the tokenizer is of an unknown kind, or does not fit together.
    """
    config = PublishedConfig(container.values, printable(str(container.path)))
    tokens: list[str] = list(config.read("tokenizer.ggml.tokens", list))
    model = config.read("tokenizer.ggml.model", str)
    special = _read_special_ids(config, len(tokens), model)
    kinds = _read_numbers(config, "tokenizer.ggml.token_type", len(tokens)) or [int(TokenType.NORMAL)] * len(tokens)
    if architecture == "gemma":
        _respell_spaces_(tokens, kinds)
    n_different = len(set(tokens))
    if len(tokens) > vocab_size or n_different < len(tokens):
        what = f"it has {len(tokens)} tokens, {n_different} different ones, and {vocab_size} embeddings"
        raise config.import_error(what)
    match model:
        case "gpt2":
            document, adds_bos = _read_byte_level(config, tokens)
        case "llama":
            document, adds_bos = _read_sentencepiece(config, tokens, kinds, special, architecture), True
        case _:
            raise config.import_error(f"its tokenizer is {printable(model)[:40]}, not gpt2 or llama")
    marked = {special[role] for role in ("bos", "eos", "unknown") if role in special}
    document["added_tokens"] = [
        {"id": n, "content": token, **_TOKEN_FLAGS, "special": kind == TokenType.CONTROL or n in marked}
        for n, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if token and (kind in (TokenType.CONTROL, TokenType.USER_DEFINED) or n in marked)
    ]
    before = _read_added_tokens(config, "bos", tokens, special, adds_bos)
    after = _read_added_tokens(config, "eos", tokens, special, False)
    try:
        tokenizer = parse_tokenizer_json(json.dumps(document))
        if before or after:
            first, second = [*before, "$A", *after], [f"{part}:1" for part in (*before, "$B", *after)]
            ids = [(token, tokens.index(token)) for token in {*before, *after}]
            tokenizer.post_processor = TemplateProcessing(single=first, pair=first + second, special_tokens=ids)
    except Exception as error:  # the library raises nothing more special
        raise config.import_error(f"its tokenizer does not fit together: {printable(str(error))[:100]}") from error
    tokenizer_config: dict[str, Any] = {key: tokens[special[role]] for key, role in _ROLES.items() if role in special}
    template = config.read_optional("tokenizer.chat_template", str)
    if template is not None:
        tokenizer_config["chat_template"] = template
    ends = list(dict.fromkeys(special[role] for role in _END_ROLES if role in special))
    ids_by_key: dict[str, Any] = {f"{key}_id": special[role] for key, role in _ROLES.items() if role in special}
    ids_by_key.pop("unk_token_id", None)
    if ends:
        ids_by_key["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    return PublishedTokenizer(tokenizer.to_str(), tokenizer_config), ids_by_key


def _read_special_ids(config: PublishedConfig, n_tokens: int, model: str) -> dict[str, int]:
    """Reads the ids of special tokens by their roles. model: the kind of tokenizer, which has defaults for some."""
    special = {}
    for role in (*_ROLES.values(), *_END_ROLES[1:]):
        n = config.read_optional(f"tokenizer.ggml.{role}_token_id", int)
        if n is not None and not 0 <= n < n_tokens:
            raise config.import_error(f"tokenizer.ggml.{role}_token_id is {n} of {n_tokens} tokens")
        if n is None and model == "llama" and _SENTENCEPIECE_IDS.get(role, n_tokens) < n_tokens:
            n = _SENTENCEPIECE_IDS[role]
        if n is not None:
            special[role] = n
    return special


def _read_numbers(config: PublishedConfig, key: str, n_tokens: int) -> list[Any] | None:
    """Reads a list of numbers, one for each token; None when the file has none."""
    values = config.read_optional(key, np.ndarray)
    if values is None:
        return None
    if len(values) != n_tokens:
        raise config.import_error(f"{key} has {len(values)} items for {n_tokens} tokens")
    numbers: list[Any] = values.tolist()
    return numbers


def _respell_spaces_(tokens: list[str], kinds: list[int]) -> None:
    """Spells runs of spaces as Gemma's own tokenizer does: they are ordinary tokens there, with merges."""
    for n, token in enumerate(tokens):
        if len(token) > 1 and not token.strip(" "):
            tokens[n] = SENTENCEPIECE_SPACE * len(token)
            kinds[n] = int(TokenType.NORMAL)


def _read_byte_level(config: PublishedConfig, tokens: Sequence[str]) -> tuple[JsonObject, bool]:
    """Reads a document without added tokens, and whether text begins with `bos` where the file does not say."""
    name = config.read("tokenizer.ggml.pre", str, "default")
    splitting = next((one for one in _WORD_SPLITTINGS if name in one.names), None)
    if splitting is None:
        known = ", ".join(name for one in _WORD_SPLITTINGS for name in one.names)
        raise config.import_error(f"its pre-tokenizer {printable(name)[:40]} is none of {known}")
    merges = [merge.split(" ") for merge in config.read("tokenizer.ggml.merges", list) if type(merge) is str]
    if any(len(merge) != 2 for merge in merges):
        raise config.import_error("a merge in tokenizer.ggml.merges is not of two parts")
    parts = {key: splitting.parts[key] for key in ("normalizer", "pre_tokenizer")}
    model = _bpe_json(tokens, merges, ignore_merges=splitting.parts["model.ignore_merges"])
    return {**parts, "decoder": {**_BYTE_LEVEL, "add_prefix_space": True}, "model": model}, splitting.adds_bos


def _read_sentencepiece(
    config: PublishedConfig, tokens: Sequence[str], kinds: Sequence[int], special: Mapping[str, int], architecture: str
) -> JsonObject:
    """Reads a document without added tokens."""
    scores = _read_numbers(config, "tokenizer.ggml.scores", len(tokens))
    if scores is None or not all(type(score) is float for score in scores):
        raise config.import_error("tokenizer.ggml.scores is not a list of floats")
    unknown = tokens[special["unknown"]] if "unknown" in special else None
    merges = infer_merges(tokens, kinds, scores, architecture)
    adds_prefix = config.read("tokenizer.ggml.add_space_prefix", bool, True)
    return {
        "normalizer": _PREFIX_SPACE if adds_prefix else _REPLACE_SPACES,
        "pre_tokenizer": _GEMMA_SPLIT if architecture == "gemma" else None,
        "decoder": sentencepiece_decoder_json(strips_space=adds_prefix),
        "model": _bpe_json(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown),
    }


def infer_merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], architecture: str
) -> list[list[str]]:
    """Infers all ways to make an ordinary token of two, best score first; of Gemma in the order of the tokens.

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


def _bpe_json(tokens: Sequence[str], merges: Sequence[Sequence[str]], **options: object) -> JsonObject:
    return {"type": "BPE", **options, "vocab": {token: n for n, token in enumerate(tokens)}, "merges": merges}


def _read_added_tokens(
    config: PublishedConfig, role: str, tokens: Sequence[str], special: Mapping[str, int], default: bool
) -> list[str]:
    """Reads which token is put before (`bos`) or after (`eos`) every text; there may be none."""
    if not config.read(f"tokenizer.ggml.add_{role}_token", bool, default):
        return []
    if role not in special:
        raise config.import_error(f"text gets a token {role}, and tokenizer.ggml.{role}_token_id is missing")
    return [tokens[special[role]]]


def write_gguf_tokenizer(
    tokenizer_json: str, tokenizer_config: Mapping[str, Any], architecture: str, vocab_size: int, end_ids: Sequence[int]
) -> dict[str, Any]:
    """Returns the values of a file by their keys, with lists in the place of arrays: inverse of `read_gguf_tokenizer`.

    end_ids: tokens that end a text, of a config.json. Raises UsageError with a key that no GGUF file has.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    if model["type"] != "BPE":
        raise inexpressible_error("model.type", model["type"])
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[key]:
            raise inexpressible_error(f"model.{key}", str(model[key]))
    tokens, kinds = _list_tokens(document, vocab_size)
    if architecture == "gemma":
        rows = zip(tokens, kinds, strict=True)
        tokens = [t.replace(SENTENCEPIECE_SPACE, " ") if kind == TokenType.USER_DEFINED else t for t, kind in rows]
    values: dict[str, Any] = {"tokens": tokens, "token_type": kinds}
    if model["byte_fallback"]:
        values |= _write_sentencepiece(document, tokens, kinds, architecture)
    else:
        values |= {"model": "gpt2", "pre": _find_word_splitting(document).names[0], "add_space_prefix": False}
        values["merges"] = [" ".join(merge) for merge in model["merges"]]
        if not values["merges"] or any(merge.count(" ") != 1 for merge in values["merges"]):
            raise inexpressible_error("model.merges", "empty, or of tokens with spaces")
    special = _find_special_ids(tokenizer_config, tokens)
    other_ends = [n for n in end_ids if n != special.get("eos")]
    if len(other_ends) >= len(_END_ROLES) or not all(type(n) is int and 0 <= n < vocab_size for n in other_ends):
        raise inexpressible_error("eos_token_id", f"{list(end_ids)}")
    special |= dict(zip(_END_ROLES[1:] if "eos" in special else _END_ROLES, other_ends, strict=False))
    values |= {f"{role}_token_id": n for role, n in special.items()}
    values |= _find_added_roles(tokenizer, special)
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    if (template := tokenizer_config.get("chat_template")) is not None:
        keys["tokenizer.chat_template"] = template
    return keys


def _list_tokens(document: JsonObject, vocab_size: int) -> tuple[list[str], list[int]]:
    """Lists all tokens and their kinds by their ids; an id without a token gets one that is unused, as in llama.cpp."""
    model = document["model"]
    by_id: dict[int, tuple[str, int]] = {n: (token, int(TokenType.NORMAL)) for token, n in model["vocab"].items()}
    for token in document["added_tokens"]:
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            raise inexpressible_error("added_tokens", f"{token['content']!r}, which takes in what is around it")
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        by_id[token["id"]] = (token["content"], int(kind))
    if model["byte_fallback"]:
        by_id |= {n: (token, int(TokenType.BYTE)) for n, (token, _) in by_id.items() if _BYTE_TOKEN.fullmatch(token)}
        by_id |= {n: (token, int(TokenType.UNKNOWN)) for n, (token, _) in by_id.items() if token == model["unk_token"]}
    if max(by_id, default=0) >= vocab_size:
        raise inexpressible_error("vocab_size", f"{vocab_size}, less than the tokenizer has")
    unused = int(TokenType.UNUSED)
    tokens, kinds = zip(*(by_id.get(n, (f"[PAD{n}]", unused)) for n in range(vocab_size)), strict=True)
    return list(tokens), list(kinds)


def _find_word_splitting(document: JsonObject) -> _WordSplitting:
    """Finds how a byte-level tokenizer cuts text into words. Raises UsageError where llama.cpp has no name for it."""
    parts = {key: document[key] for key in ("pre_tokenizer", "normalizer")}
    parts["model.ignore_merges"] = document["model"]["ignore_merges"]
    if parts["normalizer"] == {"type": "Sequence", "normalizers": []}:
        parts["normalizer"] = None
    splittings = _WORD_SPLITTINGS
    for key, part in parts.items():
        splittings = [one for one in splittings if _without_offsets(one.parts[key]) == _without_offsets(part)]
        if not splittings:
            raise inexpressible_error(key, json.dumps(part))
    return splittings[0]


def _without_offsets(part: Any) -> Any:
    """A part of a tokenizer.json without what only says where in the text tokens lie."""

    def drop_offsets(entries: JsonObject) -> JsonObject:
        return {key: value for key, value in entries.items() if key != "trim_offsets"}

    return json.loads(json.dumps(part), object_hook=drop_offsets)


def _write_sentencepiece(
    document: JsonObject, tokens: Sequence[str], kinds: Sequence[int], architecture: str
) -> JsonObject:
    normalizer, split = document["normalizer"], document["pre_tokenizer"]
    if normalizer is None and split is not None and split["type"] == "Metaspace" and not split["split"]:
        adds_prefix = split["prepend_scheme"] != "never"
    elif normalizer in (_PREFIX_SPACE, _REPLACE_SPACES) and split in (None, _GEMMA_SPLIT):
        adds_prefix = normalizer == _PREFIX_SPACE
    else:
        raise inexpressible_error("normalizer", json.dumps(normalizer))
    ordinary = {token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.NORMAL}
    merges = [merge for merge in document["model"]["merges"] if {*merge, "".join(merge)} <= ordinary]
    rank: dict[str, int] = {}
    for left, right in merges:
        rank.setdefault(left + right, len(rank))
    scores = [float(-rank.get(token, len(rank))) for token in tokens]
    # Scores say what these merges do when those of a token stand together, and are all that there could be. Merges of
    # other tokens do nothing: those are cut out of the text before.
    if _group_merges(merges) != _group_merges(infer_merges(tokens, kinds, scores, architecture)):
        raise inexpressible_error("model.merges", "not what the scores of tokens could express")
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": adds_prefix}


def _group_merges(merges: Sequence[Sequence[str]]) -> list[tuple[str, set[str]]]:
    """Groups merges by their result, in the order of the first merge of each, with their left parts."""
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in merges:
        parts[left + right].add(left)
    return list(parts.items())


def _find_special_ids(tokenizer_config: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, int]:
    """Finds the ids of special tokens by their roles."""
    ids, special = {token: n for n, token in enumerate(tokens)}, {}
    for key, role in _ROLES.items():
        if (token := tokenizer_config.get(key)) is not None:
            if token not in ids:
                raise inexpressible_error(key, f"{token!r}, which is not a token")
            special[role] = ids[token]
    return special


def _find_added_roles(tokenizer: Tokenizer, special: Mapping[str, int]) -> dict[str, bool]:
    """Finds which special tokens are put around every text. Raises UsageError for others than bos and eos."""
    bare: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    framed: list[int] = tokenizer.encode("a").ids
    for adds_bos, adds_eos in itertools.product((False, True), repeat=2):
        if framed == [*[special.get("bos")] * adds_bos, *bare, *[special.get("eos")] * adds_eos]:
            return {"add_bos_token": adds_bos, "add_eos_token": adds_eos}
    raise inexpressible_error("post_processor", "not only bos_token and eos_token around a text")
