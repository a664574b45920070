"""Comparison of a language model with a 5-gram model of the same text, in bits per byte.

Shapes: N scored tokens of a text, M of some windows, D model width.
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE
from lmtool.compute.device import ExecutionContext
from lmtool.evaluation.perplexity import EvaluationWindows
from lmtool.model.interpolation import NGramInterpolation
from lmtool.model.language_model import CountingModel, LanguageModel, evaluation_mode
from lmtool.model.ngram import NGramModel
from lmtool.objective.base import Objective
from lmtool.recipe.spec.words import NGram
from lmtool.training.windows import Windows

ORDER = 5

NGRAM_WINDOW = 1024
"""Tokens of a window in which the n-gram model is evaluated."""

WINDOWS_PER_BATCH = 16

COUNTED_SPAN_TOKENS = 1 << 18

MAX_COUNTED_TOKENS = 20_000_000
"""Maximum training tokens that the n-gram model counts."""

EM_ITERATIONS = 30
"""Iterations of expectation maximisation of an interpolation weight."""

MIN_WEIGHT = 1e-6
"""Minimum weight of a model in an interpolation."""

MIN_INTERPOLATION_GAIN = 0.01
"""Minimum share of the bits that an interpolation has to save for a run to keep the n-gram model."""

MAX_KEPT_NGRAMS = 2_000_000
"""Maximum distinct n-grams that a run keeps: 56 MB, which take seconds to load."""

COUNTING_SECONDS_PER_TOKEN = 2e-6
"""Processor time for counting and evaluating, per training token."""


@dataclass(frozen=True)
class BitsPerByteResults:
    """Bits per byte of the best checkpoint on the validation text.

    loss: nats per token.
    ngram_bits_per_byte: of the 5-gram model; None if the text is too long for it.
    limit_bits_per_byte: of the best possible model, for a bundled text.
    interpolated_bits_per_byte: of both models interpolated; None if they read different tokens, in several processes,
        and for a text of one token.
    ngram_weight: weight of the 5-gram model in the interpolation.
    interpolation: both models, if the run is to keep the 5-gram model.
    """

    step: int
    tokens: int
    loss: float
    bits_per_byte: float
    ngram_bits_per_byte: float | None
    limit_bits_per_byte: float | None
    interpolated_bits_per_byte: float | None = None
    ngram_weight: float | None = None
    interpolation: NGramInterpolation | None = None

    def to_record(self) -> dict[str, object]:
        """Returns all results by name, for JSON."""
        figures = (field.name for field in fields(self) if field.name != "interpolation")
        return {"part": "validation", **{name: getattr(self, name) for name in figures}}

    def lines(self) -> list[str]:
        """Returns all results as lines of text."""
        ngram, limit = self.ngram_bits_per_byte, self.limit_bits_per_byte
        others = "" if ngram is None else f"; a {ORDER}-gram model: {ngram:.3f}"
        if self.interpolated_bits_per_byte is not None and self.ngram_weight is not None:
            others += f"; interpolated with it, weight {self.ngram_weight:.2f}: {self.interpolated_bits_per_byte:.3f}"
            others += " (in generate, eval and serve)" if self.interpolation else ""
        others += "" if limit is None else f"; the best possible model: {limit:.3f}"
        return [f"validation: {self.bits_per_byte:.3f} bits per byte (step {self.step}){others}"]

    def warnings_if_worse_than_ngrams(self) -> list[str]:
        """Returns warnings if the model is worse than counting."""
        if self.ngram_bits_per_byte is None or self.bits_per_byte < self.ngram_bits_per_byte:
            return []
        fix = "give more time (--minutes) or more text, or take recipe ngram"
        return [f"counting {ORDER}-grams predicts this text better; {fix}"]


def fit_ngram_model(windows: Windows, vocab_size: int) -> NGramModel:
    """Returns the n-gram model of a text."""
    model = NGramModel(NGram(kind="ngram", order=ORDER, context=NGRAM_WINDOW), vocab_size)
    n = windows.n_tokens
    model.partial_fit_(
        (
            windows.read_span(a, min(n, a + COUNTED_SPAN_TOKENS), model.n_context_tokens)
            for a in range(0, n, COUNTED_SPAN_TOKENS)
        ),
        n,
    )
    return model


@torch.inference_mode()
def compute_log_probabilities(
    model: LanguageModel, text: EvaluationWindows, objective: Objective, compute: ExecutionContext
) -> NDArray[np.float64]:
    """Returns log p of the scored tokens of all windows (N,), in their order."""
    parts = []
    with evaluation_mode(model), compute.autocast():
        for first in range(0, len(text.windows), WINDOWS_PER_BATCH):
            windows = text.windows[first : first + WINDOWS_PER_BATCH]
            rows = [(text.store.read(span.start, span.stop), span.first_scored - span.start) for span in windows]
            batch = objective.collate_for_scoring(rows).to(compute.device)
            scored_BT = batch.required_targets_BT != IGNORE
            hidden_MD, target_M = model(batch).hidden_BTD[scored_BT], batch.required_targets_BT[scored_BT]
            if isinstance(model, CountingModel):
                log_p_M = model.token_log_probs(hidden_MD, target_M)
            else:
                log_p_M = model.logits(hidden_MD).float().log_softmax(-1).gather(1, target_M[:, None])[:, 0]
            parts.append(log_p_M.double().cpu().numpy())
    return np.concatenate(parts)


class LossWithNGramWeight(NamedTuple):
    """The loss of an interpolation, and the mean weight of the n-gram model in it."""

    nats_per_token: float
    ngram_weight: float


def cross_fit_ngram_weight(
    model_log_p_N: NDArray[np.float64], ngram_log_p_N: NDArray[np.float64]
) -> LossWithNGramWeight:
    """Fits the weight w of p = (1 - w) p_model + w p_ngram (Jelinek and Mercer 1980), and returns the loss of p.

    model_log_p_N, ngram_log_p_N: of the same tokens. On each half of the tokens w is the estimate by maximum likelihood
    of the other half.
    """
    halves = [slice(0, len(model_log_p_N) // 2), slice(len(model_log_p_N) // 2, None)]
    nats, weights = 0.0, []
    for estimated_on, scored_on in zip(halves, halves[::-1], strict=True):
        weight = 0.5
        for _ in range(EM_ITERATIONS):
            ngram = math.log(weight) + ngram_log_p_N[estimated_on]
            weight = float(
                np.exp(ngram - np.logaddexp(ngram, math.log1p(-weight) + model_log_p_N[estimated_on])).mean()
            )
            weight = min(max(weight, MIN_WEIGHT), 1 - MIN_WEIGHT)
        nats -= float(
            np.logaddexp(
                math.log(weight) + ngram_log_p_N[scored_on], math.log1p(-weight) + model_log_p_N[scored_on]
            ).sum()
        )
        weights.append(weight)
    return LossWithNGramWeight(nats / len(model_log_p_N), sum(weights) / 2)
