"""Small models of each family: configurations of Transformers, and the tokenizers that go with them."""

from typing import Any

from tokenizers import Tokenizer

from tests.support.peers import BERT, END, ENDED, FRAMED, PADDED, ROBERTA, byte_level, word_pieces

GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
BLOOM: dict[str, Any] = {"hidden_size": 32, "n_layer": 3, "n_head": 4}
MPT: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 3,
    "n_heads": 4,
    "max_seq_len": 64,
}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **more}}


LLAMA3 = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)
WINDOWS = {"use_sliding_window": True, "sliding_window": 4}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2 untied, dot": (
        "gpt2",
        {
            **GPT2,
            "tie_word_embeddings": False,
            "scale_attn_weights": False,
            "n_inner": 24,
            "activation_function": "relu",
        },
    ),
    "llama": ("llama", {**GROUPED, **rope()}),
    "llama with biases, tied": (
        "llama",
        {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama of one group, geglu": ("llama", {**SIZES, "num_key_value_heads": 1, "hidden_act": "gelu"}),
    "llama, wide heads": ("llama", {**GROUPED, "head_dim": 12, **rope()}),
    "llama, linear": ("llama", {**GROUPED, **rope(rope_type="linear", factor=2.0)}),
    "llama 3": ("llama", {**GROUPED, **LLAMA3}),
    "llama, yarn": ("llama", {**GROUPED, **YARN}),
    "llama, yarn, plain attention": (
        "llama",
        {**GROUPED, "rope_parameters": {**YARN["rope_parameters"], "attention_factor": 1.0}},
    ),
    "mistral": ("mistral", {**GROUPED, **rope(), "sliding_window": 4}),
    "mistral without windows": ("mistral", {**GROUPED, "sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {**GROUPED, **rope(), "tie_word_embeddings": True}),
    "qwen2 with windows": ("qwen2", {**GROUPED, **rope(), **WINDOWS, "max_window_layers": 2}),
    "qwen2, windows between": (
        "qwen2",
        {**GROUPED, **WINDOWS, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "qwen2, windows everywhere": ("qwen2", {**GROUPED, **WINDOWS, "max_window_layers": 0}),
    "qwen2, odd heads": ("qwen2", {**GROUPED, "head_dim": 12}),
    "qwen3": ("qwen3", {**GROUPED, **rope(), "head_dim": 12}),
    "qwen3 with windows": ("qwen3", {**GROUPED, **WINDOWS, "max_window_layers": 1, "head_dim": 8}),
    "gemma": ("gemma", {**GROUPED, **rope(), "head_dim": 12}),
    "gemma untied": ("gemma", {**GROUPED, "head_dim": 8, "hidden_act": "gelu", "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {**GROUPED, **rope()}),
    "neox": ("gpt_neox", {**SIZES, **rope(partial_rotary_factor=0.25)}),
    "neox in sequence, tied": ("gpt_neox", {**SIZES, "use_parallel_residual": False, "tie_word_embeddings": True}),
    "neox, linear": ("gpt_neox", {**SIZES, **rope(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)}),
    "neox, yarn": (
        "gpt_neox",
        {**SIZES, "rope_parameters": {**YARN["rope_parameters"], "partial_rotary_factor": 1.0}, "hidden_act": "silu"},
    ),
    "phi3": ("phi3", {**GROUPED, "pad_token_id": 1, **rope(partial_rotary_factor=0.5)}),
    "phi3 with windows": ("phi3", {**GROUPED, "pad_token_id": 1, "sliding_window": 4, "tie_word_embeddings": True}),
    "starcoder2": ("starcoder2", {**GROUPED, **rope()}),
    "starcoder2 with windows": ("starcoder2", {**GROUPED, "sliding_window": 4, "tie_word_embeddings": False}),
    "stablelm": ("stablelm", {**GROUPED, **rope(partial_rotary_factor=0.5)}),
    "stablelm with biases": ("stablelm", {**GROUPED, "use_qkv_bias": True}),
    "stablelm, tied": ("stablelm", {**SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "bloom": ("bloom", BLOOM),
    "bloom of six heads, untied": ("bloom", {**BLOOM, "hidden_size": 24, "n_head": 6, "tie_word_embeddings": False}),
    "mpt": ("mpt", MPT),
    "mpt of six heads, untied": ("mpt", {**MPT, "d_model": 24, "n_heads": 6, "tie_word_embeddings": False}),
}

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
DISTIL: dict[str, Any] = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 24,
}
MODERN: dict[str, Any] = {
    **SMALL,
    "num_hidden_layers": 4,
    "local_attention": 8,
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", SMALL),
    "bert with one segment and ReLU": ("bert", {**SMALL, "type_vocab_size": 1, "hidden_act": "relu"}),
    "bert, untied": ("bert", {**SMALL, "tie_word_embeddings": False}),
    "roberta": ("roberta", {**SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta, padded with 0": ("roberta", {**SMALL, "pad_token_id": 0}),
    "xlm-roberta": ("xlm-roberta", {**SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "eurobert": ("eurobert", {**SMALL, "num_key_value_heads": 2}),
    "eurobert with biases, tied": (
        "eurobert",
        {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "distilbert": ("distilbert", DISTIL),
    "distilbert, GELU by tanh": ("distilbert", {**DISTIL, "activation": "gelu_new"}),
    "electra": ("electra", {**SMALL, "embedding_size": 12}),
    "electra, not narrow": ("electra", {**SMALL, "embedding_size": 16, "tie_word_embeddings": False}),
    "modernbert": ("modernbert", MODERN),
    "modernbert with biases": (
        "modernbert",
        {**MODERN, **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)},
    ),
    "modernbert without output bias": (
        "modernbert",
        {**MODERN, "decoder_bias": False, "hidden_activation": "silu", "classifier_activation": "silu"},
    ),
    "modernbert, full": ("modernbert", {**MODERN, "layer_types": ["full_attention"] * 4}),
    "modernbert, windows": ("modernbert", {**MODERN, "layer_types": ["sliding_attention"] * 4}),
    "modernbert, its windows first": (
        "modernbert",
        {
            **MODERN,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "global_rope_theta": 500.0,
            "local_rope_theta": 20.0,
        },
    ),
}

SIZES_T5: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
SIZES_BART: dict[str, Any] = {
    "d_model": 16,
    "max_position_embeddings": 24,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", SIZES_T5),
    "t5 1.1": ("t5", {**SIZES_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, gated by SiLU": ("t5", {**SIZES_T5, "feed_forward_proj": "gated-silu"}),
    "t5, gated by the exact GELU": (
        "t5",
        {**SIZES_T5, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "layer_norm_epsilon": 1e-5},
    ),
    "t5, tied without scale": ("t5", {**SIZES_T5, "scale_decoder_outputs": False}),
    "bart": ("bart", SIZES_BART),
    "bart, scaled": ("bart", {**SIZES_BART, "scale_embedding": True, "activation_function": "relu"}),
    "marian": (
        "marian",
        {**SIZES_BART, "scale_embedding": True, "activation_function": "swish"},
    ),
    "marian without scale": ("marian", SIZES_BART),
    "pegasus": (
        "pegasus",
        {**SIZES_BART, "scale_embedding": True, "activation_function": "relu"},
    ),
    "pegasus without scale": ("pegasus", SIZES_BART),
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {**DECODERS, **ENCODERS, **ENCODER_DECODERS}
"""The `model_type`, and its configuration without tokens."""

_WORDS = (word_pieces(), BERT)
_FRAMED = (byte_level(["<s>", "<pad>", "</s>", "<mask>"], FRAMED), ROBERTA)
_ENDED = (byte_level(["<pad>", "</s>"], ENDED), PADDED)
TOKENIZERS: dict[str, tuple[Tokenizer, dict[str, str]]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "modernbert", "eurobert"), _WORDS),
    **dict.fromkeys(("roberta", "xlm-roberta", "bart"), _FRAMED),
    "roberta, padded with 0": (byte_level(["<pad>", "<s>", "</s>", "<mask>"], FRAMED), ROBERTA),
    **dict.fromkeys(("t5", "marian", "pegasus"), _ENDED),
}
"""By the case, or by the `model_type`."""
PLAIN = (byte_level(["<|end|>", "<pad>"], None), {**END, "pad_token": "<pad>"})
"""That of decoders."""
