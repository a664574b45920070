"""What a language model is worth in the end: its bits per byte beside those of a 5-gram model of the same text.

Shapes: N scored tokens of a text, M of some windows, D model width.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE
from lmtool.compute.device import Compute
from lmtool.data.prepare import TokenizedData, tokenize_data
from lmtool.inference.perplexity import EvaluationWindows
from lmtool.model.language_model import CountingModel, LanguageModel, evaluating
from lmtool.model.ngram import NGramModel
from lmtool.objective.base import Objective
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.recipe.spec.words import NGram
from lmtool.training.windows import Windows

ORDER = 5

ROW = 1024
"""Tokens of a row in which the n-gram model is measured."""

ROWS = 16
"""Windows that are read at once."""

AT_ONCE = 1 << 18
"""Tokens that are counted at once."""

MOST_TOKENS = 20_000_000
"""Training tokens up to which the n-gram model is counted."""

ITERATIONS = 30
"""Of expectation maximisation for a weight."""

LEAST = 1e-6
"""Smallest weight of a model in an interpolation."""

SECONDS = 2e-6
"""Processor time for counting and measuring, per training token."""


@dataclass(frozen=True)
class TextResults:
    """Bits per byte of the best checkpoint on the validation text.

    loss: nats per token.
    ngram_bits_per_byte: of the 5-gram model; None where the text is too long for it.
    limit_bits_per_byte: of the best possible model, for a bundled text.
    interpolated_bits_per_byte: of both, interpolated; None where they read other tokens, in several processes, and for
        a text of one token.
    ngram_weight: of the 5-gram model in it.
    """

    step: int
    tokens: int
    loss: float
    bits_per_byte: float
    ngram_bits_per_byte: float | None
    limit_bits_per_byte: float | None
    interpolated_bits_per_byte: float | None = None
    ngram_weight: float | None = None

    def record(self) -> dict[str, object]:
        """All results by name, for JSON."""
        return {"part": "validation", **asdict(self)}

    def lines(self) -> list[str]:
        """All results as text lines."""
        ngram, limit = self.ngram_bits_per_byte, self.limit_bits_per_byte
        beside = "" if ngram is None else f"; a {ORDER}-gram model: {ngram:.3f}"
        if self.interpolated_bits_per_byte is not None and self.ngram_weight is not None:
            beside += f"; interpolated with it, weight {self.ngram_weight:.2f}: {self.interpolated_bits_per_byte:.3f}"
        beside += "" if limit is None else f"; the best possible model: {limit:.3f}"
        return [f"validation: {self.bits_per_byte:.3f} bits per byte (step {self.step}){beside}"]

    def warnings(self) -> list[str]:
        """A warning where the model is worse than counting."""
        if self.ngram_bits_per_byte is None or self.bits_per_byte < self.ngram_bits_per_byte:
            return []
        fix = "give more time (--minutes) or more text, or take recipe ngram"
        return [f"counting {ORDER}-grams predicts this text better; {fix}"]


def to_count(prepared: TokenizedData, seed: int) -> TokenizedData:
    """The text in tokens for an n-gram model: its own where they are pieces, or the characters of a list.

    Else pieces of its own, since five characters of running text are a short context.
    """
    kind, data = prepared.tokenizer.kind, prepared.data
    if kind == "bpe" or (kind == "char" and data.documents == "line"):
        return prepared
    return tokenize_data(data, BpeTokenizer(), seed=seed)


def counted(windows: Windows, n_entries: int) -> NGramModel:
    """The n-gram model of a text. n_entries: of its vocabulary."""
    model = NGramModel(NGram(kind="ngram", order=ORDER, context=ROW), n_entries)
    n = windows.n_tokens
    model.count((windows.in_order(a, min(n, a + AT_ONCE), model.width) for a in range(0, n, AT_ONCE)), n)
    return model


@torch.inference_mode()
def log_probabilities(
    model: LanguageModel, text: EvaluationWindows, objective: Objective, compute: Compute
) -> NDArray[np.float64]:
    """log p of the scored tokens of all windows (N,), in their order."""
    parts = []
    with evaluating(model), compute.autocast():
        for first in range(0, len(text.windows), ROWS):
            windows = text.windows[first : first + ROWS]
            rows = [(text.store.read(span.start, span.stop), span.first_scored - span.start) for span in windows]
            batch = objective.collate_spans(rows).to(compute.device)
            scored_BT = batch.required_targets_BT != IGNORE
            hidden_MD, target_M = model(batch).hidden_BTD[scored_BT], batch.required_targets_BT[scored_BT]
            if isinstance(model, CountingModel):
                log_p_M = model.log_p(hidden_MD, target_M)
            else:
                log_p_M = model.logits(hidden_MD).float().log_softmax(-1).gather(1, target_M[:, None])[:, 0]
            parts.append(log_p_M.double().cpu().numpy())
    return np.concatenate(parts)


def interpolated(model_N: NDArray[np.float64], ngram_N: NDArray[np.float64]) -> tuple[float, float]:
    """Nats per token of p = (1 - w) p_model + w p_ngram (Jelinek and Mercer 1980), and the mean w.

    model_N, ngram_N: log p of the same tokens. w is the maximum likelihood estimate on the other half of the tokens.
    """
    halves = [slice(0, len(model_N) // 2), slice(len(model_N) // 2, None)]
    nats, weights = 0.0, []
    for learnt, measured in zip(halves, halves[::-1], strict=True):
        weight = 0.5
        for _ in range(ITERATIONS):
            ngram = math.log(weight) + ngram_N[learnt]
            weight = float(np.exp(ngram - np.logaddexp(ngram, math.log1p(-weight) + model_N[learnt])).mean())
            weight = min(max(weight, LEAST), 1 - LEAST)
        nats -= float(np.logaddexp(math.log(weight) + ngram_N[measured], math.log1p(-weight) + model_N[measured]).sum())
        weights.append(weight)
    return nats / len(model_N), sum(weights) / 2
