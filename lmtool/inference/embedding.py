"""`embed`: texts to vectors of any layer of any model, one for each word in its context or one for each text.

Shapes: B rows, T positions, D model width, N words.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import DataError, UsageError
from lmtool.inference.load import Loaded
from lmtool.text.corpus import open_corpus
from lmtool.text.prepare import default_cache
from lmtool.text.tokenizer import find_words

Pool = Literal["none", "mean", "max", "first", "last"]

TEXTS = 256
"""Texts in work at once, of which those of like length are read together."""

BATCH_TOKENS = 4096
"""Positions computed at once."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Embedded:
    """Vectors of one text.

    text: its number, from 0. words: as they stand in the text. vectors: (N, D), one for each word; when pooled (1, D)
    without words.
    """

    text: int
    words: list[str]
    vectors: Vectors


@dataclass(frozen=True)
class _Row:
    """A text as the model reads it. first: index of its first own token, behind the marks that a model wants.

    words: what of the text each word is. pieces: for each word, the indices of its tokens in the row.
    """

    number: int
    tokens: list[int]
    first: int
    last: int
    words: list[str]
    pieces: list[list[int]]


def read_texts(sources: list[str], column: str) -> Iterator[str]:
    """The lines of .txt files, and the rows of tables, that are not blank."""
    corpus = open_corpus(sources, column=column, documents="line", cache=default_cache())
    begun = ""
    for chunk in corpus.chunks():
        for i, text in enumerate(chunk.texts):
            begun += text
            if chunk.ends or i < len(chunk.texts) - 1:
                yield begun
                begun = ""


def embed(
    loaded: Loaded, texts: Iterable[str], layer: int, pool: Pool, *, truncate: bool = False
) -> Iterator[Embedded]:
    """The vectors of each text, in order.

    layer: 0 for the embeddings, 1 for the output of the first layer, -1 for the last. pool: "none" gives each word and
    punctuation mark the mean of its tokens' vectors; "mean" and "max" pool the tokens of the text; "first" and "last"
    take the first and last position of the row, marks included. truncate: cut texts that the model cannot read.

    Raises UsageError for a layer that is not there, a text longer than the model's context, or one without tokens;
    DataError when there is no text.
    """
    waiting = enumerate(texts)
    read = False
    while group := [_row(loaded, number, text, truncate) for number, text in islice(waiting, TEXTS)]:
        read = True
        found: dict[int, Vectors] = {}
        for rows in _batches(group):
            for row, vectors in zip(rows, _read(loaded, rows, layer, pool), strict=True):
                found[row.number] = vectors
        for row in group:
            yield Embedded(row.number, row.words if pool == "none" else [], found[row.number])
    if not read:
        raise DataError("there is no text", fix="name a file with lines of text, or write some to standard input")


def _row(loaded: Loaded, number: int, text: str, truncate: bool) -> _Row:
    """A text with the marks between which the model saw texts in training."""
    tokenizer = loaded.tokenizer
    ids, places = tokenizer.encode_with_places(text)
    before, after = _marks(loaded)
    room = (loaded.model.context or len(ids) + 2) - len(before) - len(after)
    if len(ids) > room:
        if not truncate:
            raise UsageError(
                f"text {number + 1} has {len(ids)} tokens, but the model reads {room}",
                fix="divide it, or cut it off with --truncate",
            )
        ids, places = ids[:room], places[:room]
    if not ids:
        raise UsageError(f"text {number + 1} has no tokens", fix="leave it out")
    spans = find_words(text)
    pieces: list[list[int]] = [[] for _ in spans]
    word = 0
    for token, (start, stop) in enumerate(places, len(before)):
        while word < len(spans) and spans[word][1] <= start:
            word += 1
        # a token may belong to several words
        for touched in range(word, len(spans)):
            if spans[touched][0] >= stop:
                break
            pieces[touched].append(token)
    kept = [i for i, own in enumerate(pieces) if own]
    return _Row(
        number,
        [*before, *ids, *after],
        len(before),
        len(before) + len(ids),
        [text[slice(*spans[i])] for i in kept],
        [pieces[i] for i in kept],
    )


def _marks(loaded: Loaded) -> tuple[list[int], list[int]]:
    """What stands before and behind a text in training."""
    tokenizer = loaded.tokenizer
    if loaded.recipe.objective.kind == "masked":
        return [tokenizer.cls_id], [tokenizer.sep_id]
    if loaded.recipe.data.split == "document":
        return [tokenizer.bos_id], [tokenizer.eos_id]
    return [], []


def _batches(rows: list[_Row]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if group and (len(group) + 1) * len(row.tokens) > BATCH_TOKENS:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


@torch.inference_mode()
def _read(loaded: Loaded, rows: list[_Row], layer: int, pool: Pool) -> list[Vectors]:
    """The vectors of some texts, read together."""
    longest = max(len(row.tokens) for row in rows)
    tokens_BT = torch.full((len(rows), longest), loaded.tokenizer.pad_id)
    keep_BT = torch.zeros(tokens_BT.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens_BT[i, : len(row.tokens)] = torch.tensor(row.tokens)
        keep_BT[i, : len(row.tokens)] = True
    batch = Batch(tokens_BT, keep_BT=None if bool(keep_BT.all()) else keep_BT).to(loaded.device)
    with loaded.compute.autocast():
        layers = loaded.model.layers(batch)
    if not -len(layers) <= layer < len(layers):
        raise UsageError(
            f"there is no layer {layer}", fix=f"take 0, the embeddings, to {len(layers) - 1}, the last layer, or -1"
        )
    hidden_BTD = layers[layer].float().cpu()
    return [_pooled(hidden_TD, row, pool).numpy() for hidden_TD, row in zip(hidden_BTD, rows, strict=True)]


def _pooled(hidden_TD: Tensor, row: _Row, pool: Pool) -> Tensor:
    own_TD = hidden_TD[row.first : row.last]
    match pool:
        case "none":
            means = [hidden_TD[pieces].mean(0) for pieces in row.pieces]
            return torch.stack(means) if means else own_TD[:0]
        case "mean":
            return own_TD.mean(0, keepdim=True)
        case "max":
            return own_TD.amax(0, keepdim=True)
        case "first":
            return hidden_TD[:1]
        case "last":
            return hidden_TD[len(row.tokens) - 1 : len(row.tokens)]
