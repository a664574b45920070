"""Averaging models against loops, and the gradients of linear classifiers against their closed forms."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.model.averaging import AveragingModel
from lmtool.recipe.spec import Averaging
from tests.model import tiny
from tests.reference import classifiers as reference

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
VOCAB = tiny.VOCAB
KEEP = torch.tensor([[True] * 6, [True, False, True, False, False, False], [False] * 6])


def model(**keys: Any) -> AveragingModel:
    torch.manual_seed(0)
    built = AveragingModel(Averaging.model_validate({"kind": "averaging", "d_model": 5, **keys}), VOCAB).double()
    return built.eval()


def text_of(tokens_T: Tensor, keep_T: Tensor) -> list[int]:
    kept: list[int] = tokens_T[keep_T].tolist()
    return kept


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("n_layers", [0, 1, 3])
def test_it_equals_the_plain_network(n_layers: int, activation: str) -> None:
    built, tokens_BT = model(n_layers=n_layers, activation=activation), tiny.tokens(3, 6)
    weights = {name: value.numpy() for name, value in built.state_dict().items()}
    layers = [(weights[f"layers.{i}.weight"], weights[f"layers.{i}.bias"]) for i in range(n_layers)]
    expected = [
        reference.deep_average(text_of(tokens_BT[i], KEEP[i]), weights["embedding.weight"], layers, activation)
        for i in range(3)
    ]
    found = built(Batch(tokens_BT, keep_BT=KEEP))
    torch.testing.assert_close(found.detach(), torch.from_numpy(np.array(expected)), **EXACT)


def test_one_hot_words_give_their_shares() -> None:
    built, tokens_BT = model(one_hot=True, n_layers=0), tiny.tokens(3, 6)
    expected = [reference.average(text_of(tokens_BT[i], KEEP[i]), np.eye(VOCAB)) for i in range(3)]
    found = built(Batch(tokens_BT, keep_BT=KEEP)).double()
    torch.testing.assert_close(found, torch.from_numpy(np.array(expected)), rtol=1e-6, atol=1e-6)
    assert built.width == found.shape[1] == VOCAB
    assert list(built.parameters()) == []


def test_the_order_of_words_does_not_matter() -> None:
    built, tokens_BT = model(), tiny.tokens(2, 6)
    mixed = tokens_BT[:, torch.randperm(6, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(built(Batch(mixed)), built(Batch(tokens_BT)), **EXACT)


def test_word_dropout_leaves_out_its_share_and_never_a_whole_text() -> None:
    built = model(one_hot=True, n_layers=0, word_dropout=0.3).train()
    tokens_BT = torch.arange(10).repeat(4000, 1)
    left = (built(Batch(tokens_BT))[:, :10] > 0).double()
    assert float(left.mean()) == pytest.approx(0.7, abs=0.01)
    one_word = built(Batch(torch.full((500, 1), 3)))
    assert torch.equal(one_word[:, 3], torch.ones(500))
    assert torch.equal(built.eval()(Batch(tokens_BT[:1]))[0, :10], torch.full((10,), 0.1))


def test_every_parameter_gets_a_gradient() -> None:
    built = model(n_layers=2, activation="tanh").train()
    built(Batch(torch.arange(VOCAB)[None].repeat(40, 1))).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in built.parameters())


def test_one_hot_words_have_no_layers_above_them() -> None:
    with pytest.raises(ValidationError, match="n_layers 2 do not stand above one_hot"):
        Averaging(kind="averaging", one_hot=True)


@pytest.mark.parametrize("label", range(3))
def test_the_softmax_classifier_has_the_gradient_of_its_closed_form(label: int) -> None:
    """p x for every class, less x for the right one, where x are the shares of words in the text."""
    built, head = model(one_hot=True, n_layers=0), nn.Linear(VOCAB, 3, bias=False).double()
    text = tiny.tokens(1, 6)
    x = built(Batch(text)).double()
    loss = F.cross_entropy(head(x), torch.tensor([label]))
    loss.backward()
    expected, gradient = reference.softmax_gradient(head.weight.detach().numpy(), x[0].numpy(), label)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(head.weight.grad, torch.from_numpy(gradient), **EXACT)


@pytest.mark.parametrize("label", [0, 1])
def test_the_sigmoid_classifier_has_the_gradient_of_its_closed_form(label: int) -> None:
    built, head = model(one_hot=True, n_layers=0), nn.Linear(VOCAB, 1, bias=False).double()
    x = built(Batch(tiny.tokens(1, 6))).double()
    loss = F.binary_cross_entropy_with_logits(head(x)[:, 0], torch.tensor([label], dtype=torch.float64))
    loss.backward()
    expected, gradient = reference.sigmoid_gradient(head.weight.detach().numpy()[0], x[0].numpy(), label)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(head.weight.grad, torch.from_numpy(gradient)[None], **EXACT)
