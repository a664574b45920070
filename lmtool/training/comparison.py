"""What a language model is worth in the end: its bits per byte beside those of a 5-gram model of the same text."""

from dataclasses import asdict, dataclass

from lmtool.data.prepare import Prepared, prepare
from lmtool.model.ngram import NGramModel
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.recipe.spec.words import NGram
from lmtool.training.windows import Windows

ORDER = 5

ROW = 1024
"""Tokens of a row in which the n-gram model is measured."""

AT_ONCE = 1 << 18
"""Tokens that are counted at once."""

MOST_TOKENS = 20_000_000
"""Training tokens up to which the n-gram model is counted."""

SECONDS = 2e-6
"""Processor time for counting and measuring, per training token."""


@dataclass(frozen=True)
class TextResults:
    """Bits per byte of the best checkpoint on the validation text.

    loss: nats per token.
    ngram_bits_per_byte: of the 5-gram model; None where the text is too long for it.
    limit_bits_per_byte: of the best possible model, for a bundled text.
    """

    step: int
    tokens: int
    loss: float
    bits_per_byte: float
    ngram_bits_per_byte: float | None
    limit_bits_per_byte: float | None

    def record(self) -> dict[str, object]:
        """All results by name, for JSON."""
        return {"part": "validation", **asdict(self)}

    def lines(self) -> list[str]:
        """All results as text lines; a model that is worse than counting is told so."""
        ngram, limit = self.ngram_bits_per_byte, self.limit_bits_per_byte
        beside = "" if ngram is None else f"; a {ORDER}-gram model: {ngram:.3f}"
        beside += "" if limit is None else f"; the best possible model: {limit:.3f}"
        lines = [f"validation: {self.bits_per_byte:.3f} bits per byte (step {self.step}){beside}"]
        if ngram is not None and self.bits_per_byte >= ngram:
            lines.append(
                f"warning: counting {ORDER}-grams predicts this text better; give more time (--minutes) or more text, "
                "or take recipe ngram"
            )
        return lines


def to_count(prepared: Prepared, seed: int) -> Prepared:
    """The text in tokens for an n-gram model: its own where they are pieces, or the characters of a list.

    Else pieces of its own, since five characters of running text are a short context.
    """
    kind, data = prepared.tokenizer.kind, prepared.data
    if kind == "bpe" or (kind == "char" and data.documents == "line"):
        return prepared
    return prepare(data, BpeTokenizer(), seed=seed)


def counted(windows: Windows, n_entries: int) -> NGramModel:
    """The n-gram model of a text. n_entries: of its vocabulary."""
    model = NGramModel(NGram(kind="ngram", order=ORDER, context=ROW), n_entries)
    n = windows.n_tokens
    model.count((windows.in_order(a, min(n, a + AT_ONCE), model.width) for a in range(0, n, AT_ONCE)), n)
    return model
