"""The interface of objectives: how text is cut into examples, how these are collated, and the loss of a batch."""

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


class TextCutSettings(NamedTuple):
    """How a token store is cut into examples.

    unit: "stream" for windows of the whole text, across document boundaries; "pair" for windows within one document,
        without its [BOS] and [EOS], split in two parts, the second of which may come from another document;
        "swapped pair" for the same, whose parts may be swapped instead.
    length: tokens per example; for pairs the maximum.
    stride: tokens from the start of one window to the start of the next.
    """

    unit: Literal["stream", "pair", "swapped pair"]
    length: int
    stride: int


@dataclass(frozen=True)
class Example:
    """One training example.

    tokens: int64 ids.
    rng: source of all randomness of this example in this epoch, seeded by the recipe's seed and the sample number, so
        that it does not depend on how a batch is split.
    second: the second text: the target of a pair of source and target, or the other part of a pair of text parts.
    second_follows: whether the second part follows the first in its document.
    label: for table rows, the class index, a 0 or 1 per label, a number, the tag of each word, or the positions of the
        first and the last token of an answer; float64.
    segments: segment id of each token, for rows of several texts.
    has_loss: for pairs, which of `tokens` have a loss too, such as earlier answers; None for none.
    word_starts: the position of the first token of each word that is tagged.
    """

    tokens: NDArray[np.int64]
    rng: np.random.Generator
    second: NDArray[np.int64] | None = None
    second_follows: bool = False
    label: NDArray[np.float64] | None = None
    segments: NDArray[np.int64] | None = None
    has_loss: NDArray[np.bool_] | None = None
    word_starts: NDArray[np.int64] | None = None


def rng_from_tokens(tokens: NDArray[np.int64]) -> np.random.Generator:
    """Returns a random generator seeded by the tokens."""
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
class VocabularyInfo:
    """The vocabulary size and the ids of special tokens.

    size: number of entries of the tokenizer.
    bos, eos: start and end a document; where they are one token, it stands between documents.
    target_start_ids: the tokens before a target.
    specials: the ids of all special tokens, sentinels included.
    counts: count of each id in the training text, for objectives that need it, else None.
    word_continuations_2V: result of `Tokenizer.find_continuing_and_continuable_tokens`, for objectives that need
        it, else None.
    """

    size: int
    pad: int
    bos: int
    eos: int
    mask: int
    sep: int
    cls: int
    target_start_ids: tuple[int, ...]
    sentinels: tuple[int, ...]
    specials: frozenset[int]
    counts: NDArray[np.int64] | None = None
    word_continuations_2V: NDArray[np.bool_] | None = None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, counts: NDArray[np.int64] | None) -> "VocabularyInfo":
        """Returns the vocabulary of a tokenizer. counts: see `VocabularyInfo`."""
        return cls(
            size=tokenizer.vocab_size,
            pad=tokenizer.pad_id,
            bos=tokenizer.bos_id,
            eos=tokenizer.eos_id,
            mask=tokenizer.mask_id,
            sep=tokenizer.sep_id,
            cls=tokenizer.cls_id,
            target_start_ids=tokenizer.roles.starts,
            sentinels=tokenizer.sentinel_ids,
            specials=tokenizer.special_ids,
            counts=counts,
        )

    @cached_property
    def is_not_special_V(self) -> NDArray[np.bool_]:
        """Whether each id is text, not a special token."""
        is_plain_V = np.ones(self.size, dtype=bool)
        is_plain_V[list(self.specials)] = False
        return is_plain_V

    @property
    def unpredicted_bos(self) -> int | None:
        """The token that starts a document and is never predicted; None where it also ends the one before."""
        return self.bos if self.bos != self.eos else None


class Objective(ABC):
    """A training objective. It has no state: it is the same in all steps and processes.

    unit: what losses are averaged over.
    scores_text_in_one_pass: whether `score_text` takes one pass through the model for any batch, as `score` does.
    """

    unit: ClassVar[Literal["token", "pair"]] = "token"
    scores_text_in_one_pass: ClassVar[bool] = True

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the further metrics that `score` returns."""
        return ()

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Returns how text is cut for a model of this context length. Raises TypeError for objectives of table rows."""
        raise TypeError("rows of a table are not cut from a text")

    def max_scored_tokens(self, context: int) -> int:
        """Returns how many tokens after the first of a text can be scored in one window of `context` positions."""
        return context

    @abstractmethod
    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Collates examples to a batch, after all corruption. training_fraction: fraction of training completed."""

    def collate_for_scoring(self, tokens_and_first_scored: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Collates rows of any length for evaluation. Raises TypeError where a text has no probability.

        Args:
            tokens_and_first_scored: for each row its tokens, and the index of the first one that is scored; those
                before it are context.
        """
        raise TypeError("a text has no probability under this objective")

    def collate_validation(self, tokens_and_first_scored: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        """Collates rows for validation during training, in the same way each time."""
        return self.collate_for_scoring(tokens_and_first_scored)

    def sample_inputs(self, model: LanguageModel, batch: Batch) -> Batch:
        """Returns the batch with tokens sampled from the model where `draws_BT` is set, as training would read it."""
        return batch

    @abstractmethod
    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the summed training loss of the batch's targets. Raises ValueError for a batch without targets.

        An auxiliary loss of a row, if any, is weighted by the row's number of targets.
        """

    @abstractmethod
    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the summed -log p of the batch's targets, without label smoothing or auxiliary losses."""

    def count_targets(self, batch: Batch) -> int:
        """Returns the number of targets of a batch, as `loss` counts them."""
        return batch.n_targets

    def count_computed_units(self, batch: Batch) -> int:
        """Returns how many units a step computes, for its speed: tokens, padding included, or pairs."""
        return self.count_targets(batch) if self.unit == "pair" else batch.n_computed_tokens

    def unused_parameters(self, model: LanguageModel) -> list[Parameter]:
        """Returns the parameters that the loss does not depend on, such as another objective's head."""
        return []

    def score_text(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the summed -log p of the targets of rows from `collate_for_scoring`."""
        return self.score(model, batch)
