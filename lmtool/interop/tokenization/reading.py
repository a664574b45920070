"""Read the tokenizer of a Hugging Face model directory, in each form that the hub has.

Whatever the form, the result is a tokenizer of the `tokenizers` library that gives the ids of Transformers 5.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmtool.errors import CheckpointError, LmtoolError
from lmtool.interop.tokenization.marian import marian_tokenizer
from lmtool.interop.tokenization.sentencepiece import (
    SPACE,
    Algorithm,
    PieceRole,
    SentencePieceModel,
    check_charsmap,
    read_sentencepiece,
)
from lmtool.interop.tokenization.settings import (
    ROLES,
    Kind,
    TokenizerSettings,
    read_json,
    read_settings,
    read_text,
    refusal,
)
from lmtool.interop.tokenization.vocabularies import read_merges, read_vocabulary, read_word_pieces, recover_merges
from lmtool.printable import plain
from lmtool.text.inner import inner_of
from lmtool.text.tokenizer import LARGEST_VOCABULARY

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PROBE = "a b\n\U0010fffe"
"""With a character that no vocabulary has."""

MOST_SENTINELS = 10_000


@dataclass(frozen=True)
class PublishedTokenizer:
    """A tokenizer that Hugging Face publishes.

    json: content of tokenizer.json, as the `tokenizers` library reads it, without truncation and padding. config: of
    tokenizer_config.json: the special tokens by role (bos_token, eos_token, unk_token, sep_token, pad_token, cls_token,
    mask_token), those there are, and chat_template.
    """

    json: str
    config: dict[str, Any]


def read_tokenizer(folder: Path, model_type: str) -> PublishedTokenizer:
    """The tokenizer of a model directory, with the ids of Transformers' AutoTokenizer.

    model_type: as in config.json. Read from tokenizer.json, or else from vocab.json and merges.txt (byte-level BPE),
    vocab.txt (WordPiece), spiece.model (Unigram), tokenizer.model (BPE of SentencePiece), or vocab.json with source.spm
    (Marian). Special tokens that the vocabulary lacks are added behind it, as Transformers does.

    Raises CheckpointError when files are missing, damaged, or describe something else.
    """
    with _library_errors(str(folder)):
        settings = read_settings(folder, model_type)
        if (folder / "tokenizer.json").is_file():
            inner = _from_file(folder, settings)
        else:
            inner, settings = _built(folder, settings)
        _check(inner, str(folder))
        roles = {name: _content(token) for name, token in settings.roles.items()}
        config: dict[str, Any] = {name: token for name, token in roles.items() if inner.token_to_id(token) is not None}
        if settings.chat_template is not None:
            config["chat_template"] = settings.chat_template
        return PublishedTokenizer(inner.to_str(), config)


@contextmanager
def _library_errors(where: str) -> Iterator[None]:
    """Turn errors of the `tokenizers` library into CheckpointError; it raises bare Exception, and panics of Rust."""
    try:
        yield
    except (LmtoolError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # PanicException is no Exception
        raise refusal(plain(str(error)[:300])[:120], where) from error


def _check(inner: Tokenizer, where: str) -> None:
    """Raise CheckpointError for ids that no embedding has; and let what fails on every text fail now."""
    ids = [*inner.get_vocab(with_added_tokens=True).values(), *inner.encode(_PROBE, _PROBE).ids]
    if max(ids, default=0) >= LARGEST_VOCABULARY:
        raise refusal(f"it has token ids of {LARGEST_VOCABULARY:,} and more", where)


def _from_file(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    path = folder / "tokenizer.json"
    described = read_json(path)
    if not isinstance(described, dict):
        raise refusal("it is not a JSON object", str(path))
    for charsmap in _charsmaps(described.get("normalizer")):
        try:
            check_charsmap(base64.b64decode(charsmap, validate=True))
        except (binascii.Error, ValueError, TypeError) as error:
            raise refusal(f"normalizer: {error}", str(path)) from error
    model = described.get("model")
    if settings.kind == Kind.LLAMA and isinstance(model, dict) and model.get("type") == "BPE":
        # Transformers takes only the vocabulary of these files. They prepend the space by a normalizer, which adds
        # one to a text that begins with a space, and after each special token.
        ours = json.loads(_llama({}, [], settings).to_str())
        taken = {name: model.get(name) for name in ("vocab", "merges")}
        described |= {name: ours[name] for name in ("normalizer", "pre_tokenizer", "decoder")}
        described["model"] = ours["model"] | taken
        inner = inner_of(json.dumps(described))
    else:
        inner = inner_of(read_text(path))
    inner.no_truncation()
    inner.no_padding()
    _add_tokens(inner, settings, settings.extra or [])
    return inner


def _charsmaps(normalizer: Any) -> Iterator[Any]:
    """The normalization rules anywhere in the normalizer of a tokenizer.json."""
    pending = [normalizer]
    while pending:
        match pending.pop():
            case {"type": "Precompiled", **rest}:
                yield rest.get("precompiled_charsmap")
            case dict() as parts:
                pending.extend(parts.values())
            case list() as parts:
                pending.extend(parts)


def _built(folder: Path, settings: TokenizerSettings) -> tuple[Tokenizer, TokenizerSettings]:
    """From the files of tokenizers without tokenizer.json, as the class in Transformers does.

    Also the settings, with the roles that only the files tell.
    """

    def needed(name: str) -> Path:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(
                f"there is no tokenizer: neither tokenizer.json nor {name}, which a {settings.kind} needs",
                where=str(folder),
                fix="put the tokenizer's files beside config.json",
            )
        return path

    extra = settings.extra or []
    match settings.kind:
        case Kind.GPT2 | Kind.GPT_NEOX | Kind.QWEN2 | Kind.ROBERTA:
            vocabulary = read_vocabulary(needed("vocab.json"))
            inner = _byte_level(vocabulary, read_merges(needed("merges.txt")), settings)
        case Kind.BERT:
            inner = _word_pieces(read_word_pieces(needed("vocab.txt")), settings)
        case Kind.T5:
            model = read_sentencepiece(needed("spiece.model"), Algorithm.UNIGRAM)
            sentinels = _sentinels(settings)
            inner = _unigram(model, sentinels)
            extra = _declared(settings) or [*_added_pieces(model), *sentinels]
        case Kind.MARIAN:
            if settings.flag("separate_vocabs", False):
                raise refusal("source and target have two vocabularies (separate_vocabs)", settings.where)
            source = read_sentencepiece(needed("source.spm"), Algorithm.UNIGRAM)
            roles = [_content(token) for token in settings.roles.values()]
            inner = marian_tokenizer(read_vocabulary(needed("vocab.json")), source, roles, str(folder))
        case Kind.LLAMA | Kind.GEMMA | Kind.FILE:
            model = read_sentencepiece(needed("tokenizer.model"), Algorithm.BPE)
            if settings.kind == Kind.FILE:
                settings = _with_roles(settings, model)
            inner = _sentencepiece_bpe(model, settings)
            extra = _declared(settings) or _added_pieces(model)
    _add_tokens(inner, settings, extra)
    if settings.kind == Kind.QWEN2:
        names = [_content(token) for token in [*settings.roles.values(), *extra]]
        inner.add_tokens([AddedToken(name, special=True) for name in dict.fromkeys(names)])
    inner.post_processor = _post_processor(inner, settings)
    return inner, settings


def _byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings) -> Tokenizer:
    """Byte-level BPE (GPT-2 and its heirs)."""
    prefix_space = settings.flag("add_prefix_space", False)
    inner = Tokenizer(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    inner.decoder = decoders.ByteLevel()
    if settings.kind in (Kind.GPT_NEOX, Kind.QWEN2):
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if settings.kind == Kind.QWEN2:
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
            ]
        )
    return inner


def _word_pieces(vocabulary: dict[str, int], settings: TokenizerSettings) -> Tokenizer:
    """WordPiece (BERT). Transformers knows never_split no more; special tokens are never split."""
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token=_content(settings.roles.get("unk_token", "[UNK]"))))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=None if settings.values.get("strip_accents") is None else settings.flag("strip_accents", True),
        lowercase=settings.flag("do_lower_case", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def _unigram(model: SentencePieceModel, sentinels: list[str]) -> Tokenizer:
    """Unigram (T5), with the last sentinel first behind the pieces."""
    scores = [(piece.text, piece.score) for piece in model.pieces] + [(name, 0.0) for name in reversed(sentinels)]
    inner = Tokenizer(models.Unigram(scores, unk_id=2, byte_fallback=False))
    if model.charsmap:
        inner.normalizer = normalizers.Precompiled(model.charsmap)
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    inner.decoder = decoders.Metaspace()
    return inner


def _sentencepiece_bpe(model: SentencePieceModel, settings: TokenizerSettings) -> Tokenizer:
    """BPE of SentencePiece (Llama, Mistral, Gemma), with bytes for what has no piece."""
    vocabulary = {piece.text: i for i, piece in enumerate(model.pieces)}
    merges = recover_merges([piece.text for piece in model.pieces])
    if settings.kind == Kind.LLAMA:
        return _llama(vocabulary, merges, settings)
    sequence: list[Any] = [normalizers.Replace(" ", SPACE)]
    if settings.kind == Kind.GEMMA:
        unk, byte_fallback = _content(settings.roles.get("unk_token", "<unk>")), True
    else:
        unk, byte_fallback = model.unk_piece, model.byte_fallback
        if model.charsmap:
            sequence.insert(0, normalizers.Precompiled(model.charsmap))
        names = [piece.text for piece in model.pieces]
        for token_id, token in settings.added.items():  # which may rename pieces that were left free
            if token_id < len(names) and token.content not in vocabulary:
                vocabulary[token.content] = vocabulary.pop(names[token_id])
                names[token_id] = token.content
    inner = Tokenizer(models.BPE(vocabulary, merges, unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback))
    inner.normalizer = normalizers.Sequence(sequence)
    if settings.kind == Kind.GEMMA:
        inner.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    inner.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return inner


def _llama(vocabulary: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings) -> Tokenizer:
    prefix_space = settings.flag("add_prefix_space", True)
    scheme = "never" if not prefix_space else "always" if settings.flag("legacy", False) else "first"
    inner = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix_space:
        steps.append(decoders.Strip(content=" ", left=1))
    inner.decoder = decoders.Sequence(steps)
    return inner


def _sentinels(settings: TokenizerSettings) -> list[str]:
    n = settings.values.get("extra_ids", 100)
    if type(n) is not int or not 0 <= n <= MOST_SENTINELS:
        raise refusal(f"extra_ids is not a number from 0 to {MOST_SENTINELS:,}", settings.where)
    return [f"<extra_id_{i}>" for i in range(n)]


def _declared(settings: TokenizerSettings) -> list[AddedToken | str] | None:
    """Special tokens without a role of tokenizer_config.json, which replace those of a SentencePiece model."""
    return settings.extra if "extra_special_tokens" in settings.values else None


def _added_pieces(model: SentencePieceModel) -> list[AddedToken | str]:
    """The pieces that are never cut: control symbols, and what the user defined, which is ordinary text."""
    return [
        AddedToken(piece.text, normalized=False, special=piece.role == PieceRole.CONTROL)
        for piece in model.pieces
        if piece.role in (PieceRole.CONTROL, PieceRole.USER_DEFINED)
    ]


def _with_roles(settings: TokenizerSettings, model: SentencePieceModel) -> TokenizerSettings:
    """The settings, with the roles that only the SentencePiece model tells."""
    told = {
        "bos_token": model.bos_piece if model.bos_id >= 0 else None,
        "eos_token": model.eos_piece if model.eos_id >= 0 else None,
        "unk_token": model.unk_piece,
    }
    roles = {name: settings.roles.get(name) or (None if name in settings.values else told.get(name)) for name in ROLES}
    return replace(settings, roles={name: token for name, token in roles.items() if token is not None})


def _add_tokens(inner: Tokenizer, settings: TokenizerSettings, extra: list[AddedToken | str]) -> None:
    """Add the tokens that the vocabulary lacks, or whose options differ, in the order of Transformers."""
    pending = [token for _, token in sorted(settings.added.items())]
    known = {token.content for token in [*inner.get_added_tokens_decoder().values(), *pending]}
    names = {_content(token) for token in settings.roles.values()}
    for token in [*settings.roles.values(), *extra]:
        if _content(token) not in known:
            known.add(_content(token))
            pending.append(AddedToken(token, special=True) if isinstance(token, str) else token)
    for token in pending:
        token.special = token.special or token.content in names
    inner.add_tokens(pending)


def _post_processor(inner: Tokenizer, settings: TokenizerSettings) -> Any:
    """Which special tokens an encoded text gets."""

    def role(name: str) -> tuple[str, int]:
        token = _content(settings.roles.get(name, ""))
        token_id = inner.token_to_id(token)
        if token_id is None:
            raise refusal(f"it has no {name}", settings.where)
        return token, token_id

    match settings.kind:
        case Kind.BERT:
            cls, sep = role("cls_token"), role("sep_token")
            single, pair = [f"{cls[0]}:0", "$A:0", f"{sep[0]}:0"], ["$B:1", f"{sep[0]}:1"]
            return processors.TemplateProcessing(single=single, pair=single + pair, special_tokens=[cls, sep])
        case Kind.ROBERTA:
            spaces = settings.flag("trim_offsets", True), settings.flag("add_prefix_space", False)
            return processors.RobertaProcessing(role("sep_token"), role("cls_token"), *spaces)
        case Kind.T5:
            end, token_id = "</s>", role("eos_token")[1]
            single, pair = ["$A", end], ["$A", end, "$B", end]
            return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(end, token_id)])
        case Kind.MARIAN:
            eos = role("eos_token")
            single, pair = ["$A", eos[0]], ["$A", "$B", eos[0]]
            return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[eos])
    before = [role("bos_token")] if settings.flag("add_bos_token", False) and "bos_token" in settings.roles else []
    after = [role("eos_token")] if settings.flag("add_eos_token", False) and "eos_token" in settings.roles else []

    def around(text: str, segment: int) -> list[str]:
        return [*(f"{b}:{segment}" for b, _ in before), f"{text}:{segment}", *(f"{a}:{segment}" for a, _ in after)]

    single, pair = around("$A", 0), around("$A", 0) + around("$B", 1)
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=before + after)


def _content(token: AddedToken | str) -> str:
    return token if isinstance(token, str) else str(token.content)
