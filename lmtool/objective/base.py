"""What every objective is: how text is cut into examples, how examples become a batch, what the loss of a batch is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from lmtool.batch import Batch
from lmtool.model import LanguageModel


@dataclass(frozen=True)
class Cut:
    """How a token store divides into examples.

    unit: "stream" for windows of the whole text, wherever documents end; "pair" for windows inside one document,
        without its [BOS] and [EOS], cut in two parts, the second of which may be from another document.
    length: tokens of an example, or for pairs the most.
    step: tokens from the start of one window to the start of the next.
    """

    unit: Literal["stream", "pair"]
    length: int
    step: int


@dataclass(frozen=True)
class Example:
    """One stretch of text to learn from.

    tokens: int64 ids. rng: decides all that is random about this example, in this epoch; it follows from the recipe's
    seed and the number of the sample, so that no split of a batch changes it.
    label: for rows of a table, the number of the class, a 0 or 1 for each label, or a number; float64.
    segments: the text that each token belongs to, where rows hold several.
    other: for unit "pair", the second part; `follows` tells whether it follows the first in its document.
    """

    tokens: NDArray[np.int64]
    rng: np.random.Generator
    other: NDArray[np.int64] | None = None
    follows: bool = False
    label: NDArray[np.float64] | None = None
    segments: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Loss:
    """Sums over a batch, never means, so that any split of a batch adds up to the same.

    total: sum of the losses of all targets, to be minimised. count: number of targets, an int64 scalar on the device.
    metrics: of scores, what else is measured, by name: a sum, and the number of things that it is over.
    """

    total: Tensor
    count: Tensor
    metrics: Mapping[str, tuple[Tensor, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives treat in a special way.

    size: entries of the tokenizer. specials: ids below this one are special tokens, sentinels included.
    counts: how often each id stands in the training text; asked for by objectives that need it, else None.
    """

    size: int
    pad: int
    bos: int
    eos: int
    mask: int
    sep: int
    cls: int
    sentinels: tuple[int, ...]
    specials: int
    counts: NDArray[np.int64] | None = None


class Objective(ABC):
    """What a model learns, without anything that changes: the same for all steps and processes.

    unit: what a target is. metrics: names of what `score` measures besides.
    """

    unit: ClassVar[Literal["token", "pair", "row"]] = "token"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def cut(self, context: int) -> Cut:
        """How text is cut for a model that reads `context` positions."""

    def window(self, context: int) -> int:
        """How many tokens behind its first one a text may have that is measured at once in `context` positions."""
        return context

    @abstractmethod
    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """The batch of these examples; all corruption happens here. done: the share of the training that is over."""

    @abstractmethod
    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Rows of any length by which a text is measured.

        spans: tokens of a row, and the index of the first one that is scored; those before it are context.
        """

    def collate_validation(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Rows by which a model is judged while it trains, the same each time."""
        return self.collate_spans(spans)

    @abstractmethod
    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed loss of the batch's targets, to train on. Raises ValueError when it has none.

        An auxiliary loss of a row, if the model has any, counts as often as the row has targets.
        """

    @abstractmethod
    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed -log p of the batch's targets: without smoothing or auxiliary terms."""

    def count(self, batch: Batch) -> int:
        """How many things of a batch have a loss, as `loss` counts them, known before it is computed."""
        return batch.n_targets

    def idle(self, model: LanguageModel) -> list[Parameter]:
        """Parameters that no loss depends on, such as a head for another objective: they are not trained."""
        return []

    def measure(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed -log p of a text's targets, of rows from `collate_spans`."""
        return self.score(model, batch)
