"""Random models of Transformers with their tokenizers, as on the hub, and the runs that they become."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast

from lmtool.compute.device import CPU
from lmtool.interop.importing import import_to_cache
from lmtool.runs.load import LoadedModel, load_run

TEXTS = ["Tom and Anna went to the old harbour.", "It rained; the boats stayed!  Why?", "a", "¿Qué? 漢字 🙂 <s> [MASK]"]
CORPUS = [*TEXTS, "They waited for the rain to end, and then they walked home along the sea wall."] * 20
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
PLAIN = {"max_position_embeddings": 128, **SMALL}
DIMS = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
DIMS |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128}


def byte_level(specials: list[str], template: Any) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    if template:
        ids = [(name, inner.token_to_id(name)) for name in specials]
        inner.post_processor = processors.TemplateProcessing(single=template[0], pair=template[1], special_tokens=ids)
    return inner


def word_pieces() -> Tokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=names, show_progress=False)
    )
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, inner.token_to_id(name)) for name in names],
    )
    return inner


ENDED = ("$A </s>", "$A </s> $B </s>")
FRAMED = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
END = {"eos_token": "<|end|>", "bos_token": "<|end|>"}
S = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PADDED = {"eos_token": "</s>", "pad_token": "<pad>"}
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ROBERTA = {**S, "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
CASES: dict[str, "Peer"] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        byte_level(["<|end|>"], None),
        END,
    ),
    "llama": (
        "LlamaForCausalLM",
        {**PLAIN, "num_key_value_heads": 2},
        byte_level(["<s>", "</s>", "<pad>"], ("<s> $A", "<s> $A <s> $B")),
        S,
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**PLAIN, "num_key_value_heads": 2, "tie_word_embeddings": True},
        byte_level(["<|end|>", "<|pad|>"], None),
        {"eos_token": "<|end|>", "pad_token": "<|pad|>"},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", PLAIN, byte_level(["<|end|>"], None), END),
    "mistral": (
        "MistralForCausalLM",
        {**PLAIN, "num_key_value_heads": 2, "sliding_window": 8},
        byte_level(["<s>", "</s>", "<pad>"], ("<s> $A", "<s> $A <s> $B")),
        S,
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        {**PLAIN, "num_key_value_heads": 2, "head_dim": 12},
        byte_level(["<|end|>", "<|pad|>"], None),
        {"eos_token": "<|end|>", "pad_token": "<|pad|>"},
    ),
    "gemma": (
        "GemmaForCausalLM",
        {**PLAIN, "num_key_value_heads": 1, "head_dim": 12},
        byte_level(["<s>", "</s>", "<pad>"], ("<s> $A", "<s> $A <s> $B")),
        S,
    ),
    "olmo2": ("Olmo2ForCausalLM", PLAIN, byte_level(["<|end|>", "<pad>"], None), {**END, "pad_token": "<pad>"}),
    "mpt": (
        "MptForCausalLM",
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
        byte_level(["<|end|>"], None),
        END,
    ),
    "bloom": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, byte_level(["<|end|>"], None), END),
    "bert": ("BertForMaskedLM", PLAIN, word_pieces(), BERT),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**PLAIN, "local_attention": 8, "reference_compile": False},
        word_pieces(),
        BERT,
    ),
    "bert classifier": ("BertForSequenceClassification", PLAIN, word_pieces(), BERT),
    "roberta classifier": (
        "RobertaForSequenceClassification",
        {**PLAIN, "max_position_embeddings": 130, "type_vocab_size": 1, "num_labels": 3, "pad_token_id": 1},
        byte_level(["<s>", "<pad>", "</s>", "<mask>"], FRAMED),
        ROBERTA,
    ),
    "gpt2 classifier": (
        "GPT2ForSequenceClassification",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "num_labels": 4},
        byte_level(["<|end|>", "<pad>"], None),
        {**END, "pad_token": "<pad>"},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
        byte_level(["<pad>", "</s>"], ENDED),
        PADDED,
    ),
    "flan-t5": (
        "T5ForConditionalGeneration",
        {
            **{"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
            **{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        },
        byte_level(["<pad>", "</s>"], ENDED),
        PADDED,
    ),
    "pegasus": (
        "PegasusForConditionalGeneration",
        {**DIMS, "decoder_start_token_id": 0, "forced_eos_token_id": None, "scale_embedding": True},
        byte_level(["<pad>", "</s>"], ENDED),
        PADDED,
    ),
    "bart": (
        "BartForConditionalGeneration",
        {**DIMS, "decoder_start_token_id": 2, "forced_bos_token_id": 0},
        byte_level(["<s>", "<pad>", "</s>", "<mask>"], FRAMED),
        ROBERTA,
    ),
    "marian": (
        "MarianMTModel",
        {**DIMS, "decoder_start_token_id": 0, "activation_function": "swish", "forced_eos_token_id": None},
        byte_level(["<pad>", "</s>"], ENDED),
        PADDED,
    ),
}
Peer = tuple[str, dict[str, Any], Tokenizer, dict[str, str]]
"""A class of Transformers, its configuration, a tokenizer, and its special tokens by their roles."""


def peer_in(folder: Path, case: str | Peer, **saving: Any) -> Any:
    """A random model of Transformers and its tokenizer, saved as on the hub. saving: options of `save_pretrained`."""
    name, settings, inner, roles = CASES[case] if isinstance(case, str) else case
    kind = getattr(transformers, name)
    ids = {role.replace("_token", "_token_id"): inner.token_to_id(token) for role, token in roles.items()}
    config = kind.config_class(**{"vocab_size": inner.get_vocab_size() + 3, **ids, **settings})
    config.architectures = [name]
    torch.manual_seed(1)
    peer = kind(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter, std=0.15)
    if "dtype" in saving:
        peer = peer.to(saving.pop("dtype"))
    peer.save_pretrained(folder, **saving)
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(folder)
    # read again, since a model that was in half precision has rounded constants too
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def brought(folder: Path) -> LoadedModel:
    return load_run(str(import_to_cache(str(folder))), CPU)


def rows_of(loaded: LoadedModel) -> list[list[int]]:
    """Complete rows of the texts, special tokens included."""
    rows = []
    for text in TEXTS:
        ids = np.array(loaded.tokenizer.encode(text))
        prompt_format = loaded.prompt_format
        rows.append(
            (
                prompt_format.encode_source_and_target(ids, None)[0]
                if prompt_format.answers
                else prompt_format.encode_and_truncate_row([ids])[0]
            ).tolist()
        )
    return rows


BODIES: dict[str, tuple[Any, ...]] = {
    "bert": ("BertModel", PLAIN, word_pieces(), BERT),
    "roberta": (
        "RobertaModel",
        {**PLAIN, "max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1},
        byte_level(["<s>", "<pad>", "</s>", "<mask>"], FRAMED),
        ROBERTA,
    ),
    "distilbert": (
        "DistilBertModel",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 128},
        word_pieces(),
        BERT,
    ),
    "electra": ("ElectraModel", {**PLAIN, "embedding_size": 16}, word_pieces(), BERT),
    "modernbert": (
        "ModernBertModel",
        {**PLAIN, "local_attention": 8, "reference_compile": False},
        word_pieces(),
        BERT,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        byte_level(["<|end|>", "<pad>"], None),
        {**END, "pad_token": "<pad>"},
    ),
    "llama": (
        "LlamaForCausalLM",
        {**PLAIN, "num_key_value_heads": 2},
        byte_level(["<s>", "</s>", "<pad>"], ("<s> $A", "<s> $A <s> $B")),
        S,
    ),
}
