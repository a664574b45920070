"""Scores of a model that is trained on all rows of a table, by models that are trained on a part of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.data.survey import Progress, no_progress
from lmtool.model.heads import Classifier
from lmtool.objective import Objective
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.runs.directory import Run
from lmtool.runs.reference import find_unchanged_base
from lmtool.runs.uncertainty import N_FOLDS
from lmtool.tasks.data import TableData
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.task import ModelWithObjective
from lmtool.training.convex import HeadFittingProblem
from lmtool.training.distillation import add_distillation_loss
from lmtool.training.fit import ModelAndOptimizers, fit
from lmtool.training.job import TrainingJob
from lmtool.training.optimizer import Optimizers
from lmtool.training.pretrained import open_pretrained_vectors

MAX_FOLD_FITTED_ROWS = 2_000
"""Maximum rows for which a head is fitted once for each fold; of more, a quarter is scored."""

MAX_FOLD_TRAINED_ROWS = 100
"""The same for heads that are trained by steps; a quarter of fewer rows is too small for a score or a temperature."""

N_QUARTERS = 4
"""Number of folds if only one of them is scored."""

ROWS_PER_BATCH = 100


class ScoringStopped(Exception):
    """A stop was requested while a model was trained for the score."""


def is_cross_validated(recipe: Recipe, data: TableData) -> bool:
    """Whether each row is scored by a model of the other folds, and not only a quarter of the rows."""
    max_rows = MAX_FOLD_FITTED_ROWS if isinstance(recipe.optimizer, Lbfgs) else MAX_FOLD_TRAINED_ROWS
    return isinstance(recipe.objective, Classification) and len(data.tasks[0].train) <= max_rows


def count_fold_models(recipe: Recipe, data: TableData) -> int:
    """Returns how many models are trained for the score of one that is trained on all rows; 0 if rows are held out."""
    if not data.needs_folds:
        return 0
    return N_FOLDS if is_cross_validated(recipe, data) else 1


def train_folds(
    job: TrainingJob, data: TableData, n_steps: int, is_stop_requested: Callable[[], bool]
) -> Iterator[tuple[TableData, ModelWithObjective]]:
    """Yields the data of each fold, and a model trained on its training rows.

    job, data, n_steps: of the model that is trained on all rows. Use a model before asking for the next one.
    Yields nothing if the rows cannot be divided. Raises ScoringStopped, and the errors of training.
    """
    recipe, compute = job.recipe, job.compute
    n_parts, n_scored = (N_FOLDS, N_FOLDS) if is_cross_validated(recipe, data) else (N_QUARTERS, 1)
    folds = data.make_train_test_folds(n_parts)[:n_scored]
    if not folds:
        return
    mixes_layers = isinstance(recipe.objective, Classification) and recipe.objective.mixes_layers
    if isinstance(recipe.optimizer, Lbfgs) and recipe.tuning.freeze == "body" and not mixes_layers:
        yield from _fit_fold_heads(job, data, recipe.optimizer, folds, is_stop_requested)
        return
    for fold in folds:
        lm, objective, _ = replace(job, data=fold).build_model()
        distilled = add_distillation_loss(objective, recipe, fold.prompt_format.tokenizer, job.teacher, compute)
        optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
        for step in fit(
            ModelAndOptimizers(lm, distilled, optimizers),
            fold.make_training_examples(objective),
            recipe,
            compute,
            is_stop_requested=is_stop_requested,
        ):
            if step.stop:
                raise ScoringStopped
            if step.step >= n_steps:
                break
        yield fold, ModelWithObjective(lm.eval(), objective, compute)


def _fit_fold_heads(
    job: TrainingJob,
    data: TableData,
    optimizer: Lbfgs,
    folds: Sequence[TableData],
    is_stop_requested: Callable[[], bool],
) -> Iterator[tuple[TableData, ModelWithObjective]]:
    """Does `train_folds` for heads on a frozen body, computing the vectors of all rows once."""
    compute = job.compute
    lm, objective, _ = job.build_model()
    rows = data.tasks[0].train
    labelled_objective = cast(ClassificationObjective, objective)
    problem = HeadFittingProblem.from_batches(cast(Classifier, lm), labelled_objective, _collate_rows(objective, rows))
    for fold in folds:
        numbers = {row.number for row in fold.tasks[0].train}
        fold_problem = problem.select_rows(np.array([i for i, row in enumerate(rows) if row.number in numbers]))
        fold_problem.fit_head_(optimizer.l2, job.recipe.seed)
        if compute.world.all_reduce_sum((float(is_stop_requested()),))[0]:
            raise ScoringStopped
        yield fold, ModelWithObjective(lm.eval(), objective, compute)


def compute_cross_validated_head_losses(
    candidates: Sequence[tuple[Recipe, TableData]], report: Progress = no_progress
) -> list[float]:
    """Returns the loss of a linear model in cross-validation for each choice of the features of texts.

    candidates: the same rows with each of the features.
    """
    losses: list[float] = []
    for recipe, data in candidates:
        report("choosing features", len(losses), len(candidates))
        lm, objective, _ = TrainingJob(recipe, data, CPU).build_model()
        batches = _collate_rows(objective, data.tasks[0].train)
        labelled_objective = cast(ClassificationObjective, objective)
        problem = HeadFittingProblem.from_batches(cast(Classifier, lm), labelled_objective, batches)
        losses.append(problem.choose_penalty(recipe.seed).loss or 0.0)
    return losses


def make_job_from_run_start(run: Run, job: TrainingJob) -> TrainingJob:
    """Returns a job that starts as the run did, also if it was resumed.

    Raises LmtoolError if something of it is missing.
    """
    base, vectors = job.base, job.vectors
    if run.info.base is not None and base is None:
        base = find_unchanged_base(run)
    if vectors is None and (source := open_pretrained_vectors(job.recipe, base)) is not None:
        vectors = source.match_vocabulary(job.data.prompt_format.tokenizer, job.data.count_training_tokens_per_id())
    return replace(job, base=base, vectors=vectors, checkpoint=None)


def _collate_rows(objective: Objective, rows: Sequence[EncodedRow]) -> list[Batch]:
    return [
        objective.collate([row.to_example() for row in rows[start : start + ROWS_PER_BATCH]])
        for start in range(0, len(rows), ROWS_PER_BATCH)
    ]
