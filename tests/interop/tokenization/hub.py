"""Small tokenizers of each family, as files in the forms that the hub has, and texts to try them on."""

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.support.published_tokenizers import byte_cut, byte_level, word_pieces
from tests.support.texts import HOSTILE

ROOT = Path(__file__).parents[3]
GPT2_END = "<|endoftext|>"
NEOX = (GPT2_END, "<|padding|>")
BERT_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_PAIR = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace("{1,3}", "")

Files = Callable[[Path], None]


@dataclass(frozen=True)
class Form:
    """A family in one form. write: makes the files. specials: tokens for texts to spell."""

    model_type: str
    write: Files
    specials: list[str] = field(default_factory=list)


# Texts


RANGES = [(0x01, 0x7F), (0x7F, 0x250), (0x300, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1E00, 0x2070)]
RANGES += [(0x2190, 0x2C00), (0x3040, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xE100), (0xFB00, 0x30000)]


def texts(n: int, seed: int, specials: list[str]) -> list[str]:
    """Random texts of all kinds of characters; many spell special tokens, glued and spaced."""
    rng = random.Random(seed)
    lines = corpus(500)
    hostile = [text[: rng.randint(1, 90)] for text in HOSTILE.values() if text]

    def piece() -> str:
        match rng.randrange(5):
            case 0:
                return rng.choice(hostile)
            case 1:
                return "".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randint(1, 8)))
            case 2:
                return rng.choice(" \n\t=a.\u2581") * rng.randint(1, 40)
            case 3 if specials:
                token = rng.choice(specials)
                return rng.choice([token, token, token, token.upper(), token[1:], token.replace("_", " ")])
        line = rng.choice(lines)
        return line[: rng.randint(0, len(line))]

    mixed = (rng.choice(["", " "]).join(piece() for _ in range(rng.randint(1, 5))) for _ in range(n))
    return ["", " ", "\n", *specials, *("".join(pair) for pair in pairwise(specials)), *mixed]


# Training


def corpus(lines: int = 1500) -> list[str]:
    stories = (ROOT / "data/stories.valid.txt").read_text(encoding="utf-8").splitlines()[:lines]
    pairs = (ROOT / "data/translation.test.tsv").read_text(encoding="utf-8").splitlines()[:lines]
    return [*stories, *(side for pair in pairs for side in pair.split("\t"))]


@cache
def byte_level_json(words: str, vocab_size: int, specials: tuple[str, ...]) -> str:
    """A byte-level BPE of texts divided by a regular expression; as GPT-2 does when it is empty."""
    inner = byte_level(specials, cut=byte_cut(words), texts=corpus(), vocab_size=vocab_size)
    return str(inner.to_str())


@cache
def word_pieces_json(lowercase: bool) -> str:
    return str(word_pieces(corpus(), 900, ("[CLS]:0 $A:0 [SEP]:0", BERT_PAIR), lowercase=lowercase).to_str())


@cache
def sentencepiece_model(kind: str, side: int | None = None, **options: Any) -> bytes:
    if side is None:
        sentences = corpus()
    else:
        pairs = (ROOT / "data/translation.tsv").read_text(encoding="utf-8").splitlines()[:3000]
        sentences = [pair.split("\t")[side] for pair in pairs]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type=kind,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **options,
    )
    return model.getvalue()


def bpe_model(**options: Any) -> bytes:
    """As Llama's and Mistral's."""
    return sentencepiece_model(
        "bpe",
        vocab_size=900,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.9999,
        **options,
    )


# Files


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def write_config(folder: Path, model_type: str, tokenizer_class: str | None, /, **values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"model_type": model_type})
    if tokenizer_class is not None:
        values["tokenizer_class"] = tokenizer_class
    if values:
        write_json(folder / "tokenizer_config.json", values)


def write_vocabulary(folder: Path, described: str) -> None:
    """vocab.json and merges.txt."""
    model = json.loads(described)["model"]
    write_json(folder / "vocab.json", model["vocab"])
    merges = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")


def decoder_entry(content: str, **options: bool) -> dict[str, Any]:
    flags = dict.fromkeys(["lstrip", "normalized", "rstrip", "single_word"], False) | {"special": True}
    return {"content": content, **flags, **options}


def pieces_of(model: bytes) -> list[tuple[str, float]]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]


def bpe_of(model: bytes, unk: str) -> models.BPE:
    """A SentencePiece BPE in the `tokenizers` library, as conversions from before Transformers 5 give it."""
    pieces = pieces_of(model)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = [(p[:i], p[i:]) for p, _ in pieces for i in range(1, len(p)) if p[:i] in ids and p[i:] in ids]
    return models.BPE(ids, merges, unk_token=unk, fuse_unk=True, byte_fallback=True)


def template(bos: str, bos_id: int) -> Any:
    return processors.TemplateProcessing(
        single=[f"{bos}:0", "$A:0"],
        pair=[f"{bos}:0", "$A:0", f"{bos}:1", "$B:1"],
        special_tokens=[(bos, bos_id)],
    )


def special(*names: str, **options: Any) -> list[AddedToken]:
    return [AddedToken(name, **{"special": True, "normalized": False, **options}) for name in names]


def entries(first: int, names: Sequence[str], **options: bool) -> dict[str, dict[str, Any]]:
    """Added tokens by their ids, as tokenizer_config.json has them."""
    return {str(first + i): decoder_entry(name, **options) for i, name in enumerate(names)}


def save(folder: Path, inner: Tokenizer, added: Sequence[AddedToken] = (), **steps: Any) -> None:
    for step, value in steps.items():
        setattr(inner, step, value)
    inner.add_tokens(list(added))
    inner.save(str(folder / "tokenizer.json"))


# Families

LLAMA3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"]
S = ["<unk>", "<s>", "</s>"]
SENTENCEPIECE_ROLES = dict(zip(("unk_token", "bos_token", "eos_token"), S, strict=True))
QWEN_NAMES = [GPT2_END, "<|im_start|>", "<|im_end|>"]
GEMMA_NAMES = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
GEMMA_ROLES = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
ROBERTA_NAMES = ("<s>", "<pad>", "</s>", "<unk>")
MARIAN_CODES = [">>deu<<", ">>nds<<"]


def gpt2_file(folder: Path) -> None:
    write_config(folder, "gpt2", None, model_max_length=1024)
    inner = Tokenizer.from_str(byte_level_json("", 700, (GPT2_END,)))
    save(folder, inner, post_processor=processors.ByteLevel(trim_offsets=False))


def gpt2_vocabulary(folder: Path) -> None:
    write_config(folder, "gpt2", "GPT2Tokenizer", add_prefix_space=True, add_bos_token=True)
    write_vocabulary(folder, byte_level_json("", 700, (GPT2_END,)))


def gpt_neox(folder: Path) -> None:
    spaces = entries(700, [" " * (24 - i) for i in range(23)], normalized=True, special=False)
    roles = dict.fromkeys(["bos_token", "eos_token", "unk_token"], GPT2_END)
    write_config(folder, "gpt_neox", "GPTNeoXTokenizer", added_tokens_decoder={**entries(0, NEOX), **spaces}, **roles)
    write_vocabulary(folder, byte_level_json("", 700, NEOX))


def llama3(folder: Path) -> None:
    roles = {"bos_token": LLAMA3[0], "eos_token": LLAMA3[1], "chat_template": "{{ messages }}"}
    listed = entries(800, LLAMA3)
    write_config(folder, "llama", "PreTrainedTokenizerFast", added_tokens_decoder=listed, **roles)
    described = json.loads(byte_level_json(LLAMA3_WORDS, 800, ()))
    described["model"]["ignore_merges"] = True
    step = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(LLAMA3[0], 800)])
    save(folder, Tokenizer.from_str(json.dumps(described)), special(*LLAMA3), post_processor=step)


def sentencepiece_file(model_type: str, legacy: bool | None, folder: Path) -> None:
    """The tokenizer.model of Llama or Mistral."""
    values: dict[str, Any] = {"add_bos_token": True, **({} if legacy is None else {"legacy": legacy})}
    if model_type == "llama":
        values |= {"add_eos_token": False, "pad_token": None}
        for role, name in SENTENCEPIECE_ROLES.items():
            entry = {key: value for key, value in decoder_entry(name).items() if key != "special"}
            values[role] = {"__type": "AddedToken", **entry}
    write_config(folder, model_type, "LlamaTokenizer", **values)
    (folder / "tokenizer.model").write_bytes(bpe_model(user_defined_symbols="<sep>"))


def sentencepiece_json(model_type: str, legacy: bool, folder: Path) -> None:
    """The tokenizer.json of Llama 2 or Mistral, where normalizers write the spaces."""
    listed = {**entries(0, S), "900": decoder_entry("[INST]", special=False)}
    options: dict[str, Any] = {"legacy": legacy, "added_tokens_decoder": listed, "add_bos_token": True}
    write_config(folder, model_type, "LlamaTokenizer", **options, **SENTENCEPIECE_ROLES)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    save(
        *(folder, Tokenizer(bpe_of(bpe_model(), "<unk>")), special(*S)),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Sequence(steps),
        post_processor=template("<s>", 1),
    )


def qwen(model_type: str, described: bool, folder: Path) -> None:
    thoughts = ["<think>", "</think>"] if model_type == "qwen3" else []
    listed = {**entries(750, QWEN_NAMES), **entries(753, thoughts, special=False)}
    roles = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": GPT2_END, "unk_token": None}
    values: dict[str, Any] = {"add_prefix_space": False, "added_tokens_decoder": listed, **roles}
    values["additional_special_tokens"] = QWEN_NAMES[1:]
    values["chat_template"] = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    write_config(folder, model_type, "Qwen2Tokenizer", **values)
    base = byte_level_json(QWEN2_WORDS, 750, ())
    write_vocabulary(folder, base)
    if described:
        steps = {"normalizer": normalizers.NFC(), "post_processor": processors.ByteLevel(trim_offsets=False)}
        save(folder, Tokenizer.from_str(base), [AddedToken(**entry) for entry in listed.values()], **steps)


def gemma(described: bool, folder: Path) -> None:
    listed = entries(0, GEMMA_NAMES)
    write_config(folder, "gemma", "GemmaTokenizer", add_bos_token=True, added_tokens_decoder=listed, **GEMMA_ROLES)
    model = bpe_model(
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"},
        **{"add_dummy_prefix": False, "user_defined_symbols": "<mask>,<start_of_turn>,\n\n,▁▁"},
    )
    if not described:
        (folder / "tokenizer.model").write_bytes(model)
        return
    save(
        *(folder, Tokenizer(bpe_of(model, "<unk>")), special(*GEMMA_NAMES)),
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        post_processor=template("<bos>", 2),
    )


def bert(model_type: str, kind: str | None, lowercase: bool, described: bool, folder: Path, **values: Any) -> None:
    write_config(folder, model_type, kind, **values, **({} if kind is None else {"do_lower_case": lowercase}))
    inner = Tokenizer.from_str(word_pieces_json(lowercase))
    if not described:
        pieces = sorted(inner.get_vocab().items(), key=lambda piece: piece[1])
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
        return
    inner.enable_truncation(max_length=8)
    inner.enable_padding(length=8, pad_id=0, pad_token="[PAD]")
    save(folder, inner, special(*BERT_NAMES))


def roberta(model_type: str, described: bool, folder: Path) -> None:
    base = json.loads(byte_level_json("", 700, ROBERTA_NAMES))
    base["model"]["vocab"]["<mask>"] = 700
    base["added_tokens"] = []
    if not described:
        names = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
        mask = {k: v for k, v in decoder_entry("<mask>", lstrip=True).items() if k != "special"}
        write_config(folder, model_type, None)
        write_json(folder / "special_tokens_map.json", {**names, "mask_token": mask})
        write_vocabulary(folder, json.dumps(base))
        return
    write_config(folder, model_type, None, model_max_length=512)
    added = [*special(*ROBERTA_NAMES, normalized=True), *special("<mask>", lstrip=True)]
    step = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    save(folder, Tokenizer.from_str(json.dumps(base)), added, post_processor=step)


def modernbert(folder: Path) -> None:
    roles = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    listed = {**entries(750, BERT_NAMES[:-1]), "754": decoder_entry("[MASK]", lstrip=True)}
    values: dict[str, Any] = {"added_tokens_decoder": listed, "mask_token": "[MASK]", **roles}
    write_config(folder, "modernbert", "PreTrainedTokenizerFast", **values)
    framing = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=[("[CLS]", 752), ("[SEP]", 753)],
    )
    added = [AddedToken(**entry) for entry in listed.values()]
    inner = Tokenizer.from_str(byte_level_json("", 750, ()))
    save(folder, inner, added, normalizer=normalizers.NFC(), post_processor=framing)


def t5(described: bool, folder: Path) -> None:
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    values: dict[str, Any] = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 100}
    if described:
        values["additional_special_tokens"] = sentinels
    write_config(folder, "t5", "T5Tokenizer", **values)
    model = sentencepiece_model("unigram", vocab_size=800, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    if not described:
        (folder / "spiece.model").write_bytes(model)
        return
    scores = [*pieces_of(model), *((name, 0.0) for name in reversed(sentinels))]
    charsmap = ModelProto.FromString(model).normalizer_spec.precompiled_charsmap
    save(
        *(folder, Tokenizer(models.Unigram(scores, unk_id=2)), special("<pad>", "</s>", "<unk>", *sentinels)),
        normalizer=normalizers.Precompiled(charsmap),
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        decoder=decoders.Metaspace(),
        post_processor=processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)]),
    )


def marian(folder: Path) -> None:
    write_config(folder, "marian", "MarianTokenizer", source_lang="en", target_lang="de")
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, name in enumerate(("source.spm", "target.spm")):
        model = sentencepiece_model("unigram", side, vocab_size=600)
        (folder / name).write_bytes(model)
        for piece, _ in pieces_of(model)[3:]:
            vocabulary.setdefault(piece, len(vocabulary))
    for name in [*MARIAN_CODES, "<pad>"]:
        vocabulary[name] = len(vocabulary)
    write_json(folder / "vocab.json", vocabulary)


GEMMA = ["<bos>", "<eos>", "<mask>", "<start_of_turn>"]
T5 = ["</s>", "<pad>", "<extra_id_0>", "<extra_id_99>"]
BERT = list(BERT_NAMES)
FORMS = {
    "gpt2 tokenizer.json": Form("gpt2", gpt2_file, [GPT2_END]),
    "gpt2 vocab.json": Form("gpt2", gpt2_vocabulary, [GPT2_END]),
    "gpt_neox vocab.json": Form("gpt_neox", gpt_neox, [*NEOX]),
    "llama 3 tokenizer.json": Form("llama", llama3, ["<|begin_of_text|>", "<|eot_id|>"]),
    "llama tokenizer.model": Form("llama", partial(sentencepiece_file, "llama", None), [*S, "<sep>", "<0x0A>"]),
    "llama tokenizer.model, legacy": Form("llama", partial(sentencepiece_file, "llama", True), [*S, "<sep>"]),
    "llama tokenizer.json": Form("llama", partial(sentencepiece_json, "llama", False), [*S, "[INST]"]),
    "mistral tokenizer.model": Form("mistral", partial(sentencepiece_file, "mistral", None), [*S, "<sep>"]),
    "mistral tokenizer.json, legacy": Form("mistral", partial(sentencepiece_json, "mistral", True), [*S, "[INST]"]),
    "qwen2 vocab.json": Form("qwen2", partial(qwen, "qwen2", False), QWEN_NAMES),
    "qwen3 tokenizer.json": Form("qwen3", partial(qwen, "qwen3", True), [*QWEN_NAMES, "<think>"]),
    "gemma tokenizer.json": Form("gemma", partial(gemma, True), GEMMA),
    "gemma tokenizer.model": Form("gemma", partial(gemma, False), GEMMA),
    "bert tokenizer.json": Form("bert", partial(bert, "bert", "BertTokenizer", False, True), BERT),
    "bert vocab.txt": Form("bert", partial(bert, "bert", None, True, False), BERT),
    "bert vocab.txt, cased": Form(
        "bert", partial(bert, "bert", "BertTokenizer", False, False, tokenize_chinese_chars=False), BERT
    ),
    "electra vocab.txt": Form(
        "electra", partial(bert, "electra", "ElectraTokenizer", False, False, strip_accents=True), BERT
    ),
    "roberta tokenizer.json": Form("roberta", partial(roberta, "roberta", True), [*S, "<mask>"]),
    "roberta vocab.json": Form("roberta", partial(roberta, "roberta", False), [*S, "<mask>"]),
    "modernbert tokenizer.json": Form("modernbert", modernbert, BERT),
    "t5 tokenizer.json": Form("t5", partial(t5, True), T5),
    "t5 spiece.model": Form("t5", partial(t5, False), T5),
    "bart vocab.json": Form("bart", partial(roberta, "bart", False), [*S, "<mask>"]),
    "marian": Form("marian", marian, ["</s>", "<unk>", "<pad>"]),
}
"""Families in the forms that the hub has."""
