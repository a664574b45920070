"""What all models have."""

from typing import ClassVar, Literal

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


def vector_mistakes(embeddings: str | None, freeze_embeddings: bool) -> list[str]:
    """Settings of a model's word vectors that have no effect or no sense."""
    if freeze_embeddings and embeddings is None:
        return ["freeze_embeddings would keep random vectors; name others with embeddings"]
    return []
