"""Cross-validation of a model that is trained on all rows of a table: models of the others score each of its parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.data.survey import Progress
from lmtool.inference.evaluation import ignore_progress
from lmtool.inference.pretrained import open_vectors
from lmtool.inference.reference import find_base
from lmtool.model.heads import Classifier
from lmtool.objective import Objective
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.run.directory import Run
from lmtool.run.uncertainty import N_FOLDS
from lmtool.tasks.data import TableData
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.task import AnsweringModel
from lmtool.training.convex import ChosenPenalty, HeadProblem, cross_validate
from lmtool.training.distillation import distilled
from lmtool.training.fit import Trainable, fit
from lmtool.training.job import RecipeWithData, TrainingJob
from lmtool.training.optimizer import Optimizers

MOST_FITTED = 2_000
"""Rows up to which a head is fitted once for each fold; of more, a quarter tells enough."""

MOST_TRAINED = 100
"""The same for heads that are trained by steps: a quarter of so few rows tells neither a score nor a temperature."""

QUARTERS = 4
"""Folds of which one is scored, where all would take long."""

AT_ONCE = 100
"""Rows of a batch whose features are counted."""


class ScoringStopped(Exception):
    """A stop was requested while a model was trained for its score."""


def is_cross_validated(recipe: Recipe, data: TableData) -> bool:
    """Whether each row is scored by a model of the other folds, and not a quarter alone."""
    most = MOST_FITTED if isinstance(recipe.optimizer, Lbfgs) else MOST_TRAINED
    return isinstance(recipe.objective, Classification) and len(data.tasks[0].train) <= most


def n_scoring_models(recipe: Recipe, data: TableData) -> int:
    """How many models are trained to score rows that the saved one is trained on; 0 where such rows are held out."""
    if not data.needs_folds:
        return 0
    return N_FOLDS if is_cross_validated(recipe, data) else 1


def train_folds(
    job: TrainingJob, data: TableData, steps: int, stop: Callable[[], bool]
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """For each fold its data, and a model trained on these.

    job, data, steps: of the model that is trained on all rows. A model is used before the next one is asked for.
    Yields nothing where the rows cannot be divided. Raises ScoringStopped, and the errors of training.
    """
    recipe, compute = job.recipe, job.compute
    n_parts, n_scored = (N_FOLDS, N_FOLDS) if is_cross_validated(recipe, data) else (QUARTERS, 1)
    folds = data.folds(n_parts)[:n_scored]
    if not folds:
        return
    if isinstance(recipe.optimizer, Lbfgs) and recipe.tuning.freeze == "body":
        yield from _fit_heads(job, data, recipe.optimizer, folds, stop)
        return
    for fold in folds:
        lm, objective, _ = replace(job, data=fold).build()
        taught = distilled(objective, recipe, fold.prompt_format.tokenizer, job.teacher, compute)
        optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
        for step in fit(Trainable(lm, taught, optimizers), fold.examples(objective), recipe, compute, stop=stop):
            if step.stop:
                raise ScoringStopped
            if step.step >= steps:
                break
        yield fold, AnsweringModel(lm.eval(), objective, compute)


def _fit_heads(
    job: TrainingJob, data: TableData, optimizer: Lbfgs, folds: Sequence[TableData], stop: Callable[[], bool]
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """The same for heads on a body that stays: the vectors of all rows are computed once."""
    compute = job.compute
    lm, objective, _ = job.build()
    rows = data.tasks[0].train
    with_labels = cast(ClassificationObjective, objective)
    problem = HeadProblem.of(cast(Classifier, lm), with_labels, _batches(objective, rows))
    for fold in folds:
        numbers = {row.number for row in fold.tasks[0].train}
        some = problem.take(np.array([i for i, row in enumerate(rows) if row.number in numbers]))
        some.fit_head(optimizer.l2, job.recipe.seed)
        if compute.world.all_reduce_sum((float(stop()),))[0]:
            raise ScoringStopped
        yield fold, AnsweringModel(lm.eval(), objective, compute)


def choose_features(
    candidates: Sequence[RecipeWithData], report: Progress = ignore_progress
) -> tuple[int, list[ChosenPenalty]]:
    """The index of the features of texts by which a linear model has the least loss in cross-validation, and how good
    each are. candidates: the same rows with each of the features."""
    reached: list[ChosenPenalty] = []
    for one in candidates:
        report("choosing features", len(reached), len(candidates))
        lm, objective, _ = TrainingJob(one.recipe, one.data, CPU).build()
        batches = _batches(objective, one.data.tasks[0].train)
        with_labels = cast(ClassificationObjective, objective)
        reached.append(cross_validate(cast(Classifier, lm), with_labels, batches, one.recipe.seed))
    return int(np.argmin([one.loss or 0.0 for one in reached])), reached


def rewind_job(run: Run, job: TrainingJob) -> TrainingJob:
    """A job that begins as the run did, also where it is resumed.

    Raises LmtoolError for what is missing.
    """
    base, vectors = job.base, job.vectors
    if run.info.base is not None and base is None:
        base = find_base(run)
    if vectors is None and (source := open_vectors(job.recipe, base)) is not None:
        vectors = source.match_vocabulary(job.data.prompt_format.tokenizer, job.data.token_counts())
    return replace(job, base=base, vectors=vectors, checkpoint=None)


def _batches(objective: Objective, rows: Sequence[EncodedRow]) -> list[Batch]:
    return [
        objective.collate([row.example() for row in rows[start : start + AT_ONCE]])
        for start in range(0, len(rows), AT_ONCE)
    ]
