"""Perplexity of a model on a token store: sliding windows over each document, sums over all of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.engine.device import Compute
from lmtool.engine.distributed import World
from lmtool.engine.examples import Examples
from lmtool.errors import DataError
from lmtool.model import LanguageModel
from lmtool.objective import Loss, Objective
from lmtool.run.order import hash_key, permute
from lmtool.text.prepare import Report
from lmtool.text.store import TokenStore
from lmtool.text.tokenizer import Tokenizer

BATCH_TOKENS = 16_384
"""Positions computed at once."""


@dataclass(frozen=True)
class Span:
    """A stretch of the store that is read at once, and its first token that is scored."""

    start: int
    stop: int
    first: int

    @property
    def n_scored(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    nats: sum over the scored tokens of -log p(token | tokens before it). n_bytes, n_words: of the text that they spell.
    unit: "pair" where what is scored are pairs of words, so that nothing but the loss has a meaning.
    """

    nats: float
    tokens: int
    n_bytes: int
    n_words: int
    context: int
    stride: int
    unit: Literal["token", "pair", "row"] = "token"

    @property
    def loss(self) -> float:
        """Nats per token, or per pair."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return _exp(self.loss)

    @property
    def word_perplexity(self) -> float:
        """Per whitespace-separated word, so that tokenizers compare."""
        return _exp(self.nats / self.n_words) if self.n_words else math.nan

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.n_bytes

    def record(self) -> dict[str, float | int | None]:
        """The names that other programs read; None for what is no number or too large for one."""
        if self.unit == "pair":
            return {"loss": self.loss, "pairs": self.tokens, "context": self.context}
        return {
            "loss": self.loss,
            "perplexity": _finite(self.perplexity),
            "word_perplexity": _finite(self.word_perplexity),
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "context": self.context,
            "stride": self.stride,
        }


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def spans(store: TokenStore, context: int, stride: int) -> list[Span]:
    """Windows that score every token of every document once, but its first, which nothing comes before.

    The first window of a document scores all it reads. Each later one starts `stride` tokens further and scores what is
    new, so that with a stride below the context every token but the first ones has at least context - stride before it.
    """
    found = []
    for number in range(store.n_documents):
        begin, end = store.document(number)
        start, first = begin, begin + 1
        while first < end:
            stop = min(end, start + context + 1)
            found.append(Span(start, stop, first))
            start, first = start + stride, stop
    return found


def sample_spans(store: TokenStore, context: int, tokens: int | None, seed: int) -> list[Span]:
    """A fixed selection of windows with about `tokens` scored tokens in all; all windows when None."""
    every = spans(store, context, context)
    if tokens is None:
        return every
    chosen, scored = [], 0
    for index in permute(np.arange(len(every)), len(every), hash_key(seed, "validation")):
        if scored >= tokens:
            break
        chosen.append(every[index])
        scored += every[index].n_scored
    return sorted(chosen, key=lambda span: span.start)


def mean_loss(
    model: LanguageModel,
    store: TokenStore,
    wanted: Sequence[Span],
    objective: Objective,
    compute: Compute,
    world: World,
) -> float:
    """Nats per target of the spans, without label smoothing, computed by all processes together."""
    share = wanted[world.rank :: world.size]
    nats = _nats(model, store, share, compute, objective.collate_validation, objective.score)
    total, count = world.sum(nats, compute)
    return total / max(1, count)


@torch.inference_mode()
def mean_scores(
    model: LanguageModel, examples: Examples, n: int, objective: Objective, compute: Compute, world: World
) -> tuple[float, dict[str, float]]:
    """Nats per target of the first n examples, and the means of the metrics; computed by all processes together."""
    was_training = model.training
    model.eval()
    names = objective.metrics
    sums = [0.0] * (2 + 2 * len(names))
    rows = max(1, BATCH_TOKENS // examples.length)
    share = np.arange(n)[world.rank :: world.size]
    for start in range(0, len(share), rows):
        batch = objective.collate(examples.read(share[start : start + rows])).to(compute.device)
        with compute.autocast():
            loss = objective.score(model, batch)
        found = [loss.total, loss.count, *(part for name in names for part in loss.metrics[name])]
        sums = [one + float(other) for one, other in zip(sums, found, strict=True)]
    model.train(was_training)
    total, count, *metrics = world.sum(sums, compute)
    pairs = zip(names, metrics[::2], metrics[1::2], strict=True)
    return total / max(1, count), {name: part / max(1, number) for name, part, number in pairs}


def evaluate(
    model: LanguageModel,
    store: TokenStore,
    tokenizer: Tokenizer,
    objective: Objective,
    compute: Compute,
    context: int,
    stride: int,
    report: Report = lambda stage, done, total: None,
) -> Perplexity:
    """The perplexity of the whole store.

    The text counts without the first token of a document, unless that is the mark of its beginning.
    report: told the tokens that are done and to do. Raises DataError when there is no token to predict.
    """
    longest = objective.window(context)
    wanted = spans(store, longest, min(stride, longest))
    n_bytes, n_words = int(np.sum(store.n_bytes)), int(np.sum(store.n_words))
    for number in range(store.n_documents):
        begin, _ = store.document(number)
        first = int(store.read(begin, begin + 1)[0])
        n_bytes -= len(tokenizer.decode([first]).encode()) if first != tokenizer.bos_id else 0
    if not wanted:
        raise DataError(f"the text has {len(store)} tokens, so there is none to predict", fix="give more text")
    nats, n_targets = _nats(model, store, wanted, compute, objective.collate_spans, objective.measure, report)
    if not n_targets:
        raise DataError(f"the text has {len(store)} tokens, but no {objective.unit} to predict", fix="give more text")
    return Perplexity(nats, n_targets, n_bytes, n_words, context, stride, objective.unit)


@torch.inference_mode()
def _nats(
    model: LanguageModel,
    store: TokenStore,
    wanted: Sequence[Span],
    compute: Compute,
    collate: Callable[[Sequence[tuple[NDArray[np.int64], int]]], Batch],
    score: Callable[[LanguageModel, Batch], Loss],
    report: Report = lambda stage, done, total: None,
) -> tuple[float, int]:
    """The sum of -log p over the targets of the spans, and their number."""
    was_training = model.training
    model.eval()
    total = torch.zeros(
        (), dtype=torch.float32 if compute.device.type == "mps" else torch.float64, device=compute.device
    )
    n_targets = torch.zeros((), dtype=torch.int64, device=compute.device)
    done, whole = 0, sum(span.n_scored for span in wanted)
    for group in _batches(wanted):
        rows = [(store.read(span.start, span.stop), span.first - span.start) for span in group]
        with compute.autocast():
            loss = score(model, collate(rows).to(compute.device))
        total += loss.total
        n_targets += loss.count
        done += sum(span.n_scored for span in group)
        report("measuring", done, whole)
    model.train(was_training)
    return float(total), int(n_targets)


def _batches(wanted: Sequence[Span]) -> Iterator[list[Span]]:
    """Spans of like length together, so that little is padding."""
    group: list[Span] = []
    for span in sorted(wanted, key=lambda span: span.stop - span.start):
        if group and (len(group) + 1) * (span.stop - span.start) > BATCH_TOKENS:
            yield group
            group = []
        group.append(span)
    if group:
        yield group
