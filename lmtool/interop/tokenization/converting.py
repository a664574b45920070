"""Tokenizers in the forms before tokenizer.json, which Transformers converts; but Marian's, for which it has no other.

Transformers reads copies of the files named here, with the settings named here: no other file, no code of a model, and
no network. It is an optional dependency, as are sentencepiece and protobuf.
"""

import json
import math
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from lmtool.errors import CheckpointError
from lmtool.extras import import_extra
from lmtool.interop.tokenization.settings import CLASSES, MARIAN, T5, TokenizerSettings, read_bytes, read_json, refusal
from lmtool.printable import printable
from lmtool.tokenization.inner import ROLE_KEYS, read_charsmap_replacements

SPACE = "\u2581"
"""What stands for a space in the pieces of SentencePiece."""

_BACK = ({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

LARGEST_MODEL = 32 << 20
"""Bytes of a SentencePiece model; the largest published ones have 5 million."""

LONGEST_PIECE = 256
"""Characters; sentencepiece learns at most 16 unless told otherwise. Recovering merges is quadratic in it."""

MOST_SENTINELS = 10_000

_SETTINGS = (
    *(*ROLE_KEYS, "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "extra_ids", "legacy"),
    *("add_prefix_space", "add_bos_token", "add_eos_token", "trim_offsets"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
)
"""Keys of tokenizer_config.json that Transformers is given: others could name files or code."""

_UNIGRAM, _BPE = 1, 2
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
"""`trainer_spec.model_type` and `type` of a piece in sentencepiece_model.proto."""


def sentencepiece_decoder(*, prefixed: bool) -> dict[str, Any]:
    """The decoder of a tokenizer.json of BPE of SentencePiece. prefixed: a space is put in front of every text."""
    return {"type": "Sequence", "decoders": [*_BACK, *([_STRIP] if prefixed else [])]}


def convert(folder: Path, settings: TokenizerSettings) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer of a directory without tokenizer.json, and its special tokens by role.

    Raises CheckpointError for files that are missing or damaged, ResourceError without Transformers.
    """
    contents = {}
    for name in CLASSES[settings.kind]["files"]:
        if not (folder / name).is_file():
            what = f"there is no tokenizer: neither tokenizer.json nor {name}, which a {settings.kind} needs"
            raise CheckpointError(what, where=str(folder), fix="put the tokenizer's files beside config.json")
        is_model = name.endswith((".model", ".spm"))
        contents[name] = read_bytes(folder / name, *([LARGEST_MODEL] if is_model else []))
    if missing := [role for role in CLASSES[settings.kind].get("around", ()) if role not in settings.roles]:
        raise refusal(f"it has no {missing[0]}", settings.where)
    if "vocab.json" in contents:
        vocabulary = read_json(folder / "vocab.json")
        if not isinstance(vocabulary, dict) or not vocabulary or len({*vocabulary.values()}) < len(vocabulary):
            raise refusal("vocab.json is not an object of tokens, each with its id", str(folder))
    if settings.kind == MARIAN:
        if settings.values.get("separate_vocabs"):
            raise refusal("source and target have two vocabularies (separate_vocabs)", settings.where)
        model = _sentencepiece(contents["source.spm"], _UNIGRAM, folder / "source.spm")
        return marian_tokenizer(vocabulary, model, settings, str(folder)), settings.names
    for name, content in contents.items():
        if name.endswith(".model"):
            _sentencepiece(content, _UNIGRAM if settings.kind == T5 else _BPE, folder / name)
    n_sentinels = settings.values.get("extra_ids", 0)
    if type(n_sentinels) is not int or not 0 <= n_sentinels <= MOST_SENTINELS:
        raise refusal(f"extra_ids is not a number from 0 to {MOST_SENTINELS:,}", settings.where)
    chosen = {name: value for name, value in settings.values.items() if name in _SETTINGS}
    contents["tokenizer_config.json"] = json.dumps(chosen).encode()
    for name in ("special_tokens_map.json", "added_tokens.json"):
        if (folder / name).is_file():
            contents[name] = read_bytes(folder / name)
    return _by_transformers(settings.kind, contents)


def _by_transformers(kind: str, contents: Mapping[str, bytes]) -> tuple[Tokenizer, dict[str, str]]:
    transformers = _library("transformers")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in contents.items():
            Path(folder, name).write_bytes(content)
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            made = getattr(transformers, kind).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        finally:
            transformers.logging.set_verbosity(verbosity)
    roles = {role: str(token) for role in ROLE_KEYS if (token := getattr(made, role)) is not None}
    return made.backend_tokenizer, roles


def _library(name: str) -> Any:
    """A module of an optional dependency. Raises ResourceError where it is missing."""
    otherwise = ", or save it once with Transformers, which writes tokenizer.json"
    return import_extra(name, "a tokenizer without tokenizer.json is converted by", "convert", otherwise)


def _sentencepiece(content: bytes, algorithm: int, path: Path) -> Any:
    """A SentencePiece model, by the names of sentencepiece_model.proto. Raises CheckpointError for a damaged one."""
    model = _library("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(content)
    texts, trainer, charsmap = [one.piece for one in model.pieces], model.trainer_spec, _charsmap(model)
    if charsmap:
        read_charsmap_replacements(charsmap)
    for is_wrong, what in (
        (not texts or len({*texts}) < len(texts), "a piece is there twice, or there is none"),
        (not all(0 < len(text) <= LONGEST_PIECE for text in texts), f"a piece has not 1 to {LONGEST_PIECE} characters"),
        (not all(math.isfinite(one.score) for one in model.pieces), "the score of a piece is not finite"),
        (trainer.model_type != algorithm, f"its model_type is {trainer.model_type}, not {algorithm}"),
        (not 0 <= trainer.unk_id < len(texts), "the unknown token has no piece"),
        (max(trainer.bos_id, trainer.eos_id) >= len(texts), "a special token has no piece"),
    ):
        if is_wrong:
            raise refusal(f"not a SentencePiece model that can be imported: {what}", str(path))
    return model


def _charsmap(model: Any) -> bytes:
    """Rules of normalization as a double-array trie; may be empty."""
    return bytes(model.normalizer_spec.precompiled_charsmap)


def marian_tokenizer(vocabulary: Mapping[str, int], source: Any, settings: TokenizerSettings, where: str) -> Tokenizer:
    """A tokenizer with the ids of `vocabulary` that cuts text as the SentencePiece model `source` does.

    The vocabulary has also special tokens and pieces of the target language, which must match no text. The library
    finds whatever an entry is called, so these go by other names: "<" in a piece, and so in the text, becomes a
    character that neither has, so that no text spells an entry such as </s>; pieces of the target alone begin with
    another such character. The decoder takes both back. Pieces of the source that have no id are left out.

    A run of characters that the source does not know is one piece, which may have an id all the same.

    where: the model directory, for errors. Raises CheckpointError when they do not fit.
    """
    roles = settings.names
    names = [name for name, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    if list(range(len(names))) != sorted(vocabulary.values()):
        raise refusal("the ids of vocab.json have gaps", where)
    if missing := [role for role in ("<unk>", *roles.values()) if role not in vocabulary]:
        raise refusal(f"vocab.json lacks {printable(missing[0])[:40]}", where)
    if any(piece.type in (_USER_DEFINED, _BYTE) for piece in source.pieces):
        raise refusal("source.spm has symbols of its own", where)
    scores = {piece.piece: piece.score for piece in source.pieces if piece.type == _NORMAL}
    known = {piece for piece in scores if len(piece) == 1}
    lowest = min(scores.values(), default=0.0)
    less, foreign, strange = islice(_unused(set().union(*vocabulary, *scores)), 3)
    codes = [name for name in names if name.startswith(">>") and name.endswith("<<")]
    whole = {"<unk>", *roles.values(), *codes}
    runs = [name for name in names if name not in whole and known.isdisjoint(name)]

    def entry(name: str) -> tuple[str, float]:
        if name in whole:
            return name, 0.0
        renamed = name.replace("<", less)
        if name in scores:
            return renamed, scores[name]
        return (renamed, lowest if len(name) == 1 else 0.0) if known.isdisjoint(name) else (foreign + renamed, 0.0)

    inner = Tokenizer(models.Unigram([entry(name) for name in names], unk_id=vocabulary["<unk>"]))
    unknown = f"[^{_escaped(c.replace('<', less) for c in sorted(known))}]"
    alike = "|".join(_escaped(name.replace("<", less)) for name in runs)
    inner.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{less}{foreign}]"), strange),
            *_normalizers(source),
            normalizers.Replace("<", less),
            normalizers.Replace(Regex(f"(?<!{unknown})(?!(?:{alike})(?!{unknown})){unknown}{{2,}}"), strange),
        ]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace(less, "<"), decoders.Replace(foreign, ""), decoders.Metaspace(prepend_scheme="always")]
    )
    # The language to translate to, written before the text. No special token: it is understood in any text.
    inner.add_tokens([AddedToken(code, normalized=False) for code in codes])
    settings.add_tokens(inner)
    eos = roles["eos_token"]
    inner.post_processor = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", "$B", eos], special_tokens=[(eos, vocabulary[eos])]
    )
    return inner


def _normalizers(source: Any) -> Iterator[normalizers.Normalizer]:
    """What a SentencePiece model does to a text before it cuts it."""
    spec = source.normalizer_spec
    if charsmap := _charsmap(source):
        yield from (normalizers.NFC(), normalizers.Precompiled(charsmap))
    if spec.remove_extra_whitespaces:
        yield from (normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " "))
    space = SPACE if spec.escape_whitespaces else " "
    if spec.add_dummy_prefix:
        yield normalizers.Prepend(space)
    yield normalizers.Replace(" ", space)


def _escaped(text: Iterable[str]) -> str:
    """Characters in the spelling of a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _unused(characters: Collection[str]) -> Iterator[str]:
    """Characters for private use that are not among these."""
    return (character for character in map(chr, range(0xF0000, 0xFFFFE)) if character not in characters)
