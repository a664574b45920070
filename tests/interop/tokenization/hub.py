"""Small tokenizers of each family, as files in the forms that the hub has, and texts to try them on."""

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
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


# Families


def gpt2_file(folder: Path) -> None:
    write_config(folder, "gpt2", None, model_max_length=1024)
    inner = Tokenizer.from_str(byte_level_json("", 700, (GPT2_END,)))
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    inner.save(str(folder / "tokenizer.json"))


def gpt2_vocabulary(folder: Path) -> None:
    write_config(folder, "gpt2", "GPT2Tokenizer", add_prefix_space=True, add_bos_token=True)
    write_vocabulary(folder, byte_level_json("", 700, (GPT2_END,)))


NEOX_SPACES = {str(700 + i): decoder_entry(" " * (24 - i), normalized=True, special=False) for i in range(23)}


def gpt_neox(folder: Path) -> None:
    spaces = {str(700 + i): decoder_entry(" " * (24 - i), normalized=True, special=False) for i in range(23)}
    listed = {**{str(i): decoder_entry(name) for i, name in enumerate(NEOX)}, **spaces}
    roles = dict.fromkeys(["bos_token", "eos_token", "unk_token"], GPT2_END)
    write_config(folder, "gpt_neox", "GPTNeoXTokenizer", added_tokens_decoder=listed, **roles)
    write_vocabulary(folder, byte_level_json("", 700, NEOX))


def llama3(folder: Path) -> None:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"]
    listed = {str(800 + i): decoder_entry(name) for i, name in enumerate(names)}
    write_config(
        folder,
        "llama",
        "PreTrainedTokenizerFast",
        added_tokens_decoder=listed,
        bos_token=names[0],
        eos_token=names[1],
        chat_template="{{ messages }}",
    )
    inner = Tokenizer.from_str(byte_level_json(LLAMA3_WORDS, 800, ()))
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(names[0], 800)])
    described = json.loads(inner.to_str())
    described["model"]["ignore_merges"] = True
    write_json(folder / "tokenizer.json", described)


LLAMA_CONFIG: dict[str, Any] = {
    "add_bos_token": True,
    "add_eos_token": False,
    **{
        role: {"__type": "AddedToken", **{k: v for k, v in decoder_entry(name).items() if k != "special"}}
        for role, name in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
    },
    "pad_token": None,
}


def sentencepiece_file(model_type: str, legacy: bool | None) -> Files:
    """The tokenizer.model of Llama or Mistral."""

    def write(folder: Path) -> None:
        values = {"add_bos_token": True} if model_type == "mistral" else LLAMA_CONFIG
        values = values if legacy is None else {**values, "legacy": legacy}
        write_config(folder, model_type, "LlamaTokenizer", **values)
        (folder / "tokenizer.model").write_bytes(bpe_model(user_defined_symbols="<sep>"))

    return write


def sentencepiece_json(model_type: str, legacy: bool) -> Files:
    """The tokenizer.json of Llama 2 or Mistral, where normalizers write the spaces."""

    def write(folder: Path) -> None:
        names = ["<unk>", "<s>", "</s>"]
        roles = dict(zip(("unk_token", "bos_token", "eos_token"), names, strict=True))
        listed = {str(i): decoder_entry(name) for i, name in enumerate(names)}
        listed["900"] = decoder_entry("[INST]", special=False)
        options: dict[str, Any] = {"legacy": legacy, "added_tokens_decoder": listed, "add_bos_token": True}
        write_config(folder, model_type, "LlamaTokenizer", **options, **roles)
        inner = Tokenizer(bpe_of(bpe_model(), "<unk>"))
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        inner.decoder = decoders.Sequence(steps)
        inner.post_processor = template("<s>", 1)
        inner.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        inner.save(str(folder / "tokenizer.json"))

    return write


QWEN_NAMES = [GPT2_END, "<|im_start|>", "<|im_end|>"]


def qwen(model_type: str, described: bool) -> Files:
    def write(folder: Path) -> None:
        names = [*QWEN_NAMES, *(["<think>", "</think>"] if model_type == "qwen3" else [])]
        listed = {str(750 + i): decoder_entry(n, special=not n.endswith("think>")) for i, n in enumerate(names)}
        roles = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": GPT2_END, "unk_token": None}
        values: dict[str, Any] = {"add_prefix_space": False, "added_tokens_decoder": listed, **roles}
        values["additional_special_tokens"] = QWEN_NAMES[1:]
        values["chat_template"] = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
        write_config(folder, model_type, "Qwen2Tokenizer", **values)
        base = byte_level_json(QWEN2_WORDS, 750, ())
        write_vocabulary(folder, base)
        if described:
            inner = Tokenizer.from_str(base)
            inner.normalizer = normalizers.NFC()
            inner.add_tokens([AddedToken(**entry) for entry in listed.values()])
            inner.post_processor = processors.ByteLevel(trim_offsets=False)
            inner.save(str(folder / "tokenizer.json"))

    return write


GEMMA_ROLES = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}


def gemma(described: bool) -> Files:
    def write(folder: Path) -> None:
        names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
        listed = {str(i): decoder_entry(name) for i, name in enumerate(names)}
        write_config(folder, "gemma", "GemmaTokenizer", add_bos_token=True, added_tokens_decoder=listed, **GEMMA_ROLES)
        model = bpe_model(
            **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"},
            add_dummy_prefix=False,
            user_defined_symbols="<mask>,<start_of_turn>,\n\n,▁▁",
        )
        if not described:
            (folder / "tokenizer.model").write_bytes(model)
            return
        inner = Tokenizer(bpe_of(model, "<unk>"))
        inner.normalizer = normalizers.Replace(" ", "▁")
        inner.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
        inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        inner.post_processor = template("<bos>", 2)
        inner.add_tokens([AddedToken(**entry) for entry in listed.values()])
        inner.save(str(folder / "tokenizer.json"))

    return write


BERT_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_PAIR = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"


def bert(model_type: str, tokenizer_class: str | None, lowercase: bool, described: bool, **values: Any) -> Files:
    def write(folder: Path) -> None:
        if tokenizer_class is not None:
            values["do_lower_case"] = lowercase
        write_config(folder, model_type, tokenizer_class, **values)
        inner = Tokenizer.from_str(word_pieces_json(lowercase))
        ids = inner.get_vocab()
        if not described:
            lines = [*sorted(ids, key=lambda piece: ids[piece]), ""]
            (folder / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
            return
        inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in BERT_NAMES])
        inner.enable_truncation(max_length=8)
        inner.enable_padding(length=8, pad_id=0, pad_token="[PAD]")
        inner.save(str(folder / "tokenizer.json"))

    return write


ROBERTA_NAMES = ("<s>", "<pad>", "</s>", "<unk>")


def roberta(model_type: str, described: bool) -> Files:
    def write(folder: Path) -> None:
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
        inner = Tokenizer.from_str(json.dumps(base))
        inner.add_special_tokens([AddedToken(name, special=True, normalized=True) for name in ROBERTA_NAMES])
        inner.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True, normalized=False)])
        inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
        inner.save(str(folder / "tokenizer.json"))

    return write


def modernbert(folder: Path) -> None:
    roles = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    listed = {str(750 + i): decoder_entry(name, lstrip=name == "[MASK]") for i, name in enumerate(BERT_NAMES)}
    write_config(
        folder, "modernbert", "PreTrainedTokenizerFast", added_tokens_decoder=listed, mask_token="[MASK]", **roles
    )
    inner = Tokenizer.from_str(byte_level_json("", 750, ()))
    inner.normalizer = normalizers.NFC()
    inner.add_tokens([AddedToken(**entry) for entry in listed.values()])
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=[("[CLS]", 752), ("[SEP]", 753)],
    )
    inner.save(str(folder / "tokenizer.json"))


def t5(described: bool) -> Files:
    def write(folder: Path) -> None:
        sentinels = [f"<extra_id_{i}>" for i in range(100)]
        roles = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        model = sentencepiece_model("unigram", vocab_size=800, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        if not described:
            write_config(folder, "t5", "T5Tokenizer", extra_ids=100, **roles)
            (folder / "spiece.model").write_bytes(model)
            return
        values = {"extra_ids": 100, "additional_special_tokens": sentinels}
        write_config(folder, "t5", "T5Tokenizer", **values, **roles)
        scores = [*pieces_of(model), *((name, 0.0) for name in reversed(sentinels))]
        inner = Tokenizer(models.Unigram(scores, unk_id=2))
        inner.normalizer = normalizers.Precompiled(ModelProto.FromString(model).normalizer_spec.precompiled_charsmap)
        inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        inner.decoder = decoders.Metaspace()
        names = ["<pad>", "</s>", "<unk>", *sentinels]
        inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        inner.post_processor = processors.TemplateProcessing(
            single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", 1)]
        )
        inner.save(str(folder / "tokenizer.json"))

    return write


MARIAN_CODES = [">>deu<<", ">>nds<<"]


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


S = ["<s>", "</s>", "<unk>"]
GEMMA = ["<bos>", "<eos>", "<mask>", "<start_of_turn>"]
T5 = ["</s>", "<pad>", "<extra_id_0>", "<extra_id_99>"]
BERT = list(BERT_NAMES)
FORMS = {
    "gpt2 tokenizer.json": Form("gpt2", gpt2_file, [GPT2_END]),
    "gpt2 vocab.json": Form("gpt2", gpt2_vocabulary, [GPT2_END]),
    "gpt_neox vocab.json": Form("gpt_neox", gpt_neox, [*NEOX]),
    "llama 3 tokenizer.json": Form("llama", llama3, ["<|begin_of_text|>", "<|eot_id|>"]),
    "llama tokenizer.model": Form("llama", sentencepiece_file("llama", None), [*S, "<sep>", "<0x0A>"]),
    "llama tokenizer.model, legacy": Form("llama", sentencepiece_file("llama", True), [*S, "<sep>"]),
    "llama tokenizer.json": Form("llama", sentencepiece_json("llama", False), [*S, "[INST]"]),
    "mistral tokenizer.model": Form("mistral", sentencepiece_file("mistral", None), [*S, "<sep>"]),
    "mistral tokenizer.json, legacy": Form("mistral", sentencepiece_json("mistral", True), [*S, "[INST]"]),
    "qwen2 vocab.json": Form("qwen2", qwen("qwen2", False), QWEN_NAMES),
    "qwen3 tokenizer.json": Form("qwen3", qwen("qwen3", True), [*QWEN_NAMES, "<think>"]),
    "gemma tokenizer.json": Form("gemma", gemma(True), GEMMA),
    "gemma tokenizer.model": Form("gemma", gemma(False), GEMMA),
    "bert tokenizer.json": Form("bert", bert("bert", "BertTokenizer", False, True), BERT),
    "bert vocab.txt": Form("bert", bert("bert", None, True, False), BERT),
    "bert vocab.txt, cased": Form(
        "bert", bert("bert", "BertTokenizer", False, False, tokenize_chinese_chars=False), BERT
    ),
    "electra vocab.txt": Form("electra", bert("electra", "ElectraTokenizer", False, False, strip_accents=True), BERT),
    "roberta tokenizer.json": Form("roberta", roberta("roberta", True), [*S, "<mask>"]),
    "roberta vocab.json": Form("roberta", roberta("roberta", False), [*S, "<mask>"]),
    "modernbert tokenizer.json": Form("modernbert", modernbert, BERT),
    "t5 tokenizer.json": Form("t5", t5(True), T5),
    "t5 spiece.model": Form("t5", t5(False), T5),
    "bart vocab.json": Form("bart", roberta("bart", False), [*S, "<mask>"]),
    "marian": Form("marian", marian, ["</s>", "<unk>", "<pad>"]),
}
"""Families in the forms that the hub has."""
