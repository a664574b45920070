"""The features of a run, as axes: what each of their values adds to the command that trains it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, str]
"""A value of each axis, by the axis's name."""

_SIZES = "n_layers: 2, d_model: 16, n_heads: 2, context: 16"
_TRANSFORMER = f"kind: transformer, {_SIZES}"
_RECURRENT = "kind: recurrent, d_model: 16, context: 16"
_WORDS = "d_model: 16, context: 16"
_CLASSES = ("objective={kind: classification, dropout: 0}", "data.text_columns=[text]")
_TAGS = ("objective={kind: tagging, dropout: 0}",)
_PAIRS = ("objective.kind=seq2seq",)
_VECTORS = ("objective.kind=embedding",)
_ANSWERS = ("objective={kind: question-answering, dropout: 0, max_answer: 4}",)


@dataclass(frozen=True)
class Task:
    """A family of models and what it learns.

    table: the kind of rows that it learns from; of text when None. body: the task whose runs it fine-tunes, if another.
    predicts: whether its runs give tokens probabilities, and so have a perplexity. writes: whether they generate.
    """

    model: str
    objective: tuple[str, ...] = ()
    tokenizer: tuple[str, ...] = ()
    table: str | None = None
    body: str | None = None
    predicts: bool = True
    writes: bool = True

    @property
    def counts(self) -> bool:
        """Whether its models are tables of counts, whose size the text decides on."""
        return self.model.startswith(("kind: ngram", "kind: ppmi"))


_ENCODER, _PREFIX, _T5 = (f"{_TRANSFORMER}, shape: {shape}" for shape in ("encoder", "prefix", "encoder-decoder"))
_SENTENCES = f"{_ENCODER}, n_segments: 2, next_sentence_head: true"
_ELMO = f"{_RECURRENT}, n_layers: 2, shape: bidirectional"
_LINEAR = f"kind: averaging, {_WORDS}, one_hot: true, n_layers: 0, ngrams: 2, buckets: 64, word_dropout: 0"
_BAHDANAU = f"{_RECURRENT}, cell: gru, shape: encoder-decoder, attention: {{score: additive, feed: input}}"
_BY_PREFIXES = ("objective.kind=prefix",)
_OF_SPANS: dict[str, Any] = {"objective": ("objective.kind=span-corruption",), "tokenizer": ("tokenizer.sentinels=9",)}
_WITHOUT_WORDS: dict[str, Any] = {"predicts": False, "writes": False}


def _masked(keys: str) -> tuple[str, ...]:
    return (f"objective={{kind: masked, {keys}}}",)


TASKS: Mapping[str, Task] = {
    "gpt": Task(_TRANSFORMER),
    "bert": Task(_ENCODER, ("objective.kind=masked",)),
    "bert of sentences": Task(_SENTENCES, _masked("next_sentence: true")),
    "albert": Task(_SENTENCES.replace("encoder", "encoder, share_layers: true"), _masked("sentence_order: true")),
    "spanbert": Task(f"{_ENCODER}, span_boundary_head: true", _masked("spans: {}, span_boundary: true")),
    "xlnet": Task(_ENCODER, _masked("permutation: true"), writes=False),
    "electra": Task(_ENCODER, ("objective.kind=replaced-tokens",), **_WITHOUT_WORDS),
    "prefix": Task(_PREFIX, _BY_PREFIXES),
    "spans in one row": Task(_PREFIX, **_OF_SPANS),
    "t5": Task(_T5, **_OF_SPANS),
    "t5 of prefixes": Task(_T5, _BY_PREFIXES),
    "lstm": Task(_RECURRENT),
    "gru with a memory": Task(f"{_RECURRENT}, cell: gru, attention: {{score: additive}}"),
    "rnn of prefixes": Task(f"{_RECURRENT}, cell: rnn, shape: encoder-decoder", _BY_PREFIXES),
    "elmo": Task(_ELMO, ("objective.kind=bidirectional",), writes=False),
    "skip-gram": Task(f"kind: skipgram, {_WORDS}", ("objective.kind=skip-gram",), **_WITHOUT_WORDS),
    "cbow": Task(f"kind: skipgram, {_WORDS}", ("objective.kind=cbow",), **_WITHOUT_WORDS),
    "glove": Task(f"kind: glove, {_WORDS}", ("objective.kind=glove",), **_WITHOUT_WORDS),
    "ppmi": Task(f"kind: ppmi, {_WORDS}", ("objective.kind=cooccurrence",), **_WITHOUT_WORDS),
    "n-grams": Task("kind: ngram, order: 3, context: 16"),
    "classes of a decoder": Task(_TRANSFORMER, _CLASSES, table="labels", body="gpt"),
    "classes of an encoder": Task(_ENCODER, _CLASSES, table="labels", body="bert"),
    "classes of an lstm": Task(_RECURRENT, _CLASSES, table="labels", body="lstm"),
    "classes of elmo": Task(_ELMO, (*_CLASSES, "objective.layers=mix"), table="labels", body="elmo"),
    "classes of means": Task(f"kind: averaging, {_WORDS}, word_dropout: 0", _CLASSES, table="labels"),
    "linear classes": Task(_LINEAR, _CLASSES, table="labels"),
    "tags of a decoder": Task(_TRANSFORMER, _TAGS, table="tags", body="gpt"),
    "tags of an encoder": Task(_ENCODER, _TAGS, table="tags", body="bert"),
    "tags of elmo with a crf": Task(_ELMO, (*_TAGS, "objective.crf=true"), table="tags", body="elmo"),
    "answers of an encoder": Task(f"{_ENCODER}, n_segments: 2", _ANSWERS, table="questions"),
    "answers of an lstm": Task(_RECURRENT, _ANSWERS, table="questions", body="lstm"),
    "vectors of an encoder": Task(_ENCODER, _VECTORS, table="related", body="bert", **_WITHOUT_WORDS),
    "pairs of a decoder": Task(_TRANSFORMER, _PAIRS, table="pairs", body="gpt"),
    "pairs of a prefix LM": Task(_PREFIX, _PAIRS, table="pairs", body="prefix"),
    "pairs of t5": Task(_T5, _PAIRS, table="pairs", body="t5 of prefixes"),
    "pairs of bahdanau": Task(_BAHDANAU, _PAIRS, table="pairs"),
    "pairs of an lstm": Task(_RECURRENT, _PAIRS, table="pairs", body="lstm"),
    "conversations": Task(_TRANSFORMER, _PAIRS, table="conversations", body="gpt"),
    "several tasks": Task(_T5, _PAIRS, table="tasks", body="t5 of prefixes"),
}


def _kinds(key: str, *values: str) -> dict[str, tuple[str, ...]]:
    """Values that a key has by their names."""
    return {value: (f"{key}={value}",) for value in values}


AXES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "task": dict.fromkeys(TASKS, ()),
    "position": {
        "learned": (),
        **{kind: (f"model.position={{kind: {kind}}}",) for kind in ("sinusoidal", "none", "alibi")},
        "relative": ("model.position={kind: relative, buckets: 8, max_distance: 16}",),
        "disentangled": ("model.position={kind: disentangled, max_distance: 4}",),
        "rotary": ("model.position={kind: rotary}",),
    },
    "norm": {
        "pre": (),
        "post": ("model.norm={place: post}",),
        "rms": ("model.norm={kind: rms}",),
        "output": ("model.norm={place: output}",),
        "none": ("model.norm={kind: none}",),
        "biased": ("model.norm={bias: true}", "model.bias=false"),
    },
    "part": {
        "none": (),
        "window": ("model.pattern={kind: window, size: 3}",),
        "shared keys": ("model.n_kv_heads=1",),
        "qk_norm": ("model.qk_norm=head",),
        "additive": ("model.score=additive",),
        "parallel": ("model.parallel=true",),
        "gated heads": ("model.attention_gate=headwise",),
        "smear": ("model.smear=true",),
        "x0": ("model.x0=true",),
        "residual from the layer": ("model.residual_from=layer",),
        "plain attention": ("model.mixer=plain-attention",),
        "shared layers": ("model.share_layers=true",),
        "narrow": ("model.embedding_width=8", "model.head_transform=true"),
        "n-gram embeddings": ("model.ngram_embedding={entries: 80, min_count: 2}",),
        "untied": ("model.tie_embeddings=false",),
    },
    "vectors": {
        "none": (),
        "a file": ("model.embeddings=vectors.vec",),
        "frozen": ("model.embeddings=vectors.vec", "model.freeze_embeddings=true"),
        "a run": ("model.embeddings=runs/vectors",),
    },
    "features": {
        "none": (),
        "a decoder's": ("model.features={run: runs/features}",),
        "alone": ("model.features={run: runs/features, beside: false}",),
    },
    "tokenizer": {
        "char": (),
        "bpe": ("tokenizer={kind: bpe, vocab_size: 300}",),
        "bpe with dropout": ("tokenizer={kind: bpe, vocab_size: 300, dropout: 0.2}",),
        "wordpiece": ("tokenizer={kind: wordpiece, vocab_size: 120}",),
        "word": ("tokenizer.kind=word",),
        "a file": ("tokenizer={kind: file, path: tokens/tokenizer.json}",),
    },
    "base": {"none": (), "a run": (), "published": ()},
    "processes": {"one": (), "two": (), "two, sharded": ("training.shard=full",)},
    "precision": {"float32": (), "bfloat16": ("training.precision=bfloat16",)},
    "micro": {"auto": (), "rows": ("training.micro_batch=2",), "tokens": ("training.micro_tokens=20",)},
    "recompute": {"auto": (), "layers": ("training.recompute=layers",)},
    "carried": {"no": (), "state": ("training.carry_state=true",)},
    "length": {
        "steps": (),
        "epochs": ("training.epochs=0.5",),
        "minutes": ("training.minutes=0.005",),
        "minutes or epochs": ("training.minutes=5", "training.epochs=0.5"),
        "clipped": ("training.clip_norm=0.01",),
    },
    "tuning": {
        "all": (),
        "lora": ("tuning.lora={rank: 2}",),
        "lora on 4 bits": ("tuning.lora={rank: 2, quantize: int4}",),
        "frozen embeddings": ("tuning.freeze=embeddings",),
        "frozen body": ("tuning.freeze=body",),
        "unfreezing": ("tuning.unfreeze_every=2",),
        "layer decay": ("tuning.layer_decay=0.5",),
    },
    "teacher": {
        "none": (),
        "a run": ("distillation.teacher=runs/teacher",),
        "its states": ("distillation.teacher=runs/teacher", "distillation.cosine=0.5"),
    },
    "optimizer": {
        "adamw": (),
        "muon": ("optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.003}}",),
        "sgd": ("optimizer={kind: sgd, lr: 0.1, momentum: 0.9}",),
        "adam": ("optimizer={kind: adam, lr: 0.003}",),
    },
    "loss": {
        "plain": (),
        "smoothed": ("objective.label_smoothing=0.1",),
        "scheduled": ("objective.scheduled_sampling={k: 0.05}",),
        "with language modelling": ("objective.lm_weight=0.5",),
        "weighted": ("objective.class_weights=balanced",),
        "contrast": ("objective.contrastive=true",),
        "one score": ("objective.single_score=true",),
        "dense": ("objective.dense=tanh", "objective.pool=mean"),
        "spans": ("objective.spans={}",),
        "vectors that can be cut": ("objective.dims=[8, 4]", "objective.normalize=true"),
        "triplet": ("objective.loss=triplet",),
        "whole words": ("objective.whole_words=true",),
    },
    "dropout": {"none": (), "a tenth": ("model.dropout=0.1",)},
    "text": {
        "a file": (),
        "streamed": ("data.stream=true",),
        "mixture": ("data.mixture={text.txt: 2, other.txt: 1}",),
        "streamed mixture": ("data.mixture={text.txt: 2, other.txt: 1}", "data.stream=true"),
        "isolated": ("data.isolate_documents=true",),
        "a slice": ("data.split=slice", "data.documents=whole"),
        "valid": ("data.valid=other.txt",),
    },
    "table": {
        "csv": (),
        "jsonl": (),
        "cp1252": ("data.encoding=cp1252",),
        "valid and test": (),
        "bad rows": ("data.skip_bad_rows=true",),
    },
    "labels": {
        "class": (),
        "multi": ("objective.task=multi", "data.label_column=topics"),
        "number": ("objective.task=number", "data.label_column=stars"),
        "three classes": ("data.label_column=colour",),
    },
    "metric": {
        "loss": (),
        **_kinds("evaluation.metric", "auto", "accuracy", "macro-f1", "correlation", "f1", "exact", "ndcg"),
    },
    "evaluation": {
        "plain": (),
        "patience": ("evaluation.patience=1",),
        "samples": ("evaluation.prompts=[the]", "evaluation.sample_tokens=3"),
        "gradient norms": ("evaluation.gradient_norms=true",),
        "baseline": ("evaluation.baseline=true",),
        "beams": ("evaluation.num_beams=2",),
    },
    "saves": {"at once": (), "in the background": ("checkpoint.background=true",), "one": ("checkpoint.keep_last=1",)},
}
"""By the name of each axis its values, the first of which is the usual one and adds nothing."""

_OF_BERT = ("model.norm={place: post, embedding: true}", "model.head_transform=true", "model.head_bias=true")
PUBLISHED = {
    "gpt": ("model.activation=gelu-tanh",),
    "bert": ("model.n_segments=2", *_OF_BERT),
    "bert of sentences": _OF_BERT,
    "t5 of prefixes": (
        *("model.activation=relu", "model.position={kind: relative}", "model.score=dot", "model.bias=false"),
        *("model.norm={kind: rms, eps: 1e-6}", "model.scale_head=true"),
    ),
}
"""By task, what makes its model one of a published family."""
WITHOUT_TEXT = ("labels", "tags", "questions", "related")
"""Kinds of rows that train a head or vectors, which generate nothing."""
USUAL: Row = {axis: next(iter(values)) for axis, values in AXES.items()}
OF_MODEL = ("position", "norm", "part", "vectors", "features", "tokenizer")
"""Axes that a base run has settled."""


def chosen(row: Row) -> dict[str, str]:
    """The values of a row that are not the usual ones."""
    return {axis: value for axis, value in row.items() if axis != "task" and value != USUAL[axis]}


def settings(row: Row) -> list[str]:
    """All overrides of a row whose model is trained from scratch, in their order."""
    task = TASKS[row["task"]]
    rest = [text for axis in AXES for text in AXES[axis][row[axis]]]
    return [f"model={{{task.model}}}", *task.objective, *rest, *task.tokenizer]


def settings_on_base(row: Row) -> list[str]:
    """Those of a row that continues or fine-tunes another run, which has its model and tokenizer."""
    rest = [text for axis in AXES if axis not in OF_MODEL for text in AXES[axis][row[axis]]]
    return [*TASKS[row["task"]].objective, *rest]


def is_possible(row: Row) -> bool:
    """Whether a row is one of commands that exist: adapters are of a base, and tables of tasks that learn from them."""
    adapts_nothing = row["tuning"].startswith("lora") and row["base"] == "none"
    has_table = TASKS[row["task"]].table is not None
    return not adapts_nothing and (has_table or row["table"] == USUAL["table"])


GENERAL = (
    *("model", "training", "objective", "data", "evaluation"),
    *("kind", "true", "false", "run", "runs", "mean", "txt"),
)
"""Words of settings that name no feature by themselves."""


def is_named(axis: str, value: str, message: str) -> bool:
    """Whether a message names a key or a value that a feature sets."""
    if axis == "base":
        return "--from" in message or "published" in message or "runs/base" in message
    if axis == "processes":
        return "process" in message or "shard" in message
    words: set[str] = set()
    for setting in AXES[axis][value]:
        key, _, rest = setting.partition("=")
        words |= {part for part in re.findall(r"[\w-]{2,}", f"{key} {rest}") if part not in GENERAL}
    return any(re.search(rf"\b{re.escape(word)}\b", message) for word in words)
