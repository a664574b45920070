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
from typing import Any, Literal

import numpy as np
import yaml
from gguf import TokenType
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.gguf.container import GgufContainer
from lmtool.interop.gguf.writing import inexpressible_error
from lmtool.interop.tokenization.converting import SENTENCEPIECE_SPACE, sentencepiece_decoder_json
from lmtool.interop.tokenization.reading import PublishedTokenizer
from lmtool.printable import printable
from lmtool.tokenization.inner import parse_tokenizer_json

TokenizerJson = dict[str, Any]
"""The content of a tokenizer.json, or a part of it."""

SpecialTokenIds = dict[str, int | list[int]]
"""Ids of special tokens by keys of config.json, such as `eos_token_id`."""

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True)
class _PreTokenizerPreset:
    """A known way in which byte-level tokenizers cut text into words.

    names: in `tokenizer.ggml.pre`. parts: of a tokenizer.json, by their keys. adds_bos: text begins with `bos` where
    the file does not say.
    """

    names: Sequence[str]
    parts: TokenizerJson
    adds_bos: bool


def _build_pre_tokenizer_preset(
    names: str,
    regex: str = "",
    individual_digits: bool = False,
    nfc: bool = False,
    ignore_merges: bool = False,
    adds_bos: bool = False,
) -> _PreTokenizerPreset:
    """Builds a preset from a row of words.yaml, which says what the arguments mean."""
    pre_tokenizer: TokenizerJson = _BYTE_LEVEL
    if regex:
        split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, {**_BYTE_LEVEL, "use_regex": False}]}
    if individual_digits:
        split = {"type": "Digits", "individual_digits": True}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, _BYTE_LEVEL]}
    normalizer = {"type": "NFC"} if nfc else None
    parts = {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer, "model.ignore_merges": ignore_merges}
    return _PreTokenizerPreset(names.split(), parts, adds_bos)


_PRE_TOKENIZER_PRESETS = [
    _build_pre_tokenizer_preset(**row)
    for row in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
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
) -> tuple[PublishedTokenizer, SpecialTokenIds]:
    """Reads the tokenizer of a file, and the ids of its special tokens.

    SentencePiece puts a space before any text, also before one that begins with a space, as the original does. Raises
    CheckpointError when the tokenizer is of an unknown kind, or does not fit together.
    """
    config = StrictConfigReader(container.values, printable(str(container.path)))
    tokens: list[str] = list(config.read("tokenizer.ggml.tokens", list))
    model = config.read("tokenizer.ggml.model", str)
    special = _read_special_ids(config, len(tokens), model)
    token_types = _read_numbers_per_token(config, "tokenizer.ggml.token_type", len(tokens))
    token_types = token_types or [int(TokenType.NORMAL)] * len(tokens)
    if architecture == "gemma":
        # tokens of several spaces become ordinary tokens with merges, as in Gemma's own tokenizer
        for n, token in enumerate(tokens):
            if len(token) > 1 and not token.strip(" "):
                tokens[n], token_types[n] = SENTENCEPIECE_SPACE * len(token), int(TokenType.NORMAL)
    n_different = len(set(tokens))
    if len(tokens) > vocab_size or n_different < len(tokens):
        what = f"it has {len(tokens)} tokens, {n_different} different ones, and {vocab_size} embeddings"
        raise config.import_error(what)
    match model:
        case "gpt2":
            preset = _read_pre_tokenizer_preset(config)
            document, adds_bos = _build_byte_level_json(config, tokens, preset), preset.adds_bos
        case "llama":
            document, adds_bos = _build_sentencepiece_json(config, tokens, token_types, special, architecture), True
        case _:
            raise config.import_error(f"its tokenizer is {printable(model)[:40]}, not gpt2 or llama")
    marked = {special[role] for role in ("bos", "eos", "unknown") if role in special}
    document["added_tokens"] = [
        {"id": n, "content": token, **_TOKEN_FLAGS, "special": token_type == TokenType.CONTROL or n in marked}
        for n, (token, token_type) in enumerate(zip(tokens, token_types, strict=True))
        if token and (token_type in (TokenType.CONTROL, TokenType.USER_DEFINED) or n in marked)
    ]
    before = _read_token_added_to_texts(config, "bos", tokens, special, adds_bos)
    after = _read_token_added_to_texts(config, "eos", tokens, special, False)
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


def _read_special_ids(config: StrictConfigReader, n_tokens: int, tokenizer_model: str) -> dict[str, int]:
    """Reads the ids of special tokens by their roles. tokenizer_model: "llama" has defaults for some."""
    special = {}
    for role in (*_ROLES.values(), *_END_ROLES[1:]):
        n = config.read_optional(f"tokenizer.ggml.{role}_token_id", int)
        if n is not None and not 0 <= n < n_tokens:
            raise config.import_error(f"tokenizer.ggml.{role}_token_id is {n} of {n_tokens} tokens")
        if n is None and tokenizer_model == "llama" and _SENTENCEPIECE_IDS.get(role, n_tokens) < n_tokens:
            n = _SENTENCEPIECE_IDS[role]
        if n is not None:
            special[role] = n
    return special


def _read_numbers_per_token(config: StrictConfigReader, key: str, n_tokens: int) -> list[Any] | None:
    """Reads a list of numbers, one for each token; None when the file has none."""
    values = config.read_optional(key, np.ndarray)
    if values is None:
        return None
    if len(values) != n_tokens:
        raise config.import_error(f"{key} has {len(values)} items for {n_tokens} tokens")
    numbers: list[Any] = values.tolist()
    return numbers


def _read_pre_tokenizer_preset(config: StrictConfigReader) -> _PreTokenizerPreset:
    """Reads the preset that `tokenizer.ggml.pre` names. Raises CheckpointError for an unknown name."""
    name = config.read("tokenizer.ggml.pre", str, "default")
    preset = next((one for one in _PRE_TOKENIZER_PRESETS if name in one.names), None)
    if preset is None:
        known = ", ".join(name for one in _PRE_TOKENIZER_PRESETS for name in one.names)
        raise config.import_error(f"its pre-tokenizer {printable(name)[:40]} is none of {known}")
    return preset


def _build_byte_level_json(
    config: StrictConfigReader, tokens: Sequence[str], preset: _PreTokenizerPreset
) -> TokenizerJson:
    """Builds a tokenizer.json of byte-level BPE without added tokens."""
    merges = [merge.split(" ") for merge in config.read("tokenizer.ggml.merges", list) if type(merge) is str]
    if any(len(merge) != 2 for merge in merges):
        raise config.import_error("a merge in tokenizer.ggml.merges is not of two parts")
    parts = {key: preset.parts[key] for key in ("normalizer", "pre_tokenizer")}
    model = _bpe_json(tokens, merges, ignore_merges=preset.parts["model.ignore_merges"])
    return {**parts, "decoder": {**_BYTE_LEVEL, "add_prefix_space": True}, "model": model}


def _build_sentencepiece_json(
    config: StrictConfigReader,
    tokens: Sequence[str],
    token_types: Sequence[int],
    special_ids: Mapping[str, int],
    architecture: str,
) -> TokenizerJson:
    """Builds a tokenizer.json of SentencePiece BPE without added tokens."""
    scores = _read_numbers_per_token(config, "tokenizer.ggml.scores", len(tokens))
    if scores is None or not all(type(score) is float for score in scores):
        raise config.import_error("tokenizer.ggml.scores is not a list of floats")
    unknown = tokens[special_ids["unknown"]] if "unknown" in special_ids else None
    merges = infer_bpe_merges(tokens, token_types, scores, architecture)
    adds_prefix = config.read("tokenizer.ggml.add_space_prefix", bool, True)
    return {
        "normalizer": _PREFIX_SPACE if adds_prefix else _REPLACE_SPACES,
        "pre_tokenizer": _GEMMA_SPLIT if architecture == "gemma" else None,
        "decoder": sentencepiece_decoder_json(strips_space=adds_prefix),
        "model": _bpe_json(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown),
    }


def infer_bpe_merges(
    tokens: Sequence[str], token_types: Sequence[int], scores: Sequence[float], architecture: str
) -> list[list[str]]:
    """Infers all ways to make an ordinary token of two, best score first; of Gemma in the order of the tokens.

    Tokens of other types are neither parts nor results, so that text spells no control token.
    """
    normal = {tokens[n]: n for n, token_type in enumerate(token_types) if token_type == TokenType.NORMAL}
    ranked = []
    for token, n in normal.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in normal and right in normal]
        rank = -n if architecture == "gemma" else scores[n]
        ranked += [(rank, len(left), len(right), left, right) for left, right in pairs]
    ranked.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in ranked]


def _bpe_json(tokens: Sequence[str], merges: Sequence[Sequence[str]], **options: object) -> TokenizerJson:
    return {"type": "BPE", **options, "vocab": {token: n for n, token in enumerate(tokens)}, "merges": merges}


def _read_token_added_to_texts(
    config: StrictConfigReader,
    role: Literal["bos", "eos"],
    tokens: Sequence[str],
    special_ids: Mapping[str, int],
    added_by_default: bool,
) -> list[str]:
    """Reads which token is put before (`bos`) or after (`eos`) every text. Returns a list of it, or an empty one."""
    if not config.read(f"tokenizer.ggml.add_{role}_token", bool, added_by_default):
        return []
    if role not in special_ids:
        raise config.import_error(f"text gets a token {role}, and tokenizer.ggml.{role}_token_id is missing")
    return [tokens[special_ids[role]]]


def convert_tokenizer_to_gguf_keys(
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
    architecture: str,
    vocab_size: int,
    eos_token_ids: Sequence[int],
) -> dict[str, Any]:
    """Returns the values of a GGUF file by key, with lists in the place of arrays: inverse of `read_gguf_tokenizer`.

    eos_token_ids: tokens that end a text, of a config.json. Raises UsageError with a key that no GGUF file has.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    if model["type"] != "BPE":
        raise inexpressible_error("model.type", model["type"])
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[key]:
            raise inexpressible_error(f"model.{key}", str(model[key]))
    tokens, token_types = _list_tokens_and_types(document, vocab_size)
    if architecture == "gemma":
        for n, token_type in enumerate(token_types):
            if token_type == TokenType.USER_DEFINED:
                tokens[n] = tokens[n].replace(SENTENCEPIECE_SPACE, " ")
    values: dict[str, Any] = {"tokens": tokens, "token_type": token_types}
    if model["byte_fallback"]:
        values |= _make_sentencepiece_gguf_keys(document, tokens, token_types, architecture)
    else:
        values |= {"model": "gpt2", "pre": _find_pre_tokenizer_preset(document).names[0], "add_space_prefix": False}
        values["merges"] = [" ".join(merge) for merge in model["merges"]]
        if not values["merges"] or any(merge.count(" ") != 1 for merge in values["merges"]):
            raise inexpressible_error("model.merges", "empty, or of tokens with spaces")
    special = _find_special_ids_by_role(tokenizer_config, tokens)
    other_ends = [n for n in eos_token_ids if n != special.get("eos")]
    if len(other_ends) >= len(_END_ROLES) or not all(type(n) is int and 0 <= n < vocab_size for n in other_ends):
        raise inexpressible_error("eos_token_id", f"{list(eos_token_ids)}")
    special |= dict(zip(_END_ROLES[1:] if "eos" in special else _END_ROLES, other_ends, strict=False))
    values |= {f"{role}_token_id": n for role, n in special.items()}
    values |= _detect_added_bos_eos(tokenizer, special)
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    if (template := tokenizer_config.get("chat_template")) is not None:
        keys["tokenizer.chat_template"] = template
    return keys


def _list_tokens_and_types(document: TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """Lists all tokens and their types by id. An id without a token gets an unused one, as in llama.cpp."""
    model = document["model"]
    by_id: dict[int, tuple[str, int]] = {n: (token, int(TokenType.NORMAL)) for token, n in model["vocab"].items()}
    for token in document["added_tokens"]:
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            raise inexpressible_error("added_tokens", f"{token['content']!r}, which takes in what is around it")
        token_type = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        by_id[token["id"]] = (token["content"], int(token_type))
    if model["byte_fallback"]:
        by_id |= {n: (token, int(TokenType.BYTE)) for n, (token, _) in by_id.items() if _BYTE_TOKEN.fullmatch(token)}
        by_id |= {n: (token, int(TokenType.UNKNOWN)) for n, (token, _) in by_id.items() if token == model["unk_token"]}
    if max(by_id, default=0) >= vocab_size:
        raise inexpressible_error("vocab_size", f"{vocab_size}, less than the tokenizer has")
    unused = int(TokenType.UNUSED)
    tokens, token_types = zip(*(by_id.get(n, (f"[PAD{n}]", unused)) for n in range(vocab_size)), strict=True)
    return list(tokens), list(token_types)


def _find_pre_tokenizer_preset(document: TokenizerJson) -> _PreTokenizerPreset:
    """Finds the preset that cuts text into words as a tokenizer does. Raises UsageError where llama.cpp has none."""
    parts = {key: document[key] for key in ("pre_tokenizer", "normalizer")}
    parts["model.ignore_merges"] = document["model"]["ignore_merges"]
    if parts["normalizer"] == {"type": "Sequence", "normalizers": []}:
        parts["normalizer"] = None
    presets = _PRE_TOKENIZER_PRESETS
    for key, part in parts.items():
        presets = [one for one in presets if _drop_trim_offsets(one.parts[key]) == _drop_trim_offsets(part)]
        if not presets:
            raise inexpressible_error(key, json.dumps(part))
    return presets[0]


def _drop_trim_offsets(tokenizer_part: Any) -> Any:
    """Drops, at every level, an option that only changes the offsets of tokens in the text."""
    return json.loads(
        json.dumps(tokenizer_part),
        object_pairs_hook=lambda pairs: {key: value for key, value in pairs if key != "trim_offsets"},
    )


def _make_sentencepiece_gguf_keys(
    document: TokenizerJson, tokens: Sequence[str], token_types: Sequence[int], architecture: str
) -> dict[str, Any]:
    """Returns the scores of tokens, and other values of a GGUF file. Raises UsageError for inexpressible merges."""
    normalizer, split = document["normalizer"], document["pre_tokenizer"]
    if normalizer is None and split is not None and split["type"] == "Metaspace" and not split["split"]:
        adds_prefix = split["prepend_scheme"] != "never"
    elif normalizer in (_PREFIX_SPACE, _REPLACE_SPACES) and split in (None, _GEMMA_SPLIT):
        adds_prefix = normalizer == _PREFIX_SPACE
    else:
        raise inexpressible_error("normalizer", json.dumps(normalizer))
    ordinary = {token for token, token_type in zip(tokens, token_types, strict=True) if token_type == TokenType.NORMAL}
    merges = [merge for merge in document["model"]["merges"] if {*merge, "".join(merge)} <= ordinary]
    rank: dict[str, int] = {}
    for left, right in merges:
        rank.setdefault(left + right, len(rank))
    scores = [float(-rank.get(token, len(rank))) for token in tokens]
    # Scores say what these merges do when those of a token stand together, and are all that there could be. Merges of
    # other tokens do nothing: those are cut out of the text before.
    if _group_left_parts_by_merge_result(merges) != _group_left_parts_by_merge_result(
        infer_bpe_merges(tokens, token_types, scores, architecture)
    ):
        raise inexpressible_error("model.merges", "not what the scores of tokens could express")
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": adds_prefix}


def _group_left_parts_by_merge_result(merges: Sequence[Sequence[str]]) -> list[tuple[str, set[str]]]:
    """Groups merges by their result, in the order of the first merge of each, with their left parts."""
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in merges:
        parts[left + right].add(left)
    return list(parts.items())


def _find_special_ids_by_role(tokenizer_config: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, int]:
    """Finds the ids of special tokens by their roles."""
    ids, special = {token: n for n, token in enumerate(tokens)}, {}
    for key, role in _ROLES.items():
        if (token := tokenizer_config.get(key)) is not None:
            if token not in ids:
                raise inexpressible_error(key, f"{token!r}, which is not a token")
            special[role] = ids[token]
    return special


def _detect_added_bos_eos(tokenizer: Tokenizer, special_ids: Mapping[str, int]) -> dict[str, bool]:
    """Detects whether bos and eos are put around every text. Raises UsageError for other special tokens."""
    bare: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    framed: list[int] = tokenizer.encode("a").ids
    for adds_bos, adds_eos in itertools.product((False, True), repeat=2):
        if framed == [*[special_ids.get("bos")] * adds_bos, *bare, *[special_ids.get("eos")] * adds_eos]:
            return {"add_bos_token": adds_bos, "add_eos_token": adds_eos}
    raise inexpressible_error("post_processor", "not only bos_token and eos_token around a text")
