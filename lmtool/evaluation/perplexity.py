"""Perplexity of a model on a text: sliding windows over each document, summed over all of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import ExecutionContext, InferenceName, configure_compute
from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.order import derive_seed, permute
from lmtool.data.prepare import count_predicted_bytes_and_tokens, tokenize_files
from lmtool.data.store import TokenStore
from lmtool.data.survey import Progress, no_progress
from lmtool.errors import DataError, UsageError
from lmtool.evaluation.loop import EvaluationOutput, ValidationResult, evaluate_items
from lmtool.interop.resolve import resolve_reference
from lmtool.model import LanguageModel, NGramModel
from lmtool.objective import Loss, Objective
from lmtool.objective.cross_entropy import rows_per_chunk
from lmtool.printable import format_count
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel, load_packed_for_inference
from lmtool.storage.records import replace_nonfinite
from lmtool.tokenization.tokenizer import Tokenizer

RowsToScore = Sequence[tuple[NDArray[np.int64], int]]
"""Tokens of a row, and the index of the first scored one; those before it are context."""


MODEL_ALONE = "model-alone"
"""Metric of a model that is interpolated with an n-gram model: its own loss."""


class TokenWindow(NamedTuple):
    """Tokens `start` to `stop` of a store, of which those from `first_scored` on are scored."""

    start: int
    stop: int
    first_scored: int

    @property
    def n_scored(self) -> int:
        return self.stop - self.first_scored


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a model on a text.

    nats: sum over the scored tokens of -log p(token | tokens before it).
    tokens: number of scored tokens, or pairs. n_bytes, n_words: of their text.
    unit: "pair" if pairs of words are scored, so that only the loss is meaningful.
    model_nats: `nats` of the model alone, if it is interpolated with an n-gram model.
    """

    nats: float
    tokens: int
    n_bytes: int
    n_words: int
    context: int
    stride: int
    unit: Literal["token", "pair", "row"] = "token"
    model_nats: float | None = None

    @property
    def loss(self) -> float:
        """Nats per token, or per pair."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return _exp_or_inf(self.loss)

    @property
    def word_perplexity(self) -> float:
        """Perplexity per whitespace-separated word, to compare tokenizers."""
        return _exp_or_inf(self.nats / self.n_words) if self.n_words else math.nan

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan

    @property
    def model_alone(self) -> Self | None:
        """The perplexity of the model alone, if it is interpolated with an n-gram model."""
        return None if self.model_nats is None else replace(self, nats=self.model_nats, model_nats=None)

    def to_record(self) -> dict[str, float | int | None]:
        """Returns the JSON record; None for values that are not finite."""
        if self.unit == "pair":
            return {"loss": replace_nonfinite(self.loss), "pairs": self.tokens, "context": self.context}
        names = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "tokens", "context", "stride")
        record = {name: replace_nonfinite(getattr(self, name)) for name in names}
        if (alone := self.model_alone) is not None:
            record["model_bits_per_byte"] = replace_nonfinite(alone.bits_per_byte)
        return record


def _exp_or_inf(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def sliding_windows(store: TokenStore, context: int, stride: int) -> list[TokenWindow]:
    """Returns windows that score every token of every document once, except its first, which has no context.

    The first window of a document scores all its tokens. Each later one starts `stride` tokens further and scores the
    new ones: with a stride below the context, every token but the first ones has at least context - stride before it.
    """
    windows = []
    for number in range(store.n_documents):
        begin, end = store.document_range(number)
        start, first_scored = begin, begin + 1
        while first_scored < end:
            stop = min(end, start + context + 1)
            windows.append(TokenWindow(start, stop, first_scored))
            start, first_scored = start + stride, stop
    return windows


@dataclass(frozen=True)
class EvaluationWindows:
    """Windows of a text on which a model is evaluated."""

    store: TokenStore
    windows: Sequence[TokenWindow]

    @classmethod
    def sample(cls, store: TokenStore, context: int, n_tokens: int | None, seed: int) -> Self:
        """Samples windows that do not overlap, with about `n_tokens` scored tokens; None for all windows."""
        every = sliding_windows(store, context, context)
        if n_tokens is None:
            return cls(store, every)
        chosen, n_scored = [], 0
        for index in permute(np.arange(len(every)), len(every), derive_seed(seed, "validation")):
            if n_scored >= n_tokens:
                break
            chosen.append(every[index])
            n_scored += every[index].n_scored
        return cls(store, sorted(chosen))

    def validate(self, model: LanguageModel, objective: Objective, compute: ExecutionContext) -> ValidationResult:
        """Returns nats per target, without label smoothing, and the objective's metrics, over all processes."""
        metrics = objective.metric_names
        sums = self.evaluate(model, objective.collate_validation, objective.score, compute, metrics=metrics)
        return ValidationResult(sums.loss, sums.metrics)

    def evaluate(
        self,
        model: LanguageModel,
        collate: Callable[[RowsToScore], Batch],
        score: Callable[[LanguageModel, Batch], Loss],
        compute: ExecutionContext,
        report: Progress = no_progress,
        *,
        metrics: Sequence[str] = (),
        one_pass_per_row: bool = True,
    ) -> EvaluationOutput:
        """Evaluates the windows, batched by `collate` and scored by `score`; see `evaluate_items`."""

        def read(indices: list[int]) -> tuple[Loss, Sequence[NDArray[np.int64]]]:
            group = [self.windows[i] for i in indices]
            rows = [(self.store.read(one.start, one.stop), one.first_scored - one.start) for one in group]
            return score(model, collate(rows).to(compute.device)), ()

        lengths = [(window.stop - window.start,) for window in self.windows]
        return evaluate_items(model, lengths, read, compute, report, metrics=metrics, one_pass_per_row=one_pass_per_row)


def compute_perplexity(
    model: LanguageModel,
    objective: Objective,
    store: TokenStore,
    tokenizer: Tokenizer,
    compute: ExecutionContext,
    report: Progress = no_progress,
    *,
    context: int,
    stride: int,
) -> Perplexity:
    """Computes the perplexity of a whole text, by all processes together.

    Bytes and words exclude the first token of a document, unless that is [BOS].
    report: called with the tokens done and in total. Raises DataError if there is no token to predict.
    """
    longest, size = objective.max_scored_tokens(context), format_count(len(store), "token")
    windows = EvaluationWindows(store, sliding_windows(store, longest, min(stride, longest)))
    n_bytes, n_words = count_predicted_bytes_and_tokens(store, tokenizer)[0], int(np.sum(store.n_words))
    if not windows.windows:
        raise DataError(f"the text has {size}, so there is none to predict", fix="give more text")
    score = objective.score_text if model.interpolation is None else _score_interpolated_and_alone
    metrics = () if model.interpolation is None else (MODEL_ALONE,)
    one_pass = objective.scores_text_in_one_pass
    collate = objective.collate_for_scoring
    sums = windows.evaluate(model, collate, score, compute, report, metrics=metrics, one_pass_per_row=one_pass)
    if not sums.count:
        raise DataError(f"the text has {size}, but no {objective.unit} to predict", fix="give more text")
    alone = sums.metrics.get(MODEL_ALONE)
    model_nats = None if alone is None else alone * sums.count
    return Perplexity(sums.total, sums.count, n_bytes, n_words, context, stride, objective.unit, model_nats)


def _score_interpolated_and_alone(model: LanguageModel, batch: Batch) -> Loss:
    """Returns the loss of a model that is interpolated with an n-gram model, and that of the model alone."""
    assert model.interpolation is not None
    targets_BT = batch.required_targets_BT
    is_scored_BT = targets_BT != IGNORE
    hidden_ND, target_N1 = model(batch).hidden_BTD[is_scored_BT], targets_BT[is_scored_BT][:, None]
    n_rows = rows_per_chunk(hidden_ND.device, model.vocab_size)
    pairs = zip(torch.split(hidden_ND, n_rows), torch.split(target_N1, n_rows), strict=True)
    parts = [model.logits(rows_ND).float().log_softmax(-1).gather(1, of_rows_N1) for rows_ND, of_rows_N1 in pairs]
    logprobs_N = torch.cat(parts)[:, 0]
    mixed_N = model.interpolation.interpolate_target_log_probs(logprobs_N, batch, is_scored_BT)
    return Loss(-mixed_N.sum(), is_scored_BT.sum(), {MODEL_ALONE: (-logprobs_N.sum(), len(logprobs_N))})


@dataclass(frozen=True)
class PerplexityResult:
    """The perplexity of a text under a model.

    limit: bits per byte of the best possible model, for a bundled text of known entropy.
    unseen: for a model of counts, how many of the scored n-grams were never counted.
    baseline: the result of another run, if requested.
    """

    perplexity: Perplexity
    loaded: LoadedModel
    limit: float | None
    unseen: int | None = None
    baseline: "PerplexityResult | None" = None

    def to_record(self) -> dict[str, object]:
        """Returns the JSON record."""
        record: dict[str, object] = dict(self.perplexity.to_record())
        if self.perplexity.unit == "token":
            record["limit_bits_per_byte"] = self.limit
        if self.unseen is not None:
            record["unseen_ngrams"] = self.unseen
        if self.baseline is not None:
            record["baseline"] = self.baseline.perplexity.to_record()
        return record

    def lines(self) -> list[str]:
        """Returns all results as text lines."""
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
        if (alone := text.model_alone) is not None and (interpolation := self.loaded.model.interpolation) is not None:
            lines.append(f"model alone      {alone.bits_per_byte:.4f}; above it is {interpolation.describe()}")
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


def measure_perplexity(
    reference: str,
    sources: Sequence[str],
    *,
    column: str | None = None,
    context: int | None = None,
    stride: int | None = None,
    baseline: str | None = None,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    report: Progress = no_progress,
) -> PerplexityResult:
    """Measures the perplexity of a text under a run, by all processes together.

    Args:
        sources: files, or data sets.
        column: column of the text in tables; that of the training text by default.
        context, stride: tokens; by default the model's context, and the same stride, so that windows do not overlap. A
            context may be as long as the model's positions, which are unbounded unless they are learned.
        baseline: another run to compare with, in windows of its own context.
        report: called with the progress.

    Raises UsageError for a stride longer than the context, for a context longer than the model's positions, and for a
    baseline if either run predicts pairs of words.
    """

    def measure(loaded: LoadedModel, context: int | None, stride: int | None) -> PerplexityResult:
        loaded.check_has_likelihood()
        lm, objective, data = loaded.model, loaded.objective, loaded.recipe.data
        context = context or lm.context or loaded.recipe.model.context
        stride = stride or context
        if lm.max_positions is not None and context > lm.max_positions:
            what = f"a context of {context} is longer than the model's, which has {lm.max_positions} learned positions"
            raise UsageError(what, fix=f"use {lm.max_positions} or less")
        if stride > context:
            raise UsageError(f"a stride of {stride} skips tokens", fix=f"use at most the context, {context}")
        if column is not None:
            data = data.with_unvalidated_values({"column": column})
        store = loaded.compute.world.call_main_first(lambda: tokenize_files(sources, data, loaded.tokenizer, report))
        lengths = {"context": context, "stride": stride}
        with loaded.gather_weights_by_layer() as compute:
            perplexity = compute_perplexity(lm, objective, store, loaded.tokenizer, compute, report, **lengths)
        n_unseen = None
        if isinstance(lm, NGramModel):
            windows = EvaluationWindows(store, sliding_windows(store, context, stride))
            collate = objective.collate_for_scoring
            n_unseen = round(windows.evaluate(lm, collate, _count_unseen_ngrams, loaded.compute, report).total)
        return PerplexityResult(perplexity, loaded, bundled_entropy_bits_per_byte(sources, data), n_unseen)

    with configure_compute(device, precision).join_process_group_once() as compute:
        loaded = load_packed_for_inference(resolve_reference(reference), compute)
        result = measure(loaded, context, stride)
        if baseline is None:
            return result
        other = load_packed_for_inference(resolve_reference(baseline), compute)
        if "pair" in (loaded.objective.unit, other.objective.unit):
            raise UsageError("pairs of words cannot be compared with tokens", fix="omit --baseline")
        return replace(result, baseline=measure(other, None, None))


def _count_unseen_ngrams(model: LanguageModel, batch: Batch) -> Loss:
    """Returns how many targets a model of counts never counted after their contexts."""
    assert isinstance(model, NGramModel)
    targets_BT = batch.required_targets_BT
    is_scored_BT = targets_BT != IGNORE
    counted = model.has_counted_targets(model(batch).hidden_BTD[is_scored_BT], targets_BT[is_scored_BT])
    return Loss((~counted).sum(), is_scored_BT.sum())


def bundled_entropy_bits_per_byte(sources: Sequence[str], data: Data) -> float | None:
    """Returns the entropy of bundled texts in bits per byte, for models that predict the ends of documents."""
    if data.split != "document" or any(source.startswith(HUB_PREFIX) for source in sources):
        return None
    return bundled.known_entropy_bits_per_byte([file for source in sources for file in find_files(source)])
