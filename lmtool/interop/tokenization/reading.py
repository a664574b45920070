"""Read the tokenizer of a Hugging Face model directory, in each form that the hub has.

Whatever the form, the result is a tokenizer of the `tokenizers` library that gives the ids of Transformers 5.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lmtool.errors import LmtoolError
from lmtool.interop.tokenization.converting import SPACE, convert, sentencepiece_decoder
from lmtool.interop.tokenization.settings import (
    LLAMA,
    TokenizerSettings,
    read_object,
    read_settings,
    read_text,
    refusal,
)
from lmtool.printable import printable
from lmtool.tokenization.inner import MAX_VOCAB_SIZE, check_growth, convert_panics, parse_tokenizer_json

_PROBE = "a b\n\U0010fffe"
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


def read_tokenizer(folder: Path, model_type: str) -> PublishedTokenizer:
    """The tokenizer of a model directory, with the ids of Transformers' AutoTokenizer.

    model_type: as in config.json. Read from tokenizer.json, or else converted from vocab.json and merges.txt
    (byte-level BPE), vocab.txt (WordPiece), spiece.model (Unigram), tokenizer.model (BPE of SentencePiece), or
    vocab.json with source.spm (Marian). Special tokens that the vocabulary lacks are added behind it, as Transformers
    does.

    Raises CheckpointError when files are missing, damaged, or describe something else; ResourceError as `convert` does.
    """
    with _library_errors(str(folder)):
        settings = read_settings(folder, model_type)
        if (folder / "tokenizer.json").is_file():
            inner, names = _from_file(folder, settings), settings.names
        else:
            inner, names = convert(folder, settings)
            check_growth(json.loads(inner.to_str()))
        _check(inner, str(folder))
        config: dict[str, Any] = {role: name for role, name in names.items() if inner.token_to_id(name) is not None}
        if settings.chat_template is not None:
            config["chat_template"] = settings.chat_template
        return PublishedTokenizer(inner.to_str(), config)


@contextmanager
def _library_errors(where: str) -> Iterator[None]:
    """Turn errors of the libraries into CheckpointError; `tokenizers` raises bare Exception, and panics of Rust."""
    try:
        with convert_panics():
            yield
    except (LmtoolError, MemoryError):
        raise
    except Exception as error:
        raise refusal(printable(str(error)[:300])[:120], where) from error


def _check(inner: Tokenizer, where: str) -> None:
    """Raise CheckpointError for ids that no embedding has; and let what fails on every text fail now."""
    ids = [*inner.get_vocab(with_added_tokens=True).values(), *inner.encode(_PROBE, _PROBE).ids]
    if max(ids, default=0) >= MAX_VOCAB_SIZE:
        raise refusal(f"it has token ids of {MAX_VOCAB_SIZE:,} and more", where)


def _from_file(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    path = folder / "tokenizer.json"
    described = read_object(path)
    model = described.get("model")
    if settings.kind == LLAMA and isinstance(model, dict) and model.get("type") == "BPE":
        inner = parse_tokenizer_json(json.dumps(described | _llama(model, settings)))
    else:
        inner = parse_tokenizer_json(read_text(path))
    inner.no_truncation()
    inner.no_padding()
    settings.add_tokens(inner)
    return inner


def _llama(model: dict[str, Any], settings: TokenizerSettings) -> dict[str, Any]:
    """The parts of a Llama's tokenizer.json as Transformers has them, which takes only the vocabulary of these files.

    They prepend the space by a normalizer, which adds one to a text that begins with a space, and after each special
    token.
    """
    prefixed = settings.flag("add_prefix_space", True)
    scheme = "never" if not prefixed else "always" if settings.flag("legacy", False) else "first"
    kept = {name: model.get(name) for name in ("vocab", "merges")}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False},
        "decoder": sentencepiece_decoder(prefixed=prefixed),
        "model": {"type": "BPE", "fuse_unk": True, "byte_fallback": True, **kept},
    }
