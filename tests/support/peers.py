"""The table of published families, random models of Transformers of each with their tokenizers, as on the Hub, and the
runs that they become."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
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

_CONFIGURATIONS: dict[str, dict[str, Any]] = yaml.safe_load("""
.plain: &plain {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 48,
  max_position_embeddings: 128}
.grouped: &grouped {<<: *plain, num_key_value_heads: 2}
.gpt2: &gpt2 {n_embd: 32, n_layer: 2, n_head: 4, n_positions: 128}
.bloom: &bloom {hidden_size: 32, n_layer: 2, n_head: 4}
.mpt: &mpt {d_model: 32, n_layers: 2, n_heads: 4, max_seq_len: 128}
.distil: &distil {dim: 32, n_layers: 2, n_heads: 4, hidden_dim: 48, max_position_embeddings: 128}
.modern: &modern {<<: *plain, num_hidden_layers: 4, local_attention: 8, reference_compile: false}
.t5: &t5 {d_model: 32, d_kv: 6, d_ff: 48, num_layers: 2, num_heads: 4, decoder_start_token_id: 0,
  relative_attention_num_buckets: 6, relative_attention_max_distance: 12}
.bart: &bart {d_model: 32, max_position_embeddings: 128, decoder_start_token_id: 0, forced_eos_token_id: null,
  encoder_layers: 2, decoder_layers: 2, encoder_attention_heads: 4, decoder_attention_heads: 4, encoder_ffn_dim: 48,
  decoder_ffn_dim: 48}
.rope: &rope {rope_parameters: {rope_type: default, rope_theta: 100.0}}
.windows: &windows {num_hidden_layers: 3, use_sliding_window: true, sliding_window: 4}
.biases: &biases {attention_bias: true, mlp_bias: true}
gpt2: *gpt2
"gpt2 untied, dot": {<<: *gpt2, tie_word_embeddings: false, scale_attn_weights: false, n_inner: 24,
  activation_function: relu}
llama: {<<: [*rope, *grouped]}
"llama with biases, tied": {<<: [*biases, *grouped], tie_word_embeddings: true}
"llama of one group, geglu": {<<: *grouped, num_key_value_heads: 1, hidden_act: gelu}
"llama, wide heads": {<<: [*rope, *grouped], head_dim: 12}
"llama, linear": {<<: *grouped, rope_parameters: {rope_type: linear, rope_theta: 100.0, factor: 2.0}}
llama 3: {<<: *grouped, rope_parameters: {rope_type: llama3, rope_theta: 100.0, factor: 8.0, low_freq_factor: 1.0,
  high_freq_factor: 4.0, original_max_position_embeddings: 32}}
"llama, yarn": {<<: *grouped, rope_parameters: {rope_type: yarn, rope_theta: 100.0, factor: 4.0,
  original_max_position_embeddings: 16, beta_fast: 4.0}}
"llama, yarn, plain attention": {<<: *grouped, rope_parameters: {rope_type: yarn, rope_theta: 100.0, factor: 4.0,
  original_max_position_embeddings: 16, beta_fast: 4.0, attention_factor: 1.0}}
mistral: {<<: [*rope, *grouped], sliding_window: 4}
mistral without windows: {<<: *grouped, sliding_window: null, tie_word_embeddings: true}
qwen2: {<<: [*rope, *grouped], tie_word_embeddings: true}
qwen2 with windows: {<<: [*rope, *windows, *grouped], max_window_layers: 2}
"qwen2, windows between": {<<: [*windows, *grouped], layer_types: [full_attention, sliding_attention,
  full_attention]}
"qwen2, windows everywhere": {<<: [*windows, *grouped], max_window_layers: 0}
"qwen2, odd heads": {<<: *grouped, head_dim: 12}
qwen3: {<<: [*rope, *grouped], head_dim: 12}
qwen3 with windows: {<<: [*windows, *grouped], max_window_layers: 1, head_dim: 8}
gemma: {<<: [*rope, *grouped], head_dim: 12}
gemma untied: {<<: *grouped, head_dim: 8, hidden_act: gelu, tie_word_embeddings: false}
olmo2: {<<: [*rope, *grouped]}
gpt_neox: {<<: *plain, rope_parameters: {rope_type: default, rope_theta: 100.0, partial_rotary_factor: 0.25}}
"gpt_neox in sequence, tied": {<<: *plain, use_parallel_residual: false, tie_word_embeddings: true}
"gpt_neox, linear": {<<: *plain, rope_parameters: {rope_type: linear, rope_theta: 100.0, factor: 2.0,
  partial_rotary_factor: 0.5}}
"gpt_neox, yarn": {<<: *plain, rope_parameters: {rope_type: yarn, rope_theta: 100.0, factor: 4.0,
  original_max_position_embeddings: 16, beta_fast: 4.0, partial_rotary_factor: 1.0}, hidden_act: silu}
phi3: {<<: *grouped, pad_token_id: 1, rope_parameters: {rope_type: default, rope_theta: 100.0,
  partial_rotary_factor: 0.5}}
phi3 with windows: {<<: *grouped, pad_token_id: 1, sliding_window: 4, tie_word_embeddings: true}
starcoder2: {<<: [*rope, *grouped]}
starcoder2 with windows: {<<: *grouped, sliding_window: 4, tie_word_embeddings: false}
stablelm: {<<: *grouped, rope_parameters: {rope_type: default, rope_theta: 100.0, partial_rotary_factor: 0.5}}
stablelm with biases: {<<: *grouped, use_qkv_bias: true}
"stablelm, tied": {<<: *grouped, num_key_value_heads: 4, tie_word_embeddings: true}
bloom: *bloom
"bloom of six heads, untied": {<<: *bloom, hidden_size: 24, n_head: 6, tie_word_embeddings: false}
mpt: *mpt
"mpt of six heads, untied": {<<: *mpt, d_model: 24, n_heads: 6, tie_word_embeddings: false}
bert: *plain
bert with one segment and ReLU: {<<: *plain, type_vocab_size: 1, hidden_act: relu}
"bert, untied": {<<: *plain, tie_word_embeddings: false}
roberta: {<<: *plain, type_vocab_size: 1, layer_norm_eps: 1.0e-5}
"roberta, padded with 0": {<<: *plain, pad_token_id: 0}
xlm-roberta: {<<: *plain, type_vocab_size: 1, layer_norm_eps: 1.0e-5}
eurobert: *grouped
"eurobert with biases, tied": {<<: [*biases, *plain], tie_word_embeddings: true}
distilbert: *distil
"distilbert, GELU by tanh": {<<: *distil, activation: gelu_new}
electra: {<<: *plain, embedding_size: 16}
"electra, not narrow": {<<: *plain, embedding_size: 32, tie_word_embeddings: false}
modernbert: *modern
modernbert with biases: {<<: [*biases, *modern], norm_bias: true, classifier_bias: true}
modernbert without output bias: {<<: *modern, decoder_bias: false, hidden_activation: silu,
  classifier_activation: silu}
"modernbert, full": {<<: *modern, layer_types: [full_attention, full_attention, full_attention, full_attention]}
"modernbert, windows": {<<: *modern, layer_types: [sliding_attention, sliding_attention, sliding_attention,
  sliding_attention]}
"modernbert, its windows first": {<<: *modern, layer_types: [sliding_attention, sliding_attention, sliding_attention,
  full_attention], global_rope_theta: 500.0, local_rope_theta: 20.0}
t5: *t5
"t5 1.1": {<<: *t5, feed_forward_proj: gated-gelu, tie_word_embeddings: false}
"t5, gated by SiLU": {<<: *t5, feed_forward_proj: gated-silu}
"t5, gated by the exact GELU": {<<: *t5, feed_forward_proj: gated-gelu, dense_act_fn: gelu,
  layer_norm_epsilon: 1.0e-5}
"t5, tied without scale": {<<: *t5, scale_decoder_outputs: false}
bart: *bart
"bart, scaled": {<<: *bart, scale_embedding: true, activation_function: relu}
marian: {<<: *bart, scale_embedding: true, activation_function: swish}
marian without scale: *bart
pegasus: {<<: *bart, scale_embedding: true, activation_function: relu}
pegasus without scale: *bart
""")
"""Those of a name with a dot are what several have."""
PLAIN, GROUPED, YARN = (_CONFIGURATIONS[name] for name in (".plain", ".grouped", "llama, yarn"))
MODELS = {name: (name.split()[0].rstrip(","), config) for name, config in _CONFIGURATIONS.items() if name[0] != "."}
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
    made = kind.config_class(**deepcopy(config))
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
