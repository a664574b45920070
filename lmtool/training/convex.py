"""Fits a linear head on fixed features to convergence by L-BFGS; cross-validation chooses its penalty.

Shapes: R rows, F features, C scores.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lmtool.arrays import Floats
from lmtool.batch import Batch
from lmtool.compute.device import use_cpu_threads
from lmtool.model.averaging import NaiveBayesScaledHead, log_count_ratios, multi_hot_or_numeric_labels
from lmtool.model.heads import Classifier
from lmtool.model.language_model import evaluation_mode
from lmtool.objective.heads import ClassificationObjective
from lmtool.printable import format_count
from lmtool.tasks.baseline import LABEL_KIND_METRICS, compute_main_metric
from lmtool.tasks.labels import LabelKind
from lmtool.training.lbfgs import minimize_lbfgs

PENALTIES = (1e4, 10.0, 1.0, 0.3, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
"""Values of l2 that cross-validation chooses from. With the first one a head that starts as naive Bayes stays naive
Bayes, which needs fewer rows than logistic regression (Ng and Jordan 2002)."""

CONTRASTIVE_PENALTY = 0.01
"""The l2 for vectors that were trained on the same rows, for which cross-validation is too optimistic. It is weak, so
that probabilities are as high as such vectors are often right."""

N_PENALTY_FOLDS = 5

FEW_PENALTY_ROWS, N_DIVISIONS = 200, 3
"""Fewer rows are divided into folds this often, so that chance has less influence on the choice."""

MANY_PENALTY_ROWS = 1_000
"""More rows are scored on one fold only."""

MAX_PENALTY_ROWS = 10_000
"""Maximum rows on which the penalty is chosen: a random sample of larger tables."""

MIX_PENALTY = 1e-3
"""L2 penalty of the scalars of a mix of layers, for each row (the lambda of Peters et al. 2018)."""

MAX_LOG_FACTOR = 5.0
"""Maximum absolute logarithm of the factor on scores."""

TOLERANCE = 1e-8
"""The search for weights ends when ten iterations decrease the mean loss by no more."""

ROUGH_TOLERANCE = 1e-5
"""The same while the penalty is chosen: ten times as fast, and with weak penalties not worse on other rows."""

MAX_BASIS_PRODUCTS = 4_000_000
"""Maximum products of rows with rows, for all scores, for a head to be fitted in the space of the rows."""

MIN_THREADED_PRODUCTS = 50_000_000
"""Products of features with weights from which several threads compute. With fewer, threads wait for each other longer
than they compute."""


@dataclass(frozen=True)
class HeadFitSummary:
    """The result of fitting a head.

    loss: mean over rows. l2: as in the recipe. n_rows: number of rows that it was fitted to. score: headline metric, of
    the name `metric`, in cross-validation; None if the penalty was given.
    """

    loss: float
    l2: float
    n_rows: int
    score: float | None
    metric: str

    def describe(self) -> str:
        """Returns a line about the fit."""
        choice = "" if self.score is None else f", chosen by cross-validation: {self.metric} {self.score:.4f}"
        return f"head: fitted to {format_count(self.n_rows, 'row')} by L-BFGS, l2 {self.l2:g}{choice}"


@dataclass(frozen=True)
class ChosenPenalty:
    """A penalty that cross-validation chose.

    from_naive_bayes: see `HeadFittingProblem`. factor: on scores, which minimizes the mean loss of held-out rows: 1 / T
    of temperature scaling (Guo et al. 2017). loss: this loss; score: headline metric on the same rows; None if nothing
    was held out. start_FC: weights that were fitted to a fold.
    """

    l2: float
    from_naive_bayes: bool
    factor: float = 1.0
    loss: float | None = None
    score: float | None = None
    start_FC: Floats | None = None


class FeatureLinearOperator(NamedTuple):
    """The features as `HeadFittingProblem.minimize` multiplies them with weights.

    forward: from weights (F, C) to scores (R, C). backward: from gradients of scores (R, C) to those of weights (F, C).
    squares_FC: sums over rows of squared features; (F, 1) if they are the same for all scores. n_products:
    multiplications for each score.
    """

    forward: Callable[[Floats], Floats]
    backward: Callable[[Floats], Floats]
    squares_FC: Floats
    n_products: int


class RowBasis(NamedTuple):
    """An orthonormal basis of the rows' features, for each of C scores.

    coordinates_CRR: of the rows in the basis. to_row_weights_CRR: maps weights in the basis to weights of rows.
    """

    coordinates_CRR: Floats
    to_row_weights_CRR: Floats


class ScoreFactorWithLoss(NamedTuple):
    """A factor on scores, and the summed loss of the rows with it."""

    factor: float
    total_loss: float


@dataclass(frozen=True)
class HeadFittingProblem:
    """A minimization problem: the objective's loss, summed over rows, and the penalty of the weights.

    features: (R, F), dense or sparse, scaled so that the mean squared norm of the rows is 1. labels: a batch with the
    labels of the rows only. from_naive_bayes: the head starts as naive Bayes, and the penalty draws it back there: its
    weights are factors on log ratios. used_F: the features of the model that occur in the rows, which are divided by
    `scale`.
    """

    model: Classifier
    objective: ClassificationObjective
    features: Any
    labels: Batch
    from_naive_bayes: bool
    used_F: NDArray[np.int64]
    scale: float

    @classmethod
    @torch.no_grad()
    def from_batches(
        cls, model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch]
    ) -> "HeadFittingProblem":
        """Returns the problem of a model's head, whose features it computes. batches: all labelled rows, on the CPU."""
        device = model.head.weight.device
        is_linear = isinstance(model.head, NaiveBayesScaledHead) or model.pool is None
        with evaluation_mode(model):
            model.to("cpu" if is_linear else device)
            features = model.head_feature_vectors(batches if is_linear else [batch.to(device) for batch in batches])
            model.to(device)
        scale = float(np.sqrt(np.square(features).sum() / features.shape[0])) or 1.0
        used_F = np.unique(features.nonzero()[1]) if is_linear else np.arange(features.shape[1])
        # log ratios tell one class from the others, and do not suit several labels
        from_naive_bayes = isinstance(model.head, NaiveBayesScaledHead) and objective.spec.task == "class"
        scaled, labels = features[:, used_F] / scale, _concatenate_labels(batches)
        return cls(model, objective, scaled, labels, from_naive_bayes, used_F, scale)

    @property
    def kind(self) -> LabelKind:
        """The kind of labels."""
        return cast(LabelKind, self.objective.spec.task)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.features.shape[0])

    @property
    def target_RC(self) -> Floats:
        """Targets of the scores: multi-hot labels, or numbers."""
        return multi_hot_or_numeric_labels(self.labels, len(self.objective.spec.labels))

    @cached_property
    def log_ratio_scale_FC(self) -> Any:
        """Factors on the weights: log ratios of naive Bayes, or 1."""
        if not self.from_naive_bayes:
            return 1.0
        return np.ascontiguousarray(log_count_ratios(self.features, self.target_RC).T)

    def select_rows(self, rows: NDArray[np.int64]) -> "HeadFittingProblem":
        """Returns the problem of some of the rows."""
        labels_B, values_BC, row_K = self.labels.labels_B, self.labels.values_BC, torch.from_numpy(rows)
        labels = replace(
            self.labels,
            labels_B=None if labels_B is None else labels_B[row_K],
            values_BC=None if values_BC is None else values_BC[row_K],
        )
        return replace(self, features=self.features[rows], labels=labels)

    @cached_property
    def singleton_merging_matrix_FG(self) -> Any:
        """The matrix that joins the features that only one row has into one, and drops those of no row; None if dense.

        Its columns are orthonormal, and the joined features differ only in their values, so the minimum is the same.
        """
        from scipy.sparse import csc_array, csr_array, issparse

        if not issparse(self.features):
            return None
        columns = csc_array(self.features)
        n_rows_F = np.diff(columns.indptr)
        # frequent features first: their weights are read often, and then lie near each other in memory
        (single_S,), several_M = (n_rows_F == 1).nonzero(), np.argsort(-n_rows_F, kind="stable")[: (n_rows_F > 1).sum()]
        entry_S = columns.indptr[single_S]
        value_S, (_, group_S) = columns.data[entry_S], np.unique(columns.indices[entry_S], return_inverse=True)
        norm_G = np.sqrt(np.bincount(group_S, np.square(value_S)))
        values = np.concatenate((np.ones(len(several_M)), value_S / norm_G[group_S]))
        joined = np.concatenate((np.arange(len(several_M)), len(several_M) + group_S))
        shape = len(n_rows_F), len(several_M) + len(norm_G)
        return csr_array((values, (np.concatenate((several_M, single_S)), joined)), shape=shape)

    @cached_property
    def row_basis(self) -> RowBasis | None:
        """An orthonormal basis of the scaled features of the rows; None if rows are not much fewer than features.

        The weights at the minimum are sums of rows, so the minimum is the same, in a fraction of the time.
        """
        n_rows, n_features = self.features.shape
        n_bases = self.model.head.out_features if self.from_naive_bayes else 1
        if n_features <= 2 * n_rows or n_bases * n_rows**2 > MAX_BASIS_PRODUCTS:
            return None
        features = self.features.astype(np.float64)  # the decomposition needs double precision
        scaled = [features * scale_F for scale_F in self.log_ratio_scale_FC.T] if self.from_naive_bayes else [features]
        products = [each @ each.T for each in scaled]
        with _single_thread():
            value_CR, vector_CRR = np.linalg.eigh([p if isinstance(p, np.ndarray) else p.toarray() for p in products])
        root_C1R = np.sqrt(np.maximum(value_CR, 0.0))[:, None]
        is_in_C1R = root_C1R > 1e-7 * root_C1R.max()
        inverse_C1R = np.divide(1.0, root_C1R, out=np.zeros_like(root_C1R), where=is_in_C1R)
        return RowBasis(vector_CRR * (root_C1R * is_in_C1R), vector_CRR * inverse_C1R)

    @cached_property
    def loss_curvature_C(self) -> Floats:
        """Approximate second derivative of the loss of a row by each score: the variance of its targets."""
        factor = 2.0 if self.kind == "number" else 1.0
        # a single score is that of the second class
        target_RC = self.target_RC[:, -self.model.head.out_features :]
        return np.asarray(factor * np.maximum(target_RC.var(0), 1 / self.n_rows))

    @cached_property
    def feature_operator(self) -> FeatureLinearOperator:
        """The features, in the basis of the rows or joined, as `minimize` multiplies them."""
        if self.row_basis is not None:
            rows_CRS = self.row_basis.coordinates_CRR
            return FeatureLinearOperator(
                lambda weight_SC: _multiply_each(rows_CRS, weight_SC),
                lambda gradient_RC: _multiply_each(rows_CRS.swapaxes(1, 2), gradient_RC),
                np.square(rows_CRS).sum(1).T,
                self.n_rows**2,
            )
        features, scale = self.features, self.log_ratio_scale_FC
        if self.singleton_merging_matrix_FG is not None:
            # the joined features of a row have the same ratio, so a weighted mean of them is this ratio
            scale = self.singleton_merging_matrix_FG.power(2).T @ scale if self.from_naive_bayes else scale
            features = (features @ self.singleton_merging_matrix_FG).astype(features.dtype)
        rows, columns = _to_dense_or_csr_tensor(features), _to_dense_or_csr_tensor(features.T)
        scale_FC = torch.as_tensor(scale, dtype=rows.dtype)
        return FeatureLinearOperator(
            lambda weight_FC: (rows @ (torch.from_numpy(weight_FC) * scale_FC)).numpy(),
            lambda gradient_RC: ((columns @ torch.from_numpy(gradient_RC)) * scale_FC).numpy(),
            (np.asarray((features * features).sum(0))[:, None] * np.square(scale)).astype(features.dtype),
            int(np.count_nonzero(features)) if isinstance(features, np.ndarray) else features.nnz,
        )

    def minimize(self, l2: float, start_FC: Floats | None = None, tolerance: float = TOLERANCE) -> tuple[Floats, float]:
        """Searches for the weights of the smallest loss by L-BFGS.

        Returns the weights, with the biases as their last row (F + 1, C), and the mean loss of the rows with them.
        start_FC: initial weights. The search is for the weights' difference from their origin, in units in which the
        loss has about the same curvature in all directions.
        """
        features, scale, basis, linear = self.features, self.log_ratio_scale_FC, self.row_basis, self.feature_operator
        joining = self.singleton_merging_matrix_FG if basis is None else None
        has_bias, target_RC = self.model.head.bias is not None, self.target_RC

        def project(weight_FC: Floats) -> Floats:
            """Converts weights to the variables of the search."""
            if basis is not None:
                return _multiply_each(basis.to_row_weights_CRR.swapaxes(1, 2), features @ (weight_FC * scale))
            return weight_FC if joining is None else np.asarray(joining.T @ weight_FC)

        def expand(found_FC: Floats) -> Floats:
            """Converts the variables of the search to weights."""
            if basis is not None:
                return np.asarray(features.T @ _multiply_each(basis.to_row_weights_CRR, found_FC) * scale)
            return found_FC if joining is None else np.asarray(joining @ found_FC)

        origin_RC = np.asarray(features @ scale) if self.from_naive_bayes else 0.0
        # the bias is penalized with the rest of naive Bayes, and else is free
        dtype = linear.squares_FC.dtype
        l2_F1 = np.full((len(linear.squares_FC) + 1, 1), l2, dtype)
        l2_F1[-1] *= self.from_naive_bayes
        squares_FC = np.concatenate((linear.squares_FC, np.full((1, linear.squares_FC.shape[1]), self.n_rows, dtype)))
        unit_FC = (1 / np.sqrt(squares_FC * self.loss_curvature_C + l2_F1)).astype(dtype)
        away_FC = np.zeros_like(unit_FC)
        if start_FC is not None:
            away_FC[:-1], away_FC[-1] = project(start_FC[:-1] - self.from_naive_bayes), start_FC[-1]

        def compute_total(found_N: Floats) -> tuple[float, Floats]:
            moved_FC = found_N.reshape(unit_FC.shape) * unit_FC
            scores_RC = (linear.forward(moved_FC[:-1]) + moved_FC[-1] + origin_RC).astype(np.float64)
            loss, gradient_RC = self.objective.compute_head_loss_sum_and_gradient(scores_RC, target_RC)
            gradient_FC = l2_F1 * moved_FC
            penalty = float((moved_FC * gradient_FC).sum(dtype=np.float64)) / 2
            gradient_FC[:-1] += linear.backward(gradient_RC.astype(dtype))
            gradient_FC[-1] += gradient_RC.sum(0) * has_bias
            return loss + penalty, (gradient_FC * unit_FC).ravel()

        is_threaded = linear.n_products * unit_FC.shape[1] > MIN_THREADED_PRODUCTS
        with nullcontext() if is_threaded else _single_thread():
            found_N, total = minimize_lbfgs(compute_total, (away_FC / unit_FC).ravel(), tolerance * self.n_rows)
        found_FC = found_N.reshape(unit_FC.shape).astype(np.float64) * unit_FC
        return np.concatenate((expand(found_FC[:-1]) + self.from_naive_bayes, found_FC[-1:])), total / self.n_rows

    def compute_scores(self, weight_FC: Floats, features: Any) -> Floats:
        """Computes the scores (R, C) of other rows by weights that `minimize` returned."""
        scores_RC = np.asarray(features @ (weight_FC[:-1] * self.log_ratio_scale_FC) + weight_FC[-1])
        return np.asarray(self.model.expand_single_score(torch.from_numpy(scores_RC)))

    def choose_penalty(self, seed: int) -> ChosenPenalty:
        """Chooses the penalty with the smallest loss on held-out rows, for the best factor on the scores.

        A head that starts as naive Bayes may also be fitted without it if rows are few, since their ratios are
        uncertain. Penalties are compared by loss, since their accuracies on few rows are often equal. Weaker penalties,
        which take longer, are not tried once the loss rises below 1; above 1, between naive Bayes and logistic
        regression, it may rise and fall again. The largest ones are for naive Bayes only: another head near zero tells
        classes apart by its bias alone.
        """
        rows = np.random.default_rng(seed).permutation(self.n_rows)[:MAX_PENALTY_ROWS]
        is_many = len(rows) > MANY_PENALTY_ROWS
        best, min_loss = ChosenPenalty(1.0, self.from_naive_bayes), float("inf")
        if len(rows) < 2:
            return best
        folds = list(self._split_folds(rows, seed, N_DIVISIONS if len(rows) < FEW_PENALTY_ROWS else 1))
        folds = folds[: 1 if is_many else None]
        held_out = self.select_rows(np.concatenate([other for _, other in folds]))
        for from_naive_bayes in (True, False) if self.from_naive_bayes and not is_many else (self.from_naive_bayes,):
            parts = [
                replace(self.select_rows(fitted).with_float32_sparse_features, from_naive_bayes=from_naive_bayes)
                for fitted, _ in folds
            ]
            weights: list[Floats | None] = [None] * len(folds)
            before = float("inf")
            for l2 in PENALTIES if from_naive_bayes else PENALTIES[2:]:
                scores = []
                for i, (part, (_, other)) in enumerate(zip(parts, folds, strict=True)):
                    weight_FC, _ = part.minimize(l2, weights[i], ROUGH_TOLERANCE)
                    weights[i] = weight_FC
                    scores.append(part.compute_scores(weight_FC, self.features[other]))
                scores_RC = np.concatenate(scores)
                factor, loss = held_out.fit_score_factor(scores_RC)
                if loss < min_loss:
                    score, min_loss = compute_main_metric(held_out.target_RC, scores_RC, self.kind), loss
                    best = ChosenPenalty(l2, from_naive_bayes, factor, loss / held_out.n_rows, score, weight_FC)
                if l2 < 1 and loss > before:
                    break
                before = loss
        return best

    @property
    def with_float32_sparse_features(self) -> "HeadFittingProblem":
        """The same problem with sparse features in single precision, whose products take half the time."""
        from scipy.sparse import issparse

        return replace(self, features=self.features.astype(np.float32)) if issparse(self.features) else self

    @torch.no_grad()
    def fit_head_(self, l2: float | None, seed: int) -> HeadFitSummary:
        """Fits the head in place; see `Lbfgs`. Other weights do not change. l2: None to choose it."""
        problem, head = self, self.model.head
        with torch.enable_grad():
            if l2 is None:  # fitted as roughly as the heads for which the factor was chosen
                choice = problem.choose_penalty(seed)
                problem = replace(problem, from_naive_bayes=choice.from_naive_bayes)
                rough = problem.with_float32_sparse_features
                weights, loss = rough.minimize(choice.l2, choice.start_FC, ROUGH_TOLERANCE)
            else:
                choice = ChosenPenalty(l2, problem.from_naive_bayes)
                weights, loss = problem.minimize(l2)
        weights *= choice.factor
        weight_CF = torch.from_numpy(weights[:-1].T / (1.0 if problem.from_naive_bayes else self.scale))
        if not problem.from_naive_bayes:
            head.weight.zero_()
            if isinstance(head, NaiveBayesScaledHead):
                head.ratios_CF.fill_(1.0)
        head.weight[:, self.used_F] = weight_CF.to(head.weight)
        if head.bias is not None:
            head.bias.copy_(torch.from_numpy(weights[-1]))
        return HeadFitSummary(loss, choice.l2, problem.n_rows, choice.score, LABEL_KIND_METRICS[problem.kind])

    def fit_score_factor(self, scores_RC: Floats) -> ScoreFactorWithLoss:
        """Returns the factor on scores of these rows that minimizes their loss, and this loss. It is 1 for numbers."""
        from scipy.optimize import minimize_scalar

        def loss(log_factor: float) -> float:
            scaled_RC = torch.from_numpy(scores_RC * np.exp(log_factor))
            return self.objective.head_loss(self.model, scaled_RC, self.labels).total.item()

        if self.kind == "number":
            return ScoreFactorWithLoss(1.0, loss(0.0))
        best = minimize_scalar(loss, bounds=(-MAX_LOG_FACTOR, MAX_LOG_FACTOR), method="bounded")
        return ScoreFactorWithLoss(float(np.exp(best.x)), float(best.fun))

    def _split_folds(
        self, rows: NDArray[np.int64], seed: int, n_repeats: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yields the rows to fit and the held-out rows of each fold. Folds are stratified if each row has one class."""
        from sklearn.model_selection import KFold, StratifiedKFold

        n_folds, class_R = min(N_PENALTY_FOLDS, len(rows)), self.target_RC[rows].argmax(1)
        smallest_class = int(np.unique(class_R, return_counts=True)[1].min())
        for division in range(n_repeats):
            options: dict[str, Any] = {"shuffle": True, "random_state": seed % 2**31 + division}
            folds: KFold | StratifiedKFold = KFold(n_folds, **options)
            if self.kind == "class" and smallest_class > 1:
                folds = StratifiedKFold(min(n_folds, smallest_class), **options)
            for fitted, other in folds.split(rows, class_R):
                yield rows[fitted], rows[other]


def fit_head_and_layer_mix_(
    model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch], l2: float | None, seed: int
) -> HeadFitSummary:
    """Fits the head of a model to labelled rows, in place; see `HeadFittingProblem.fit_head_`.

    If the head reads a scalar mix of layers, the penalty is chosen for their plain mean, the mix is fitted with this
    penalty, and the head is fitted to the result.
    """
    if model.mix is None:
        return HeadFittingProblem.from_batches(model, objective, batches).fit_head_(l2, seed)
    with torch.no_grad():
        model.mix.scalars_L.zero_()
        model.mix.gamma.fill_(1.0)
    l2_of_mean = HeadFittingProblem.from_batches(model, objective, batches).fit_head_(l2, seed).l2
    fit_layer_mix_(model, objective, batches, l2_of_mean)
    return HeadFittingProblem.from_batches(model, objective, batches).fit_head_(l2, seed)


def fit_layer_mix_(model: Classifier, objective: ClassificationObjective, batches: Sequence[Batch], l2: float) -> None:
    """Sets the scalars of a model's mix of layers to those with which a linear head has the smallest loss, and its
    factor gamma so that the mean squared norm of the pooled states is 1.

    L-BFGS searches for the scalars and such a head together, from equal scalars on, to which a penalty draws them back.
    The head is not kept.
    """
    assert model.mix is not None
    device = model.head.weight.device
    with evaluation_mode(model):
        layers_LRF = model.pool_each_mixed_layer([batch.to(device) for batch in batches]).double()
    labels, n_rows = _concatenate_labels(batches), layers_LRF.shape[1]
    scalars_L = torch.zeros(len(layers_LRF), dtype=torch.float64, requires_grad=True)
    weight_FC = torch.zeros(layers_LRF.shape[2], model.head.out_features, dtype=torch.float64, requires_grad=True)
    bias_C = torch.zeros(model.head.out_features, dtype=torch.float64, requires_grad=model.head.bias is not None)
    searched = [one for one in (scalars_L, weight_FC, bias_C) if one.requires_grad]

    def mix_layers() -> tuple[Tensor, Tensor]:
        """Returns the mix, and the factor that brings it to a mean squared norm of 1."""
        mixed_RF = torch.einsum("l,lrf->rf", scalars_L.softmax(0), layers_LRF)
        return mixed_RF, mixed_RF.square().sum(1).mean().rsqrt()

    def compute_total(found_N: Floats) -> tuple[float, Floats]:
        vector_to_parameters(torch.from_numpy(found_N.copy()), searched)
        mixed_RF, gamma = mix_layers()
        scores_RC = model.expand_single_score(gamma * mixed_RF @ weight_FC + bias_C)
        loss = objective.head_loss(model, scores_RC, labels, is_training=True).total
        total = loss + (l2 * weight_FC.square().sum() + MIX_PENALTY * n_rows * scalars_L.square().sum()) / 2
        return total.item(), parameters_to_vector(torch.autograd.grad(total, searched)).numpy()

    with torch.enable_grad():
        start_N = parameters_to_vector(searched).detach().numpy()
        found_N, _ = minimize_lbfgs(compute_total, start_N, ROUGH_TOLERANCE * n_rows)
    with torch.no_grad():
        vector_to_parameters(torch.from_numpy(found_N), searched)
        model.mix.scalars_L.copy_(scalars_L)
        model.mix.gamma.copy_(mix_layers()[1])


def _to_dense_or_csr_tensor(features: Any) -> Tensor:
    """Converts a matrix of NumPy or SciPy to torch, which multiplies sparse ones with several threads."""
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
def _single_thread() -> Iterator[None]:
    """Returns a context in which one thread computes, since several wait for each other longer than they compute small
    products: beside other programs 20 decompositions of 160 rows take 5.5 s instead of 0.04."""
    with use_cpu_threads(1), _blas_controller().limit(limits=1):
        yield


@cache
def _blas_controller() -> Any:
    """Returns the controller of the threads of NumPy's and SciPy's libraries."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _multiply_each(matrices: Floats, columns: Floats) -> Floats:
    """Multiplies matrices (C, R, S), or one for all (1, R, S), with columns (S, C)."""
    if len(matrices) == 1:
        return np.asarray(matrices[0] @ columns)
    products: Floats = np.matmul(matrices, columns.T[..., None])[..., 0].T
    return products


def _concatenate_labels(batches: Sequence[Batch]) -> Batch:
    """Returns the labels of all rows, as one batch without texts."""
    labels = [batch.labels_B for batch in batches if batch.labels_B is not None]
    values = [batch.values_BC for batch in batches if batch.values_BC is not None]
    return Batch(
        torch.zeros(0, 0, dtype=torch.int64),
        labels_B=torch.cat(labels) if labels else None,
        values_BC=torch.cat(values).double() if values else None,
    )
