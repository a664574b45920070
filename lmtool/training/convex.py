"""A linear head on features that stay, fitted to convergence by L-BFGS; its penalty is chosen by cross-validation.

Shapes: R rows, F features, C scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.averaging import RatioHead, log_ratios
from lmtool.model.heads import Classifier
from lmtool.model.language_model import evaluating
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.tables.baseline import headline

PENALTIES = (1e4, 10.0, 1.0, 0.1, 0.01)
"""Values of l2 that cross-validation chooses from; of equally good ones the first. By the first a head that begins as
naive Bayes stays that, which needs fewer rows than logistic regression (Ng and Jordan 2002)."""

FOLDS = 5
"""Of one division of MANY rows, or of several of FEW, so that chance chooses less."""

FEW, DIVISIONS = 200, 3

MANY = 1_000
"""Rows from which a fold is enough."""

MOST_ROWS = 20_000
"""Rows that the penalty is chosen on, a random sample of larger tables."""

FACTOR = 5.0
"""Largest logarithm of a factor on scores."""

MOST_ITERATIONS = 500

TOLERANCE = 1e-10
"""Relative decrease of the loss at which the search for the weights ends."""

ROUGH = 1e-5
"""The same in cross-validation."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """A head that is fitted. loss: the mean over rows. l2: as in the recipe. n_rows: that it was fitted to. chosen: how
    good it is in cross-validation, by the headline of its kind of labels; None where nothing was chosen."""

    loss: float
    l2: float
    n_rows: int
    chosen: float | None

    def line(self, metric: str) -> str:
        """The choice as a line."""
        how = "" if self.chosen is None else f", chosen by cross-validation: {metric} {self.chosen:.4f}"
        return f"head: fitted to {self.n_rows:,} rows by L-BFGS, l2 {self.l2:g}{how}"


@dataclass(frozen=True)
class Problem:
    """The minimum that is looked for: of the objective's loss, summed over rows, and the penalty.

    features: (R, F), dense or sparse, with a mean square of the rows of 1. labels: a batch of the rows' labels alone.
    prior: the head begins as naive Bayes, and is drawn back to it: its weights are factors on log ratios.
    """

    model: Classifier
    objective: ClassificationObjective
    features: Any
    labels: Batch
    prior: bool

    @property
    def spec(self) -> Classification:
        """That of the objective."""
        return self.objective.spec

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return int(self.features.shape[0])

    @property
    def target_RC(self) -> Floats:
        """Multi-hot labels, or numbers."""
        if self.labels.labels_B is not None:
            class_R: NDArray[np.int64] = self.labels.labels_B.numpy()
            return np.asarray(np.eye(len(self.spec.labels))[class_R])
        return np.asarray(self.labels.values_BC, dtype=np.float64)

    @cached_property
    def scale_FC(self) -> Floats | float:
        """What the weights are multiplied by."""
        if not self.prior:
            return 1.0
        return np.ascontiguousarray(log_ratios(self.features, self.target_RC).T)

    def of(self, rows: NDArray[np.int64]) -> "Problem":
        """The same with some of the rows."""
        return replace(self, features=self.features[rows], labels=_rows_of(self.labels, torch.from_numpy(rows)))

    def fit(self, l2: float, start_FC: Floats | None = None, tolerance: float = TOLERANCE) -> tuple[Floats, float]:
        """The weights with the biases as their last row (F + 1, C), and the loss. start: where the search begins."""
        from scipy.optimize import minimize

        n_features, n_scores = self.features.shape[1], self.model.head.out_features
        transposed, scale_FC = self.features.T, self.scale_FC
        # a bias is drawn to 0 with the rest of naive Bayes, and else is free
        l2_F1 = np.full((n_features + 1, 1), l2)
        l2_F1[-1] = l2 * self.prior
        origin_F1 = np.full((n_features + 1, 1), float(self.prior))
        origin_F1[-1] = 0.0

        def total(flat: Floats) -> tuple[float, Floats]:
            weight_FC = flat.reshape(-1, n_scores)
            scores_RC = torch.from_numpy(self._scores(weight_FC, self.features)).requires_grad_()
            loss = self.objective.head_loss(self.model, self.model.pair(scores_RC), self.labels, trains=True).total
            (slope_RC,) = (slope.numpy() for slope in torch.autograd.grad(loss, scores_RC))
            away_FC = weight_FC - origin_F1
            slope_FC = l2_F1 * away_FC
            slope_FC[:-1] += (transposed @ slope_RC) * scale_FC
            if self.model.head.bias is not None:
                slope_FC[-1] += slope_RC.sum(0)
            value = loss.item() + float(np.vdot(away_FC, l2_F1 * away_FC)) / 2
            return value / self.n_rows, slope_FC.ravel() / self.n_rows

        if start_FC is None:
            start_FC = np.repeat(origin_F1, n_scores, 1)
        limits = {"maxiter": MOST_ITERATIONS, "ftol": tolerance, "gtol": 1e-6, "maxcor": 5}
        found = minimize(total, start_FC.ravel(), jac=True, method="L-BFGS-B", options=limits)
        return np.asarray(found.x).reshape(-1, n_scores), float(found.fun)

    def _scores(self, weight_FC: Floats, features: Any) -> Floats:
        return np.asarray(features @ (weight_FC[:-1] * self.scale_FC) + weight_FC[-1])

    def scores(self, weight_FC: Floats, features: Any) -> Floats:
        """The scores (R, C) of other rows under weights that `fit` returned for these."""
        return np.asarray(self.model.pair(torch.from_numpy(self._scores(weight_FC, features))))

    def choose(self, seed: int) -> tuple[float, float, float | None]:
        """The penalty by which a head is best on rows that it was not fitted to, and the factor on their scores that
        makes the loss least: 1 / T of temperature scaling (Guo et al. 2017); and how good it is.

        Best are accuracy, micro F1 or squared error.
        """
        rows = np.random.default_rng(seed).permutation(self.n_rows)[:MOST_ROWS]
        folds = list(self._folds(rows, seed)) if len(rows) > 1 else []
        if not folds:
            return 1.0, 1.0, None
        held = self.of(np.concatenate([other for _, other in folds]))
        parts: list[list[Floats]] = [[] for _ in PENALTIES]
        for fitted, other in folds:
            part, weights = self.of(fitted), None
            for scores, l2 in zip(parts, PENALTIES, strict=True):
                weights, _ = part.fit(l2, weights, ROUGH)
                scores.append(part.scores(weights, self.features[other]))
        every = [np.concatenate(scores) for scores in parts]
        values = [headline(held.target_RC, scores_RC, self._kind) for scores_RC in every]
        best = int(np.argmin(values) if self._kind == "number" else np.argmax(values))
        return PENALTIES[best], held.factor(every[best]), values[best]

    def factor(self, scores_RC: Floats) -> float:
        """The factor on scores of these rows that makes their loss least; 1 for numbers."""
        from scipy.optimize import minimize_scalar

        def loss(log_factor: float) -> float:
            scaled_RC = torch.from_numpy(scores_RC * np.exp(log_factor))
            return self.objective.head_loss(self.model, scaled_RC, self.labels).total.item()

        if self._kind == "number":
            return 1.0
        return float(np.exp(minimize_scalar(loss, bounds=(-FACTOR, FACTOR), method="bounded").x))

    @property
    def _kind(self) -> Any:
        return self.spec.task

    def _folds(self, rows: NDArray[np.int64], seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows to fit to and others, for each fold; with as many of each class in all, where rows have one."""
        from sklearn.model_selection import KFold, StratifiedKFold

        n_folds, class_R = min(FOLDS, len(rows)), self.target_RC[rows].argmax(1)
        least = int(np.unique(class_R, return_counts=True)[1].min())
        for division in range(DIVISIONS if len(rows) < FEW else 1):
            how: dict[str, Any] = {"shuffle": True, "random_state": seed % 2**31 + division}
            stratified = self._kind == "class" and least > 1
            folds = StratifiedKFold(min(n_folds, least), **how) if stratified else KFold(n_folds, **how)
            for fitted, other in islice(folds.split(rows, class_R), 1 if len(rows) > MANY else None):
                yield rows[fitted], rows[other]


@torch.no_grad()
def fit_head(
    model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch], l2: float | None, seed: int
) -> Fitted:
    """Fit the head of a model to labelled rows, in place; see `Lbfgs`. The other weights stay.

    batches: all rows, on the CPU. l2: None to choose it.
    """
    device = model.head.weight.device
    linear = isinstance(model.head, RatioHead) or model.pool is None
    with evaluating(model):
        model.to("cpu" if linear else device)
        features = model.vectors(batches if linear else [batch.to(device) for batch in batches])
    scale = float(np.sqrt(np.square(features).sum() / features.shape[0])) or 1.0
    used_F = np.unique(features.nonzero()[1]) if linear else np.arange(features.shape[1])
    labels = _joined(batches)
    problem = Problem(model, objective, features[:, used_F] / scale, labels, isinstance(model.head, RatioHead))
    with torch.enable_grad():
        penalty, factor, value = problem.choose(seed) if l2 is None else (l2, 1.0, None)
        weights, loss = problem.fit(penalty)
    weights *= factor
    weight_CF = torch.from_numpy(weights[:-1].T / (1.0 if problem.prior else scale))
    if not problem.prior:
        model.head.weight.zero_()
    model.head.weight[:, used_F] = weight_CF.to(model.head.weight)
    if model.head.bias is not None:
        model.head.bias.copy_(torch.from_numpy(weights[-1]))
    model.to(device)
    return Fitted(loss, penalty, problem.n_rows, value)


def _joined(batches: Sequence[Batch]) -> Batch:
    """The labels of all rows, as one batch without texts."""
    labels = [batch.labels_B for batch in batches if batch.labels_B is not None]
    values = [batch.values_BC for batch in batches if batch.values_BC is not None]
    return Batch(
        torch.zeros(0, 0, dtype=torch.int64),
        labels_B=torch.cat(labels) if labels else None,
        values_BC=torch.cat(values).double() if values else None,
    )


def _rows_of(labels: Batch, rows: Tensor) -> Batch:
    """The labels of some rows."""
    return replace(
        labels,
        labels_B=None if labels.labels_B is None else labels.labels_B[rows],
        values_BC=None if labels.values_BC is None else labels.values_BC[rows],
    )
