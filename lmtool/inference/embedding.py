"""`embed`: embeddings of texts at any layer of any model, one per word in its context or one per text.

Shapes: B rows, T positions, D model width, N words.
"""

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool import durable
from lmtool.batch import Batch, padded
from lmtool.errors import DataError, UsageError
from lmtool.inference.evaluation import Items, evaluate
from lmtool.inference.load import LoadedModel
from lmtool.model.heads import Pool, text_vectors
from lmtool.recipe.spec.objective import Embedding
from lmtool.tokenization.tokenizer import find_word_spans

PoolName = Literal["none", "mean", "max", "first", "last", "own"]

TEXTS = 256
"""Texts processed at once, batched by length."""

BATCH_TOKENS = 4096
"""Positions computed at once."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Embedded:
    """Vectors of one text.

    text: its number, from 0.
    words: as written in the text.
    vectors: (N, D), one per word; when pooled (1, D), and words None.
    """

    text: int
    words: list[str] | None
    vectors: Vectors


@dataclass(frozen=True)
class TextRow:
    """A text as model input. first, last: the span of its own tokens between the special ones.

    words: the string of each word, if they are wanted. pieces: for each word, the indices of its tokens in the row.
    """

    number: int
    tokens: list[int]
    first: int
    last: int
    words: list[str]
    pieces: list[list[int]]


class HiddenStates(NamedTuple):
    """tokens: T pieces, special ones included. layers: (T, D) of the embeddings and of each layer."""

    tokens: tuple[str, ...]
    layers: tuple[Vectors, ...]


def save(path: Path, embedded: Iterable[Embedded]) -> None:
    """Write vectors to a new file, atomically. Raises ResourceError.

    .jsonl: `as_lines`. .npz: vectors (N, D), texts (N), the index of the text of each, and words (N) unless pooled.
    """
    lines = (f"{line}\n".encode() for line in as_lines(embedded))
    durable.write_output(path, _arrays(embedded) if path.suffix == ".npz" else lines)


def as_lines(embedded: Iterable[Embedded]) -> Iterator[str]:
    """A JSON object for each text."""
    for one in embedded:
        vectors = one.vectors.tolist()
        values = {"vector": vectors[0]} if one.words is None else {"words": one.words, "vectors": vectors}
        yield json.dumps({"text": one.text, **values})


def _arrays(embedded: Iterable[Embedded]) -> list[memoryview]:
    every = list(embedded)
    arrays = {
        "vectors": np.concatenate([one.vectors for one in every]),
        "texts": np.repeat([one.text for one in every], [len(one.vectors) for one in every]),
    }
    if every[0].words is not None:
        arrays["words"] = np.array([word for one in every for word in one.words or ()])
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return [buffer.getbuffer()]


def embed(
    loaded: LoadedModel, texts: Iterable[str], layer: int, pool: PoolName, *, truncate: bool = False
) -> Iterator[Embedded]:
    """The vectors of each text, in order.

    layer: 0 for the embeddings, 1 for the output of the first layer, -1 for the last. pool: "none" gives each word and
    punctuation mark the mean of its tokens' vectors; "mean" and "max" pool the tokens of the text; "first" and "last"
    take the first and last position of the row, special tokens included; "own" pools as the objective of a model that
    was trained to embed texts, all positions included, and as "mean" for others. truncate: truncate texts to the
    context.

    Raises UsageError for a layer that does not exist, a text longer than the model's context, or one without tokens;
    DataError when there is no text.
    """
    waiting = (text_row(loaded, i, text, truncate=truncate, words=pool == "none") for i, text in enumerate(texts))
    read = False
    with loaded.joined() as loaded:
        while group := list(islice(waiting, TEXTS)):
            read = True
            yield from vectors_of(loaded, group, layer, pool)
    if not read:
        raise DataError("there is no text", fix="name a file with lines of text, or write some to standard input")


@torch.inference_mode()
def hidden_states(loaded: LoadedModel, text: str) -> HiddenStates:
    """The states of every layer for one text. Raises UsageError as `embed` does."""
    row = text_row(loaded, 0, text)
    with loaded.compute.autocast():
        layers = loaded.model.layers(Batch(torch.tensor([row.tokens])).to(loaded.device))
    states = tuple(hidden_1TD[0].float().cpu().numpy() for hidden_1TD in layers)
    return HiddenStates(tuple(map(loaded.tokenizer.display_token, row.tokens)), states)


def vectors_of(loaded: LoadedModel, rows: Sequence[TextRow], layer: int, pool: PoolName) -> Iterator[Embedded]:
    """The vectors of texts that are tokenized; see `embed`."""
    lengths = [(len(row.tokens),) for row in rows]
    read = partial(_read, loaded, rows, layer, pool)
    items = Items(lengths, read, tokens=BATCH_TOKENS, dtype=np.float32)
    for row, vectors in zip(rows, evaluate(loaded.model, items, loaded.compute).arrays, strict=True):
        yield Embedded(row.number, row.words if pool == "none" else None, vectors)


def text_row(loaded: LoadedModel, number: int, text: str, *, truncate: bool = False, words: bool = False) -> TextRow:
    """A text with the special tokens of the model's training. Raises UsageError as `embed` does."""
    tokenizer = loaded.tokenizer
    ids, offsets = tokenizer.encode_with_offsets(text) if words else (tokenizer.encode(text), [])
    before, after = loaded.prompt_format.before, loaded.prompt_format.after
    room = (loaded.model.context or len(ids) + 2) - len(before) - len(after)
    if len(ids) > room:
        if not truncate:
            what = f"text {number + 1} has {len(ids)} tokens, but the model reads {room}"
            raise UsageError(what, fix="divide it, or truncate it with --truncate")
        ids, offsets = ids[:room], offsets[:room]
    if not ids:
        raise UsageError(f"text {number + 1} has no tokens", fix="remove it")
    first, last = len(before), len(before) + len(ids)
    starts, stops = [start for start, _ in offsets], [stop for _, stop in offsets]
    pieces: dict[tuple[int, int], list[int]] = {}
    for begin, end in find_word_spans(text) if words else ():
        # a token may belong to several words
        if touched := range(bisect_right(stops, begin), bisect_left(starts, end)):
            pieces[begin, end] = [first + token for token in touched]
    row = [*before, *ids, *after]
    return TextRow(number, row, first, last, [text[begin:end] for begin, end in pieces], list(pieces.values()))


def _read(
    loaded: LoadedModel, texts: Sequence[TextRow], layer: int, pool: PoolName, chosen: list[int]
) -> tuple[None, list[Vectors]]:
    """The vectors of a batch of texts."""
    rows = [texts[i] for i in chosen]
    tokens_BT, keep_BT = padded([np.array(row.tokens) for row in rows], loaded.tokenizer.pad_id)
    layers = loaded.model.layers(Batch(tokens_BT, keep_BT=keep_BT).to(loaded.device))
    if not -len(layers) <= layer < len(layers):
        what = f"there is no layer {layer}"
        raise UsageError(what, fix=f"use 0, the embeddings, to {len(layers) - 1}, the last layer, or -1")
    hidden_BTD = layers[layer].float().cpu()
    spec = loaded.recipe.objective
    if pool == "own" and isinstance(spec, Embedding):
        return None, [vector_D[None].numpy() for vector_D in text_vectors(spec, hidden_BTD, keep_BT)]
    return None, [_pooled(hidden_TD, row, pool).numpy() for hidden_TD, row in zip(hidden_BTD, rows, strict=True)]


def _pooled(hidden_TD: Tensor, row: TextRow, pool: PoolName) -> Tensor:
    if pool == "none":
        means = [hidden_TD[pieces].mean(0) for pieces in row.pieces]
        return torch.stack(means) if means else hidden_TD[:0]
    read = slice(len(row.tokens)) if pool in ("first", "last") else slice(row.first, row.last)
    pooled_1D: Tensor = Pool("mean" if pool == "own" else pool, hidden_TD.shape[1])(hidden_TD[None, read], None)
    return pooled_1D
