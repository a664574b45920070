"""Computes the attention weights of a model for a text, or for a source and its target.

Shapes: L layers, N heads, T queries, S keys.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.generation.generate import complete
from lmtool.generation.params import SamplingParams
from lmtool.model.heads import Classifier, LanguageModelWithTaskHead, Pooling
from lmtool.model.language_model import LanguageModel
from lmtool.model.layers.attention import CrossAttention
from lmtool.model.layers.memory_attention import RecurrentStateAttention
from lmtool.model.layers.observing import (
    ObservableAttention,
    find_attention_modules,
    record_attention_weights,
    strip_layer_number,
)
from lmtool.runs.load import LoadedModel
from lmtool.storage.durable import write_file
from lmtool.tokenization.prompt_format import Prompt

AttentionKind = Literal["self", "encoder", "decoder", "cross", "memory", "pooling"]
"""What attends to what. self: the only stack of a Transformer to itself. encoder, decoder: self-attention in these.
cross: a decoder, also a recurrent one, to the source. memory: a recurrent decoder to its past states. pooling: a
classifier to the states of a text."""


class HeadSummary(NamedTuple):
    """What a head attends to: means over the queries that attend to anything.

    Args:
        largest: the largest weight of a row.
        entropy: of a row, in bits; 0 where all weight is on one key, log2 S where it is equal on S keys.
        itself, previous, next, first: weight on the position of the query, on the one before it, on the one after it,
            and on the first; None where queries and keys are different tokens, and next also where it is hidden.
        distance: sum of weight times |i - j|, in positions; None as above.
    """

    layer: int
    head: int
    largest: float
    entropy: float
    itself: float | None = None
    previous: float | None = None
    next: float | None = None
    first: float | None = None
    distance: float | None = None


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of one kind, in all layers and heads.

    Args:
        queries, keys: tokens at the positions, see `Tokenizer.display_token`; in cross-attention the queries are the
            tokens that the positions predict.
        weights_LNTS: as the forward pass computes them. The sum of a row is 1, but with `select: sum` the number of
            states, and 0 if there is no state yet.
    """

    kind: AttentionKind
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights_LNTS: NDArray[np.float32]

    def head(self, layer: int, head: int | None) -> NDArray[np.float32]:
        """Returns the weights (T, S) of a layer and a head, counted from 0 (-1 is the last); the mean of all heads for
        None.

        Raises UsageError for one that does not exist.
        """
        n_layers, n_heads = self.weights_LNTS.shape[:2]
        for name, index, n in (("layer", layer, n_layers), ("head", head or 0, n_heads)):
            if not -n <= index < n:
                known = f"0 to {n - 1}" if n > 1 else "0, the only one"
                raise UsageError(f"there is no {name} {index} of the kind {self.kind}", fix=f"use {known}")
        weights_NTS = self.weights_LNTS[layer]
        weights_TS: NDArray[np.float32] = weights_NTS.mean(0) if head is None else weights_NTS[head]
        return weights_TS

    def summarize_heads(self) -> list[HeadSummary]:
        """Returns a summary of each head, by layer.

        Those of self-attention leave out the first query, which has no choice in a causal stack.
        """
        is_self = self.queries == self.keys
        first = int(is_self and len(self.queries) > 1)
        is_causal = is_self and not np.triu(self.weights_LNTS, 1).any()
        summaries = []
        for layer, weights_NTS in enumerate(self.weights_LNTS[:, :, first:].astype(np.float64)):
            for head, weights_TS in enumerate(weights_NTS):
                attends_T = weights_TS.sum(1) > 0
                weights_AS, index_A = weights_TS[attends_T], first + np.flatnonzero(attends_T)
                means = _mean_statistics_over_queries(weights_AS, index_A if is_self else None)
                summary = HeadSummary(layer, head, **means)
                summaries.append(summary._replace(next=None) if is_causal else summary)
        return summaries

    def to_json(self) -> dict[str, Any]:
        """Returns names and weights, rounded to 6 digits, as a JSON value."""
        weights = np.round(self.weights_LNTS.astype(np.float64), 6).tolist()
        return {"kind": self.kind, "queries": list(self.queries), "keys": list(self.keys), "weights": weights}


@dataclass(frozen=True)
class TextAttention:
    """The attention of a model in one forward pass over a text, or over a source and a target.

    parts: one for each kind that the model has; cross-attention comes first.
    """

    run: str
    step: int
    parts: tuple[AttentionWeights, ...]

    def part(self, kind: AttentionKind | None) -> AttentionWeights:
        """Returns the weights of a kind; the first ones for None. Raises UsageError if the model has no such kind."""
        for part in self.parts:
            if kind in (None, part.kind):
                return part
        fix = f"choose {' or '.join(part.kind for part in self.parts)}"
        raise UsageError(f"the model has no attention of the kind {kind}", fix=fix)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value."""
        return {"run": self.run, "step": self.step, "attention": [part.to_json() for part in self.parts]}

    def save_npz(self, path: Path) -> None:
        """Writes a .npz file: for each kind the weights (L, N, T, S), KIND_queries (T) and KIND_keys (S).

        Raises ResourceError.
        """
        arrays: dict[str, Any] = {}
        for part in self.parts:
            arrays[part.kind] = part.weights_LNTS
            arrays[f"{part.kind}_queries"] = np.array(part.queries)
            arrays[f"{part.kind}_keys"] = np.array(part.keys)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_file(path, buffer.getbuffer())


class ForwardPassInput(NamedTuple):
    """The input of the forward pass. tokens, source: ids of its rows. predicted: ids that follow the tokens."""

    batch: Batch
    tokens: Sequence[int]
    source: Sequence[int] = ()
    predicted: Sequence[int] = ()


def compute_attention(
    loaded: LoadedModel, texts: Sequence[str] = (), *, source: str | None = None, target: str | None = None
) -> TextAttention:
    """Computes the attention of a model that is not packed.

    Args:
        texts: of one row; several for a classifier or an encoder of several texts.
        source: instead of texts, for a model that reads a source and generates a target.
        target: by default generated by greedy decoding.

    Raises:
        UsageError: for a model without attention, for texts if it needs a source and the other way round, and for an
            input that is longer than its context.
    """
    if not find_attention_modules(loaded.model):
        raise _no_attention_error(loaded)
    row = _make_forward_pass_input(loaded, texts, source, target)
    with torch.inference_mode(), loaded.compute.autocast(), record_attention_weights(loaded.model) as weights:
        # One forward pass, with the head of a classifier.
        (loaded.model.run_head if isinstance(loaded.model, Classifier) else loaded.model)(row.batch.to(loaded.device))
    if not weights:
        # The model has a memory, but a classifier of all layers does not read it.
        raise _no_attention_error(loaded)
    by_kind: dict[AttentionKind, list[NDArray[np.float32]]] = {}
    for name, weights_BNTS in weights.items():
        by_kind.setdefault(_get_attention_kind(loaded.model, name), []).append(weights_BNTS[0].float().cpu().numpy())
    kinds = sorted(by_kind, key=("cross", "self", "memory", "decoder", "encoder", "pooling").index)
    parts = []
    for kind in kinds:
        ids = {"cross": (row.predicted, row.source), "encoder": (row.source, row.source)}
        axes = ids.get(kind, (row.tokens, row.tokens))
        queries, keys = (tuple(map(loaded.tokenizer.display_token, axis)) for axis in axes)
        queries = ("pooled",) if kind == "pooling" else queries
        parts.append(AttentionWeights(kind, queries, keys, np.stack(by_kind[kind])))
    return TextAttention(str(loaded.run_path), loaded.step, tuple(parts))


def _mean_statistics_over_queries(
    weights_TS: NDArray[np.float64], query_positions_T: NDArray[np.int64] | None
) -> dict[str, float]:
    """Returns the means of `HeadSummary` over rows of weights.

    query_positions_T: positions of the queries among the keys; None where queries and keys are different tokens.
    """
    shares_TS = weights_TS / weights_TS.sum(1, keepdims=True)
    entropy_T = -(shares_TS * np.log2(np.where(shares_TS > 0, shares_TS, 1.0))).sum(1)
    by_query = {"largest": weights_TS.max(1, initial=0.0), "entropy": entropy_T}
    if query_positions_T is not None:
        back_TS = query_positions_T[:, None] - np.arange(weights_TS.shape[1])
        for name, back in (("itself", 0), ("previous", 1), ("next", -1)):
            by_query[name] = np.where(back_TS == back, weights_TS, 0.0).sum(1)
        by_query |= {"first": weights_TS[:, 0], "distance": (shares_TS * np.abs(back_TS)).sum(1)}
    return {name: float(values.mean()) if len(values) else 0.0 for name, values in by_query.items()}


def _get_attention_kind(model: LanguageModel, module_name: str) -> AttentionKind:
    part: ObservableAttention | torch.nn.Module = model.get_submodule(strip_layer_number(module_name))
    match part:
        case Pooling():
            return "pooling"
        case RecurrentStateAttention():
            return "cross" if model.reads == "source" else "memory"
        case CrossAttention():
            return "cross"
    stack = module_name.removeprefix("body.").split(".")[0]
    return "encoder" if stack == "encoder" else "decoder" if stack == "decoder" else "self"


def _make_forward_pass_input(
    loaded: LoadedModel, texts: Sequence[str], source: str | None, target: str | None
) -> ForwardPassInput:
    prompt_format, where = loaded.prompt_format, str(loaded.run_path)
    if source is not None and texts:
        raise UsageError("both a text and a source are given", fix="leave out one of them")
    if target is not None and source is None:
        raise UsageError("a target is given without its source", fix="add --source TEXT")
    if source is not None:
        if not prompt_format.answers:
            raise UsageError("this model reads a text, not a source", where=where, fix="give the text without --source")
        return _make_pair_input_or_generate_target(loaded, prompt_format.make_prompt(source), target)
    if prompt_format.answers:
        raise UsageError("this model answers a source", where=where, fix="give it with --source TEXT")
    if isinstance(loaded.model, LanguageModelWithTaskHead) or loaded.model.reads == "both":
        return make_row_forward_pass_input(loaded, texts)
    if len(texts) != 1:
        raise _text_count_error(loaded, "1 text", texts)
    prompt = prompt_format.make_prompt(texts[0])
    read = (*(prompt.source or ()), *prompt.tokens)
    _check_length(loaded, len(read))
    prefix_B = None if prompt.source is None else torch.tensor([len(prompt.source)])
    return ForwardPassInput(Batch(torch.tensor([read]), prefix_B=prefix_B), read)


def make_row_forward_pass_input(loaded: LoadedModel, texts: Sequence[str]) -> ForwardPassInput:
    """Encodes texts as a row of a table, or between the special tokens of an encoder.

    Raises UsageError for another number of texts than the model was trained on, and for texts that are too long.
    """
    columns, prompt_format = loaded.recipe.data.text_columns, loaded.prompt_format
    n_texts = len(columns) if columns and isinstance(loaded.model, LanguageModelWithTaskHead) else 0
    if not texts or (n_texts and len(texts) != n_texts):
        expected = f"{n_texts} texts, {', '.join(columns)}"[:120] if n_texts > 1 else "1 text"
        raise _text_count_error(loaded, expected, texts)
    ids = [np.array(loaded.tokenizer.encode(text), dtype=np.int64) for text in texts]
    tokens, segments, is_truncated = prompt_format.encode_and_truncate_row(ids)
    marks = len(prompt_format.before) + len(prompt_format.between) * (len(texts) - 1) + len(prompt_format.after)
    _check_length(loaded, marks + sum(map(len, ids)), is_truncated)
    segments_BT = None if segments is None else torch.from_numpy(segments)[None]
    return ForwardPassInput(Batch(torch.from_numpy(tokens)[None], segments_BT=segments_BT), tokens.tolist())


def _make_pair_input_or_generate_target(loaded: LoadedModel, prompt: Prompt, target: str | None) -> ForwardPassInput:
    """Encodes a source, or question, and a target; for a decoder both are one text."""
    prompt_format = loaded.prompt_format
    question = prompt.tokens if prompt.source is None else prompt.source
    _check_length(loaded, len(question))
    if target is None:
        params = SamplingParams("greedy", max_new_tokens=prompt_format.default_max_answer_tokens(len(question)))
        with loaded.compute.autocast():
            (answer,) = complete(loaded.model, [prompt], params, prompt_format)
        generated = answer.tokens
    else:
        generated = (*loaded.tokenizer.encode(target), loaded.tokenizer.eos_id)
    read, predicted = (*prompt.tokens, *generated[:-1]), (*prompt.tokens[1:], *generated)
    row = (*prompt.source, *read) if prompt.source is not None and prompt_format.shares_row else read
    _check_length(loaded, len(row))
    if prompt.source is None:
        return ForwardPassInput(Batch(torch.tensor([row])), row)
    if prompt_format.shares_row:
        return ForwardPassInput(Batch(torch.tensor([row]), prefix_B=torch.tensor([len(prompt.source)])), row)
    batch = Batch(torch.tensor([row]), source_BS=torch.tensor([prompt.source]))
    return ForwardPassInput(batch, row, prompt.source, predicted)


def _no_attention_error(loaded: LoadedModel) -> UsageError:
    fix = "name a Transformer, or a recurrent model with `attention` in its recipe"
    what = f"this model has no attention: {loaded.model.description}"
    return UsageError(what, where=str(loaded.run_path), fix=fix)


def _text_count_error(loaded: LoadedModel, expected: str, texts: Sequence[str]) -> UsageError:
    n_given = {0: "no text is", 1: "1 text is"}.get(len(texts), f"{len(texts)} texts are")
    fix = "quote each text" if texts else "give TEXT, in quotes"
    return UsageError(f"the model reads {expected}, and {n_given} given", where=str(loaded.run_path), fix=fix)


def _check_length(loaded: LoadedModel, n_tokens: int, is_truncated: bool = False) -> None:
    context = loaded.model.context
    if is_truncated or (context is not None and n_tokens > context):
        raise UsageError(f"the text has {n_tokens} tokens, but the model's context is {context}", fix="shorten it")
