"""Embeddings of texts at any layer of any model, one per word in its context or one per text.

Shapes: B rows, T positions, D model width, N words.
"""

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch, pad_right_with_keep_mask
from lmtool.errors import DataError, UsageError
from lmtool.evaluation.loop import evaluate_items
from lmtool.model.heads import Pooling, pool_text_vectors
from lmtool.recipe.spec.objective import Embedding
from lmtool.runs.load import LoadedModel
from lmtool.storage import durable
from lmtool.tokenization.tokenizer import find_word_spans

PoolName = Literal["none", "mean", "max", "first", "last", "own"]

TEXTS_PER_GROUP = 256
"""Texts that are encoded at once and batched by length."""

EMBEDDING_BATCH_TOKENS = 4096
"""Maximum positions of a batch."""

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddedText:
    """The vectors of one text.

    text: index of the text.
    words: words as written; None if pooled.
    vectors: (N, D), one per word; (1, D) if pooled.
    """

    text: int
    words: list[str] | None
    vectors: Vectors


@dataclass(frozen=True)
class EncodedText:
    """A text as model input.

    number: index of the text. first, last: span of its own tokens between the special ones.
    words: the words, if requested. pieces: for each word, the indices of its tokens in the row.
    """

    number: int
    tokens: list[int]
    first: int
    last: int
    words: list[str]
    pieces: list[list[int]]


class HiddenStates(NamedTuple):
    """The hidden states of a text.

    tokens: T pieces, special ones included. layers: (T, D) of the embeddings and of each layer.
    """

    tokens: tuple[str, ...]
    layers: tuple[Vectors, ...]


def save_embeddings(path: Path, embedded: Iterable[EmbeddedText]) -> None:
    """Writes vectors to a new file, atomically. Raises ResourceError.

    .jsonl: `to_json_lines`. .npz: vectors (N, D), texts (N), the index of the text of each, words (N) unless pooled.
    """
    if path.suffix != ".npz":
        durable.write_output_file(path, (f"{line}\n".encode() for line in to_json_lines(embedded)))
        return
    every = list(embedded)
    arrays = {
        "vectors": np.concatenate([one.vectors for one in every]),
        "texts": np.repeat([one.text for one in every], [len(one.vectors) for one in every]),
    }
    if every[0].words is not None:
        arrays["words"] = np.array([word for one in every for word in one.words or ()])
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    durable.write_output_file(path, [buffer.getbuffer()])


def to_json_lines(embedded: Iterable[EmbeddedText]) -> Iterator[str]:
    """Yields a JSON object for each text."""
    for one in embedded:
        vectors = one.vectors.tolist()
        values = {"vector": vectors[0]} if one.words is None else {"words": one.words, "vectors": vectors}
        yield json.dumps({"text": one.text, **values})


def embed(
    loaded: LoadedModel, texts: Iterable[str], layer: int, pool: PoolName, *, truncate: bool = False
) -> Iterator[EmbeddedText]:
    """Computes the vectors of each text. Yields them in order.

    layer: 0 for the embeddings, 1 for the output of the first layer, -1 for the last. pool: "none" gives each word and
    punctuation mark the mean of its tokens' vectors; "mean" and "max" pool the tokens of the text; "first" and "last"
    take the first and last position of the row, special tokens included; "own" pools as the objective of a model that
    was trained to embed texts, all positions included, and as "mean" for others. truncate: truncate texts to the
    context.

    Raises UsageError for a layer that does not exist, a text longer than the model's context, or one without tokens;
    DataError when there is no text.
    """
    waiting = (
        encode_text(loaded, i, text, truncate=truncate, with_words=pool == "none") for i, text in enumerate(texts)
    )
    read = False
    with loaded.join_process_group_once() as loaded:
        while group := list(islice(waiting, TEXTS_PER_GROUP)):
            read = True
            yield from embed_encoded_texts(loaded, group, layer, pool)
    if not read:
        raise DataError("there is no text", fix="name a file with lines of text, or write some to standard input")


@torch.inference_mode()
def hidden_states(loaded: LoadedModel, text: str) -> HiddenStates:
    """Computes the states of every layer for one text. Raises UsageError as `embed` does."""
    row = encode_text(loaded, 0, text)
    with loaded.compute.autocast():
        layers = loaded.model.hidden_states_by_layer(Batch(torch.tensor([row.tokens])).to(loaded.device))
    states = tuple(hidden_1TD[0].float().cpu().numpy() for hidden_1TD in layers)
    return HiddenStates(tuple(map(loaded.tokenizer.display_token, row.tokens)), states)


def embed_encoded_texts(
    loaded: LoadedModel, rows: Sequence[EncodedText], layer: int, pool: PoolName
) -> Iterator[EmbeddedText]:
    """Computes the vectors of encoded texts; see `embed`."""

    def read(chosen: list[int]) -> tuple[None, list[Vectors]]:
        group = [rows[i] for i in chosen]
        tokens_BT, keep_BT = pad_right_with_keep_mask([np.array(row.tokens) for row in group], loaded.tokenizer.pad_id)
        layers = loaded.model.hidden_states_by_layer(Batch(tokens_BT, keep_BT=keep_BT).to(loaded.device))
        if not -len(layers) <= layer < len(layers):
            what = f"there is no layer {layer}"
            raise UsageError(what, fix=f"use 0, the embeddings, to {len(layers) - 1}, the last layer, or -1")
        hidden_BTD = layers[layer].float().cpu()
        spec = loaded.recipe.objective
        if pool == "own" and isinstance(spec, Embedding):
            return None, [vector_D[None].numpy() for vector_D in pool_text_vectors(spec, hidden_BTD, keep_BT)]
        pairs = zip(hidden_BTD, group, strict=True)
        return None, [_pool_by_word_or_text(hidden_TD, row, pool).numpy() for hidden_TD, row in pairs]

    lengths = [(len(row.tokens),) for row in rows]
    evaluated = evaluate_items(
        loaded.model, lengths, read, loaded.compute, max_tokens=EMBEDDING_BATCH_TOKENS, dtype=np.float32
    )
    for row, vectors in zip(rows, evaluated.arrays, strict=True):
        yield EmbeddedText(row.number, row.words if pool == "none" else None, vectors)


def encode_text(
    loaded: LoadedModel, text_index: int, text: str, *, truncate: bool = False, with_words: bool = False
) -> EncodedText:
    """Encodes a text with the special tokens of the model's training. Raises UsageError as `embed` does."""
    tokenizer = loaded.tokenizer
    ids, offsets = tokenizer.encode_with_offsets(text) if with_words else (tokenizer.encode(text), [])
    before, after = loaded.prompt_format.before, loaded.prompt_format.after
    room = (loaded.model.context or len(ids) + 2) - len(before) - len(after)
    if len(ids) > room:
        if not truncate:
            what = f"text {text_index + 1} has {len(ids)} tokens, but the model reads {room}"
            raise UsageError(what, fix="divide it, or truncate it with --truncate")
        ids, offsets = ids[:room], offsets[:room]
    if not ids:
        raise UsageError(f"text {text_index + 1} has no tokens", fix="remove it")
    first, last = len(before), len(before) + len(ids)
    starts, stops = [start for start, _ in offsets], [stop for _, stop in offsets]
    pieces: dict[tuple[int, int], list[int]] = {}
    for begin, end in find_word_spans(text) if with_words else ():
        # a token may belong to several words
        if touched := range(bisect_right(stops, begin), bisect_left(starts, end)):
            pieces[begin, end] = [first + token for token in touched]
    row = [*before, *ids, *after]
    return EncodedText(text_index, row, first, last, [text[begin:end] for begin, end in pieces], list(pieces.values()))


def _pool_by_word_or_text(hidden_TD: Tensor, row: EncodedText, pool: PoolName) -> Tensor:
    if pool == "none":
        means = [hidden_TD[pieces].mean(0) for pieces in row.pieces]
        return torch.stack(means) if means else hidden_TD[:0]
    read = slice(len(row.tokens)) if pool in ("first", "last") else slice(row.first, row.last)
    pooled_1D: Tensor = Pooling("mean" if pool == "own" else pool, hidden_TD.shape[1])(hidden_TD[None, read], None)
    return pooled_1D


def normalize(vectors_ND: Vectors) -> Vectors:
    """Scales vectors to length 1; zeros stay."""
    return torch.nn.functional.normalize(torch.from_numpy(vectors_ND)).numpy()


def embed_to_unit_vectors(loaded: LoadedModel, texts: Iterable[str]) -> Vectors:
    """Returns vectors (N, D) of texts, pooled as in training and scaled to length 1; zeros for texts without tokens.

    Raises DataError if no text has a token.
    """
    every = [*texts]
    read = [i for i, text in enumerate(every) if loaded.tokenizer.encode(text)]
    embedded = embed(loaded, (every[i] for i in read), -1, "own", truncate=True)
    found_ND = normalize(np.concatenate([one.vectors for one in embedded]))
    vectors_ND = np.zeros((len(every), found_ND.shape[1]), found_ND.dtype)
    vectors_ND[read] = found_ND
    return vectors_ND
