"""A linear head on features that stay, fitted to convergence by L-BFGS; its penalty is chosen by cross-validation.

Shapes: R rows, F features, C scores.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.compute.device import cpu_threads
from lmtool.model.averaging import RatioHead, log_ratios
from lmtool.model.heads import Classifier
from lmtool.model.language_model import evaluating
from lmtool.objective.heads import ClassificationObjective
from lmtool.printable import counted
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks.baseline import headline

PENALTIES = (1e4, 10.0, 1.0, 0.3, 0.1, 0.01, 1e-3, 1e-4)
"""Values of l2 that cross-validation chooses from. By the first a head that begins as naive Bayes stays that, which
needs fewer rows than logistic regression (Ng and Jordan 2002)."""

PLAIN_PENALTY = 0.01
"""That of vectors that were trained on the same rows, of which cross-validation would tell too much good: weak, so that
probabilities are as high as such vectors are often right."""

FOLDS = 5
"""Of one division of MANY rows, or of several of FEW, so that chance chooses less."""

FEW, DIVISIONS = 200, 3

MANY = 1_000
"""Rows from which a fold is enough."""

MOST_ROWS = 20_000
"""Rows that the penalty is chosen on, a random sample of larger tables."""

FACTOR = 5.0
"""Largest logarithm of a factor on scores."""

MOST_ITERATIONS, ITERATIONS = 500, 10

TOLERANCE = 1e-8
"""Decrease of the mean loss by ITERATIONS at which the search for the weights ends."""

ROUGH = 1e-5
"""The same in cross-validation."""

MOST_PRODUCTS = 4_000_000
"""Products of rows with rows, for all scores, up to which a head is fitted in the space of the rows."""

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
        return f"head: fitted to {counted(self.n_rows, 'row')} by L-BFGS, l2 {self.l2:g}{how}"


@dataclass(frozen=True)
class ChosenPenalty:
    """A penalty. prior: as of the problem. factor: on the scores of rows that a head was not fitted to, which makes
    their loss least: 1 / T of temperature scaling (Guo et al. 2017). value: how good they are. start: weights that were
    fitted to some rows."""

    l2: float
    prior: bool
    factor: float = 1.0
    value: float | None = None
    start_FC: Floats | None = None


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
    def scale_FC(self) -> Any:
        """What the weights are multiplied by."""
        if not self.prior:
            return 1.0
        return np.ascontiguousarray(log_ratios(self.features, self.target_RC).T)

    def of(self, rows: NDArray[np.int64]) -> "Problem":
        """The same with some of the rows."""
        return replace(self, features=self.features[rows], labels=_rows_of(self.labels, torch.from_numpy(rows)))

    @cached_property
    def joining_FG(self) -> Any:
        """What makes one feature of those that a single row has, and none of those that no row has; None if dense.

        Its columns are orthonormal, and such features differ in their values alone, so the minimum is the same.
        """
        from scipy.sparse import csc_array, csr_array, issparse

        if not issparse(self.features):
            return None
        columns = csc_array(self.features)
        n_rows_F = np.diff(columns.indptr)
        (single_S,), (several_M,) = (n_rows_F == 1).nonzero(), (n_rows_F > 1).nonzero()
        entry_S = columns.indptr[single_S]
        value_S, (_, group_S) = columns.data[entry_S], np.unique(columns.indices[entry_S], return_inverse=True)
        norm_G = np.sqrt(np.bincount(group_S, np.square(value_S)))
        values = np.concatenate((np.ones(len(several_M)), value_S / norm_G[group_S]))
        joined = np.concatenate((np.arange(len(several_M)), len(several_M) + group_S))
        shape = len(n_rows_F), len(several_M) + len(norm_G)
        return csr_array((values, (np.concatenate((several_M, single_S)), joined)), shape=shape)

    @cached_property
    def basis(self) -> tuple[Floats, Floats] | None:
        """Coordinates of the rows in an orthonormal basis of their scaled features, for each score (C, R, R), and what
        makes weights of rows of such in the basis (C, R, R); None where rows are not much fewer than features.

        The weights of the minimum are sums of rows, so it is the same, and is found in a fraction of the time.
        """
        n_rows, n_features = self.features.shape
        n_bases = self.model.head.out_features if self.prior else 1
        if n_features <= 2 * n_rows or n_bases * n_rows**2 > MOST_PRODUCTS:
            return None
        scaled = [self.features * scale_F for scale_F in self.scale_FC.T] if self.prior else [self.features]
        products = [each @ each.T for each in scaled]
        with _one_thread():
            value_CR, vector_CRR = np.linalg.eigh([p if isinstance(p, np.ndarray) else p.toarray() for p in products])
        root_C1R = np.sqrt(np.maximum(value_CR, 0.0))[:, None]
        is_in_C1R = root_C1R > 1e-7 * root_C1R.max()
        inverse_C1R = np.divide(1.0, root_C1R, out=np.zeros_like(root_C1R), where=is_in_C1R)
        return vector_CRR * (root_C1R * is_in_C1R), vector_CRR * inverse_C1R

    def fit(self, l2: float, start_FC: Floats | None = None, tolerance: float = TOLERANCE) -> tuple[Floats, float]:
        """The weights with the biases as their last row (F + 1, C), and the loss. start: where the search begins.

        What is looked for is their distance from the origin.
        """
        features, scale, basis, n_scores = self.features, self.scale_FC, self.basis, self.model.head.out_features
        origin_RC: Floats | float = np.asarray(features @ scale) if self.prior else 0.0
        joining = None if basis is not None else self.joining_FG
        if joining is not None:
            # those of one row have one ratio
            scale = scale[joining.argmax(0)] if self.prior else scale
            features = features @ joining
        n_features = len(basis[0][0]) if basis is not None else features.shape[1]
        transposed = features.T

        def project(weight_FC: Floats) -> Floats:
            """What is looked for in these weights."""
            if basis is not None:
                return _each(basis[1].swapaxes(1, 2), features @ (weight_FC * scale))
            return weight_FC if joining is None else np.asarray(joining.T @ weight_FC)

        def expand(found_FC: Floats) -> Floats:
            """The weights of what is found."""
            if basis is not None:
                return np.asarray(transposed @ _each(basis[1], found_FC) * scale)
            return found_FC if joining is None else np.asarray(joining @ found_FC)

        # a bias is drawn to 0 with the rest of naive Bayes, and else is free
        l2_F1 = np.full((n_features + 1, 1), l2)
        l2_F1[-1] = l2 * self.prior
        found_FC = torch.zeros(n_features + 1, n_scores, dtype=torch.float64)
        found_FC.grad = torch.zeros_like(found_FC)
        away_FC, slope_FC = found_FC.numpy(), found_FC.grad.numpy()  # the same memory
        if start_FC is not None:
            away_FC[:-1], away_FC[-1] = project(start_FC[:-1] - self.prior), start_FC[-1]

        def total() -> float:
            of_rows = features @ (away_FC[:-1] * scale) if basis is None else _each(basis[0], away_FC[:-1])
            scores_RC = torch.from_numpy(of_rows + away_FC[-1] + origin_RC).requires_grad_()
            loss = self.objective.head_loss(self.model, self.model.pair(scores_RC), self.labels, trains=True).total
            (slope_RC,) = (slope.numpy() for slope in torch.autograd.grad(loss, scores_RC))
            drawn_FC = l2_F1 * away_FC
            down_FC = (transposed @ slope_RC) * scale if basis is None else _each(basis[0].swapaxes(1, 2), slope_RC)
            slope_FC[:-1] = drawn_FC[:-1] + down_FC
            slope_FC[-1] = drawn_FC[-1] + slope_RC.sum(0) * (self.model.head.bias is not None)
            return loss.item() + float(np.vdot(away_FC, drawn_FC)) / 2

        limits: dict[str, Any] = {"max_iter": ITERATIONS, "tolerance_grad": 0.0, "tolerance_change": 1e-12}
        search = torch.optim.LBFGS([found_FC], history_size=5, line_search_fn="strong_wolfe", **limits)
        with _one_thread() if basis is not None else nullcontext():
            loss = total()
            for _ in range(MOST_ITERATIONS // ITERATIONS):
                before, _ = loss, search.step(total)  # type: ignore[no-untyped-call]
                loss = total()
                if before - loss <= tolerance * self.n_rows:
                    break
        return np.concatenate((expand(away_FC[:-1]) + self.prior, away_FC[-1:])), loss / self.n_rows

    def scores(self, weight_FC: Floats, features: Any) -> Floats:
        """The scores (R, C) of other rows under weights that `fit` returned for these."""
        scores_RC = np.asarray(features @ (weight_FC[:-1] * self.scale_FC) + weight_FC[-1])
        return np.asarray(self.model.pair(torch.from_numpy(scores_RC)))

    def choose(self, seed: int, penalties: Sequence[float] | None = None, many: int = MANY) -> "ChosenPenalty":
        """The penalty by which the loss is least on rows that a head was not fitted to, its scores times a factor.

        Where there is a prior, a head of many rows may also be fitted without it (Ng and Jordan 2002).
        Of few rows a loss tells more than an accuracy, by which penalties are often alike. Weaker penalties, which take
        longer, are not tried once the loss rises below 1; above, between naive Bayes and logistic regression, it may
        rise and fall again. penalties: by default PENALTIES, without the largest ones where there is no naive Bayes to
        stay: a head of few rows that is near zero tells classes apart by its bias alone.
        """
        rows = np.random.default_rng(seed).permutation(self.n_rows)[:MOST_ROWS]
        divisions = DIVISIONS if len(rows) < FEW and penalties is None else 1
        folds = list(self._folds(rows, seed, divisions)) if len(rows) > 1 else []
        folds = folds[: 1 if len(rows) > many else None]
        best, least = ChosenPenalty(1.0, self.prior), float("inf")
        if not folds:
            return best
        held = self.of(np.concatenate([other for _, other in folds]))
        for prior in (True, False) if self.prior and penalties is None and len(rows) > many else (self.prior,):
            parts = [replace(self.of(fitted), prior=prior) for fitted, _ in folds]
            weights: list[Floats | None] = [None] * len(folds)
            before = float("inf")
            for l2 in penalties or (PENALTIES if prior else PENALTIES[2:]):
                scores = []
                for i, (part, (_, other)) in enumerate(zip(parts, folds, strict=True)):
                    weight_FC = weights[i] = part.fit(l2, weights[i], ROUGH)[0]
                    scores.append(part.scores(weight_FC, self.features[other]))
                scores_RC = np.concatenate(scores)
                factor, loss = held.factor(scores_RC)
                if loss < least:
                    value = headline(held.target_RC, scores_RC, self._kind)
                    best, least = ChosenPenalty(l2, prior, factor, value, weight_FC), loss
                if l2 < 1 and loss > before:
                    break
                before = loss
        return best

    def factor(self, scores_RC: Floats) -> tuple[float, float]:
        """The factor on scores of these rows that makes their loss least, 1 for numbers; and this loss."""
        from scipy.optimize import minimize_scalar

        def loss(log_factor: float) -> float:
            scaled_RC = torch.from_numpy(scores_RC * np.exp(log_factor))
            return self.objective.head_loss(self.model, scaled_RC, self.labels).total.item()

        if self._kind == "number":
            return 1.0, loss(0.0)
        best = minimize_scalar(loss, bounds=(-FACTOR, FACTOR), method="bounded")
        return float(np.exp(best.x)), float(best.fun)

    @property
    def _kind(self) -> Any:
        return self.spec.task

    def _folds(
        self, rows: NDArray[np.int64], seed: int, divisions: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows to fit to and others, for each fold; with as many of each class in all, where rows have one."""
        from sklearn.model_selection import KFold, StratifiedKFold

        n_folds, class_R = min(FOLDS, len(rows)), self.target_RC[rows].argmax(1)
        least = int(np.unique(class_R, return_counts=True)[1].min())
        for division in range(divisions):
            how: dict[str, Any] = {"shuffle": True, "random_state": seed % 2**31 + division}
            stratified = self._kind == "class" and least > 1
            folds = StratifiedKFold(min(n_folds, least), **how) if stratified else KFold(n_folds, **how)
            for fitted, other in folds.split(rows, class_R):
                yield rows[fitted], rows[other]


@dataclass(frozen=True)
class HeadProblem:
    """The problem of the head of a model. used_F: the features of the model that are its features. scale: what these
    are divided by."""

    problem: Problem
    used_F: NDArray[np.int64]
    scale: float

    @classmethod
    @torch.no_grad()
    def of(cls, model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch]) -> "HeadProblem":
        """batches: all labelled rows, on the CPU."""
        device = model.head.weight.device
        linear = isinstance(model.head, RatioHead) or model.pool is None
        with evaluating(model):
            model.to("cpu" if linear else device)
            features = model.vectors(batches if linear else [batch.to(device) for batch in batches])
            model.to(device)
        scale = float(np.sqrt(np.square(features).sum() / features.shape[0])) or 1.0
        used_F = np.unique(features.nonzero()[1]) if linear else np.arange(features.shape[1])
        labels, prior = _joined(batches), isinstance(model.head, RatioHead)
        return cls(Problem(model, objective, features[:, used_F] / scale, labels, prior), used_F, scale)

    def take(self, rows: NDArray[np.int64]) -> "HeadProblem":
        """The same with some of the rows."""
        return replace(self, problem=self.problem.of(rows))

    @torch.no_grad()
    def fit_head(self, l2: float | None, seed: int) -> Fitted:
        """Fit the head in place; see `Lbfgs`. The other weights stay. l2: None to choose it."""
        problem, head = self.problem, self.problem.model.head
        with torch.enable_grad():
            choice = problem.choose(seed) if l2 is None else ChosenPenalty(l2, problem.prior)
            problem = replace(problem, prior=choice.prior)
            weights, loss = problem.fit(choice.l2, choice.start_FC)
        weights *= choice.factor
        weight_CF = torch.from_numpy(weights[:-1].T / (1.0 if problem.prior else self.scale))
        if not problem.prior:
            head.weight.zero_()
            if isinstance(head, RatioHead):
                head.ratios_CF.fill_(1.0)
        head.weight[:, self.used_F] = weight_CF.to(head.weight)
        if head.bias is not None:
            head.bias.copy_(torch.from_numpy(weights[-1]))
        return Fitted(loss, choice.l2, problem.n_rows, choice.value)


def fit_head(
    model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch], l2: float | None, seed: int
) -> Fitted:
    """Fit the head of a model to labelled rows, in place; see `HeadProblem.fit_head`."""
    return HeadProblem.of(model, objective, batches).fit_head(l2, seed)


def cross_validate(
    model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch], seed: int
) -> float | None:
    """How good the head of a model is in all folds, by a penalty of some thousand texts; None for a single row."""
    problem = HeadProblem.of(model, objective, batches).problem
    return problem.choose(seed, (0.1,), problem.n_rows).value


@contextmanager
def _one_thread() -> Iterator[None]:
    """A context in which small products are computed by one thread, since several wait for each other longer than they
    compute: beside other programs 20 decompositions of 160 rows take 5.5 s instead of 0.04."""
    with cpu_threads(1), _blas().limit(limits=1):
        yield


@cache
def _blas() -> Any:
    """The libraries of NumPy and SciPy that compute in threads."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _each(matrices: Floats, columns: Floats) -> Floats:
    """The products of matrices (C, R, S), or of one for all (1, R, S), with columns (S, C)."""
    products: Floats = np.matmul(matrices, columns.T[..., None])[..., 0].T
    return products


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
