"""The interface of objectives: how text is cut into examples, examples are collated, and the loss of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from lmtool.batch import Batch
from lmtool.model import LanguageModel
from lmtool.tokenization.tokenizer import Tokenizer


class Cut(NamedTuple):
    """How a token store is cut into examples.

    unit: "stream" for windows of the whole text, across document boundaries; "pair" for windows within one document,
        without its [BOS] and [EOS], split in two parts, the second of which may come from another document;
        "swapped pair" for the same, whose parts may be swapped instead.
    length: tokens per example; for pairs the maximum.
    step: tokens from the start of one window to the start of the next.
    """

    unit: Literal["stream", "pair", "swapped pair"]
    length: int
    step: int


@dataclass(frozen=True)
class Example:
    """One training example.

    tokens: int64 ids.
    rng: source of all randomness of this example in this epoch; seeded by the recipe's seed and the sample number, so
        that it does not depend on how a batch is split.
    label: for table rows, the class index, a 0 or 1 per label, a number, the tag of each word, or the positions of the
        first and the last token of an answer; float64.
    word_starts: the position of the first token of each word that is tagged.
    segments: segment id of each token, for rows of several texts.
    other: for units of pairs, the second part; `follows`: whether it follows the first in its document.
    learned: for unit "pair", which of `tokens` have a loss too, such as earlier answers; None for none.
    """

    tokens: NDArray[np.int64]
    rng: np.random.Generator
    other: NDArray[np.int64] | None = None
    follows: bool = False
    label: NDArray[np.float64] | None = None
    segments: NDArray[np.int64] | None = None
    learned: NDArray[np.bool_] | None = None
    word_starts: NDArray[np.int64] | None = None


def rng_of(tokens: NDArray[np.int64]) -> np.random.Generator:
    """A source of randomness that is the same for the same tokens."""
    return np.random.Generator(np.random.PCG64(tokens.astype(np.uint64)))


@dataclass(frozen=True)
class Loss:
    """Sums over a batch, never means, so that any split of a batch gives the same total.

    total: sum of the losses of all targets.
    count: number of targets, an int64 scalar on the device.
    metrics: further metrics in evaluation, by name: a sum, and its number of terms.
    """

    total: Tensor
    count: Tensor
    metrics: Mapping[str, tuple[Tensor, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary size and special token ids.

    size: entries of the tokenizer.
    bos, eos: start and end a document; where they are one token, it is between documents.
    starts: the tokens before a target.
    specials: the ids of special tokens, sentinels included.
    counts: count of each id in the training text, for objectives that need it, else None.
    joins_2V: what `Tokenizer.find_word_continuations` says, for objectives that need it, else None.
    """

    size: int
    pad: int
    bos: int
    eos: int
    mask: int
    sep: int
    cls: int
    starts: tuple[int, ...]
    sentinels: tuple[int, ...]
    specials: frozenset[int]
    counts: NDArray[np.int64] | None = None
    joins_2V: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, counts: NDArray[np.int64] | None) -> "Vocabulary":
        """That of a tokenizer."""
        ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id, tokenizer.sep_id)
        others = tokenizer.roles.starts, tokenizer.sentinel_ids, tokenizer.special_ids
        return cls(tokenizer.vocab_size, *ids, tokenizer.cls_id, *others, counts)

    @cached_property
    def is_word_V(self) -> NDArray[np.bool_]:
        """Whether each id is text, not a special token."""
        is_word_V = np.ones(self.size, dtype=bool)
        is_word_V[list(self.specials)] = False
        return is_word_V

    @property
    def start_of_text(self) -> int | None:
        """The token that starts a document and is never predicted; None where it also ends the one before."""
        return self.bos if self.bos != self.eos else None


class Objective(ABC):
    """A training objective; stateless, the same for all steps and processes.

    unit: what a model is trained on and measured in.
    metrics: names of further metrics of `score`.
    measures_in_one_pass: `measure` takes one pass through the model whatever the batch, as `score` always does.
    """

    unit: ClassVar[Literal["token", "pair"]] = "token"
    measures_in_one_pass: ClassVar[bool] = True

    @property
    def metrics(self) -> tuple[str, ...]:
        return ()

    def cut(self, context: int) -> Cut:
        """How text is cut for a model with this context length. Raises TypeError where examples are rows of tables."""
        raise TypeError("rows of a table are not cut from a text")

    def window(self, context: int) -> int:
        """Maximum number of tokens after the first for a text to be scored in one window of `context` positions."""
        return context

    @abstractmethod
    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Collate examples, including all corruption. done: fraction of training completed."""

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Collate rows of any length for evaluation. Raises TypeError where a text has no probability.

        spans: tokens of a row, and the index of the first one that is scored; those before it are context.
        """
        raise TypeError("a text has no probability under this objective")

    def collate_validation(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Collate rows for validation during training, the same each time."""
        return self.collate_spans(spans)

    def as_read(self, model: LanguageModel, batch: Batch) -> Batch:
        """The batch with the tokens that the model samples in training where `draws_BT` is set, and these numbers."""
        return batch

    @abstractmethod
    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed training loss of the batch's targets. Raises ValueError when it has none.

        An auxiliary loss of a row, if any, is weighted by the row's number of targets.
        """

    @abstractmethod
    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed -log p of the batch's targets, without label smoothing or auxiliary losses."""

    def count(self, batch: Batch) -> int:
        """Number of targets of a batch, as in `loss`, without computing it."""
        return batch.n_targets

    def count_computed(self, batch: Batch) -> int:
        """Number of units that a step computes, of which the speed is told: tokens, padding included, or pairs."""
        return self.count(batch) if self.unit == "pair" else batch.n_computed_tokens

    def idle(self, model: LanguageModel) -> list[Parameter]:
        """Parameters that the loss does not depend on, such as a head for another objective; not trained."""
        return []

    def measure(self, model: LanguageModel, batch: Batch) -> Loss:
        """The summed -log p of a text's targets, for rows from `collate_spans`."""
        return self.score(model, batch)
