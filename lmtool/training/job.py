"""All that is known before the first step of a training, and what the person who starts it says besides."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lmtool.compute.device import Compute
from lmtool.compute.shards import ShardedBuild
from lmtool.data.survey import Progress
from lmtool.inference.load import LoadedModel, MatchedVectors, build_for_training, load_weights
from lmtool.inference.reference import Reference
from lmtool.model import LanguageModel
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.checkpoint import Checkpoint
from lmtool.tasks.data import TableData
from lmtool.training.checkpoint_manager import TrainingState
from lmtool.training.data import TrainingData


class RecipeWithData(NamedTuple):
    """A recipe of a table, and the rows as its model reads them."""

    recipe: Recipe
    data: TableData


@dataclass(frozen=True)
class TrainingJob:
    """All that is known before the first step of a training.

    recipe: with all that follows from the data.
    base: the run whose weights the model begins with. teacher: of a distilled model.
    vectors: that the embeddings of a new model begin with. features: whose states the model reads, if it reads any.
    checkpoint, state: of the run that goes on; None and a new state for a new run.
    lines, warnings: about the data and what was chosen, for people.
    """

    recipe: Recipe
    data: TrainingData
    compute: Compute
    base: Reference | None = None
    teacher: Reference | None = None
    vectors: MatchedVectors | None = None
    features: LoadedModel | None = None
    checkpoint: Checkpoint | None = None
    state: TrainingState = field(default_factory=TrainingState)
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def build(
        self, device: Compute | None = None, shards: ShardedBuild | None = None
    ) -> tuple[LanguageModel, Objective, str | None]:
        """The model to train, at the checkpoint if there is one, its objective, without a teacher, and a notice about
        the head of the base, if any. device: where it is built, if not where it is trained. shards: see `build_model`.
        """
        recipe, tokenizer = self.recipe, self.data.prompt_format.tokenizer
        lm, notice = build_for_training(
            recipe,
            tokenizer,
            device or self.compute,
            self.data.set_statistics,
            base=self.base,
            vectors=self.vectors,
            features=self.features,
            shards=shards,
        )
        if self.checkpoint is not None:
            load_weights(lm, self.checkpoint)
        objective = build_objective(recipe, tokenizer, lm.counts_V)
        for parameter in objective.unused_parameters(lm):
            parameter.requires_grad_(False)
        return lm, objective, notice


@dataclass(frozen=True)
class Invocation:
    """What the person who starts or resumes training says besides the recipe.

    command: as typed, for run.json.
    report: called with the progress of preparing the data.
    stop: called after each step; when True the run is saved and ends, in all processes at the same step.
    output: the run directory; a new one under the runs directory when None.
    retry: it may hold a run that ended before its first checkpoint, which is replaced.
    began: when the command did, by time.perf_counter.
    until: the share of its steps after which it is saved and ends.
    is_baseline_least: a new run that begins with another one ends as well where a first validation is far below the
        baseline.
    """

    command: Sequence[str]
    report: Progress
    stop: Callable[[], bool]
    output: Path | None = None
    retry: bool = False
    began: float = field(default_factory=lambda: time.perf_counter())
    until: float = 1.0
    is_baseline_least: bool = False
