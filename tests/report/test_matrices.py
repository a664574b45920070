"""The numbers of one head follow from each other by the plain formulas, and sinusoids are those of the paper."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.recipe.load import load
from lmtool.report.matrices import compute_first_layer_matrices, format_matrix_lines
from tests.reference.attention import alibi_slope, rotated
from tests.reference.transformer import sinusoid, softmax
from tests.support.errors import refuses

Matrix = NDArray[Any]
SMALL = ("model.n_layers=1", "model.d_model=6", "model.n_heads=1", "model.context=4", "model.init.std=0.5")


def silu(number: float) -> float:
    return number / (1 + math.exp(-number))


def matrices(name: str, *overrides: str) -> dict[str, Matrix]:
    found = compute_first_layer_matrices(load(name, (*SMALL, *overrides)).recipe)
    return {title: matrix.double().numpy() for title, matrix in found}


def steps(name: str, *overrides: str) -> list[Matrix]:
    """X, W_Q, Q, K, V, S, A and A V."""
    return list(matrices(name, "model.d_ff=0", *overrides).values())[-8:]


def test_the_worked_example_with_six_components() -> None:
    pe, products, by_pair, steps, lengths, *_ = matrices("transformer-tiny").values()
    np.testing.assert_allclose(pe, [sinusoid(position, 6) for position in range(4)], atol=1e-6)
    for p in range(4):
        for q in range(4):
            parts = [math.cos((q - p) / 10_000 ** (2 * i / 6)) for i in range(3)]
            assert products[p, q] == pytest.approx(sum(parts), abs=1e-5)
            np.testing.assert_allclose(by_pair[:, abs(q - p)], parts, atol=1e-6)
            assert lengths[p, q] == pytest.approx(math.dist(sinusoid(p, 6), sinusoid(q, 6)), abs=1e-5)
    np.testing.assert_allclose(steps, np.diff([sinusoid(position, 6) for position in range(4)], axis=0), atol=1e-6)


def test_halves_have_the_same_products() -> None:
    layouts = ("alternating", "halves")
    one, other = (list(matrices("transformer-tiny", f"model.position.layout={of}").values()) for of in layouts)
    np.testing.assert_allclose(one[1], other[1], atol=1e-6)
    np.testing.assert_allclose(one[2], other[2], atol=1e-6)
    assert not np.allclose(one[0], other[0])


@pytest.mark.parametrize("bias", ["none", "alibi"])
def test_a_head_step_by_step(bias: str) -> None:
    x, w_q, q, k, v, s, a, out = steps("tiny", f"model.position.kind={bias}")
    np.testing.assert_allclose(q, x @ w_q, atol=1e-5)
    np.testing.assert_allclose(s, q @ k.T / math.sqrt(6), atol=1e-5)
    slope = alibi_slope(0, 1) if bias == "alibi" else 0.0
    for i in range(4):
        weights = softmax([s[i, j] - slope * (i - j) for j in range(i + 1)])
        np.testing.assert_allclose(a[i], [*weights, *[0.0] * (3 - i)], atol=1e-5)
    np.testing.assert_allclose(out, a @ v, atol=1e-5)


def test_queries_are_rotated_where_positions_are() -> None:
    x, w_q, q, *_ = steps("tiny", "model.position.kind=rotary")
    frequencies = [10_000 ** (-2 * i / 6) for i in range(3)]
    np.testing.assert_allclose(q, [rotated(row, p, frequencies) for p, row in enumerate(x @ w_q)], atol=1e-5)


def test_one_head_of_several_that_share_keys() -> None:
    x, w_q, q, k, v, s, *_ = steps("tiny", "model.n_heads=2", "model.n_kv_heads=1", "model.position.kind=none")
    assert [m.shape for m in (x, w_q, q, k, v, s)] == [(4, 6), (6, 3), (4, 3), (4, 3), (4, 3), (4, 4)]
    np.testing.assert_allclose(q, x @ w_q, atol=1e-5)


@pytest.mark.parametrize(("activation", "f"), [("relu", partial(max, 0.0)), ("silu", silu)])
def test_a_feed_forward_network_step_by_step(activation: str, f: Callable[[float], float]) -> None:
    x, w, h, inner, out = list(matrices("tiny", "model.d_ff=5", f"model.activation={activation}").values())[-5:]
    assert [m.shape for m in (x, w, h, inner, out)] == [(6, 4), (5, 6), (5, 4), (5, 4), (6, 4)]
    np.testing.assert_allclose(h, w @ x, atol=1e-5)
    np.testing.assert_allclose(inner, [[f(number) for number in row] for row in h], atol=1e-5)


def test_a_gated_network_multiplies_two_maps() -> None:
    x, w, h, w_3, g, inner, out = list(matrices("tiny", "model.d_ff=5", "model.activation=swiglu").values())[-7:]
    np.testing.assert_allclose((h, g), (w @ x, w_3 @ x), atol=1e-5)
    np.testing.assert_allclose(inner, np.vectorize(silu)(h) * g, atol=1e-5)
    assert out.shape == x.shape


def test_the_input_of_bert_is_a_normalised_sum() -> None:
    found = matrices("bert-tiny", "model.position.kind=learned")
    token, position, segment, total, x = list(found.values())[:5]
    np.testing.assert_allclose(total, token + position + segment, atol=1e-6)
    assert len({tuple(row) for row in segment[:2]}) == len({tuple(row) for row in segment[2:]}) == 1
    assert not np.allclose(segment[0], segment[2])
    centred = total - total.mean(1, keepdims=True)
    np.testing.assert_allclose(x, centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5), atol=1e-3)


@pytest.mark.parametrize("override", ["model.n_segments=0", "model.n_segments=2"])
def test_only_what_is_there_is_summed(override: str) -> None:
    alone = ("objective.next_sentence=false", "model.next_sentence_head=false")
    found = matrices("bert-tiny", "model.position.kind=learned", *alone, override)
    parts = [matrix for title, matrix in found.items() if title.endswith(" vectors")]
    assert len(parts) == 2 + (override == "model.n_segments=2")
    np.testing.assert_allclose(found["their sum"], sum(parts), atol=1e-6)


def test_tokens_alone_are_no_sum() -> None:
    assert next(iter(matrices("tiny", "model.position.kind=none"))).startswith("X, the input")


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("lstm", "model.n_layers=1"),
        ("tiny", "model.d_model=32"),
        ("tiny", "model.score=additive"),
        ("roberta-tiny", "model.position.kind=disentangled"),
    ],
)
def test_what_has_no_small_head_is_refused(name: str, override: str) -> None:
    with refuses("usage"):
        compute_first_layer_matrices(load(name, (override,) if name == "lstm" else (*SMALL, override)).recipe)


def test_matrices_are_printed_as_lines() -> None:
    title, row, *_ = map(str, format_matrix_lines(compute_first_layer_matrices(load("transformer-tiny", SMALL).recipe)))
    assert title.startswith("PE(p)")
    assert row.split() == ["0.0000", "1.0000"] * 3
