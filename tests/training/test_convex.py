"""A head on features that stay: fitted to the minimum of its loss and penalty, which cross-validation chooses."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, eye_array
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from lmtool.batch import Batch
from lmtool.model.averaging import AveragingModel
from lmtool.model.features import ScalarMix
from lmtool.model.heads import Classifier
from lmtool.objective.base import VocabularyInfo
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.words import Averaging
from lmtool.training.convex import PENALTIES, ChosenPenalty, HeadFittingProblem, fit_head_and_layer_mix_

N, F = 60, 7


def problem(
    task: str, labels: Any, features: Any, names: tuple[str, ...] = (), from_naive_bayes: bool = False
) -> HeadFittingProblem:
    """Features and labels without a body."""
    spec = Classification.model_validate({"kind": "classification", "task": task, "labels": names})
    model = SimpleNamespace(
        head=nn.Linear(features.shape[1], len(names) or 1), expand_single_score=lambda scores: scores
    )
    kind = {"labels_B": torch.from_numpy(labels)} if task == "class" else {"values_BC": torch.from_numpy(labels)}
    batch = Batch(torch.zeros(0, 0, dtype=torch.int64), **kind)
    objective = ClassificationObjective(spec, cast(VocabularyInfo, None))
    used_F = np.arange(features.shape[1])
    return HeadFittingProblem(cast(Classifier, model), objective, features, batch, from_naive_bayes, used_F, 1.0)


THREE_CLASSES = ClassificationObjective(
    Classification.model_validate({"kind": "classification", "task": "class", "labels": ("a", "b", "c")}),
    cast(VocabularyInfo, None),
)


def labelled(class_R: np.ndarray) -> list[Batch]:
    """Rows without texts, in two batches."""
    parts = (slice(0, 40), slice(40, N))
    return [Batch(torch.arange(N)[part, None], labels_B=torch.from_numpy(class_R[part])) for part in parts]


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Three classes that overlap."""
    rng = np.random.default_rng(0)
    class_R = rng.integers(0, 3, N)
    return rng.normal(size=(N, F)) + 0.7 * np.eye(3, F)[class_R], class_R


@pytest.mark.parametrize("l2", [10.0, 1.0, 0.1])
def test_classes_end_where_scikit_learn_does(rows, l2):
    features, class_R = rows
    weights, _ = problem("class", class_R, features, ("a", "b", "c")).minimize(l2)
    theirs = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000).fit(features, class_R)
    ours_RC = torch.from_numpy(features @ weights[:-1] + weights[-1]).softmax(1)
    np.testing.assert_allclose(ours_RC, theirs.predict_proba(features), atol=1e-4)


def test_a_single_score_ends_where_the_sigmoid_of_scikit_learn_does(rows):
    features, class_R = rows[0], (rows[1] > 0).astype(np.int64)
    single = problem("class", class_R, features, ("a", "b"))
    single.model.head = nn.Linear(F, 1)
    single.model.expand_single_score = lambda score_R1: torch.cat((torch.zeros_like(score_R1), score_R1), 1)
    weights, _ = single.minimize(1.0)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, class_R)
    ours_R = 1 / (1 + np.exp(-(features @ weights[:-1] + weights[-1])[:, 0]))
    np.testing.assert_allclose(ours_R, theirs.predict_proba(features)[:, 1], atol=1e-4)


def test_several_labels_end_where_a_regression_of_each_does(rows):
    features, class_R = rows
    multi_RC = np.stack((class_R > 0, class_R % 2 == 0), 1).astype(np.float64)
    weights, _ = problem("multi", multi_RC, features, ("a", "b")).minimize(0.5)
    for c in range(2):
        # the loss of a row is the mean over its labels, so a penalty counts twice
        theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, multi_RC[:, c])
        np.testing.assert_allclose(weights[:-1, c], theirs.coef_[0], atol=1e-3)


def test_numbers_end_where_ridge_regression_does(rows):
    features, class_R = rows
    weights, _ = problem("number", class_R[:, None].astype(np.float64), features).minimize(2.0)
    theirs = Ridge(alpha=1.0).fit(features, class_R)
    np.testing.assert_allclose(weights[:-1, 0], theirs.coef_, atol=1e-5)
    assert weights[-1, 0] == pytest.approx(theirs.intercept_, abs=1e-5)


def test_the_largest_penalty_leaves_naive_bayes(rows):
    _, class_R = rows
    has_RF = (np.random.default_rng(1).random((N, F)) < 0.4).astype(np.float64)
    whole = problem("class", class_R, csr_array(has_RF), ("a", "b", "c"), from_naive_bayes=True)
    weights, _ = whole.minimize(PENALTIES[0])
    np.testing.assert_allclose(weights[:-1], 1.0, atol=2e-2)
    np.testing.assert_allclose(weights[-1], 0.0, atol=2e-2)
    # the ratios by their definition
    n_CF = np.stack([has_RF[class_R == c].sum(0) for c in range(3)])
    ratios = np.log((n_CF + 1) / (n_CF.sum(1, keepdims=True) / n_CF.sum() * n_CF.sum(0) + 1))
    np.testing.assert_allclose(whole.log_ratio_scale_FC, (ratios / np.sqrt(np.square(has_RF @ ratios.T).mean())).T)


SMOOTHED, WEIGHTED = {"label_smoothing": 0.1}, {"class_weights": (0.5, 2.0, 1.0)}


@pytest.mark.parametrize(
    ("task", "options"),
    [("multi", {}), ("number", {}), *product(("class", "single score"), ({}, SMOOTHED, WEIGHTED, SMOOTHED | WEIGHTED))],
    ids=str,
)
def test_the_loss_and_its_gradient_are_the_objectives(task: str, options: dict[str, Any]) -> None:
    """In closed form here, which is several times as fast as automatic differentiation of a few rows."""
    rng = np.random.default_rng(3)
    names = {"number": (), "single score": ("a", "b")}.get(task, ("a", "b", "c"))
    labels = {"multi": rng.integers(0, 2, (N, 3)).astype(np.float32), "number": rng.normal(size=(N, 1)).astype("f4")}
    kind = "class" if task == "single score" else task
    one = problem(kind, labels.get(task, rng.integers(0, len(names) or 1, N)), np.zeros((N, F)), names)
    options = {key: value[: len(names)] if isinstance(value, tuple) else value for key, value in options.items()}
    spec = one.objective.spec.model_copy(update=options)
    model: Any = one.model
    if task == "single score":
        model = SimpleNamespace(
            head=nn.Linear(F, 1),
            expand_single_score=lambda scores: torch.cat((torch.zeros_like(scores), scores), 1),
        )
    one = replace(one, model=model, objective=replace(one.objective, spec=spec))
    scores_RC = torch.from_numpy(rng.normal(size=(N, model.head.out_features))).requires_grad_()
    total = one.objective.head_loss(model, model.expand_single_score(scores_RC), one.labels, is_training=True).total
    total.backward()
    loss, gradient_RC = one.objective.compute_head_loss_sum_and_gradient(scores_RC.detach().numpy(), one.target_RC)
    assert loss == pytest.approx(total.item(), rel=1e-6)
    assert scores_RC.grad is not None
    np.testing.assert_allclose(gradient_RC, scores_RC.grad.numpy(), atol=1e-6)


@pytest.mark.slow
def test_cross_validation_prefers_a_penalty_where_features_are_noise(rows):
    """And scores that nothing is known from are near each other."""
    _, class_R = rows
    noise = np.random.default_rng(2).normal(size=(N, 40))
    blind = problem("class", class_R, noise, ("a", "b", "c")).choose_penalty(0)
    clear = np.eye(3)[class_R] + np.random.default_rng(3).normal(size=(N, 3)) / 10
    sharp = problem("class", class_R, clear, ("a", "b", "c")).choose_penalty(0)
    assert blind.score is not None
    assert sharp.score is not None
    assert blind.score < 0.55 < 0.95 < sharp.score
    assert blind.factor < 1 < sharp.factor or blind.l2 > 1
    assert problem("class", class_R[:1], noise[:1], ("a", "b", "c")).choose_penalty(0) == ChosenPenalty(
        1.0, from_naive_bayes=False
    )


def test_penalties_are_weakened_until_the_loss_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never, where features tell the classes apart without a fault."""
    class_R = np.arange(N) % 3
    noise = np.random.default_rng(2).normal(size=(N, 20))
    minimize, tried = HeadFittingProblem.minimize, []

    def minimize_and_note(one: HeadFittingProblem, l2: float, *others: Any) -> Any:
        tried.append(l2)
        return minimize(one, l2, *others)

    monkeypatch.setattr(HeadFittingProblem, "minimize", minimize_and_note)
    for features, are_all_tried in ((noise, False), (np.eye(3)[class_R], True)):
        tried.clear()
        problem("class", class_R, features, ("a", "b", "c")).choose_penalty(0)
        distinct = tuple(dict.fromkeys(tried))
        assert distinct == PENALTIES[2 : 2 + len(distinct)]
        assert (distinct[-1] == PENALTIES[-1]) is are_all_tried


def test_without_any_feature_the_bias_is_fitted() -> None:
    one = problem("class", np.arange(N) % 3 % 2, csr_array((N, 4)), ("a", "b"))
    _, loss = one.minimize(1.0)
    assert loss == pytest.approx(np.log(3) - np.log(2) * 2 / 3, abs=1e-6)


@pytest.mark.parametrize("prior", [False, True])
def test_features_of_one_row_are_fitted_together_without_a_difference(rows, prior, monkeypatch):
    _, class_R = rows
    features = np.abs(np.random.default_rng(4).normal(size=(N, 5 * N)))
    features[:, :20] *= np.random.default_rng(5).random((N, 20)) < 0.4
    features[:, 20:] *= np.arange(N)[:, None] == np.random.default_rng(6).integers(0, N + 5, 5 * N - 20)
    assert ((features > 0).sum(0) == 0).any()
    one = problem("class", class_R, csr_array(features), ("a", "b", "c"), prior)
    assert one.singleton_merging_matrix_FG.shape[1] <= N + 20
    together, loss = one.minimize(0.5, tolerance=1e-12)
    monkeypatch.setattr(HeadFittingProblem, "singleton_merging_matrix_FG", eye_array(5 * N, format="csr"))
    apart, other_loss = one.minimize(0.5, tolerance=1e-12)
    np.testing.assert_allclose(together, apart, atol=1e-4)
    assert loss == pytest.approx(other_loss, abs=1e-9)


@pytest.mark.slow
def test_other_weights_stay_and_the_result_is_the_same_again(rows):
    """Of a model with a body: its pooled states are the features."""
    features, class_R = rows

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.pool, self.other = nn.Linear(F, 3), nn.Identity(), nn.Parameter(torch.ones(1))
            self.mix, self.expand_single_score = None, lambda scores: scores

        def head_feature_vectors(self, batches: Any) -> np.ndarray:
            return np.concatenate([features[batch.tokens_BT[:, 0].numpy()] for batch in batches])

    def fitted() -> Body:
        torch.manual_seed(0)
        model = Body()
        done = fit_head_and_layer_mix_(cast(Classifier, model), THREE_CLASSES, labelled(class_R), None, 1)
        assert done.l2 in PENALTIES
        assert done.n_rows == N
        assert f"{done.score:.4f}" in done.describe()
        return model

    one, other = fitted(), fitted()
    assert torch.equal(one.head.weight, other.head.weight)
    assert one.other.item() == 1.0
    scores = one.head(torch.from_numpy(features).float())
    assert (scores.argmax(1).numpy() == class_R).mean() > 0.6


@pytest.mark.parametrize("telling", [0, 1, 2])
def test_a_mix_finds_the_layer_that_tells_the_classes(rows, telling):
    """One layer of three has the features, the others have noise of the same size."""
    features, class_R = rows
    layers_LRF = torch.from_numpy(np.random.default_rng(2).normal(size=(3, N, F)))
    layers_LRF[telling] = torch.from_numpy(features)
    model = MixedModel(layers_LRF)
    fit_head_and_layer_mix_(cast(Classifier, model), THREE_CLASSES, labelled(class_R), 1.0, 1)
    assert model.mix.scalars_L.softmax(0)[telling] > 0.6


def test_a_mix_is_fitted_at_least_as_well_as_any_layer_of_it(rows):
    features, class_R = rows
    rng = np.random.default_rng(3)
    layers_LRF = torch.from_numpy(np.stack([features * rng.random(F) + rng.normal(size=(N, F)) for _ in range(3)]))

    def total(model: "MixedModel") -> float:
        done = fit_head_and_layer_mix_(cast(Classifier, model), THREE_CLASSES, labelled(class_R), 1.0, 1)
        scale_R = np.square(model.head_feature_vectors(labelled(class_R))).sum(1).mean()
        return done.loss * N + float(scale_R * model.head.weight.detach().double().square().sum()) / 2

    alone = [total(MixedModel(layers_LRF[i : i + 1])) for i in range(3)]
    assert total(MixedModel(layers_LRF)) <= min(alone) + 1e-2


class MixedModel(nn.Module):
    """Stands for a classifier on a mix of layers, whose pooled states are given."""

    def __init__(self, layers_LRF: torch.Tensor) -> None:
        super().__init__()
        self.layers_LRF, self.pool = layers_LRF, nn.Identity()
        self.mix, self.head = ScalarMix(len(layers_LRF)), nn.Linear(F, 3)

    def expand_single_score(self, scores_RC: torch.Tensor) -> torch.Tensor:
        return scores_RC

    def pool_each_mixed_layer(self, batches: Any) -> torch.Tensor:
        return torch.cat([self.layers_LRF[:, batch.tokens_BT[:, 0]] for batch in batches], 1)

    def head_feature_vectors(self, batches: Any) -> np.ndarray:
        return self.mix(list(self.pool_each_mixed_layer(batches))).detach().numpy()


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
    x_RF = model.head_feature_vectors([batch]).toarray()
    x_RF /= np.sqrt(np.square(x_RF).sum() / 60)
    expected_RC = LogisticRegression(C=10.0, tol=1e-9, max_iter=10_000).fit(x_RF, class_R).predict_proba(x_RF)
    found_RC = model.run_head(batch).scores.softmax(-1).detach().numpy()
    np.testing.assert_allclose(found_RC, expected_RC, atol=2e-3)
