"""A training job: everything that is known before the first step, and the options of the session that trains it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmtool.compute.device import ExecutionContext
from lmtool.compute.shards import ShardNewParameters
from lmtool.data.survey import Progress
from lmtool.model import LanguageModel
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.checkpoint import Checkpoint
from lmtool.runs.load import LoadedModel, PretrainedTokenVectors, build_for_training, load_weights
from lmtool.runs.reference import Reference
from lmtool.training.checkpoint_manager import TrainerState
from lmtool.training.data import TrainingData


@dataclass(frozen=True)
class TrainingJob:
    """Everything that is known before the first step of a training.

    recipe: with all values that follow from the data.
    base: the run whose weights initialize the model. teacher: of a distilled model.
    vectors: initial word vectors. features: the model whose states the trained model reads.
    checkpoint, state: of a resumed run; None and a new state for a new run.
    lines, warnings: messages about the data and about choices.
    """

    recipe: Recipe
    data: TrainingData
    compute: ExecutionContext
    base: Reference | None = None
    teacher: Reference | None = None
    vectors: PretrainedTokenVectors | None = None
    features: LoadedModel | None = None
    checkpoint: Checkpoint | None = None
    state: TrainerState = field(default_factory=TrainerState)
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def build_model(
        self, build_device: ExecutionContext | None = None, shards: ShardNewParameters | None = None
    ) -> tuple[LanguageModel, Objective, str | None]:
        """Builds the model, at the checkpoint if there is one, and its objective, without the teacher.

        Returns them, and a notice of how the head of the base run was taken over, if that has to be said.
        build_device: where the model is built, if not where it is trained. shards: see `build_model`.
        """
        recipe, tokenizer = self.recipe, self.data.prompt_format.tokenizer
        lm, notice = build_for_training(
            recipe,
            tokenizer,
            build_device or self.compute,
            self.data.initialize_from_data_,
            base=self.base,
            vectors=self.vectors,
            feature_model=self.features,
            shards=shards,
        )
        if self.checkpoint is not None:
            load_weights(lm, self.checkpoint)
        objective = build_objective(recipe, tokenizer, lm.counts_V)
        for parameter in objective.unused_parameters(lm):
            parameter.requires_grad_(False)
        return lm, objective, notice


@dataclass(frozen=True)
class SessionOptions:
    """Options of a training session that are not part of the recipe.

    command: as typed, for run.json.
    report: called with the progress of preparing the data.
    is_stop_requested: called after each step; if True the run is saved and ends, in all processes at the same step.
    output: the run directory; None for a new one under the runs directory.
    replace_aborted: whether to replace a run in `output` that ended before its first checkpoint.
    started_at: when the command started, by time.perf_counter.
    profiles: whether some steps are traced by torch.profiler, into the run.
    until: the fraction of its steps after which the run is saved and ends.
    stops_below_baseline: whether a new run from another one's weights ends when validation is far below the baseline.
    """

    command: Sequence[str]
    report: Progress
    is_stop_requested: Callable[[], bool]
    output: Path | None = None
    replace_aborted: bool = False
    started_at: float = field(default_factory=lambda: time.perf_counter())
    until: float = 1.0
    profiles: bool = False
    stops_below_baseline: bool = False
