"""Recipes of each family of models and of each objective, a few steps long."""

from collections.abc import Sequence

TRANSFORMER = "kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1"
RECURRENT = "kind: recurrent, d_model: 12, context: 16, dropout: 0.1"
PAIRS = f"{RECURRENT}, shape: encoder-decoder, cell: gru"
WINDOW = "pattern: {kind: window, size: 3, global_tokens: 1}"
BPE_DROPOUT = "tokenizer={kind: bpe, vocab_size: 300, dropout: 0.3}"
CLASSES = ("objective.kind=classification", "objective.dropout=0.1", "evaluation.metric=accuracy")
ON_TEXT: dict[str, Sequence[str]] = {
    "encoder": (f"model={{{TRANSFORMER}, shape: encoder}}", "objective.kind=masked"),
    "longformer": (f"model={{{TRANSFORMER}, shape: encoder, {WINDOW}}}", "objective={kind: masked, spans: {}}"),
    "window": (f"model={{{TRANSFORMER}, {WINDOW}}}",),
    "n-grams": (f"model={{{TRANSFORMER}, ngram_embedding: {{entries: 80, min_count: 2}}}}",),
    "smear": (f"model={{{TRANSFORMER}, smear: true, x0: true, attention_gate: elementwise}}",),
    "prefix": (f"model={{{TRANSFORMER}, shape: prefix}}", "objective.kind=prefix"),
    "t5": (
        f"model={{{TRANSFORMER}, shape: encoder-decoder}}",
        "objective.kind=span-corruption",
        "tokenizer.sentinels=9",
    ),
    "elman": (f"model={{{RECURRENT}, cell: rnn}}",),
    "elman of sigmoids": (f"model={{{RECURRENT}, cell: rnn, nonlinearity: sigmoid}}",),
    "gru with a memory": (f"model={{{RECURRENT}, cell: gru, attention: {{score: additive}}}}",),
    "lstm with a memory": (f"model={{{RECURRENT}, attention: {{select: multi-hot}}}}",),
    "elmo": (f"model={{{RECURRENT}, shape: bidirectional, n_layers: 2}}", "objective.kind=bidirectional"),
    "skip-gram": ("model={kind: skipgram, d_model: 8, context: 16}", "objective.kind=skip-gram", "tokenizer.kind=word"),
    "cbow": ("model={kind: skipgram, d_model: 8, context: 16}", "objective.kind=cbow", "tokenizer.kind=word"),
    "glove": ("model={kind: glove, d_model: 8, context: 16}", "objective.kind=glove", "tokenizer.kind=word"),
    "ppmi": ("model={kind: ppmi, d_model: 8, context: 16}", "objective.kind=cooccurrence", "tokenizer.kind=word"),
    "3-gram": ("model={kind: ngram, order: 3, context: 16}",),
}
ON_TABLES: dict[str, Sequence[str]] = {
    "seq2seq": (f"model={{{PAIRS}}}", "objective.kind=seq2seq"),
    "bpe dropout": (f"model={{{PAIRS}}}", "objective.kind=seq2seq", BPE_DROPOUT),
    "luong": (f"model={{{PAIRS}, attention: {{score: bilinear}}}}", "objective.kind=seq2seq"),
    "bahdanau": (f"model={{{PAIRS}, attention: {{score: additive, feed: input}}}}", "objective.kind=seq2seq"),
    "answers of a decoder": (f"model={{{TRANSFORMER}}}", "objective.kind=seq2seq"),
    "answers of an lstm": (f"model={{{RECURRENT}}}", "objective.kind=seq2seq"),
    "classes of an encoder": (f"model={{{TRANSFORMER}, shape: encoder}}", *CLASSES),
    "balanced classes": (f"model={{{TRANSFORMER}, shape: encoder}}", *CLASSES, "objective.class_weights=balanced"),
    "classes beside a language model": (f"model={{{TRANSFORMER}}}", *CLASSES, "objective.lm_weight=0.5"),
    "classes of a mix of layers": (f"model={{{RECURRENT}, shape: bidirectional}}", *CLASSES, "objective.layers=mix"),
    "classes of means": ("model={kind: averaging, d_model: 8, word_dropout: 0.1, dropout: 0.1}", *CLASSES),
}
BERT = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1, "
    "n_segments: 2, next_sentence_head: true}",
    "objective={kind: masked, next_sentence: true}",
)
ELECTRA = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1, "
    "position: {kind: alibi}}",
    "objective={kind: replaced-tokens, generator_size: 0.5}",
)
SAMPLED = "objective.scheduled_sampling={growth: linear, k: 0.02}"
SAMPLED_LSTM = (f"model={{{RECURRENT}}}", SAMPLED)
PERMUTED = (f"model={{{TRANSFORMER}, shape: encoder}}", "objective={kind: masked, permutation: true}")
SPAN_BOUNDARY = (
    f"model={{{TRANSFORMER}, shape: encoder, span_boundary_head: true}}",
    "objective={kind: masked, spans: {}, span_boundary: true}",
)
ALBERT = (BERT[0], "objective={kind: masked, sentence_order: true}")
OF_OBJECTIVES: dict[str, Sequence[str]] = {
    "next sentences": BERT,
    "boundaries": SPAN_BOUNDARY,
    "permuted": PERMUTED,
    "replaced tokens": ELECTRA,
    "sampled": (f"model={{{TRANSFORMER}}}", SAMPLED),
    "sampled lstm": SAMPLED_LSTM,
    "sentence order": ALBERT,
    "whole words": (BERT[0], "objective={kind: masked, whole_words: true, independent: true}", "tokenizer.kind=bpe"),
    "sampled lstm, carried": (*SAMPLED_LSTM, "training.carry_state=true"),
    "sampled lstm, isolated": (*SAMPLED_LSTM, "data.isolate_documents=true"),
}
"""Objectives on texts that draw something for each step, or have several losses."""
