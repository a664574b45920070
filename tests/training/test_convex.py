"""A head on features that stay: fitted by L-BFGS to the minimum of its loss and a penalty, which is chosen."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, eye_array
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.model.averaging import AveragingModel
from lmtool.model.features import ScalarMix
from lmtool.model.heads import Classifier
from lmtool.objective.base import VocabularyInfo
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.words import Averaging
from lmtool.training.convex import PENALTIES, ChosenPenalty, HeadFittingProblem, fit_head_and_layer_mix_
from lmtool.training.lbfgs import minimize_lbfgs

N, F = 60, 7
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


def objective_of(task: str, names: tuple[str, ...]) -> ClassificationObjective:
    spec = Classification.model_validate({"kind": "classification", "task": task, "labels": names})
    return ClassificationObjective(spec, cast(VocabularyInfo, None))


THREE = ("a", "b", "c")
THREE_CLASSES = objective_of("class", THREE)


def expand(score_R1: Tensor) -> Tensor:
    """Scores of two classes from that of the second."""
    return torch.cat((torch.zeros_like(score_R1), score_R1), 1)


def problem(
    task: str, labels: Any, features: Any, names: tuple[str, ...] = (), from_naive_bayes: bool = False
) -> HeadFittingProblem:
    """Features and labels without a body; task `single` is of two classes with one score."""
    n_scores = 1 if task == "single" else len(names) or 1
    model = SimpleNamespace(
        head=nn.Linear(features.shape[1], n_scores), expand_single_score=expand if task == "single" else lambda s: s
    )
    kind = "class" if task == "single" else task
    given = {"labels_B" if kind == "class" else "values_BC": torch.from_numpy(labels)}
    batch = Batch(torch.zeros(0, 0, dtype=torch.int64), **given)
    used_F = np.arange(features.shape[1])
    objective = objective_of(kind, names)
    return HeadFittingProblem(cast(Classifier, model), objective, features, batch, from_naive_bayes, used_F, 1.0)


def logistic(c: float, features: Any, labels: Any) -> Any:
    return LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(features, labels)


def labelled(class_R: NDArray[np.int64]) -> list[Batch]:
    """Rows without texts, in two batches."""
    parts = (slice(0, 40), slice(40, N))
    return [Batch(torch.arange(N)[part, None], labels_B=torch.from_numpy(class_R[part])) for part in parts]


@pytest.fixture
def rows() -> Rows:
    """Three classes that overlap."""
    rng = np.random.default_rng(0)
    class_R = rng.integers(0, 3, N)
    return rng.normal(size=(N, F)) + 0.7 * np.eye(3, F)[class_R], class_R


@pytest.mark.parametrize("l2", [10.0, 0.1])
def test_classes_end_where_scikit_learn_does(rows: Rows, l2: float) -> None:
    features, class_R = rows
    weights, _ = problem("class", class_R, features, THREE).minimize(l2)
    ours_RC = torch.from_numpy(features @ weights[:-1] + weights[-1]).softmax(1)
    np.testing.assert_allclose(ours_RC, logistic(1 / l2, features, class_R).predict_proba(features), atol=1e-4)


def test_a_single_score_ends_where_the_sigmoid_of_scikit_learn_does(rows: Rows) -> None:
    features, class_R = rows[0], (rows[1] > 0).astype(np.int64)
    weights, _ = problem("single", class_R, features, ("a", "b")).minimize(1.0)
    ours_R = 1 / (1 + np.exp(-(features @ weights[:-1] + weights[-1])[:, 0]))
    np.testing.assert_allclose(ours_R, logistic(1.0, features, class_R).predict_proba(features)[:, 1], atol=1e-4)


def test_several_labels_end_where_a_regression_of_each_does(rows: Rows) -> None:
    features, class_R = rows
    multi_RC = np.stack((class_R > 0, class_R % 2 == 0), 1).astype(np.float64)
    weights, _ = problem("multi", multi_RC, features, ("a", "b")).minimize(0.5)
    for c in range(2):
        # the loss of a row is the mean over its labels, so a penalty counts twice
        np.testing.assert_allclose(weights[:-1, c], logistic(1.0, features, multi_RC[:, c]).coef_[0], atol=1e-3)


def test_numbers_end_where_ridge_regression_does(rows: Rows) -> None:
    features, class_R = rows
    weights, _ = problem("number", class_R[:, None].astype(np.float64), features).minimize(2.0)
    theirs = Ridge(alpha=1.0).fit(features, class_R)
    np.testing.assert_allclose(weights[:-1, 0], theirs.coef_, atol=1e-5)
    assert weights[-1, 0] == pytest.approx(theirs.intercept_, abs=1e-5)


def test_the_largest_penalty_leaves_naive_bayes(rows: Rows) -> None:
    _, class_R = rows
    has_RF = (np.random.default_rng(1).random((N, F)) < 0.4).astype(np.float64)
    whole = problem("class", class_R, csr_array(has_RF), THREE, from_naive_bayes=True)
    weights, _ = whole.minimize(PENALTIES[0])
    np.testing.assert_allclose(weights[:-1], 1.0, atol=2e-2)
    np.testing.assert_allclose(weights[-1], 0.0, atol=2e-2)
    # the ratios by their definition
    n_CF = np.stack([has_RF[class_R == c].sum(0) for c in range(3)])
    ratios = np.log((n_CF + 1) / (n_CF.sum(1, keepdims=True) / n_CF.sum() * n_CF.sum(0) + 1))
    np.testing.assert_allclose(whole.log_ratio_scale_FC, (ratios / np.sqrt(np.square(has_RF @ ratios.T).mean())).T)


BOTH: dict[str, Any] = {"label_smoothing": 0.1, "class_weights": (0.5, 2.0, 1.0)}


@pytest.mark.parametrize(
    ("task", "options"), [("multi", {}), ("number", {}), *product(("class", "single"), ({}, BOTH))], ids=str
)
def test_the_loss_and_its_gradient_are_the_objectives(task: str, options: dict[str, Any]) -> None:
    """In closed form here, which is several times as fast as automatic differentiation of a few rows."""
    rng = np.random.default_rng(3)
    names = {"number": (), "single": ("a", "b")}.get(task, THREE)
    labels = {"multi": rng.integers(0, 2, (N, 3)).astype(np.float32), "number": rng.normal(size=(N, 1)).astype("f4")}
    one = problem(task, labels.get(task, rng.integers(0, len(names) or 1, N)), np.zeros((N, F)), names)
    options = {key: value[: len(names)] if isinstance(value, tuple) else value for key, value in options.items()}
    one = replace(one, objective=replace(one.objective, spec=one.objective.spec.model_copy(update=options)))
    model: Any = one.model
    scores_RC = torch.from_numpy(rng.normal(size=(N, model.head.out_features))).requires_grad_()
    total = one.objective.head_loss(model, model.expand_single_score(scores_RC), one.labels, is_training=True).total
    (expected_RC,) = torch.autograd.grad(total, scores_RC)
    loss, gradient_RC = one.objective.compute_head_loss_sum_and_gradient(scores_RC.detach().numpy(), one.target_RC)
    assert loss == pytest.approx(total.item(), rel=1e-6)
    np.testing.assert_allclose(gradient_RC, expected_RC.numpy(), atol=1e-6)


def test_penalties_are_weakened_until_the_loss_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never, where features tell the classes apart without a fault; scores that nothing is known from become small."""
    class_R = np.arange(N) % 3
    noise = np.random.default_rng(2).normal(size=(N, 20))
    minimize, tried = HeadFittingProblem.minimize, []

    def minimize_and_note(one: HeadFittingProblem, l2: float, *others: Any) -> Any:
        tried.append(l2)
        return minimize(one, l2, *others)

    monkeypatch.setattr(HeadFittingProblem, "minimize", minimize_and_note)
    chosen = []
    for features, are_all_tried in ((noise, False), (np.eye(3)[class_R], True)):
        tried.clear()
        chosen.append(problem("class", class_R, features, THREE).choose_penalty(0))
        distinct = tuple(dict.fromkeys(tried))
        assert distinct == PENALTIES[2 : 2 + len(distinct)]
        assert (distinct[-1] == PENALTIES[-1]) is are_all_tried
    blind, sharp = chosen
    assert (blind.score or 0) < 0.55 < 0.95 < (sharp.score or 0)
    assert blind.factor < 1 or blind.l2 > 1
    one_row = problem("class", class_R[:1], noise[:1], THREE).choose_penalty(0)
    assert one_row == ChosenPenalty(1.0, from_naive_bayes=False)


def test_without_any_feature_the_bias_is_fitted() -> None:
    one = problem("class", np.arange(N) % 3 % 2, csr_array((N, 4)), ("a", "b"))
    _, loss = one.minimize(1.0)
    assert loss == pytest.approx(np.log(3) - np.log(2) * 2 / 3, abs=1e-6)


@pytest.mark.parametrize("prior", [False, True])
def test_features_of_one_row_are_fitted_together_without_a_difference(
    rows: Rows, prior: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, class_R = rows
    features = np.abs(np.random.default_rng(4).normal(size=(N, 5 * N)))
    features[:, :20] *= np.random.default_rng(5).random((N, 20)) < 0.4
    features[:, 20:] *= np.arange(N)[:, None] == np.random.default_rng(6).integers(0, N + 5, 5 * N - 20)
    assert ((features > 0).sum(0) == 0).any()
    one = problem("class", class_R, csr_array(features), THREE, prior)
    assert one.singleton_merging_matrix_FG.shape[1] <= N + 20
    together, loss = one.minimize(0.5, tolerance=1e-12)
    monkeypatch.setattr(HeadFittingProblem, "singleton_merging_matrix_FG", eye_array(5 * N, format="csr"))
    apart, other_loss = one.minimize(0.5, tolerance=1e-12)
    np.testing.assert_allclose(together, apart, atol=1e-4)
    assert loss == pytest.approx(other_loss, abs=1e-9)


class MixedModel(nn.Module):
    """Stands for a classifier on a mix of layers, whose pooled states are given."""

    def __init__(self, layers_LRF: Tensor) -> None:
        super().__init__()
        self.layers_LRF, self.pool = layers_LRF, nn.Identity()
        self.mix, self.head = ScalarMix(len(layers_LRF)), nn.Linear(F, 3)

    def expand_single_score(self, scores_RC: Tensor) -> Tensor:
        return scores_RC

    def pool_each_mixed_layer(self, batches: Any) -> Tensor:
        return torch.cat([self.layers_LRF[:, batch.tokens_BT[:, 0]] for batch in batches], 1)

    def head_feature_vectors(self, batches: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.mix(list(self.pool_each_mixed_layer(batches))).detach().numpy()
        return found


def test_a_mix_finds_the_layer_that_tells_the_classes_and_is_fitted_as_well_as_it_is_alone(rows: Rows) -> None:
    """One layer of three has the features, the others have noise of the same size."""
    features, class_R = rows
    layers_LRF = torch.from_numpy(np.random.default_rng(2).normal(size=(3, N, F)))
    layers_LRF[1] = torch.from_numpy(features)

    def total(model: MixedModel) -> float:
        done = fit_head_and_layer_mix_(cast(Classifier, model), THREE_CLASSES, labelled(class_R), 1.0, 1)
        scale = np.square(model.head_feature_vectors(labelled(class_R))).sum(1).mean()
        return done.loss * N + float(scale * model.head.weight.detach().double().square().sum()) / 2

    mixed = MixedModel(layers_LRF)
    assert total(mixed) <= 1.01 * total(MixedModel(layers_LRF[1:2]))
    assert mixed.mix.scalars_L.softmax(0)[1] > 0.6


def test_a_naive_bayes_head_that_is_fitted_without_it_is_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = THREE_CLASSES.spec.model_copy(update={"dropout": 0.0})
    body = Averaging(kind="averaging", one_hot=True, n_layers=0, log_ratios=True, tf_idf=True, word_dropout=0.0)
    model = Classifier(AveragingModel(body, 20), spec, body)
    rng = np.random.default_rng(0)
    class_R = rng.integers(0, 3, 60)
    tokens_RT = torch.from_numpy(rng.integers(0, 20, (60, 8)) // (1 + class_R[:, None]))
    batch = Batch(tokens_RT, labels_B=torch.from_numpy(class_R))
    model.fit_idf_and_log_ratios_([batch])
    monkeypatch.setattr(HeadFittingProblem, "choose_penalty", lambda *_: ChosenPenalty(0.1, from_naive_bayes=False))
    fit_head_and_layer_mix_(model, THREE_CLASSES, [batch], None, 1)
    x_RF = csr_array(model.head_feature_vectors([batch])).toarray()
    x_RF /= np.sqrt(np.square(x_RF).sum() / 60)
    found_RC = model.run_head(batch).scores.softmax(-1).detach().numpy()
    np.testing.assert_allclose(found_RC, logistic(10.0, x_RF, class_R).predict_proba(x_RF), atol=2e-3)


RNG = np.random.default_rng(0)
ROWS_RF = RNG.normal(size=(50, 6))
SIGNS_R = np.where(RNG.random(50) < 0.5, -1.0, 1.0)


def logistic_loss(l2: float) -> Any:
    """Returns the function that computes the summed loss of a logistic regression without a bias, and its gradient."""

    def compute(weight_F: Any) -> tuple[float, Any]:
        margin_R = SIGNS_R * (ROWS_RF @ weight_F)
        loss = np.logaddexp(0.0, -margin_R).sum() + l2 * (weight_F @ weight_F) / 2
        gradient_F = ROWS_RF.T @ (-SIGNS_R / (1 + np.exp(margin_R))) + l2 * weight_F
        return float(loss), gradient_F.astype(weight_F.dtype)

    return compute


def test_a_badly_scaled_parabola_needs_shorter_and_longer_steps() -> None:
    """The curvature is between 0.01 and 100, so that a first step of length 1 increases the value."""
    curvature_N, target_N = np.geomspace(0.01, 100, 12), RNG.normal(size=12)

    def compute(point_N: Any) -> tuple[float, Any]:
        slope_N = curvature_N * (point_N - target_N)
        return float(slope_N @ (point_N - target_N) / 2), slope_N

    start, slope_N = compute(np.zeros(12))
    assert compute(-slope_N)[0] > start
    found_N, value = minimize_lbfgs(compute, np.zeros(12), 1e-16)
    # places along which the curvature is 0.01 are known less well than the value, which is what is minimized
    assert value == compute(found_N)[0] < 1e-12 * start


def test_single_precision_ends_at_rounding() -> None:
    calls = []

    def compute(weight_F: Any) -> tuple[float, Any]:
        calls.append(weight_F)
        found: tuple[float, Any] = logistic_loss(1e-3)(weight_F)
        return found

    found_F, value = minimize_lbfgs(compute, np.zeros(6, np.float32), 0.0)
    assert found_F.dtype == np.float32
    assert value == pytest.approx(minimize(logistic_loss(1e-3), np.zeros(6), jac=True).fun, rel=1e-6)
    assert len(calls) < 200


def test_a_step_out_of_the_domain_is_shortened() -> None:
    """A barrier at 1, behind which the value is infinite; the first step of length 1 would pass it."""

    def compute(point_N: Any) -> tuple[float, Any]:
        if point_N[0] >= 1:
            return np.inf, np.full(1, np.nan)
        return float(-np.log(1 - point_N[0]) - 9 * point_N[0]), 1 / (1 - point_N) - 9

    found_N, _ = minimize_lbfgs(compute, np.zeros(1), 1e-14)
    assert found_N[0] == pytest.approx(1 - 1 / 9, abs=1e-6)


def test_a_function_that_curves_down_is_minimized_too() -> None:
    """x^4 - 2 x^2 has a maximum at 0 and minima at -1 and 1."""
    found_N, value = minimize_lbfgs(
        lambda point_N: (float((point_N**4 - 2 * point_N**2).sum()), 4 * point_N**3 - 4 * point_N),
        np.array([0.05, -0.1]),
        1e-14,
    )
    np.testing.assert_allclose(np.abs(found_N), 1, atol=1e-5)
    assert value == pytest.approx(-2)


@pytest.mark.parametrize("slope", [0.0, np.nan])
def test_a_start_without_a_slope_stays(slope: float) -> None:
    """At the minimum, and where the slope is not finite."""
    found_F, _ = minimize_lbfgs(lambda point_F: (slope, np.full(3, slope)), np.ones(3), 1e-9)
    np.testing.assert_array_equal(found_F, np.ones(3))
