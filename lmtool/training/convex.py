"""A linear head on features that stay, fitted to convergence by L-BFGS; its penalty is chosen by cross-validation.

Shapes: R rows, F features, C scores.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

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
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Classification
from lmtool.tasks.baseline import headline

PENALTIES = (1e4, 10.0, 1.0, 0.3, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
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

MOST_ROWS = 10_000
"""Rows that the penalty is chosen on, a random sample of larger tables."""

FACTOR = 5.0
"""Largest logarithm of a factor on scores."""

MOST_ITERATIONS, ITERATIONS = 500, 10

TOLERANCE = 1e-8
"""Decrease of the mean loss by ITERATIONS at which the search for the weights ends."""

ROUGH = 1e-5
"""The same where the penalty is chosen: ten times as fast, and of weak penalties not worse on other rows."""

MOST_PRODUCTS = 4_000_000
"""Products of rows with rows, for all scores, up to which a head is fitted in the space of the rows."""

MANY_PRODUCTS = 50_000_000
"""Features of all rows, for all scores, from which several threads compute: of fewer they wait for each other longer
than they compute."""

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
        return f"head: fitted to {format_count(self.n_rows, 'row')} by L-BFGS, l2 {self.l2:g}{how}"


@dataclass(frozen=True)
class ChosenPenalty:
    """A penalty.

    prior: as of the problem. factor: on the scores of rows that a head was not fitted to, which makes their mean loss
    least: 1 / T of temperature scaling (Guo et al. 2017). loss, value: this loss, and how good the scores are; None
    where all rows were fitted to. start: weights that were fitted to some rows.
    """

    l2: float
    prior: bool
    factor: float = 1.0
    loss: float | None = None
    value: float | None = None
    start_FC: Floats | None = None


class FittedFeatures(NamedTuple):
    """The features that `fit` finds weights of.

    scores: from weights (F, C) to scores (R, C). slopes: from derivatives by scores (R, C) to those by weights (F, C).
    squares_FC: sums over rows of squared features, (F, 1) if they are the same for all scores. n_products:
    multiplications for each score.
    """

    scores: Callable[[Tensor], Tensor]
    slopes: Callable[[Tensor], Tensor]
    squares_FC: Tensor
    n_products: int


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
        # frequent ones first, whose weights are read again and again and then lie near each other
        (single_S,), several_M = (n_rows_F == 1).nonzero(), np.argsort(-n_rows_F, kind="stable")[: (n_rows_F > 1).sum()]
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
        features = self.features.astype(np.float64)  # the decomposition needs them all
        scaled = [features * scale_F for scale_F in self.scale_FC.T] if self.prior else [features]
        products = [each @ each.T for each in scaled]
        with _one_thread():
            value_CR, vector_CRR = np.linalg.eigh([p if isinstance(p, np.ndarray) else p.toarray() for p in products])
        root_C1R = np.sqrt(np.maximum(value_CR, 0.0))[:, None]
        is_in_C1R = root_C1R > 1e-7 * root_C1R.max()
        inverse_C1R = np.divide(1.0, root_C1R, out=np.zeros_like(root_C1R), where=is_in_C1R)
        return vector_CRR * (root_C1R * is_in_C1R), vector_CRR * inverse_C1R

    @cached_property
    def curvature_C(self) -> Floats:
        """About the second derivative of the loss of a row by each score: the variance of a score's labels."""
        times = 2.0 if self.spec.task == "number" else 1.0
        return np.asarray(times * np.maximum(self.target_RC.var(0), 1 / self.n_rows))

    @cached_property
    def fitted_features(self) -> "FittedFeatures":
        """What `fit` looks for weights of."""
        if self.basis is not None:
            rows_CRS = torch.from_numpy(self.basis[0])
            square_SC = rows_CRS.square().sum(1).T
            if len(rows_CRS) == 1:
                return FittedFeatures(rows_CRS[0].matmul, rows_CRS[0].T.matmul, square_SC, self.n_rows**2)
            return FittedFeatures(
                lambda weight_SC: torch.einsum("crs,sc->rc", rows_CRS, weight_SC),
                lambda slope_RC: torch.einsum("crs,rc->sc", rows_CRS, slope_RC),
                square_SC,
                self.n_rows**2,
            )
        features, scale = self.features, self.scale_FC
        if self.joining_FG is not None:
            # those of one row have one ratio
            scale = scale[self.joining_FG.argmax(0)] if self.prior else scale
            features = (features @ self.joining_FG).astype(features.dtype)
        rows, columns = _matrix(features), _matrix(features.T)
        scale_FC = torch.as_tensor(scale, dtype=rows.dtype)
        square_F1 = torch.from_numpy(np.asarray((features * features).sum(0))).to(rows.dtype)[:, None]
        return FittedFeatures(
            lambda weight_FC: rows @ (weight_FC * scale_FC),
            lambda slope_RC: (columns @ slope_RC) * scale_FC,
            square_F1 * scale_FC.square(),
            int(np.count_nonzero(features)) if isinstance(features, np.ndarray) else features.nnz,
        )

    def fit(self, l2: float, start_FC: Floats | None = None, tolerance: float = TOLERANCE) -> tuple[Floats, float]:
        """The weights with the biases as their last row (F + 1, C), and the loss. start: where the search begins.

        What is looked for is their distance from the origin, in units in which the loss curves about equally.
        """
        features, scale, basis, n_scores = self.features, self.scale_FC, self.basis, self.model.head.out_features
        fitted, joining = self.fitted_features, self.joining_FG if basis is None else None
        has_bias = self.model.head.bias is not None

        def project(weight_FC: Floats) -> Floats:
            """What is looked for in these weights."""
            if basis is not None:
                return _each(basis[1].swapaxes(1, 2), features @ (weight_FC * scale))
            return weight_FC if joining is None else np.asarray(joining.T @ weight_FC)

        def expand(found_FC: Floats) -> Floats:
            """The weights of what is found."""
            if basis is not None:
                return np.asarray(features.T @ _each(basis[1], found_FC) * scale)
            return found_FC if joining is None else np.asarray(joining @ found_FC)

        dtype = fitted.squares_FC.dtype
        origin_RC = torch.as_tensor(np.asarray(features @ scale) if self.prior else 0.0, dtype=dtype)
        # a bias is drawn to 0 with the rest of naive Bayes, and else is free
        n_features = len(fitted.squares_FC)
        l2_F1 = torch.full((n_features + 1, 1), l2, dtype=dtype)
        l2_F1[-1] = l2 * self.prior
        curvature_C = torch.as_tensor(self.curvature_C, dtype=dtype)
        squares_FC = torch.cat((fitted.squares_FC, torch.full((1, fitted.squares_FC.shape[1]), self.n_rows)))
        unit_FC = (squares_FC * curvature_C + l2_F1).rsqrt()
        away_FC = torch.zeros(n_features + 1, n_scores, dtype=dtype)
        if start_FC is not None:
            start_FC = np.concatenate((project(start_FC[:-1] - self.prior), start_FC[-1:]))
            away_FC = torch.as_tensor(start_FC, dtype=dtype)
        found_FC = (away_FC / unit_FC).contiguous()
        slope_FC = found_FC.grad = torch.zeros_like(found_FC)

        def total() -> float:
            torch.mul(found_FC, unit_FC, out=away_FC)
            scores_RC = (fitted.scores(away_FC[:-1]) + away_FC[-1] + origin_RC).double().requires_grad_()
            with torch.enable_grad():
                loss = self.objective.head_loss(self.model, self.model.pair(scores_RC), self.labels, trains=True).total
                (slope_RC,) = torch.autograd.grad(loss, scores_RC)
            drawn_FC, slope_RC = l2_F1 * away_FC, slope_RC.to(dtype)
            slope_FC[:-1] = drawn_FC[:-1] + fitted.slopes(slope_RC)
            slope_FC[-1] = drawn_FC[-1] + slope_RC.sum(0) * has_bias
            slope_FC.mul_(unit_FC)
            return loss.item() + float((away_FC * drawn_FC).sum(dtype=torch.float64)) / 2

        limits: dict[str, Any] = {"max_iter": ITERATIONS, "tolerance_grad": 0.0, "tolerance_change": 1e-12}
        search = torch.optim.LBFGS([found_FC], history_size=5, line_search_fn="strong_wolfe", **limits)
        with torch.no_grad(), nullcontext() if fitted.n_products * n_scores > MANY_PRODUCTS else _one_thread():
            loss = total()
            for _ in range(MOST_ITERATIONS // ITERATIONS):
                before, _ = loss, search.step(total)  # type: ignore[no-untyped-call]
                loss = total()
                if before - loss <= tolerance * self.n_rows:
                    break
        found = away_FC.double().numpy()
        return np.concatenate((expand(found[:-1]) + self.prior, found[-1:])), loss / self.n_rows

    def scores(self, weight_FC: Floats, features: Any) -> Floats:
        """The scores (R, C) of other rows under weights that `fit` returned for these."""
        scores_RC = np.asarray(features @ (weight_FC[:-1] * self.scale_FC) + weight_FC[-1])
        return np.asarray(self.model.pair(torch.from_numpy(scores_RC)))

    def choose(self, seed: int) -> "ChosenPenalty":
        """The penalty by which the loss is least on rows that a head was not fitted to, its scores times a factor.

        Where there is a prior, a head of few rows may also be fitted without it: the ratios of few rows are uncertain.
        Of few rows a loss tells more than an accuracy, by which penalties are often alike. Weaker penalties, which take
        longer, are not tried once the loss rises below 1; above, between naive Bayes and logistic regression, it may
        rise and fall again. The largest ones are left out where there is no naive Bayes to stay: a head of few rows
        that is near zero tells classes apart by its bias alone.
        """
        rows = np.random.default_rng(seed).permutation(self.n_rows)[:MOST_ROWS]
        is_many = len(rows) > MANY
        folds = list(self._folds(rows, seed, DIVISIONS if len(rows) < FEW else 1)) if len(rows) > 1 else []
        folds = folds[: 1 if is_many else None]
        best, least = ChosenPenalty(1.0, self.prior), float("inf")
        if not folds:
            return best
        held = self.of(np.concatenate([other for _, other in folds]))
        for prior in (True, False) if self.prior and not is_many else (self.prior,):
            parts = [replace(self.of(fitted).rounded, prior=prior) for fitted, _ in folds]
            weights: list[Floats | None] = [None] * len(folds)
            before = float("inf")
            for l2 in PENALTIES if prior else PENALTIES[2:]:
                scores = []
                for i, (part, (_, other)) in enumerate(zip(parts, folds, strict=True)):
                    weight_FC = weights[i] = part.fit(l2, weights[i], ROUGH)[0]
                    scores.append(part.scores(weight_FC, self.features[other]))
                scores_RC = np.concatenate(scores)
                factor, loss = held.factor(scores_RC)
                if loss < least:
                    value, least = headline(held.target_RC, scores_RC, self._kind), loss
                    best = ChosenPenalty(l2, prior, factor, loss / held.n_rows, value, weight_FC)
                if l2 < 1 and loss > before:
                    break
                before = loss
        return best

    @property
    def rounded(self) -> "Problem":
        """The same with sparse features in single precision, whose products take half the time."""
        from scipy.sparse import issparse

        return replace(self, features=self.features.astype(np.float32)) if issparse(self.features) else self

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
        # the ratios tell one class from the others, and do not suit several labels
        labels, prior = _joined(batches), isinstance(model.head, RatioHead) and objective.spec.task == "class"
        return cls(Problem(model, objective, features[:, used_F] / scale, labels, prior), used_F, scale)

    def take(self, rows: NDArray[np.int64]) -> "HeadProblem":
        """The same with some of the rows."""
        return replace(self, problem=self.problem.of(rows))

    @torch.no_grad()
    def fit_head(self, l2: float | None, seed: int) -> Fitted:
        """Fit the head in place; see `Lbfgs`. The other weights stay. l2: None to choose it."""
        problem, head = self.problem, self.problem.model.head
        with torch.enable_grad():
            if l2 is None:  # fitted as the heads were that the factor is of
                choice = problem.choose(seed)
                problem = replace(problem, prior=choice.prior)
                weights, loss = problem.rounded.fit(choice.l2, choice.start_FC, ROUGH)
            else:
                choice = ChosenPenalty(l2, problem.prior)
                weights, loss = problem.fit(l2)
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
) -> ChosenPenalty:
    """The penalty of the head of a model, and how good the head is by it."""
    return HeadProblem.of(model, objective, batches).problem.choose(seed)


def _matrix(features: Any) -> Tensor:
    """A matrix of NumPy or SciPy for products with dense ones, which are computed in threads."""
    from scipy.sparse import csr_array, issparse

    if not issparse(features):
        return torch.from_numpy(features)
    rows = csr_array(features).sorted_indices()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        starts, places = (torch.from_numpy(part.astype(np.int32)) for part in (rows.indptr, rows.indices))
        values, size = torch.from_numpy(rows.data), list(rows.shape)
        return torch.sparse_csr_tensor(starts, places, values, size=size, check_invariants=True)


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
