"""Cross-entropy against loops, in chunks and whole; test_memory.py holds what it keeps alive."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE
from lmtool.objective import cross_entropy
from lmtool.objective.cross_entropy import sum_cross_entropy_in_chunks, sum_smoothed_cross_entropy
from tests.reference import losses as reference

M, D, V = 23, 5, 11
EPSILONS = [0.0, 0.1, 0.6]


def logits_of(*shape: int, seed: int = 0) -> Any:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets_of(n: int, vocab_size: int = V) -> Tensor:
    """Every fourth has no loss."""
    drawn = torch.randint(vocab_size, (n,), generator=torch.Generator().manual_seed(1))
    return drawn.masked_fill(torch.arange(n) % 4 == 2, IGNORE)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("vocab_size", [2, 11])
def test_equals_loops(eps: float, vocab_size: int) -> None:
    """The gradient is softmax minus the wanted distribution."""
    logits, targets = logits_of(M, vocab_size).requires_grad_(), targets_of(M, vocab_size)
    plain = logits.detach().numpy(), targets.tolist(), eps
    total = sum_smoothed_cross_entropy(logits, targets, eps)
    torch.autograd.backward(total)
    assert float(total.detach()) == pytest.approx(reference.cross_entropy(*plain), rel=1e-12)
    assert logits.grad.numpy() == pytest.approx(reference.logits_gradient(*plain), abs=1e-12)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_scored_in_float32(eps: float, dtype: torch.dtype) -> None:
    logits, targets = logits_of(M, V).to(dtype), targets_of(M)
    total = sum_smoothed_cross_entropy(logits, targets, eps)
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(
        reference.cross_entropy(logits.double().numpy(), targets.tolist(), eps), rel=1e-5
    )


def test_very_large_logits_stay_finite() -> None:
    logits: Any = torch.tensor([[1e4, -1e4, 0.0], [3e38, 0.0, -3e38]]).requires_grad_()
    total = sum_smoothed_cross_entropy(logits, torch.tensor([0, 0]), 0.0)
    torch.autograd.backward(total)
    assert float(total.detach()) == 0
    assert torch.isfinite(logits.grad).all()


class Head:
    """Affine logits, with a record of the rows of each call."""

    def __init__(self, dtype: torch.dtype = torch.float64, vocab_size: int = V) -> None:
        self.weight = logits_of(vocab_size, D, seed=2).to(dtype).requires_grad_()
        self.bias = logits_of(vocab_size, seed=3).to(dtype).requires_grad_()
        self.vocab_size = vocab_size
        self.rows: list[int] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return F.linear(hidden, self.weight, self.bias)

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.weight, self.bias)


def loss_and_gradients(
    chunk_rows: int, eps: float, n: int = M, dtype: torch.dtype = torch.float64
) -> tuple[list[Any], list[int]]:
    """Loss, gradients of hidden states and head, and the rows of each call of the head; in float32 under autocast."""
    head, hidden = Head(dtype), logits_of(n, D).to(dtype).requires_grad_()
    low = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32)
    with pytest.MonkeyPatch.context() as patch, low:
        patch.setattr(cross_entropy, "rows_per_chunk", lambda *_: chunk_rows)
        total = sum_cross_entropy_in_chunks(head, hidden, targets_of(n), eps)
    torch.autograd.backward(0.25 * total)
    return [total.detach(), hidden.grad, head.weight.grad, head.bias.grad], head.rows


@settings(max_examples=40, deadline=None)
@given(chunk_rows=st.integers(1, 30), n=st.integers(1, 30), eps=st.sampled_from(EPSILONS))
def test_chunks_change_neither_value_nor_gradients(chunk_rows: int, n: int, eps: float) -> None:
    whole, calls = loss_and_gradients(n, eps, n)
    chunked, rows = loss_and_gradients(chunk_rows, eps, n)
    assert calls == [n]
    assert max(rows) <= chunk_rows
    assert sum(rows) == n
    for one, two in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("eps", EPSILONS)
@torch.no_grad()
def test_chunks_without_gradients(monkeypatch: pytest.MonkeyPatch, eps: float) -> None:
    head, hidden, targets = Head(), logits_of(M, D), targets_of(M)
    monkeypatch.setattr(cross_entropy, "rows_per_chunk", lambda *_: 4)
    total = sum_cross_entropy_in_chunks(head, hidden, targets, eps)
    assert head.rows == [4, 4, 4, 4, 4, 3]
    wanted = reference.cross_entropy(head.logits(hidden).numpy(), targets.tolist(), eps)
    assert float(total) == pytest.approx(wanted, rel=1e-12)


def test_chunks_have_a_row_at_least_and_on_a_cpu_enough_for_fast_products() -> None:
    assert [cross_entropy.rows_per_chunk(torch.device(kind), 2**26) for kind in ("cuda", "cpu")] == [1, 256]


def test_chunks_under_autocast() -> None:
    """The head's float32 weights get the gradient of every chunk, though its bfloat16 copy is made once."""
    whole, chunked = (loss_and_gradients(n, 0.0, dtype=torch.float32)[0] for n in (M, 4))
    assert {one.dtype for one in (*whole, *chunked)} == {torch.float32}
    for one, two in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, two, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("scale", [1.0, 2.0**4, 2.0**12])
def test_slopes_below_float16_reach_the_gradient_once_they_are_scaled(scale: float) -> None:
    """p - q is about 1e-8 here, which float16 rounds to zero unless the scale comes first."""
    logits: Any = torch.full((3, 50), -18.0)
    logits[:, 0] = 0.0
    half = logits.half().requires_grad_()
    torch.autograd.backward(sum_smoothed_cross_entropy(half, torch.zeros(3, dtype=torch.int64), 0.0) * scale * 2.0**12)
    exact = logits.double().requires_grad_()
    torch.autograd.backward(F.cross_entropy(exact, torch.zeros(3, dtype=torch.int64), reduction="sum"))
    torch.testing.assert_close(half.grad[:, 1:].double() / scale / 2.0**12, exact.grad[:, 1:], rtol=1e-2, atol=0)


def test_chunks_in_float16_keep_small_slopes_too() -> None:
    """Their gradients are computed before the scale is known."""
    weight_VD = torch.full((50, 1), -18.0)
    weight_VD[0] = 0.0

    def gradient(dtype: torch.dtype) -> Any:
        hidden_MD = torch.ones(700, 1, requires_grad=True)
        targets_M = torch.zeros(700, dtype=torch.int64)
        head = SimpleNamespace(
            logits=lambda h: h.to(dtype) @ weight_VD.T.to(dtype), head_parameters=lambda: (), vocab_size=40_000
        )
        total = sum_cross_entropy_in_chunks(head, hidden_MD, targets_M)
        torch.autograd.backward(total)
        return hidden_MD.grad

    exact = gradient(torch.float32)
    assert bool((exact < -1e-6).all())
    torch.testing.assert_close(gradient(torch.float16), exact, rtol=2e-2, atol=0)
