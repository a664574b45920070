"""Configurations of published models, with the keys of their files, and what they are in the recipe language."""

from collections.abc import Sequence
from typing import Any

File = dict[str, Any]
NAMES = "num_hidden_layers hidden_size num_attention_heads max_position_embeddings vocab_size intermediate_size"
OURS = "n_layers d_model n_heads context vocab_size d_ff"
SAVED: File = {
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
}
ENDS: File = {"bos_token_id": 1, "eos_token_id": 2}
LABELS: File = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}


def named(names: str, sizes: Sequence[int]) -> dict[str, int]:
    """Sizes under names in their order; a shorter list leaves the last names out."""
    return dict(zip(names.split(), sizes, strict=False))


def file_of(architecture: str, model_type: str, /, *parts: Any, **own: Any) -> File:
    """A configuration. parts: keys that several have; `...` takes one away."""
    found: File = {"architectures": [architecture], "model_type": model_type, **SAVED}
    for part in (*parts, own):
        found |= part
    return {key: value for key, value in found.items() if value is not ...}


LIKE_LLAMA: File = {
    **{**ENDS, "hidden_act": "silu", "pretraining_tp": 1, "attention_bias": False, "attention_dropout": 0.0},
    **{"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False},
}
LLAMA3: File = {
    **{"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
    "original_max_position_embeddings": 8192,
}
QWEN: File = {"rms_norm_eps": 1e-06, "rope_theta": 1e6, "use_sliding_window": False, "tie_word_embeddings": True}
ALIBI: File = {
    **{"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention"},
    **{"attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None},
}
GPT2_FILE = file_of(
    "GPT2LMHeadModel",
    "gpt2",
    named("n_layer n_embd n_head n_positions vocab_size n_ctx", (12, 768, 12, 1024, 50257, 1024)),
    {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "summary_first_dropout": 0.1},
    {"summary_activation": None, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True},
    activation_function="gelu_new",
    layer_norm_epsilon=1e-05,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
)
LLAMAS: dict[str, Any] = {
    **{"activation": "swiglu", "bias": False, "tie_embeddings": False},
    **{"norm": {"kind": "rms", "eps": 1e-5}, "position": {"kind": "rotary"}},
}
RMS6: dict[str, Any] = {"kind": "rms", "eps": 1e-6}


def like_llama(
    architecture: str, model_type: str, sizes: Sequence[int], file: File, ours: dict[str, Any]
) -> tuple[File, dict[str, Any]]:
    """A file of this or a similar family, and its model."""
    kv = {} if "num_key_value_heads" not in file else {"n_kv_heads": file["num_key_value_heads"]}
    if kv.get("n_kv_heads") == sizes[2]:
        kv = {}
    made = file_of(f"{architecture}ForCausalLM", model_type, LIKE_LLAMA, named(NAMES, sizes), file)
    return made, {**LLAMAS, **named(OURS, sizes), **kv, **ours}


GPT2: dict[str, Any] = {**named(OURS, (12, 768, 12, 1024, 50257, 3072)), "activation": "gelu-tanh", "dropout": 0.1}
DECODERS: dict[str, tuple[File, dict[str, Any]]] = {
    "gpt2": (GPT2_FILE, GPT2),
    "SmolLM2-135M": like_llama(
        "Llama",
        "llama",
        (30, 576, 9, 8192, 49152, 1536),
        {
            **{"num_key_value_heads": 3, "rope_theta": 100000, "tie_word_embeddings": True, "mlp_bias": False},
            **{"is_llama_config": True, "rope_interleaved": False, "pad_token_id": 2},
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        },
        {"position": {"kind": "rotary", "theta": 1e5}, "tie_embeddings": True},
    ),
    "TinyLlama-1.1B": like_llama("Llama", "llama", (22, 2048, 32, 2048, 32000, 5632), {"num_key_value_heads": 4}, {}),
    "llama-7b": like_llama(
        "Llama",
        "llama",
        (32, 4096, 32, 2048, 32000, 11008),
        {
            **{"_name_or_path": "huggyllama/llama-7b", "pad_token_id": 0, "rms_norm_eps": 1e-06},
            **{"attention_bias": ..., "rope_theta": ...},  # it is older than these keys
        },
        {"norm": RMS6},
    ),
    "Llama-3.2-1B": like_llama(
        "Llama",
        "llama",
        (16, 2048, 32, 131072, 128256, 8192),
        {
            **{"num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
            **{"tie_word_embeddings": True, "mlp_bias": False, "eos_token_id": [128001, 128008, 128009]},
        },
        {
            "position": {
                **{"kind": "rotary", "theta": 5e5},
                "scaling": {"kind": "llama3", "factor": 32.0, "original_context": 8192},
            },
            "tie_embeddings": True,
        },
    ),
    "Mistral-7B-v0.1": like_llama(
        "Mistral",
        "mistral",
        (32, 4096, 32, 32768, 32000, 14336),
        {"num_key_value_heads": 8, "sliding_window": 4096, "attention_bias": ..., "pretraining_tp": ...},
        {"pattern": {"kind": "window", "size": 4096}},
    ),
    "Qwen2.5-0.5B": like_llama(
        "Qwen2",
        "qwen2",
        (24, 896, 14, 32768, 151936, 4864),
        {
            **{**QWEN, "num_key_value_heads": 2, "attention_bias": ..., "pretraining_tp": ..., "use_mrope": False},
            **{"max_window_layers": 24, "sliding_window": 32768},
        },
        {"norm": RMS6, "position": {"kind": "rotary", "theta": 1e6}, "tie_embeddings": True, "qkv_bias": True},
    ),
    "Qwen3-0.6B": like_llama(
        "Qwen3",
        "qwen3",
        (28, 1024, 16, 40960, 151936, 3072),
        {
            **{**QWEN, "num_key_value_heads": 8, "head_dim": 128, "pretraining_tp": ..., "rope_theta": 1000000},
            **{"max_window_layers": 28, "sliding_window": None},
        },
        {
            **{"norm": RMS6, "position": {"kind": "rotary", "theta": 1e6}, "tie_embeddings": True},
            **{"head_width": 128, "qk_norm": "head"},
        },
    ),
    "gemma-2b": like_llama(
        "Gemma",
        "gemma",
        (18, 2048, 8, 8192, 256000, 16384),
        {
            **{"num_key_value_heads": 1, "head_dim": 256, "rms_norm_eps": 1e-06, "pretraining_tp": ...},
            **{"hidden_act": "gelu", "hidden_activation": None, "pad_token_id": 0, "tie_word_embeddings": ...},
        },
        {
            **{"activation": "geglu", "norm": {**RMS6, "unit_offset": True}},
            **{"scale_embedding": True, "tie_embeddings": True},
        },
    ),
    "OLMo-2-0425-1B": like_llama(
        "Olmo2",
        "olmo2",
        (16, 2048, 16, 4096, 100352, 8192),
        {"num_key_value_heads": 16, "rope_theta": 500000, "rms_norm_eps": 1e-06, "pretraining_tp": ...},
        {
            **{"norm": {**RMS6, "place": "output"}, "qk_norm": "joint"},
            "position": {"kind": "rotary", "theta": 5e5},
        },
    ),
    "pythia-70m": (
        file_of(
            "GPTNeoXForCausalLM",
            "gpt_neox",
            {**ENDS, **named(NAMES, (6, 512, 8, 2048, 50304, 2048)), "hidden_act": "gelu", "layer_norm_eps": 1e-05},
            {"rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True},
        ),
        {
            **named(OURS, (6, 512, 8, 2048, 50304, 2048)),
            **{"parallel": True, "tie_embeddings": False, "position": {"kind": "rotary", "share": 0.25}},
        },
    ),
    "bloom-560m": (
        file_of(
            "BloomForCausalLM",
            "bloom",
            named("n_layer n_embed num_attention_heads seq_length vocab_size", (24, 1024, 16, 2048, 250880)),
            {"apply_residual_connection_post_layernorm": False, "attention_softmax_in_fp32": True, "n_inner": None},
            {"bias_dropout_fusion": True, "masked_softmax_fusion": True, "skip_bias_add": True, "unk_token_id": 0},
            {"attention_dropout": 0.0, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05, "skip_bias_add_qkv": False},
            {**ENDS, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1},
        ),
        {
            **named(OURS, (24, 1024, 16, 2048, 250880)),
            **{"activation": "gelu-tanh", "position": {"kind": "alibi"}, "norm": {"embedding": True}},
        },
    ),
    "mpt-7b": (
        file_of(
            "MPTForCausalLM",
            "mpt",
            named("n_layers d_model n_heads max_seq_len vocab_size", (32, 4096, 32, 2048, 50432)),
            {"emb_pdrop": 0, "resid_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu"},
            {"learned_pos_emb": True, "logit_scale": None, "no_bias": True, "norm_type": "low_precision_layernorm"},
            {"tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0, "init_config": {"name": "kaiming_normal_"}},
            attn_config=ALIBI,
            auto_map={
                "AutoConfig": "configuration_mpt.MPTConfig",
                "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
            },
        ),
        {**named(OURS, (32, 4096, 32, 2048, 50432)), "position": {"kind": "alibi"}, "bias": False},
    ),
}
"""Files of published models, and what they are in the recipe language."""

BASE: File = {
    **named(NAMES, (12, 768, 12, 512, 30522, 3072)),
    **{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
    **{"pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2, "gradient_checkpointing": False},
}
POOLER: File = {
    **{"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3},
    **{"pooler_size_per_head": 128, "pooler_type": "first_token_transform"},
}
MODERN: File = {
    **named(NAMES, (22, 768, 12, 8192, 50368, 1152)),
    **{"attention_bias": False, "attention_dropout": 0.0, "classifier_activation": "gelu", "classifier_bias": False},
    **{
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "decoder_bias": True,
        "deterministic_flash_attn": False,
    },
    **{"deterministic_flash_attn": False, "embedding_dropout": 0.0},
    **{"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0},
    **{"gradient_checkpointing": False, "hidden_activation": "gelu", "initializer_cutoff_factor": 2.0},
    **{"layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0, "mlp_bias": False},
    **{"mlp_dropout": 0.0, "norm_bias": False, "norm_eps": 1e-05, "position_embedding_type": "absolute"},
    **{"pad_token_id": 50283, "sep_token_id": 50282, "cls_token_id": 50281, "tie_word_embeddings": True},
}
BERT_HEAD = "cls.predictions.transform.dense.weight"
ENCODERS: dict[str, tuple[str, File]] = {
    "bert-base-uncased": (BERT_HEAD, file_of("BertForMaskedLM", "bert", BASE, POOLER)),
    "sentence-transformers/all-MiniLM-L6-v2": (
        "bert.pooler.dense.weight",
        file_of("BertModel", "bert", BASE, hidden_size=384, intermediate_size=1536, num_hidden_layers=6),
    ),
    "roberta-base": (
        "lm_head.dense.weight",
        file_of(
            *("RobertaForMaskedLM", "roberta", BASE, ENDS),
            **{"layer_norm_eps": 1e-05, "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1},
            vocab_size=50265,
        ),
    ),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        "classifier.weight",
        file_of(
            "DistilBertForSequenceClassification",
            "distilbert",
            named("n_layers dim n_heads max_position_embeddings vocab_size hidden_dim", (6, 768, 12, 512, 30522, 3072)),
            {"activation": "gelu", "attention_dropout": 0.1, "dropout": 0.1, "qa_dropout": 0.1, "pad_token_id": 0},
            {"output_past": True, "sinusoidal_pos_embds": False, "tie_weights_": True, "finetuning_task": "sst-2"},
            seq_classif_dropout=0.2,
            id2label={"0": "NEGATIVE", "1": "POSITIVE"},
            label2id={"NEGATIVE": 0, "POSITIVE": 1},
        ),
    ),
    "google/electra-small-discriminator": (
        "discriminator_predictions.dense.weight",
        file_of(
            *("ElectraForPreTraining", "electra", BASE, {"embedding_size": 128, "summary_activation": "gelu"}),
            {"summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True},
            **{"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
        ),
    ),
    "answerdotai/ModernBERT-base": ("head.dense.weight", file_of("ModernBertForMaskedLM", "modernbert", ENDS, MODERN)),
}
"""A tensor that tells its head, and its file."""

SEARCH: File = {"early_stopping": True, "num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 0.8}
T5: File = {
    **named("num_layers d_model num_heads n_positions vocab_size d_ff", (6, 512, 8, 512, 32128, 2048)),
    **{"d_kv": 64, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0},
    **{"is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "output_past": True, "pad_token_id": 0},
    **{"relative_attention_num_buckets": 32, "task_specific_params": {"summarization": {"prefix": "summarize: "}}},
}
DROPOUTS = "activation_dropout attention_dropout classif_dropout classifier_dropout dropout"
LAYERDROPS = "decoder_layerdrop encoder_layerdrop"
BOTH_SIDES = "layers attention_heads ffn_dim"


def like_bart(sizes: Sequence[int], activation: str, scale: bool, **own: Any) -> File:
    """Keys of BART and of models like it. sizes: layers, heads, d_ff, d_model, context, vocabulary."""
    layers, heads, d_ff, *others = sizes
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in named(BOTH_SIDES, (layers, heads, d_ff)).items()
    }
    return {
        **sides,
        **named("d_model max_position_embeddings vocab_size", others),
        **dict.fromkeys(DROPOUTS.split(), 0.1),
        **{**dict.fromkeys(LAYERDROPS.split(), 0.0), **SEARCH, **LABELS},
        **{"activation_function": activation, "scale_embedding": scale, "num_hidden_layers": layers},
        **{"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "forced_eos_token_id": 2},
        **{"decoder_start_token_id": 2, "add_bias_logits": False, "add_final_layer_norm": False, "init_std": 0.02},
        **{"gradient_checkpointing": False, "is_encoder_decoder": True, "normalize_before": False},
        **{"normalize_embedding": False, "static_position_embeddings": True},
        **own,
    }


ENCODER_DECODERS: dict[str, File] = {
    "t5-small": file_of("T5ForConditionalGeneration", "t5", T5),
    "google/flan-t5-small": file_of(
        *("T5ForConditionalGeneration", "t5", T5),
        **{"num_layers": 8, "num_decoder_layers": 8, "num_heads": 6, "d_ff": 1024, "tie_word_embeddings": False},
        **{"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 128},
    ),
    "facebook/bart-base": file_of(
        *("BartModel", "bart", like_bart((6, 12, 3072, 768, 1024, 50265), "gelu", False)),
        **{"normalize_embedding": True, "static_position_embeddings": ..., "forced_bos_token_id": 0},
    ),
    "Helsinki-NLP/opus-mt-en-de": file_of(
        *("MarianMTModel", "marian", like_bart((6, 8, 2048, 512, 512, 58101), "swish", True)),
        **{"decoder_vocab_size": 58101, "share_encoder_decoder_embeddings": True, "bad_words_ids": [[58100]]},
    ),
    "google/pegasus-large": file_of(
        *("PegasusForConditionalGeneration", "pegasus", like_bart((16, 16, 4096, 1024, 1024, 96103), "relu", True)),
        **{"add_final_layer_norm": True, "normalize_before": True, "extra_pos_embeddings": 1},
        force_bos_token_to_be_generated=False,
    ),
}
