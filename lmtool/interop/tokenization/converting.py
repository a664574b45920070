"""Converts tokenizers in the forms before tokenizer.json with Transformers; Marian's, which it does not convert, here.

Transformers reads copies of the files named here, with the settings named here: no other file, no code of a model, and
no network. It is an optional dependency, as are sentencepiece and protobuf.
"""

import json
import math
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from lmtool.extras import import_extra
from lmtool.interop.files import import_error, read_bytes, read_json
from lmtool.interop.tokenization.settings import MARIAN, T5, TOKENIZER_CLASSES, TokenizerSettings, tokenizer_error
from lmtool.printable import printable
from lmtool.tokenization.inner import ROLE_KEYS, read_charsmap_replacements

SENTENCEPIECE_SPACE = "\u2581"
"""What stands for a space in the pieces of SentencePiece."""

MAX_SENTENCEPIECE_BYTES = 32 << 20
"""The largest published models have 5 million."""

MAX_PIECE_CHARACTERS = 256
"""sentencepiece learns at most 16 by default. Recovering merges is quadratic in it."""

MAX_SENTINELS = 10_000

_CONFIG_KEYS = (
    *(*ROLE_KEYS, "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "extra_ids", "legacy"),
    *("add_prefix_space", "add_bos_token", "add_eos_token", "trim_offsets"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
)
"""Keys of tokenizer_config.json that Transformers is given: others could name files or code."""

_UNIGRAM, _BPE = 1, 2
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
"""`trainer_spec.model_type` and `type` of a piece in sentencepiece_model.proto."""


def sentencepiece_decoder_json(*, strips_space: bool) -> dict[str, Any]:
    """The decoder of a tokenizer.json for BPE of SentencePiece. strips_space: removes one in front of the text."""
    decoders = [
        {"type": "Replace", "pattern": {"String": SENTENCEPIECE_SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips_space else []),
    ]
    return {"type": "Sequence", "decoders": decoders}


def convert_slow_tokenizer_and_roles(folder: Path, settings: TokenizerSettings) -> tuple[Tokenizer, dict[str, str]]:
    """Converts the tokenizer of a directory without tokenizer.json. Returns it and its special tokens by role.

    Raises CheckpointError for files that are missing or damaged, ResourceError without Transformers.
    """
    contents, class_name = {}, settings.class_name
    for name in TOKENIZER_CLASSES[class_name]["files"]:
        if not (folder / name).is_file():
            what = f"there is no tokenizer: neither tokenizer.json nor {name}, which a {class_name} needs"
            raise import_error(what, folder, "put the tokenizer's files beside config.json")
        is_model = name.endswith((".model", ".spm"))
        contents[name] = read_bytes(folder / name, *([MAX_SENTENCEPIECE_BYTES] if is_model else []))
    missing = [role for role in TOKENIZER_CLASSES[class_name].get("around", ()) if role not in settings.roles]
    if missing:
        raise tokenizer_error(f"it has no {missing[0]}", settings.where)
    if "vocab.json" in contents:
        vocabulary = read_json(folder / "vocab.json")
        ids = [n for n in vocabulary.values() if type(n) is int]  # a boolean is no id
        if not vocabulary or len({*ids}) < len(vocabulary):
            raise tokenizer_error("vocab.json is not an object of tokens, each with its id", str(folder))
    if class_name == MARIAN:
        if settings.config.get("separate_vocabs"):
            raise tokenizer_error("source and target have two vocabularies (separate_vocabs)", settings.where)
        model = _parse_sentencepiece_model(contents["source.spm"], _UNIGRAM, folder / "source.spm")
        return build_marian_tokenizer(vocabulary, model, settings, str(folder)), settings.special_tokens
    for name, content in contents.items():
        if name.endswith(".model"):
            _parse_sentencepiece_model(content, _UNIGRAM if class_name == T5 else _BPE, folder / name)
    n_sentinels = settings.config.get("extra_ids", 0)
    if type(n_sentinels) is not int or not 0 <= n_sentinels <= MAX_SENTINELS:
        raise tokenizer_error(f"extra_ids is not a number from 0 to {MAX_SENTINELS:,}", settings.where)
    config = {name: value for name, value in settings.config.items() if name in _CONFIG_KEYS}
    contents["tokenizer_config.json"] = json.dumps(config).encode()
    for name in ("special_tokens_map.json", "added_tokens.json"):
        if (folder / name).is_file():
            contents[name] = read_bytes(folder / name)
    return _convert_with_transformers(class_name, contents)


def _convert_with_transformers(class_name: str, file_contents: Mapping[str, bytes]) -> tuple[Tokenizer, dict[str, str]]:
    """Converts a tokenizer with Transformers, from copies of its files in a temporary folder.

    file_contents: by the names of the files. Returns it and its special tokens by role.
    """
    transformers = _import_optional("transformers")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in file_contents.items():
            Path(folder, name).write_bytes(content)
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            tokenizer_class = getattr(transformers, class_name)
            made = tokenizer_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        finally:
            transformers.logging.set_verbosity(verbosity)
    roles = {role: str(token) for role in ROLE_KEYS if (token := getattr(made, role)) is not None}
    return made.backend_tokenizer, roles


def _import_optional(name: str) -> Any:
    """Imports a module of an optional dependency. Raises ResourceError where it is missing."""
    otherwise = ", or save it once with Transformers, which writes tokenizer.json"
    return import_extra(name, "a tokenizer without tokenizer.json is converted by", "convert", otherwise)


def _parse_sentencepiece_model(content: bytes, expected_algorithm: int, path: Path) -> Any:
    """Parses a file of sentencepiece_model.proto, whose names the result has. Raises CheckpointError."""
    model = _import_optional("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(content)
    texts, trainer = [piece.piece for piece in model.pieces], model.trainer_spec
    # rules of normalization as a double-array trie; may be empty
    if charsmap := bytes(model.normalizer_spec.precompiled_charsmap):
        read_charsmap_replacements(charsmap)
    for is_wrong, what in (
        (not texts or len({*texts}) < len(texts), "a piece is there twice, or there is none"),
        (not all(map(len, texts)), "a piece is empty"),
        (max(map(len, texts), default=0) > MAX_PIECE_CHARACTERS, f"a piece has over {MAX_PIECE_CHARACTERS} characters"),
        (not all(math.isfinite(piece.score) for piece in model.pieces), "the score of a piece is not finite"),
        (trainer.model_type != expected_algorithm, f"its model_type is {trainer.model_type}, not {expected_algorithm}"),
        (not 0 <= trainer.unk_id < len(texts), "the unknown token has no piece"),
        (max(trainer.bos_id, trainer.eos_id) >= len(texts), "a special token has no piece"),
    ):
        if is_wrong:
            raise tokenizer_error(f"not a SentencePiece model that can be imported: {what}", str(path))
    return model


def build_marian_tokenizer(
    vocabulary: Mapping[str, int], source_model: Any, settings: TokenizerSettings, where: str
) -> Tokenizer:
    """Builds a tokenizer with the ids of `vocabulary` that segments text as the SentencePiece model `source_model`.

    The vocabulary also has special tokens and pieces of the target language, which must match no text. Because the
    library matches every entry by its name, such entries are renamed: "<" in a piece, and in the text, becomes a
    character that neither has, so that no text spells an entry such as </s>; pieces that only the target has begin with
    another such character. The decoder reverses both. Pieces of the source that have no id are left out.

    A run of characters that the source does not know is one piece, which may have an id all the same.

    where: the model directory, for errors. Raises CheckpointError when they do not fit.
    """
    roles = settings.special_tokens
    names = [name for name, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    if list(range(len(names))) != sorted(vocabulary.values()):
        raise tokenizer_error("the ids of vocab.json have gaps", where)
    if missing := [role for role in ("<unk>", *roles.values()) if role not in vocabulary]:
        raise tokenizer_error(f"vocab.json lacks {printable(missing[0])[:40]}", where)
    if any(piece.type in (_USER_DEFINED, _BYTE) for piece in source_model.pieces):
        raise tokenizer_error("source.spm has symbols of its own", where)
    scores = {piece.piece: piece.score for piece in source_model.pieces if piece.type == _NORMAL}
    known = {piece for piece in scores if len(piece) == 1}
    lowest = min(scores.values(), default=0.0)
    used = set().union(*vocabulary, *scores)
    private_use = map(chr, range(0xF0000, 0xFFFFE))
    less, foreign, strange = islice((character for character in private_use if character not in used), 3)
    codes = [name for name in names if name.startswith(">>") and name.endswith("<<")]
    whole = {"<unk>", *roles.values(), *codes}
    runs = [name for name in names if name not in whole and known.isdisjoint(name)]

    def make_entry(name: str) -> tuple[str, float]:
        if name in whole:
            return name, 0.0
        renamed = name.replace("<", less)
        if name in scores:
            return renamed, scores[name]
        return (renamed, lowest if len(name) == 1 else 0.0) if known.isdisjoint(name) else (foreign + renamed, 0.0)

    tokenizer = Tokenizer(models.Unigram([make_entry(name) for name in names], unk_id=vocabulary["<unk>"]))
    unknown = f"[^{_escape_regex(c.replace('<', less) for c in sorted(known))}]"
    known_runs = "|".join(_escape_regex(name.replace("<", less)) for name in runs)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{less}{foreign}]"), strange),
            *_sentencepiece_normalizers(source_model),
            normalizers.Replace("<", less),
            normalizers.Replace(Regex(f"(?<!{unknown})(?!(?:{known_runs})(?!{unknown})){unknown}{{2,}}"), strange),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(less, "<"), decoders.Replace(foreign, ""), decoders.Metaspace(prepend_scheme="always")]
    )
    # The language to translate to, written before the text. No special token: it is understood in any text.
    tokenizer.add_tokens([AddedToken(code, normalized=False) for code in codes])
    settings.add_missing_tokens_(tokenizer)
    eos = roles["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", "$B", eos], special_tokens=[(eos, vocabulary[eos])]
    )
    return tokenizer


def _sentencepiece_normalizers(model: Any) -> Iterator[normalizers.Normalizer]:
    """The normalizers by which a SentencePiece model changes a text before it cuts it."""
    spec = model.normalizer_spec
    if charsmap := bytes(spec.precompiled_charsmap):
        yield from (normalizers.NFC(), normalizers.Precompiled(charsmap))
    if spec.remove_extra_whitespaces:
        yield from (normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " "))
    space = SENTENCEPIECE_SPACE if spec.escape_whitespaces else " "
    if spec.add_dummy_prefix:
        yield normalizers.Prepend(space)
    yield normalizers.Replace(" ", space)


def _escape_regex(text: Iterable[str]) -> str:
    """Spells characters by their codes, as in a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)
