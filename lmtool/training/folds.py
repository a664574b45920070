"""Cross-validation of a model that is trained on all rows of a table: models of the others score each of its parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from lmtool.batch import Batch
from lmtool.compute.device import CPU, Compute
from lmtool.data.survey import Report
from lmtool.inference.base import base_of
from lmtool.inference.evaluation import not_reported
from lmtool.inference.load import Initialization, build_for_training
from lmtool.inference.pretrained import open_vectors
from lmtool.model import LanguageModel
from lmtool.model.heads import Classifier
from lmtool.objective import Objective, build_objective
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.training import Lbfgs
from lmtool.run.directory import Run
from lmtool.run.uncertainty import FOLDS
from lmtool.tables.data import TableData
from lmtool.tables.rows import EncodedRow
from lmtool.tables.tasks.task import AnsweringModel
from lmtool.training.convex import HeadProblem, cross_validate
from lmtool.training.distillation import distilled, predicted
from lmtool.training.fit import Trainable, fit
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


def is_cross_validated(data: TableData) -> bool:
    """Whether each row is scored by a model of the other folds, and not a quarter alone."""
    most = MOST_FITTED if isinstance(data.recipe.optimizer, Lbfgs) else MOST_TRAINED
    return isinstance(data.recipe.objective, Classification) and len(data.tasks[0].train) <= most


def n_scoring_models(data: TableData) -> int:
    """How many models are trained to score rows that the saved one is trained on; 0 where such rows are held out."""
    if not data.needs_folds:
        return 0
    return FOLDS if is_cross_validated(data) else 1


def train_folds(
    data: TableData, initialization: Initialization, compute: Compute, steps: int, stop: Callable[[], bool]
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """For each fold its data, with the features that its training rows choose, and a model trained on these.

    initialization, steps: of the model that is trained on all rows. A model is used before the next one is asked for.
    Yields nothing where the rows cannot be divided. Raises ScoringStopped, and the errors of training.
    """
    folds = data.folds(FOLDS) if is_cross_validated(data) else data.folds(QUARTERS)[:1]
    if not folds:
        return
    if is_fixed_body(data):
        yield from _fit_heads(data, folds, initialization, compute, stop)
        return
    for fold in folds:
        chosen = fold.candidates[choose_features(fold.candidates)[0]] if fold.candidates else fold
        lm, objective = _build(chosen, initialization, compute)
        for parameter in objective.idle(lm):
            parameter.requires_grad_(False)
        recipe, tokenizer = chosen.recipe, chosen.prompt_format.tokenizer
        taught = distilled(objective, recipe, tokenizer, initialization.teacher, compute)
        trainable = Trainable(lm, taught, Optimizers(recipe.optimizer, lm, compute, recipe.tuning))
        for step in fit(trainable, chosen.examples(objective), recipe, compute, stop=stop):
            if step.stop:
                raise ScoringStopped
            if step.step >= steps:
                break
        yield chosen, AnsweringModel(lm.eval(), objective, compute)


def is_fixed_body(data: TableData) -> bool:
    """Whether a head is fitted to vectors that are the same whatever rows it is fitted to."""
    return isinstance(data.recipe.optimizer, Lbfgs) and data.recipe.tuning.freeze == "body"


def _fit_heads(
    data: TableData,
    folds: Sequence[TableData],
    initialization: Initialization,
    compute: Compute,
    stop: Callable[[], bool],
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """The same for heads on a body that stays: the vectors of all rows are computed once."""
    lm, objective = _build(data, initialization, compute)
    rows = data.tasks[0].train
    assert isinstance(data.recipe.optimizer, Lbfgs)
    with_labels = cast(ClassificationObjective, objective)
    problem = HeadProblem.of(cast(Classifier, lm), with_labels, _batches(objective, rows))
    for fold in folds:
        numbers = {row.number for row in fold.tasks[0].train}
        some = problem.take(np.array([i for i, row in enumerate(rows) if row.number in numbers]))
        some.fit_head(data.recipe.optimizer.l2, data.recipe.seed)
        if compute.world.sum((float(stop()),))[0]:
            raise ScoringStopped
        yield fold, AnsweringModel(lm.eval(), objective, compute)


def choose_features(candidates: Sequence[TableData], report: Report = not_reported) -> tuple[int, list[float]]:
    """The index of the best features of texts for a linear model, by cross-validation, and how good each are.

    candidates: the same rows with each of the features. Of equally good ones the first is chosen.
    """
    reached: list[float] = []
    for data in candidates:
        report("choosing features", len(reached), len(candidates))
        lm, objective = _build(data, Initialization(), CPU)
        batches = _batches(objective, data.tasks[0].train)
        with_labels = cast(ClassificationObjective, objective)
        reached.append(cross_validate(cast(Classifier, lm), with_labels, batches, data.recipe.seed) or 0.0)
    is_error = cast(Classification, candidates[0].recipe.objective).task == "number"
    return int(np.argmin(reached) if is_error else np.argmax(reached)), reached


def reopened(run: Run, data: TableData, initialization: Initialization) -> Initialization:
    """What the model of a run began with, also where the run is resumed. Raises LmtoolError for what is missing."""
    base, recipe = initialization.base, data.recipe
    if run.info.base is not None and base is None:
        base = base_of(run)
    same = base is not None and predicted(base.recipe.objective) == predicted(recipe.objective)
    vectors = initialization.vectors
    if vectors is None and (source := open_vectors(recipe, base)) is not None:
        vectors = source.match(data.prompt_format.tokenizer, data.token_counts())
    return replace(initialization, base=base, same_labels=same, vectors=vectors)


def _build(data: TableData, initialization: Initialization, compute: Compute) -> tuple[LanguageModel, Objective]:
    recipe, tokenizer = data.recipe, data.prompt_format.tokenizer
    lm, _ = build_for_training(recipe, tokenizer, compute, data.set_statistics, initialization)
    return lm, build_objective(recipe, tokenizer, lm.counts_V)


def _batches(objective: Objective, rows: Sequence[EncodedRow]) -> list[Batch]:
    return [
        objective.collate([row.example() for row in rows[start : start + AT_ONCE]])
        for start in range(0, len(rows), AT_ONCE)
    ]
