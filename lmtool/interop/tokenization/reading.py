"""Reads the tokenizer of a Hugging Face model directory, in each form that the Hub has.

Whatever the form, the result is a tokenizer of the `tokenizers` library that gives the ids of Transformers 5.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lmtool.errors import LmtoolError
from lmtool.interop.files import read_json, read_text
from lmtool.interop.tokenization.converting import (
    SENTENCEPIECE_SPACE,
    convert_slow_tokenizer_and_roles,
    sentencepiece_decoder_json,
)
from lmtool.interop.tokenization.settings import LLAMA, TokenizerSettings, read_tokenizer_settings, tokenizer_error
from lmtool.printable import printable
from lmtool.tokenization.inner import (
    MAX_VOCAB_SIZE,
    check_normalizer_growth,
    convert_panics_to_exceptions,
    parse_tokenizer_json,
)

_PROBE_TEXT = "a b\n\U0010fffe"
"""With a character that no vocabulary has."""


@dataclass(frozen=True)
class PublishedTokenizer:
    """A tokenizer that Hugging Face publishes.

    json: content of tokenizer.json, as the `tokenizers` library reads it, without truncation and padding.
    config: of tokenizer_config.json: the special tokens by role (bos_token, eos_token, unk_token, sep_token, pad_token,
        cls_token, mask_token), those there are, and chat_template.
    """

    json: str
    config: dict[str, Any]


def read_published_tokenizer(folder: Path, model_type: str) -> PublishedTokenizer:
    """Reads the tokenizer of a model directory, with the ids of Transformers' AutoTokenizer.

    model_type: as in config.json. Read from tokenizer.json, or else converted from vocab.json and merges.txt
    (byte-level BPE), vocab.txt (WordPiece), spiece.model (Unigram), tokenizer.model (BPE of SentencePiece), or
    vocab.json with source.spm (Marian). Special tokens that the vocabulary lacks are added behind it, as Transformers
    does.

    Raises CheckpointError when files are missing, damaged, or describe something else; ResourceError as
    `convert_slow_tokenizer_and_roles` does.
    """
    try:
        with convert_panics_to_exceptions():
            settings = read_tokenizer_settings(folder, model_type)
            if (folder / "tokenizer.json").is_file():
                tokenizer, special_tokens = _read_tokenizer_file(folder, settings), settings.special_tokens
            else:
                tokenizer, special_tokens = convert_slow_tokenizer_and_roles(folder, settings)
                check_normalizer_growth(json.loads(tokenizer.to_str()))
            # encodes a text too, so that what fails on every text fails now
            ids = [
                *tokenizer.get_vocab(with_added_tokens=True).values(),
                *tokenizer.encode(_PROBE_TEXT, _PROBE_TEXT).ids,
            ]
            if max(ids, default=0) >= MAX_VOCAB_SIZE:
                raise tokenizer_error(f"it has token ids of {MAX_VOCAB_SIZE:,} and more", str(folder))
    except (LmtoolError, MemoryError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise tokenizer_error(printable(str(error)[:300])[:120], str(folder)) from error
    config: dict[str, Any] = {
        role: token for role, token in special_tokens.items() if tokenizer.token_to_id(token) is not None
    }
    if settings.chat_template is not None:
        config["chat_template"] = settings.chat_template
    return PublishedTokenizer(tokenizer.to_str(), config)


def _read_tokenizer_file(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    path = folder / "tokenizer.json"
    document = read_json(path)
    model = document.get("model")
    if settings.class_name == LLAMA and isinstance(model, dict) and model.get("type") == "BPE":
        tokenizer = parse_tokenizer_json(json.dumps(document | _llama_tokenizer_json_parts(model, settings)))
    else:
        tokenizer = parse_tokenizer_json(read_text(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings.add_missing_tokens_(tokenizer)
    return tokenizer


def _llama_tokenizer_json_parts(model: dict[str, Any], settings: TokenizerSettings) -> dict[str, Any]:
    """Returns the parts of a Llama's tokenizer.json as Transformers makes them from nothing but its vocabulary.

    They prepend the space by a normalizer, which adds one to a text that begins with a space, and after each special
    token.
    """
    adds_prefix = settings.read_flag("add_prefix_space", True)
    scheme = "never" if not adds_prefix else "always" if settings.read_flag("legacy", False) else "first"
    vocabulary = {name: model.get(name) for name in ("vocab", "merges")}
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SENTENCEPIECE_SPACE,
            "prepend_scheme": scheme,
            "split": False,
        },
        "decoder": sentencepiece_decoder_json(strips_space=adds_prefix),
        "model": {"type": "BPE", "fuse_unk": True, "byte_fallback": True, **vocabulary},
    }
