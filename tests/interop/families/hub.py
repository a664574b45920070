"""Configurations of published models, with the keys of their files, and what they are in the recipe language."""

from typing import Any

import yaml

File = dict[str, Any]
FILES: dict[str, File] = yaml.safe_load("""
.saved: &saved {initializer_range: 0.02, torch_dtype: bfloat16, transformers_version: 4.42.3, use_cache: true}
.llama: &llama {<<: *saved, architectures: [LlamaForCausalLM], model_type: llama, bos_token_id: 1, eos_token_id: 2,
  hidden_act: silu, attention_dropout: 0.0, rms_norm_eps: 1.0e-6, rope_scaling: null, num_hidden_layers: 32,
  hidden_size: 2048, num_attention_heads: 32, max_position_embeddings: 8192, vocab_size: 32000,
  intermediate_size: 8192}
.bert: &bert {<<: *saved, model_type: bert, num_hidden_layers: 12, hidden_size: 768, num_attention_heads: 12,
  max_position_embeddings: 512, vocab_size: 30522, intermediate_size: 3072, attention_probs_dropout_prob: 0.1,
  hidden_act: gelu, hidden_dropout_prob: 0.1, layer_norm_eps: 1.0e-12, pad_token_id: 0,
  position_embedding_type: absolute, type_vocab_size: 2, gradient_checkpointing: false}
.t5: &t5 {<<: *saved, architectures: [T5ForConditionalGeneration], model_type: t5, d_model: 512, n_positions: 512,
  vocab_size: 32128, d_kv: 64, decoder_start_token_id: 0, dropout_rate: 0.1, eos_token_id: 1,
  initializer_factor: 1.0, is_encoder_decoder: true, layer_norm_epsilon: 1.0e-6, output_past: true, pad_token_id: 0,
  relative_attention_num_buckets: 32, task_specific_params: {summarization: {prefix: "summarize: "}}}
.bart: &bart {<<: *saved, encoder_layers: 6, decoder_layers: 6, max_position_embeddings: 1024,
  activation_dropout: 0.1, attention_dropout: 0.1, classif_dropout: 0.1, classifier_dropout: 0.1, dropout: 0.1,
  decoder_layerdrop: 0.0, encoder_layerdrop: 0.0, early_stopping: true, num_beams: 4, no_repeat_ngram_size: 3,
  length_penalty: 0.8, id2label: {"0": LABEL_0, "1": LABEL_1}, label2id: {LABEL_0: 0, LABEL_1: 1},
  scale_embedding: true, num_hidden_layers: 6, bos_token_id: 0, eos_token_id: 2, pad_token_id: 1,
  forced_eos_token_id: 2, decoder_start_token_id: 2, add_bias_logits: false, add_final_layer_norm: false,
  init_std: 0.02, gradient_checkpointing: false, is_encoder_decoder: true, normalize_before: false,
  normalize_embedding: false}
gpt2: {<<: *saved, architectures: [GPT2LMHeadModel], model_type: gpt2, n_layer: 12, n_embd: 768, n_head: 12,
  n_positions: 1024, vocab_size: 50257, n_ctx: 1024, attn_pdrop: 0.1, embd_pdrop: 0.1, resid_pdrop: 0.1,
  summary_first_dropout: 0.1, summary_activation: null, summary_proj_to_labels: true, summary_type: cls_index,
  summary_use_proj: true, activation_function: gelu_new, layer_norm_epsilon: 1.0e-5,
  task_specific_params: {text-generation: {do_sample: true, max_length: 50}}}
SmolLM2-135M: {<<: *llama, pretraining_tp: 1, attention_bias: false, rms_norm_eps: 1.0e-5, rope_theta: 100000,
  tie_word_embeddings: true, num_hidden_layers: 30, hidden_size: 576, num_attention_heads: 9, vocab_size: 49152,
  intermediate_size: 1536, num_key_value_heads: 3, mlp_bias: false, is_llama_config: true, rope_interleaved: false,
  pad_token_id: 2, transformers.js_config: {kv_cache_dtype: {q4f16: float16, fp16: float16}}}
TinyLlama-1.1B: {<<: *llama, pretraining_tp: 1, attention_bias: false, rms_norm_eps: 1.0e-5, rope_theta: 10000.0,
  tie_word_embeddings: false, num_hidden_layers: 22, max_position_embeddings: 2048, intermediate_size: 5632,
  num_key_value_heads: 4}
llama-7b: {<<: *llama, pretraining_tp: 1, tie_word_embeddings: false, hidden_size: 4096,
  max_position_embeddings: 2048, intermediate_size: 11008, _name_or_path: huggyllama/llama-7b, pad_token_id: 0}
Llama-3.2-1B: {<<: *llama, eos_token_id: [128001, 128008, 128009], pretraining_tp: 1, attention_bias: false,
  rms_norm_eps: 1.0e-5, rope_theta: 500000.0, rope_scaling: {factor: 32.0, high_freq_factor: 4.0,
  low_freq_factor: 1.0, rope_type: llama3, original_max_position_embeddings: 8192}, tie_word_embeddings: true,
  num_hidden_layers: 16, max_position_embeddings: 131072, vocab_size: 128256, num_key_value_heads: 8, head_dim: 64,
  mlp_bias: false}
Mistral-7B-v0.1: {<<: *llama, architectures: [MistralForCausalLM], model_type: mistral, rms_norm_eps: 1.0e-5,
  rope_theta: 10000.0, tie_word_embeddings: false, hidden_size: 4096, max_position_embeddings: 32768,
  intermediate_size: 14336, num_key_value_heads: 8, sliding_window: 4096}
Qwen2.5-0.5B: {<<: *llama, architectures: [Qwen2ForCausalLM], model_type: qwen2, rope_theta: 1000000.0,
  tie_word_embeddings: true, num_hidden_layers: 24, hidden_size: 896, num_attention_heads: 14,
  max_position_embeddings: 32768, vocab_size: 151936, intermediate_size: 4864, use_sliding_window: false,
  num_key_value_heads: 2, use_mrope: false, max_window_layers: 24, sliding_window: 32768}
Qwen3-0.6B: {<<: *llama, architectures: [Qwen3ForCausalLM], model_type: qwen3, attention_bias: false,
  rope_theta: 1000000, tie_word_embeddings: true, num_hidden_layers: 28, hidden_size: 1024, num_attention_heads: 16,
  max_position_embeddings: 40960, vocab_size: 151936, intermediate_size: 3072, use_sliding_window: false,
  num_key_value_heads: 8, head_dim: 128, max_window_layers: 28, sliding_window: null}
gemma-2b: {<<: *llama, architectures: [GemmaForCausalLM], model_type: gemma, hidden_act: gelu, attention_bias: false,
  rope_theta: 10000.0, num_hidden_layers: 18, num_attention_heads: 8, vocab_size: 256000, intermediate_size: 16384,
  num_key_value_heads: 1, head_dim: 256, hidden_activation: null, pad_token_id: 0}
OLMo-2-0425-1B: {<<: *llama, architectures: [Olmo2ForCausalLM], model_type: olmo2, attention_bias: false,
  rope_theta: 500000, tie_word_embeddings: false, num_hidden_layers: 16, num_attention_heads: 16,
  max_position_embeddings: 4096, vocab_size: 100352, num_key_value_heads: 16}
pythia-70m: {<<: *saved, architectures: [GPTNeoXForCausalLM], model_type: gpt_neox, bos_token_id: 1, eos_token_id: 2,
  num_hidden_layers: 6, hidden_size: 512, num_attention_heads: 8, max_position_embeddings: 2048, vocab_size: 50304,
  intermediate_size: 2048, hidden_act: gelu, layer_norm_eps: 1.0e-5, rotary_emb_base: 10000, rotary_pct: 0.25,
  tie_word_embeddings: false, use_parallel_residual: true}
bloom-560m: {<<: *saved, architectures: [BloomForCausalLM], model_type: bloom, n_layer: 24, n_embed: 1024,
  num_attention_heads: 16, seq_length: 2048, vocab_size: 250880, apply_residual_connection_post_layernorm: false,
  attention_softmax_in_fp32: true, n_inner: null, bias_dropout_fusion: true, masked_softmax_fusion: true,
  skip_bias_add: true, unk_token_id: 0, attention_dropout: 0.0, hidden_dropout: 0.0, layer_norm_epsilon: 1.0e-5,
  skip_bias_add_qkv: false, bos_token_id: 1, eos_token_id: 2, offset_alibi: 100, pad_token_id: 3, pretraining_tp: 1}
mpt-7b: {<<: *saved, architectures: [MPTForCausalLM], model_type: mpt, n_layers: 32, d_model: 4096, n_heads: 32,
  max_seq_len: 2048, vocab_size: 50432, emb_pdrop: 0, resid_pdrop: 0, embedding_fraction: 1.0, expansion_ratio: 4,
  init_device: cpu, learned_pos_emb: true, logit_scale: null, no_bias: true, norm_type: low_precision_layernorm,
  tokenizer_name: EleutherAI/gpt-neox-20b, verbose: 0, init_config: {name: kaiming_normal_},
  attn_config: {alibi: true, alibi_bias_max: 8, attn_impl: torch, attn_pdrop: 0, attn_type: multihead_attention,
  attn_uses_sequence_id: false, clip_qkv: null, prefix_lm: false, qk_ln: false, softmax_scale: null},
  auto_map: {AutoConfig: configuration_mpt.MPTConfig, AutoModelForCausalLM: modeling_mpt.MPTForCausalLM}}
bert-base-uncased: {<<: *bert, architectures: [BertForMaskedLM], directionality: bidi, pooler_fc_size: 768,
  pooler_num_attention_heads: 12, pooler_num_fc_layers: 3, pooler_size_per_head: 128,
  pooler_type: first_token_transform}
sentence-transformers/all-MiniLM-L6-v2: {<<: *bert, architectures: [BertModel], num_hidden_layers: 6,
  hidden_size: 384, intermediate_size: 1536}
roberta-base: {<<: *bert, architectures: [RobertaForMaskedLM], model_type: roberta, max_position_embeddings: 514,
  vocab_size: 50265, layer_norm_eps: 1.0e-5, pad_token_id: 1, type_vocab_size: 1, bos_token_id: 1, eos_token_id: 2}
distilbert-base-uncased-finetuned-sst-2-english: {<<: *saved, architectures: [DistilBertForSequenceClassification],
  model_type: distilbert, n_layers: 6, dim: 768, n_heads: 12, max_position_embeddings: 512, vocab_size: 30522,
  hidden_dim: 3072, activation: gelu, attention_dropout: 0.1, dropout: 0.1, qa_dropout: 0.1, pad_token_id: 0,
  output_past: true, sinusoidal_pos_embds: false, tie_weights_: true, finetuning_task: sst-2,
  seq_classif_dropout: 0.2, id2label: {"0": NEGATIVE, "1": POSITIVE}, label2id: {NEGATIVE: 0, POSITIVE: 1}}
google/electra-small-discriminator: {<<: *bert, architectures: [ElectraForPreTraining], model_type: electra,
  hidden_size: 256, num_attention_heads: 4, intermediate_size: 1024, embedding_size: 128, summary_activation: gelu,
  summary_last_dropout: 0.1, summary_type: first, summary_use_proj: true}
answerdotai/ModernBERT-base: {<<: *saved, architectures: [ModernBertForMaskedLM], model_type: modernbert,
  bos_token_id: 1, eos_token_id: 2, num_hidden_layers: 22, hidden_size: 768, num_attention_heads: 12,
  max_position_embeddings: 8192, vocab_size: 50368, intermediate_size: 1152, attention_bias: false,
  attention_dropout: 0.0, classifier_activation: gelu, classifier_bias: false, classifier_dropout: 0.0,
  classifier_pooling: mean, decoder_bias: true, deterministic_flash_attn: false, embedding_dropout: 0.0,
  global_attn_every_n_layers: 3, global_rope_theta: 160000.0, gradient_checkpointing: false, hidden_activation: gelu,
  initializer_cutoff_factor: 2.0, layer_norm_eps: 1.0e-5, local_attention: 128, local_rope_theta: 10000.0,
  mlp_bias: false, mlp_dropout: 0.0, norm_bias: false, norm_eps: 1.0e-5, position_embedding_type: absolute,
  pad_token_id: 50283, sep_token_id: 50282, cls_token_id: 50281, tie_word_embeddings: true}
t5-small: {<<: *t5, num_layers: 6, num_heads: 8, d_ff: 2048}
google/flan-t5-small: {<<: *t5, num_layers: 8, num_heads: 6, d_ff: 1024, num_decoder_layers: 8,
  tie_word_embeddings: false, feed_forward_proj: gated-gelu, relative_attention_max_distance: 128}
facebook/bart-base: {<<: *bart, architectures: [BartModel], model_type: bart, encoder_attention_heads: 12,
  encoder_ffn_dim: 3072, decoder_attention_heads: 12, decoder_ffn_dim: 3072, d_model: 768, vocab_size: 50265,
  activation_function: gelu, scale_embedding: false, normalize_embedding: true, forced_bos_token_id: 0}
Helsinki-NLP/opus-mt-en-de: {<<: *bart, architectures: [MarianMTModel], model_type: marian,
  encoder_attention_heads: 8, encoder_ffn_dim: 2048, decoder_attention_heads: 8, decoder_ffn_dim: 2048, d_model: 512,
  max_position_embeddings: 512, vocab_size: 58101, activation_function: swish, static_position_embeddings: true,
  decoder_vocab_size: 58101, share_encoder_decoder_embeddings: true, bad_words_ids: [[58100]]}
google/pegasus-large: {<<: *bart, architectures: [PegasusForConditionalGeneration], model_type: pegasus,
  encoder_layers: 16, encoder_attention_heads: 16, encoder_ffn_dim: 4096, decoder_layers: 16,
  decoder_attention_heads: 16, decoder_ffn_dim: 4096, d_model: 1024, vocab_size: 96103, activation_function: relu,
  num_hidden_layers: 16, add_final_layer_norm: true, normalize_before: true, static_position_embeddings: true,
  extra_pos_embeddings: 1, force_bos_token_to_be_generated: false}
""")
"""Those of a name with a dot are what several have."""
RECIPES: dict[str, dict[str, Any]] = yaml.safe_load("""
gpt2: {n_layers: 12, d_model: 768, n_heads: 12, context: 1024, vocab_size: 50257, d_ff: 3072, activation: gelu-tanh,
  dropout: 0.1}
SmolLM2-135M: {activation: swiglu, bias: false, tie_embeddings: true, norm: {kind: rms, eps: 1.0e-5},
  position: {kind: rotary, theta: 100000.0}, n_layers: 30, d_model: 576, n_heads: 9, context: 8192,
  vocab_size: 49152, d_ff: 1536, n_kv_heads: 3}
TinyLlama-1.1B: {activation: swiglu, bias: false, tie_embeddings: false, norm: {kind: rms, eps: 1.0e-5},
  position: {kind: rotary}, n_layers: 22, d_model: 2048, n_heads: 32, context: 2048, vocab_size: 32000, d_ff: 5632,
  n_kv_heads: 4}
llama-7b: {activation: swiglu, bias: false, tie_embeddings: false, norm: {kind: rms, eps: 1.0e-6},
  position: {kind: rotary}, n_layers: 32, d_model: 4096, n_heads: 32, context: 2048, vocab_size: 32000, d_ff: 11008}
Llama-3.2-1B: {activation: swiglu, bias: false, tie_embeddings: true, norm: {kind: rms, eps: 1.0e-5},
  position: {kind: rotary, theta: 500000.0, scaling: {kind: llama3, factor: 32.0, original_context: 8192}},
  n_layers: 16, d_model: 2048, n_heads: 32, context: 131072, vocab_size: 128256, d_ff: 8192, n_kv_heads: 8}
Mistral-7B-v0.1: {activation: swiglu, bias: false, tie_embeddings: false, norm: {kind: rms, eps: 1.0e-5},
  position: {kind: rotary}, n_layers: 32, d_model: 4096, n_heads: 32, context: 32768, vocab_size: 32000, d_ff: 14336,
  n_kv_heads: 8, pattern: {kind: window, size: 4096}}
Qwen2.5-0.5B: {activation: swiglu, bias: false, tie_embeddings: true, norm: {kind: rms, eps: 1.0e-6},
  position: {kind: rotary, theta: 1000000.0}, n_layers: 24, d_model: 896, n_heads: 14, context: 32768,
  vocab_size: 151936, d_ff: 4864, n_kv_heads: 2, qkv_bias: true}
Qwen3-0.6B: {activation: swiglu, bias: false, tie_embeddings: true, norm: {kind: rms, eps: 1.0e-6},
  position: {kind: rotary, theta: 1000000.0}, n_layers: 28, d_model: 1024, n_heads: 16, context: 40960,
  vocab_size: 151936, d_ff: 3072, n_kv_heads: 8, head_width: 128, qk_norm: head}
gemma-2b: {activation: geglu, bias: false, tie_embeddings: true, norm: {kind: rms, eps: 1.0e-6, unit_offset: true},
  position: {kind: rotary}, n_layers: 18, d_model: 2048, n_heads: 8, context: 8192, vocab_size: 256000, d_ff: 16384,
  n_kv_heads: 1, scale_embedding: true}
OLMo-2-0425-1B: {activation: swiglu, bias: false, tie_embeddings: false, norm: {kind: rms, eps: 1.0e-6,
  place: output}, position: {kind: rotary, theta: 500000.0}, n_layers: 16, d_model: 2048, n_heads: 16, context: 4096,
  vocab_size: 100352, d_ff: 8192, qk_norm: joint}
pythia-70m: {n_layers: 6, d_model: 512, n_heads: 8, context: 2048, vocab_size: 50304, d_ff: 2048, parallel: true,
  tie_embeddings: false, position: {kind: rotary, share: 0.25}}
bloom-560m: {n_layers: 24, d_model: 1024, n_heads: 16, context: 2048, vocab_size: 250880, activation: gelu-tanh,
  position: {kind: alibi}, norm: {embedding: true}}
mpt-7b: {n_layers: 32, d_model: 4096, n_heads: 32, context: 2048, vocab_size: 50432, position: {kind: alibi},
  bias: false}
""")
DECODERS = {name: (FILES[name], ours) for name, ours in RECIPES.items()}
"""Files of published models, and what they are in the recipe language."""
GPT2_FILE, ALIBI = FILES["gpt2"], FILES["mpt-7b"]["attn_config"]

BERT_HEAD = "cls.predictions.transform.dense.weight"
HEADS = {
    "bert-base-uncased": BERT_HEAD,
    "sentence-transformers/all-MiniLM-L6-v2": "bert.pooler.dense.weight",
    "roberta-base": "lm_head.dense.weight",
    "distilbert-base-uncased-finetuned-sst-2-english": "classifier.weight",
    "google/electra-small-discriminator": "discriminator_predictions.dense.weight",
    "answerdotai/ModernBERT-base": "head.dense.weight",
}
ENCODERS = {name: (tensor, FILES[name]) for name, tensor in HEADS.items()}
"""A tensor that tells its head, and its file."""
ENCODER_DECODERS = {
    name: file for name, file in FILES.items() if file.get("is_encoder_decoder") and not name.startswith(".")
}
