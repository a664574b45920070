"""The table of published families, random models of Transformers of each with their tokenizers, as on the Hub, and the
runs that they become."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from lmtool.compute.device import CPU
from lmtool.interop.families import FAMILIES
from lmtool.interop.importing import import_to_cache
from lmtool.runs.load import LoadedModel, load_run
from tests.support.published_tokenizers import CORPUS as CORPUS
from tests.support.published_tokenizers import TEXTS as TEXTS
from tests.support.published_tokenizers import byte_level as byte_level
from tests.support.published_tokenizers import word_pieces as word_pieces

S = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PADDED = {"eos_token": "</s>", "pad_token": "<pad>"}
ROBERTA = {**S, "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
FRAMED = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
BEGUN = ("<s> $A", "<s> $A <s> $B")
_WORDS = (word_pieces(), BERT)
_FRAMED = (byte_level(["<s>", "<pad>", "</s>", "<mask>"], FRAMED), ROBERTA)
_BEGUN = (byte_level(["<s>", "</s>", "<pad>"], BEGUN), S)
_ENDED = (byte_level(["<pad>", "</s>"], ("$A </s>", "$A </s> $B </s>")), PADDED)
_ENDING = (
    byte_level(["<|end|>", "<pad>"]),
    {"eos_token": "<|end|>", "bos_token": "<|end|>", "pad_token": "<pad>"},
)
TOKENIZERS: dict[str, tuple[Tokenizer, dict[str, str]]] = {
    **dict.fromkeys(FAMILIES, _ENDING),
    **dict.fromkeys(("llama", "mistral", "gemma"), _BEGUN),
    **dict.fromkeys(("bert", "distilbert", "electra", "modernbert", "eurobert"), _WORDS),
    **dict.fromkeys(("roberta", "xlm-roberta", "bart"), _FRAMED),
    "roberta, padded with 0": (byte_level(["<pad>", "<s>", "</s>", "<mask>"], FRAMED), ROBERTA),
    **dict.fromkeys(("t5", "marian", "pegasus"), _ENDED),
}
"""By the name of a model or its `model_type`: a tokenizer, and its special tokens by their roles."""

# Models

PLAIN: dict[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    "max_position_embeddings": 128,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
WINDOWS = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4}
ONE_SEGMENT = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
MPT = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 128}
MODERN = {**PLAIN, "num_hidden_layers": 4, "local_attention": 8, "reference_compile": False}
T5: dict[str, Any] = {
    **{"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    **{"relative_attention_num_buckets": 6, "relative_attention_max_distance": 12},
}
BART: dict[str, Any] = {
    **{"d_model": 32, "max_position_embeddings": 128, "decoder_start_token_id": 0, "forced_eos_token_id": None},
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
}


def rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **more}}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
BIASES = {"attention_bias": True, "mlp_bias": True}
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2 untied, dot": {**GPT2, **UNTIED, "scale_attn_weights": False, "n_inner": 24, "activation_function": "relu"},
    "llama": {**GROUPED, **rope()},
    "llama with biases, tied": {**GROUPED, **BIASES, **TIED},
    "llama of one group, geglu": {**PLAIN, "num_key_value_heads": 1, "hidden_act": "gelu"},
    "llama, wide heads": {**GROUPED, "head_dim": 12, **rope()},
    "llama, linear": {**GROUPED, **rope("linear", factor=2.0)},
    "llama 3": {**GROUPED, **LLAMA3},
    "llama, yarn": {**GROUPED, **YARN},
    "llama, yarn, plain attention": {
        **GROUPED,
        "rope_parameters": {**YARN["rope_parameters"], "attention_factor": 1.0},
    },
    "mistral": {**GROUPED, **rope(), "sliding_window": 4},
    "mistral without windows": {**GROUPED, "sliding_window": None, **TIED},
    "qwen2": {**GROUPED, **rope(), **TIED},
    "qwen2 with windows": {**GROUPED, **rope(), **WINDOWS, "max_window_layers": 2},
    "qwen2, windows between": {
        **{**GROUPED, **WINDOWS, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    },
    "qwen2, windows everywhere": {**GROUPED, **WINDOWS, "max_window_layers": 0},
    "qwen2, odd heads": {**GROUPED, "head_dim": 12},
    "qwen3": {**GROUPED, **rope(), "head_dim": 12},
    "qwen3 with windows": {**GROUPED, **WINDOWS, "max_window_layers": 1, "head_dim": 8},
    "gemma": {**GROUPED, **rope(), "head_dim": 12},
    "gemma untied": {**GROUPED, "head_dim": 8, "hidden_act": "gelu", **UNTIED},
    "olmo2": {**GROUPED, **rope()},
    "gpt_neox": {**PLAIN, **rope(partial_rotary_factor=0.25)},
    "gpt_neox in sequence, tied": {**PLAIN, "use_parallel_residual": False, **TIED},
    "gpt_neox, linear": {**PLAIN, **rope("linear", factor=2.0, partial_rotary_factor=0.5)},
    "gpt_neox, yarn": {
        **{**PLAIN, "rope_parameters": {**YARN["rope_parameters"], "partial_rotary_factor": 1.0}},
        "hidden_act": "silu",
    },
    "phi3": {**GROUPED, "pad_token_id": 1, **rope(partial_rotary_factor=0.5)},
    "phi3 with windows": {**GROUPED, "pad_token_id": 1, "sliding_window": 4, **TIED},
    "starcoder2": {**GROUPED, **rope()},
    "starcoder2 with windows": {**GROUPED, "sliding_window": 4, **UNTIED},
    "stablelm": {**GROUPED, **rope(partial_rotary_factor=0.5)},
    "stablelm with biases": {**GROUPED, "use_qkv_bias": True},
    "stablelm, tied": {**PLAIN, "num_key_value_heads": 4, **TIED},
    "bloom": BLOOM,
    "bloom of six heads, untied": {**BLOOM, "hidden_size": 24, "n_head": 6, **UNTIED},
    "mpt": MPT,
    "mpt of six heads, untied": {**MPT, "d_model": 24, "n_heads": 6, **UNTIED},
    "bert": PLAIN,
    "bert with one segment and ReLU": {**PLAIN, "type_vocab_size": 1, "hidden_act": "relu"},
    "bert, untied": {**PLAIN, **UNTIED},
    "roberta": {**PLAIN, **ONE_SEGMENT},
    "roberta, padded with 0": {**PLAIN, "pad_token_id": 0},
    "xlm-roberta": {**PLAIN, **ONE_SEGMENT},
    "eurobert": GROUPED,
    "eurobert with biases, tied": {**PLAIN, **BIASES, **TIED},
    "distilbert": DISTIL,
    "distilbert, GELU by tanh": {**DISTIL, "activation": "gelu_new"},
    "electra": {**PLAIN, "embedding_size": 16},
    "electra, not narrow": {**PLAIN, "embedding_size": 32, **UNTIED},
    "modernbert": MODERN,
    "modernbert with biases": {**MODERN, **BIASES, "norm_bias": True, "classifier_bias": True},
    "modernbert without output bias": {
        **{**MODERN, "decoder_bias": False, "hidden_activation": "silu", "classifier_activation": "silu"},
    },
    "modernbert, full": {**MODERN, "layer_types": ["full_attention"] * 4},
    "modernbert, windows": {**MODERN, "layer_types": ["sliding_attention"] * 4},
    "modernbert, its windows first": {
        **{**MODERN, "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
        **{"global_rope_theta": 500.0, "local_rope_theta": 20.0},
    },
    "t5": T5,
    "t5 1.1": {**T5, "feed_forward_proj": "gated-gelu", **UNTIED},
    "t5, gated by SiLU": {**T5, "feed_forward_proj": "gated-silu"},
    "t5, gated by the exact GELU": {
        **{**T5, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "layer_norm_epsilon": 1e-5},
    },
    "t5, tied without scale": {**T5, "scale_decoder_outputs": False},
    "bart": BART,
    "bart, scaled": {**BART, "scale_embedding": True, "activation_function": "relu"},
    "marian": {**BART, "scale_embedding": True, "activation_function": "swish"},
    "marian without scale": BART,
    "pegasus": {**BART, "scale_embedding": True, "activation_function": "relu"},
    "pegasus without scale": BART,
}
MODELS = {name: (name.split()[0].rstrip(","), config) for name, config in _CONFIGURATIONS.items()}
"""Small models of each family, first the usual one: the `model_type`, and a configuration without tokens."""

Peer = tuple[str, dict[str, Any], Tokenizer, dict[str, str]]
"""A class of Transformers, its configuration, a tokenizer, and its special tokens by their roles."""


def peer(name: str, head: str = "", **changes: Any) -> Peer:
    """A model of the table with a head that its family names; of a language model otherwise."""
    model_type, config = MODELS[name]
    family = FAMILIES[model_type]
    suffix = family.heads[head or ("masked" if "masked" in family.heads else "causal")].class_suffix
    tokenizer, roles = TOKENIZERS.get(name, TOKENIZERS[model_type])
    return family.class_prefix + suffix, {**config, **changes}, tokenizer, roles


CASES: dict[str, Peer] = {
    **{name: peer(name) for name in MODELS},
    "bert classifier": peer("bert", "classification"),
}
BODIES = {
    **{name: peer(name, "embedding") for name in ("bert", "roberta", "distilbert", "electra", "modernbert")},
    **{name: peer(name) for name in ("gpt2", "llama")},
}
"""What classifiers and taggers are fine-tuned from."""


def random_model(architecture: str, config: dict[str, Any], std: float = 0.3) -> Any:
    """A model of Transformers with random weights, norms and biases in float32."""
    kind = getattr(transformers, architecture)
    made = kind.config_class(**config)
    made.architectures = [architecture]
    model = kind(made).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.requires_grad or name == "final_logits_bias":
                nn.init.normal_(tensor, std=std)
    return model


def peer_in(folder: Path, case: str | Peer, **saving: Any) -> Any:
    """A random model of Transformers and its tokenizer, saved as on the Hub. saving: options of `save_pretrained`."""
    name, settings, inner, roles = CASES[case] if isinstance(case, str) else case
    ids = {role.replace("_token", "_token_id"): inner.token_to_id(token) for role, token in roles.items()}
    model = random_model(name, {"vocab_size": inner.get_vocab_size() + 3, **ids, **settings}, 0.15)
    if "dtype" in saving:
        model = model.to(saving.pop("dtype"))
    model.save_pretrained(folder, **saving)
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(folder)
    # read again, since a model that was in half precision has rounded constants too
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def brought(folder: Path) -> LoadedModel:
    return load_run(str(import_to_cache(str(folder))), CPU)


def rows_of(loaded: LoadedModel) -> list[list[int]]:
    """Complete rows of the texts, special tokens included."""
    rows = []
    for text in TEXTS:
        ids, prompt_format = np.array(loaded.tokenizer.encode(text)), loaded.prompt_format
        if prompt_format.answers:
            row = prompt_format.encode_source_and_target(ids, None)[0]
        else:
            row = prompt_format.encode_and_truncate_row([ids])[0]
        rows.append(row.tolist())
    return rows
