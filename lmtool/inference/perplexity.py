"""Perplexity of a model on a text: sliding windows over each document, summed over all of them.

`measure` implements `eval`: from a run and files to a perplexity.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import Compute, InferenceName, choose_compute
from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.prepare import count_predicted, tokenize_files
from lmtool.data.store import TokenStore
from lmtool.data.survey import Progress
from lmtool.errors import DataError, UsageError
from lmtool.inference.evaluation import Items, Validation, evaluate, not_reported
from lmtool.inference.load import LoadedModel, load_packed
from lmtool.model import LanguageModel, NGramModel
from lmtool.objective import Loss, Objective
from lmtool.printable import counted
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.text import Data
from lmtool.records import finite
from lmtool.run.order import derive_seed, permute
from lmtool.tokenization.tokenizer import Tokenizer

Spans = Sequence[tuple[NDArray[np.int64], int]]
"""Tokens of a row, and the index of the first scored one; those before it are context."""


@dataclass(frozen=True)
class Span:
    """A window of the store, and its first scored token."""

    start: int
    stop: int
    first: int

    @property
    def n_scored(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a model on a text.

    nats: sum over the scored tokens of -log p(token | tokens before it).
    n_bytes, n_words: of their text.
    unit: "pair" where pairs of words are scored, so that only the loss is meaningful.
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
        """Per whitespace-separated word, to compare tokenizers."""
        return _exp(self.nats / self.n_words) if self.n_words else math.nan

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan

    def record(self) -> dict[str, float | int | None]:
        """The JSON record; None for values that are not finite."""
        if self.unit == "pair":
            return {"loss": finite(self.loss), "pairs": self.tokens, "context": self.context}
        names = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "tokens", "context", "stride")
        return {name: finite(getattr(self, name)) for name in names}


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def spans(store: TokenStore, context: int, stride: int) -> list[Span]:
    """Windows that score every token of every document once, except its first, which has no context.

    The first window of a document scores all its tokens. Each later one starts `stride` tokens further and scores the
    new ones: with a stride below the context, every token but the first ones has at least context - stride before it.
    """
    windows = []
    for number in range(store.n_documents):
        begin, end = store.document_range(number)
        start, first = begin, begin + 1
        while first < end:
            stop = min(end, start + context + 1)
            windows.append(Span(start, stop, first))
            start, first = start + stride, stop
    return windows


@dataclass(frozen=True)
class HeldOut:
    """Windows of a text on which a model is evaluated; for validation a fixed sample of them."""

    store: TokenStore
    spans: Sequence[Span]

    @classmethod
    def of(cls, store: TokenStore, context: int, tokens: int | None, seed: int) -> Self:
        """The sample of a seed, with about so many scored tokens; all for None. context: of the model, in tokens."""
        every = spans(store, context, context)
        if tokens is None:
            return cls(store, every)
        chosen, scored = [], 0
        for index in permute(np.arange(len(every)), len(every), derive_seed(seed, "validation")):
            if scored >= tokens:
                break
            chosen.append(every[index])
            scored += every[index].n_scored
        return cls(store, sorted(chosen, key=lambda span: span.start))

    def validate(self, model: LanguageModel, objective: Objective, compute: Compute) -> Validation:
        """Nats per target, without label smoothing, and the objective's metrics, by all processes together."""
        items = self.items(model, objective.collate_validation, objective.score, compute, objective.metrics)
        evaluated = evaluate(model, items, compute)
        return Validation(evaluated.loss, evaluated.metrics)

    def items(
        self,
        model: LanguageModel,
        collate: Callable[[Spans], Batch],
        score: Callable[[LanguageModel, Batch], Loss],
        compute: Compute,
        metrics: Sequence[str] = (),
    ) -> Items:
        """The windows, batched by `collate` and scored by `score`, with these metrics."""

        def read(indices: list[int]) -> tuple[Loss, Sequence[NDArray[np.int64]]]:
            group = [self.spans[i] for i in indices]
            rows = [(self.store.read(span.start, span.stop), span.first - span.start) for span in group]
            return score(model, collate(rows).to(compute.device)), ()

        return Items([(span.stop - span.start,) for span in self.spans], read, metrics)


@dataclass(frozen=True)
class TokenizedText:
    """A text, in windows of `context` tokens that begin `stride` tokens apart."""

    store: TokenStore
    tokenizer: Tokenizer
    context: int
    stride: int

    def perplexity(
        self, model: LanguageModel, objective: Objective, compute: Compute, report: Progress = not_reported
    ) -> Perplexity:
        """The perplexity of the whole text, computed by all processes together.

        Bytes and words exclude the first token of a document, unless that is [BOS].
        report: called with the tokens done and in total. Raises DataError when there is no token to predict.
        """
        longest, n_tokens = objective.window(self.context), len(self.store)
        windows = HeldOut(self.store, spans(self.store, longest, min(self.stride, longest)))
        n_bytes, n_words = count_predicted(self.store, self.tokenizer)[0], int(np.sum(self.store.n_words))
        if not windows.spans:
            raise DataError(
                f"the text has {counted(n_tokens, 'token')}, so there is none to predict", fix="give more text"
            )
        items = windows.items(model, objective.collate_spans, objective.measure, compute)
        items = replace(items, one_pass=objective.measures_in_one_pass)
        evaluated = evaluate(model, items, compute, report)
        count, unit = evaluated.count, objective.unit
        if not count:
            size = counted(n_tokens, "token")
            raise DataError(f"the text has {size}, but no {unit} to predict", fix="give more text")
        return Perplexity(evaluated.total, count, n_bytes, n_words, self.context, self.stride, unit)

    def unseen(self, model: NGramModel, objective: Objective, compute: Compute, report: Progress) -> int:
        """How many of the scored n-grams a model of counts never counted."""
        windows = HeldOut(self.store, spans(self.store, self.context, self.stride))
        items = windows.items(model, objective.collate_spans, _unseen, compute)
        return round(evaluate(model, items, compute, report).total)


@dataclass(frozen=True)
class Measured:
    """The perplexity of a text, and the evaluated model.

    limit: bits per byte of the best possible model, for a bundled text of known entropy.
    unseen: of a model of counts, how many of the scored n-grams were never counted.
    baseline: the same of another run, if one is given.
    """

    perplexity: Perplexity
    loaded: LoadedModel
    limit: float | None
    unseen: int | None = None
    baseline: "Measured | None" = None

    def record(self) -> dict[str, object]:
        """The JSON record."""
        record: dict[str, object] = dict(self.perplexity.record())
        if self.perplexity.unit == "token":
            record["limit_bits_per_byte"] = self.limit
        if self.unseen is not None:
            record["unseen_ngrams"] = self.unseen
        if self.baseline is not None:
            record["baseline"] = self.baseline.perplexity.record()
        return record

    def lines(self) -> list[str]:
        """All results as text lines."""
        text = self.perplexity
        if text.unit == "pair":
            return [f"loss             {text.loss:.4f} nats per pair", f"pairs            {text.tokens:,}"]
        words = f"{text.word_perplexity:.6g} per word" if text.n_words else "no words"
        limit = "" if self.limit is None else f"; the best possible model: {self.limit:.4f}"
        lines = [
            f"loss             {text.loss:.4f} nats per token",
            f"perplexity       {text.perplexity:.6g} per token, {words}",
            f"bits per byte    {text.bits_per_byte:.4f}{limit}",
        ]
        if self.unseen is not None:
            zero = "; some of them have probability 0" if math.isinf(text.loss) else ""
            lines.append(f"unseen n-grams   {self.unseen:,} of {text.tokens:,}{zero}")
        if self.baseline is not None:
            other = self.baseline.loaded
            name = f"{other.run_path.name}, {other.recipe.model.kind}"
            lines.append(f"baseline         {self.baseline.perplexity.bits_per_byte:.4f} bits per byte ({name})")
        return [
            *lines,
            f"tokens           {text.tokens:,} in {text.n_bytes:,} bytes",
            f"context, stride  {text.context}, {text.stride}",
        ]


@dataclass(frozen=True)
class EvaluationText:
    """A text that a model is evaluated on, and its windows.

    sources: files, or data sets.
    column: of the text in tables; that of the training text by default.
    context, stride: tokens; by default the model's context, and the same stride, so that windows do not overlap. A
        context may be as long as the model's positions, which are unbounded unless they are learned.
    """

    sources: Sequence[str]
    column: str | None = None
    context: int | None = None
    stride: int | None = None


def measure(
    reference: str,
    text: EvaluationText,
    *,
    baseline: str | None = None,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    report: Progress = not_reported,
) -> Measured:
    """Perplexity of a text under a run, computed by all processes together.

    baseline: another run to compare with, in windows of its own context.
    report: called with the progress.
    Raises UsageError when the stride is longer than the context, when the context is longer than the model's positions,
    and when a run that predicts pairs of words is to be compared.
    """
    with choose_compute(device, precision).joined() as compute:
        loaded = load_packed(reference, compute)
        measured = _measure(loaded, text, report)
        if baseline is None:
            return measured
        other = load_packed(baseline, compute)
        if "pair" in (loaded.objective.unit, other.objective.unit):
            raise UsageError("pairs of words cannot be compared with tokens", fix="omit --baseline")
        return replace(measured, baseline=_measure(other, replace(text, context=None, stride=None), report))


def _measure(loaded: LoadedModel, text: EvaluationText, report: Progress) -> Measured:
    loaded.check_likelihood()
    lm, objective, data = loaded.model, loaded.objective, loaded.recipe.data
    context = text.context or lm.context or loaded.recipe.model.context
    stride = text.stride or context
    if lm.longest is not None and context > lm.longest:
        what = f"a context of {context} is longer than the model's, which has {lm.longest} learned positions"
        raise UsageError(what, fix=f"use {lm.longest} or less")
    if stride > context:
        raise UsageError(f"a stride of {stride} skips tokens", fix=f"use at most the context, {context}")
    if text.column is not None:
        data = data.with_values({"column": text.column})
    store = loaded.compute.world.main_first(lambda: tokenize_files(text.sources, data, loaded.tokenizer, report))
    tokenized = TokenizedText(store, loaded.tokenizer, context, stride)
    with loaded.computing() as compute:
        result = tokenized.perplexity(lm, objective, compute, report)
    unseen = tokenized.unseen(lm, objective, loaded.compute, report) if isinstance(lm, NGramModel) else None
    return Measured(result, loaded, limit(text.sources, data), unseen)


def _unseen(model: LanguageModel, batch: Batch) -> Loss:
    """The number of targets that a model of counts never counted after their contexts."""
    assert isinstance(model, NGramModel)
    targets_BT = batch.known_targets_BT
    is_scored_BT = targets_BT != IGNORE
    counted = model.counted(model(batch).hidden_BTD[is_scored_BT], targets_BT[is_scored_BT])
    return Loss((~counted).sum(), is_scored_BT.sum())


def limit(sources: Sequence[str], data: Data) -> float | None:
    """The limit of bundled texts in bits per byte, for models of documents, which also predict their ends."""
    if data.split != "document" or any(source.startswith(HUB_PREFIX) for source in sources):
        return None
    return bundled.entropy_bound([file for source in sources for file in find_files(source)])
