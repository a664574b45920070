"""All that is known before the first step of a training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lmtool.compute.device import Compute
from lmtool.inference.load import LoadedModel, MatchedVectors
from lmtool.inference.reference import Reference
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.checkpoint import Checkpoint
from lmtool.tables.data import TableData
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
    candidates: the recipes of the features that cross-validation chose from, with the rows as they read them; empty
        where nothing was chosen, and where rows are held out.
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
    candidates: Sequence[RecipeWithData] = ()
    checkpoint: Checkpoint | None = None
    state: TrainingState = field(default_factory=TrainingState)
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
