"""What a run learns from and is measured on: a text, or a labelled table."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from lmtool.engine.device import Compute
from lmtool.engine.distributed import World
from lmtool.engine.evaluate import Span, mean_loss, mean_scores, sample_spans
from lmtool.engine.examples import Examples, Source
from lmtool.model import LanguageModel
from lmtool.objective import Objective
from lmtool.recipe.spec import Recipe
from lmtool.text.prepare import Prepared
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Validation:
    """How good a model is. loss: nats per target or row. metrics: further figures by name, higher is better."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Material(ABC):
    """What a run learns from and is measured on.

    unit: what is counted. batch_units: how many there are in one step. documents: texts stand between [BOS] and [EOS],
    so that prompts begin with one. lines: what it is, in words.
    """

    unit: str
    tokenizer: Tokenizer
    batch_units: int
    documents: bool
    lines: tuple[str, ...] = ()

    @abstractmethod
    def inform(self, lm: LanguageModel) -> None:
        """Tell a fresh model what it has to know of the material before it learns."""

    @abstractmethod
    def source(self, objective: Objective) -> Source:
        """Examples to train on."""

    @abstractmethod
    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute, world: World) -> Validation:
        """How good a model is on the part that it does not learn from; computed by all processes together."""


class TextMaterial(Material):
    """A text in token stores."""

    unit = "token"

    def __init__(self, prepared: Prepared, recipe: Recipe) -> None:
        self.prepared = prepared
        self.tokenizer = prepared.tokenizer
        self.documents = prepared.data.split == "document"
        self._recipe = recipe
        self._spans: list[Span] | None = None
        self._pairs: Examples | None = None
        self.batch_units = recipe.training.batch_size * recipe.model.context
        if recipe.model.counts:
            self.batch_units = len(prepared.train) // recipe.training.steps

    def inform(self, lm: LanguageModel) -> None:
        if lm.counts_V is not None:
            counts = torch.from_numpy(self.prepared.train.counts())
            lm.counts_V[: len(counts)] = counts  # rows beyond the tokenizer's ids count 0

    def source(self, objective: Objective) -> Examples:
        training = self._recipe.training
        lanes = training.batch_size if training.carry_state else None
        cut = objective.cut(self._recipe.model.context)
        if cut.unit == "pair":
            # here, so that too short a text is refused before the first step
            self._pairs = Examples(self.prepared.valid, cut, self._recipe.seed)
        return Examples(self.prepared.train, cut, self._recipe.seed, lanes)

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute, world: World) -> Validation:
        valid, recipe = self.prepared.valid, self._recipe
        if self._pairs is not None:
            n = self._pairs.per_epoch
            if recipe.evaluation.tokens is not None:
                n = min(n, -(-recipe.evaluation.tokens // self._pairs.length))
            return Validation(*mean_scores(lm, self._pairs, n, objective, compute, world))
        if self._spans is None:
            longest = objective.window(recipe.model.context)
            self._spans = sample_spans(valid, longest, recipe.evaluation.tokens, recipe.seed)
        return Validation(mean_loss(lm, valid, self._spans, objective, compute, world))
