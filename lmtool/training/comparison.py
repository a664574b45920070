"""What a language model is worth in the end: its bits per byte beside those of a 5-gram model of the same text."""

from dataclasses import dataclass

from lmtool.compute.device import resolve
from lmtool.inference.perplexity import perplexity
from lmtool.model.ngram import NGramModel
from lmtool.objective import build_objective
from lmtool.recipe.spec import BpeTokenizer, Causal, NGram, Recipe
from lmtool.text.prepare import Prepared, default_cache, prepare
from lmtool.training.windows import Windows

ORDER = 5

ROW = 1024
"""Tokens of a row in which the n-gram model is measured."""

AT_ONCE = 1 << 18
"""Tokens that are counted at once."""

MOST_TOKENS = 20_000_000
"""Training tokens up to which the n-gram model is counted."""

SECONDS = 8e-6
"""Processor time for counting and measuring, per training token."""


@dataclass(frozen=True)
class TextResults:
    """Bits per byte of the best checkpoint on the validation text.

    loss: nats per token. ngram: of the 5-gram model; None where the text is too long for it. limit: of the best
    possible model, for a bundled text.
    """

    step: int
    tokens: int
    loss: float
    bits_per_byte: float
    ngram: float | None
    limit: float | None

    def record(self) -> dict[str, object]:
        """All results by name, for JSON."""
        return {
            "part": "validation",
            "step": self.step,
            "tokens": self.tokens,
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "ngram_bits_per_byte": self.ngram,
            "limit_bits_per_byte": self.limit,
        }

    def lines(self) -> list[str]:
        """All results as text lines; a model that is worse than counting is told so."""
        limit = "" if self.limit is None else f"; the best possible model: {self.limit:.3f}"
        ngram = "" if self.ngram is None else f"; a {ORDER}-gram model: {self.ngram:.3f}"
        lines = [f"validation: {self.bits_per_byte:.3f} bits per byte (step {self.step}){ngram}{limit}"]
        if self.ngram is not None and self.bits_per_byte >= self.ngram:
            lines.append(
                f"warning: counting {ORDER}-grams predicts this text better; give more time (--minutes) or more text, "
                "or take recipe ngram"
            )
        return lines


def ngram_bits(recipe: Recipe, prepared: Prepared) -> float | None:
    """Bits per byte of a 5-gram model of the training text on the validation text; None for very long texts.

    Its tokens are those of `prepared` where they are pieces, or the characters of a list; else pieces of its own, since
    five characters of running text are a short context.
    """
    kind, data = prepared.tokenizer.kind, prepared.data
    if kind != "bpe" and not (kind == "char" and data.documents == "line"):
        prepared = prepare(data, BpeTokenizer(), cache=default_cache(), seed=recipe.seed)
    train, tokenizer = prepared.train, prepared.tokenizer
    if len(train) > MOST_TOKENS:
        return None
    objective = build_objective(recipe.model_copy(update={"objective": Causal()}), tokenizer)
    model = NGramModel(NGram(kind="ngram", order=ORDER, context=ROW), tokenizer.embedding_rows(None))
    windows = Windows(train, objective.cut(min(ROW, len(train) - 1)), recipe.seed)
    starts = range(0, len(train), AT_ONCE)
    model.count((windows.in_order(a, min(len(train), a + AT_ONCE), model.width) for a in starts), len(train))
    compute = resolve("cpu", "float32")
    return perplexity(model, prepared.valid, tokenizer, objective, compute, ROW, ROW).bits_per_byte
