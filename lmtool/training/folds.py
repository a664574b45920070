"""Cross-validation of a model that is trained on all rows of a table: models of the others score each of its parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

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
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.run.directory import Run
from lmtool.run.uncertainty import FOLDS
from lmtool.tasks.data import TableData
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.task import AnsweringModel
from lmtool.training.convex import HeadProblem, cross_validate
from lmtool.training.distillation import distilled
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


class RecipeWithData(NamedTuple):
    """A recipe of a table, and the rows as its model reads them."""

    recipe: Recipe
    data: TableData


def is_cross_validated(recipe: Recipe, data: TableData) -> bool:
    """Whether each row is scored by a model of the other folds, and not a quarter alone."""
    most = MOST_FITTED if isinstance(recipe.optimizer, Lbfgs) else MOST_TRAINED
    return isinstance(recipe.objective, Classification) and len(data.tasks[0].train) <= most


def n_scoring_models(recipe: Recipe, data: TableData) -> int:
    """How many models are trained to score rows that the saved one is trained on; 0 where such rows are held out."""
    if not data.needs_folds:
        return 0
    return FOLDS if is_cross_validated(recipe, data) else 1


def train_folds(
    whole: RecipeWithData,
    candidates: Sequence[RecipeWithData],
    initialization: Initialization,
    compute: Compute,
    steps: int,
    stop: Callable[[], bool],
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """For each fold its data, with the features that its training rows choose, and a model trained on these.

    candidates: with the features to choose from; empty where nothing is chosen. initialization, steps: of the model
    that is trained on all rows. A model is used before the next one is asked for.
    Yields nothing where the rows cannot be divided. Raises ScoringStopped, and the errors of training.
    """
    recipe, data = whole
    n_parts, n_scored = (FOLDS, FOLDS) if is_cross_validated(recipe, data) else (QUARTERS, 1)
    folds = data.folds(n_parts)[:n_scored]
    if not folds:
        return
    if isinstance(recipe.optimizer, Lbfgs) and recipe.tuning.freeze == "body":
        yield from _fit_heads(whole, recipe.optimizer, folds, initialization, compute, stop)
        return
    folds_of_candidates = [one.data.folds(n_parts) for one in candidates]  # the same rows in each
    for number, fold in enumerate(folds):
        chosen = RecipeWithData(recipe, fold)
        if candidates:
            every = [
                RecipeWithData(c.recipe, of[number]) for c, of in zip(candidates, folds_of_candidates, strict=True)
            ]
            chosen = every[choose_features(every)[0]]
        lm, objective = _build(chosen, initialization, compute)
        for parameter in objective.idle(lm):
            parameter.requires_grad_(False)
        taught = distilled(
            objective, chosen.recipe, chosen.data.prompt_format.tokenizer, initialization.teacher, compute
        )
        optimizers = Optimizers(chosen.recipe.optimizer, lm, compute, chosen.recipe.tuning)
        examples = chosen.data.examples(objective)
        for step in fit(Trainable(lm, taught, optimizers), examples, chosen.recipe, compute, stop=stop):
            if step.stop:
                raise ScoringStopped
            if step.step >= steps:
                break
        yield chosen.data, AnsweringModel(lm.eval(), objective, compute)


def _fit_heads(
    whole: RecipeWithData,
    optimizer: Lbfgs,
    folds: Sequence[TableData],
    initialization: Initialization,
    compute: Compute,
    stop: Callable[[], bool],
) -> Iterator[tuple[TableData, AnsweringModel]]:
    """The same for heads on a body that stays: the vectors of all rows are computed once."""
    lm, objective = _build(whole, initialization, compute)
    rows = whole.data.tasks[0].train
    with_labels = cast(ClassificationObjective, objective)
    problem = HeadProblem.of(cast(Classifier, lm), with_labels, _batches(objective, rows))
    for fold in folds:
        numbers = {row.number for row in fold.tasks[0].train}
        some = problem.take(np.array([i for i, row in enumerate(rows) if row.number in numbers]))
        some.fit_head(optimizer.l2, whole.recipe.seed)
        if compute.world.sum((float(stop()),))[0]:
            raise ScoringStopped
        yield fold, AnsweringModel(lm.eval(), objective, compute)


def choose_features(candidates: Sequence[RecipeWithData], report: Report = not_reported) -> tuple[int, list[float]]:
    """The index of the best features of texts for a linear model, by cross-validation, and how good each are.

    candidates: the same rows with each of the features. Of equally good ones the first is chosen.
    """
    reached: list[float] = []
    for one in candidates:
        report("choosing features", len(reached), len(candidates))
        lm, objective = _build(one, Initialization(), CPU)
        batches = _batches(objective, one.data.tasks[0].train)
        with_labels = cast(ClassificationObjective, objective)
        reached.append(cross_validate(cast(Classifier, lm), with_labels, batches, one.recipe.seed) or 0.0)
    is_error = cast(Classification, candidates[0].recipe.objective).task == "number"
    return int(np.argmin(reached) if is_error else np.argmax(reached)), reached


def reopened(run: Run, whole: RecipeWithData, initialization: Initialization) -> Initialization:
    """What the model of a run began with, also where the run is resumed. Raises LmtoolError for what is missing."""
    base, vectors = initialization.base, initialization.vectors
    if run.info.base is not None and base is None:
        base = base_of(run)
    if vectors is None and (source := open_vectors(whole.recipe, base)) is not None:
        vectors = source.match(whole.data.prompt_format.tokenizer, whole.data.token_counts())
    return replace(initialization, base=base, vectors=vectors)


def _build(of: RecipeWithData, initialization: Initialization, compute: Compute) -> tuple[LanguageModel, Objective]:
    recipe, tokenizer = of.recipe, of.data.prompt_format.tokenizer
    lm, _ = build_for_training(recipe, tokenizer, compute, of.data.set_statistics, initialization)
    return lm, build_objective(recipe, tokenizer, lm.counts_V)


def _batches(objective: Objective, rows: Sequence[EncodedRow]) -> list[Batch]:
    return [
        objective.collate([row.example() for row in rows[start : start + AT_ONCE]])
        for start in range(0, len(rows), AT_ONCE)
    ]
