"""minGRU against its recurrence, position by position, and what it is refused for."""

import math

import pytest
import torch

from lmtool.batch import Batch, Mask
from lmtool.errors import RecipeError
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.mingru import MinGru, scan
from lmtool.recipe.load import load
from tests.support import tiny

D, T = 3, 11


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def g(x: float) -> float:
    return x + 0.5 if x >= 0 else sigmoid(x)


def test_parallel_training_equals_stepping_by_the_formula_of_the_paper() -> None:
    """Also where padding leaves the state as it is and where another document begins anew, both in one row."""
    torch.manual_seed(0)
    layer = MinGru(D, bias=True).double()
    torch.nn.init.normal_(layer.gates.weight, std=3.0)
    torch.nn.init.eye_(layer.out.weight)
    torch.nn.init.zeros_(layer.out.bias)
    x_BTD = torch.randn(2, T, D, dtype=torch.float64)
    keep = [[True] * T, [False, True, True, False, True, True, False, False, True, True, False]]
    documents = [[0] * T, [5, 5, 5, 5, 5, 6, 6, 5, 6, 7, 7]]
    mask = Mask(True, keep_BS=torch.tensor(keep), documents_BS=torch.tensor(documents))
    hidden_BTD = layer(x_BTD, AttentionOp(mask, T, torch.arange(T, device=x_BTD.device)[None]), None).x_BTD.tolist()
    z_BTD, new_BTD = (part.tolist() for part in layer.gates.split_outputs(x_BTD))
    for row in range(2):
        h, last = [0.0] * D, documents[row][0]
        for t in range(T):
            if not keep[row][t]:
                continue
            if documents[row][t] != last:
                h, last = [0.0] * D, documents[row][t]
            z = [sigmoid(z_BTD[row][t][d]) for d in range(D)]
            h = [(1 - z[d]) * h[d] + z[d] * g(new_BTD[row][t][d]) for d in range(D)]
            assert hidden_BTD[row][t] == pytest.approx(h, rel=1e-9)


def test_a_long_row_neither_overflows_nor_forgets() -> None:
    """Gates of (0.9999, 1e-12) for 2,000 positions in float32, against sums in float64."""
    stays, enters = math.log(0.9999), math.log(1e-12)
    h_T = scan(torch.full((1, 2000, 1), stays), torch.full((1, 2000, 1), enters)).exp().flatten()
    wanted_T = [1e-12 * (1 - 0.9999 ** (t + 1)) / (1 - 0.9999) for t in range(2000)]
    torch.testing.assert_close(h_T, torch.tensor(wanted_T), rtol=1e-3, atol=0.0)


def test_the_state_has_one_size() -> None:
    model = tiny.model(mixer="mingru")
    state = model.initial_state(Batch(tiny.tokens(2, 1)))
    sizes = [[tensor.shape for tensor in layer] for layer in state.layers]
    _, state = model.forward_incremental(tiny.tokens(2, 20), state)
    assert [[tensor.shape for tensor in layer] for layer in state.layers] == sizes


SHAPES = {"encoder": "masked", "encoder-decoder": "seq2seq", "prefix": "prefix"}
OF_ATTENTION = ("position={kind: rotary}", "pattern={kind: window, size: 4}", "score=dot")


def test_shapes_that_read_both_sides_and_parts_of_attention_are_refused() -> None:
    for shape, objective in SHAPES.items():
        with pytest.raises(RecipeError, match=f"{shape} reads both sides, and mixer mingru only the past"):
            load("tiny", ["model.mixer=mingru", f"model.shape={shape}", f"objective.kind={objective}"])
    for part in OF_ATTENTION:
        with pytest.raises(RecipeError, match="is for attention, not for mixer mingru"):
            load("tiny", ["model.mixer=mingru", "model.position={kind: learned}", f"model.{part}"])
    for position in ("learned", "sinusoidal", "none"):
        load("tiny", ["model.mixer=mingru", f"model.position={{kind: {position}}}"])
