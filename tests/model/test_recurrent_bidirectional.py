"""ELMo's model is two language models, one on the reversed text; its mix is the paper's."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.features import ScalarMix
from tests.model.recurrent_weights import CELLS, VOCAB, Weights, built, spec
from tests.reference import recurrent as reference
from tests.support.recurrent import EXACT, tokens


def half(model: Any, name: str, **changes: Any) -> Any:
    """A decoder with the weights of one direction."""
    decoder = build(spec(**changes), VOCAB).double().eval()
    weights = {key.replace(f"{name}.", "rnn."): w for key, w in model.state_dict().items()}
    decoder.load_state_dict({key: weights[key] for key in decoder.state_dict()})
    return decoder


@pytest.mark.parametrize(("cell", "nonlinearity"), CELLS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_it_is_two_models_one_of_which_reads_the_reversed_text(cell: str, nonlinearity: str, tied: bool) -> None:
    changes: dict[str, Any] = {"cell": cell, "nonlinearity": nonlinearity, "tie_embeddings": tied}
    model = built(spec(shape="bidirectional", **changes))
    forth, back = (half(model, name, **changes) for name in ("forth", "back"))
    batch, reversed_batch = Batch(tokens(2, 8)), Batch(tokens(2, 8).flip(1))
    torch.testing.assert_close(model(batch).hidden_BTD, forth(batch).hidden_BTD, **EXACT)
    torch.testing.assert_close(
        model.forward_right_to_left(batch).hidden_BTD, back(reversed_batch).hidden_BTD.flip(1), **EXACT
    )
    layers = model.hidden_states_by_layer(batch)
    assert len(layers) == 3
    pairs = zip(layers, forth.hidden_states_by_layer(batch), back.hidden_states_by_layer(reversed_batch), strict=True)
    for joined, one, other in pairs:
        torch.testing.assert_close(joined, torch.cat((one, other.flip(1)), -1), **EXACT)


def test_a_residual_layer_adds_what_it_reads() -> None:
    """The outputs of the second layer less those of the first are states of a plain layer that reads the first."""
    of = spec(shape="bidirectional", residual=True)
    model = built(of)
    weights, batch = Weights(model, of), Batch(tokens(1, 8))
    first_TD, second_TD = (layer[0].detach().numpy() for layer in model.hidden_states_by_layer(batch)[1:])
    forth, _ = weights.layer("forth.cells.1").run(list(first_TD[:, :6]))
    back, _ = weights.layer("back.cells.1").run(list(first_TD[::-1, 6:]))
    np.testing.assert_allclose(second_TD - first_TD, np.concatenate((forth, back[::-1]), 1), **EXACT)


def test_padding_and_neighbours_in_a_row_change_no_layer() -> None:
    model = built(spec(shape="bidirectional"))
    keep_BT = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0]]).bool()
    documents_BT = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    tokens_BT = tokens(1, 8)
    batch = Batch(tokens_BT, keep_BT=keep_BT, documents_BT=documents_BT)
    for places in ([1, 2, 4], [5, 6]):
        alone = Batch(tokens_BT[:, places])
        together = model.forward_right_to_left(batch).hidden_BTD[:, places]
        torch.testing.assert_close(together, model.forward_right_to_left(alone).hidden_BTD, **EXACT)
        for joined, own in zip(model.hidden_states_by_layer(batch), model.hidden_states_by_layer(alone), strict=True):
            torch.testing.assert_close(joined[:, places], own, **EXACT)


def test_a_mix_equals_the_paper() -> None:
    layers = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0), msg="all layers weigh the same at first")
    with torch.no_grad():
        mix.scalars_L.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    wanted = reference.scalar_mix([h.detach().numpy() for h in layers], [0.5, -1.0, 2.0], 1.7)
    np.testing.assert_allclose(mix(layers).detach(), wanted, **EXACT)
    assert all(gradient.any() for gradient in torch.autograd.grad(mix(layers).square().sum(), [*mix.parameters()]))
