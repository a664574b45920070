"""What all models have."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from lmtool.recipe.spec.base import Spec

Reads = Literal["past", "source", "both", "words"]
"""What the prediction at a position may depend on. "past": the tokens up to it. "source": these, and all of a source,
which for a prefix LM is the prefix. "both": all tokens of the row. "words": no order; a text is a bag of words, or a
window of them."""


class ModelSpec(Spec):
    """Base of all models."""

    counts: ClassVar[bool] = False
    """Whether it is estimated from counts, in one pass over the text, instead of by gradients."""

    kind: str
    vocab_size: PositiveInt | None = None
    """Rows of the embedding, without those of n-grams; the tokenizer's size by default. More than that leaves rows
    unused."""

    @property
    def title(self) -> str:
        """Name of the model in messages, such as "transformer decoder"."""
        return self.kind

    @property
    def activation_bytes(self) -> int:
        """Lower bound on the activation memory of a position in training, in bytes."""
        return 0

    @property
    def reads(self) -> Reads:
        """What a prediction depends on."""
        return "past"

    @property
    def longest_row(self) -> int | None:
        """Maximum tokens of a table row; None for no limit."""
        return None

    @property
    def shares_row(self) -> bool:
        """Whether source and target share one row."""
        return False

    @property
    def has_segments(self) -> bool:
        """Whether tokens have segment embeddings."""
        return False


class InitialEmbeddingsModelSpec(ModelSpec):
    """Base of models that can begin with given word vectors."""

    embeddings: str | None = None
    """Word vectors to begin with: a file in word2vec's text or binary format, GloVe's or fastText's .vec, or a run."""
    freeze_embeddings: bool = False
    """Keep the embeddings as they begin."""

    def mistakes(self) -> Iterator[str]:
        if self.freeze_embeddings and self.embeddings is None:
            yield "freeze_embeddings would keep random vectors; name others with embeddings"
