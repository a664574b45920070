"""Each kernel of a training step against the formula in float64, in both types, for shapes that fill no register."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lmtool.compute.kernels import kernel_checks, ops

pytestmark = pytest.mark.skipif(not ops.has_kernels(), reason="needs a C compiler")

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Even a few numbers are shared among them."""
    monkeypatch.setattr(ops, "NUMBERS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    n: int = request.param
    return n


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compare(kernel: Callable[..., Tensor], formula: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values and gradients, each with an error relative to the largest."""
    fast_inputs = [x.detach().clone().requires_grad_() for x in inputs]
    plain_inputs = [x.detach().double().requires_grad_() for x in inputs]
    fast, plain = kernel(*fast_inputs), formula(*plain_inputs)
    slope = normal(*plain.shape, seed=9, dtype=fast.dtype)
    grads = torch.autograd.grad(fast, fast_inputs, slope), torch.autograd.grad(plain, plain_inputs, slope.double())
    assert fast.dtype == inputs[0].dtype
    for one, other in zip((fast, *grads[0]), (plain, *grads[1]), strict=True):
        error = float(((one.double() - other).abs().max() / other.abs().max()).detach())
        assert error < ROUNDING[fast.dtype]


@TYPES
@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 34), (64, 832)])
def test_swiglu_equals_its_formula(shape: tuple[int, ...], dtype: torch.dtype, threads: int) -> None:
    def formula(inner: Tensor) -> Tensor:
        gate, value = inner.chunk(2, -1)
        return gate / (1 + (-gate).exp()) * value

    compare(ops.swiglu, formula, 4 * normal(*shape, dtype=dtype))


def test_swiglu_of_extremes_and_of_nothing() -> None:
    inner = torch.tensor([[-1e4, 1e4, -200.0, torch.inf, 2.0, 3.0, 4.0, 5.0]])
    assert ops.swiglu(inner).tolist() == [[-0.0, 3e4, -0.0, torch.inf]]
    assert ops.swiglu(torch.empty(2, 0)).shape == (2, 0)
    assert ops.swiglu(torch.empty(0, 6)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(1, 3), (7, 3, 33), (40, 160)])
def test_rms_norm_equals_its_formula(shape: tuple[int, ...], threads: int) -> None:
    def formula(x: Tensor, gain: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gain

    compare(lambda x, gain: ops.rms_norm(x, gain, 1e-5), formula, normal(*shape), normal(shape[-1], seed=1))


@TYPES
@pytest.mark.parametrize("n_angles", [1, 2])
@pytest.mark.parametrize("rotated", [6, 40])
def test_rotation_of_heads_that_lie_between_others(
    rotated: int, n_angles: int, dtype: torch.dtype, threads: int
) -> None:
    B, T, N, H = 2, 5, 3, 40
    angle = normal(n_angles, 1, T, rotated // 2, seed=2)
    cos = torch.cat((angle.cos(), angle.cos()), -1).to(dtype)
    sin = torch.cat((-angle.sin(), angle.sin()), -1).to(dtype)

    def heads(x: Tensor) -> Tensor:
        return x[..., 8 : 8 + N * H].view(B, T, N, H).transpose(1, 2)

    def formula(x: Tensor) -> Tensor:
        turned, rest = heads(x)[..., :rotated], heads(x)[..., rotated:]
        first, second = turned.chunk(2, -1)
        c, s = cos.double()[..., : rotated // 2], sin.double()[..., rotated // 2 :]
        return torch.cat((first * c - second * s, second * c + first * s, rest), -1)

    compare(lambda x: ops.rotary(heads(x), cos, sin), formula, normal(B, T, 16 + N * H, dtype=dtype))


def losses(
    logits: Tensor, targets: Tensor, weights: Tensor, masses: tuple[float, float] = (1.0, 0.0)
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the gradient of their sum."""
    logits = logits.detach().requires_grad_()
    loss = ops.cross_entropy(logits, targets, weights, *masses)
    rows = zip(logits[:, None], targets[:, None], weights[:, None], strict=True)
    each = [ops.cross_entropy(*row, *masses) for row in rows]
    return torch.stack(each).detach(), torch.autograd.grad(loss, logits)[0]


@TYPES
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 7, 4099])
def test_cross_entropy_equals_its_formula(size: int, smoothing: float, dtype: torch.dtype, threads: int) -> None:
    masses = (1 - smoothing, smoothing / size)
    logits, targets = 5 * normal(9, size, dtype=dtype), torch.arange(9) * 31 % size
    weights = torch.tensor([1, 0, 0.5, 2, 1, 1, 0, 1, 1])
    loss, slope = losses(logits, targets, weights, masses)
    exact = logits.double().requires_grad_()
    log_p = exact.log_softmax(-1)
    wanted = weights * (-masses[0] * log_p[torch.arange(9), targets] - masses[1] * log_p.sum(-1))
    torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    if smoothing == 0:
        (grad,) = torch.autograd.grad(wanted.sum(), exact)
        torch.testing.assert_close(slope.double(), grad, rtol=0, atol=ROUNDING[dtype])


def test_powers_are_as_exact_as_float32() -> None:
    """Gradients of the loss are as near to float64 as torch's, and probabilities have all their digits."""
    logits, targets = 5 * normal(64, 8192), torch.arange(64) * 31 % 8192
    _, slope = losses(logits, targets, torch.ones(64))
    single, exact = (
        torch.autograd.grad(nn.functional.cross_entropy(x, targets, reduction="sum"), x)[0]
        for x in (logits.clone().requires_grad_(), logits.double().requires_grad_())
    )
    assert (slope.double() - exact).norm() <= (single.double() - exact).norm()
    gate = -torch.linspace(0.01, 16, 4000)
    value = ops.swiglu(torch.stack((gate, torch.ones_like(gate)), -1))[:, 0]
    torch.testing.assert_close(value.double(), gate.double() * gate.double().sigmoid(), rtol=2e-6, atol=0)


@TYPES
def test_the_loss_of_logits_that_are_not_finite(dtype: torch.dtype) -> None:
    """A token that cannot come has no share; NaN and inf are not hidden."""
    logits = torch.tensor(
        [[1.0, -torch.inf, 1.0], [0.0, torch.nan, 0.0], [0.0, -torch.nan, 0.0], [torch.inf, 0.0, 0.0]], dtype=dtype
    )
    loss, slope = losses(logits, torch.tensor([0, 0, 0, 1]), torch.ones(4))
    assert float(loss[0]) == pytest.approx(0.693147, abs=1e-5)
    assert slope[0].tolist() == [-0.5, 0.0, 0.5]
    assert not loss[1:].isfinite().any()


@TYPES
def test_what_dropout_keeps_makes_up_for_what_it_drops_as_does_the_gradient(dtype: torch.dtype, threads: int) -> None:
    x = torch.full((1003,), 3.0, dtype=dtype, requires_grad=True)
    torch.manual_seed(3)
    y = ops.dropout(x, 0.25)
    assert set(y.tolist()) == {0.0, 4.0}
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach() / 3)
    torch.manual_seed(3)
    assert torch.equal(ops.dropout(x[:500], 0.25), y[:500])


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_of_elements_that_share_a_draw_is_independent(p: float) -> None:
    """Each quarter of a draw drops as often as asked, and neighbours, and draws of other seeds, do not correlate."""
    n = 400_000
    torch.manual_seed(0)
    kept, other = ((ops.dropout(torch.ones(n), p) != 0).double() - (1 - p) for _ in range(2))
    for quarter in range(4):
        assert float(kept[quarter::4].mean()) == pytest.approx(0, abs=4 * (p * (1 - p) / (n // 4)) ** 0.5)
    for one, two in ((kept, other), *((kept[:-distance], kept[distance:]) for distance in (1, 2, 3, 4, 5))):
        assert abs(float((one * two).mean()) / (p * (1 - p))) < 4 / n**0.5


@pytest.mark.parametrize("p", [1e-9, 0.999999999])
def test_dropout_at_the_ends_of_the_range(p: float) -> None:
    x = torch.ones(1000)
    assert ops.dropout(x, 0.0) is x
    assert ops.dropout(x, p, training=False) is x
    assert bool(ops.dropout(x, p).isfinite().all())


def inputs_of(dtype: torch.dtype, device: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of each operator."""
    torch.manual_seed(0)
    angles = torch.cat((torch.tensor([[[[1.0], [2.0]]]]),) * 2, -1)
    sign = torch.tensor([-1.0, 1.0])
    x, gain, cos, sin, heads = (
        t.to(device, dtype)
        for t in (torch.randn(3, 4), torch.randn(4), angles.cos(), sign * angles.sin(), torch.randn(1, 3, 2, 4))
    )
    targets = torch.tensor([0, 1, 3], device=device)
    return {
        "rms_norm": (x, gain, 1e-5),
        "swiglu": (x,),
        "rotary": (heads, cos, sin),
        "dropout": (x, 0.5),
        "cross_entropy": (x, targets, torch.ones(3, device=device), 0.9, 0.02),
    }


def test_kernels_are_used_for_the_types_and_devices_that_they_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    call = ops._call_kernel_unless_fake

    def noted(name: str, *arguments: Any, **options: Any) -> None:
        names.append(name)
        call(name, *arguments, **options)

    monkeypatch.setattr(ops, "_call_kernel_unless_fake", noted)

    def called(dtype: torch.dtype, device: str = "cpu") -> list[str]:
        names.clear()
        for name, arguments in inputs_of(dtype, device).items():
            getattr(ops, name)(*arguments)
        return list(names)

    assert called(torch.float32) == ["rms_norm", "swiglu", "rotary", "dropout", "cross_entropy"]
    assert called(torch.bfloat16) == ["swiglu", "rotary", "dropout", "cross_entropy"]
    assert called(torch.float64) == called(torch.float32, "meta") == []
    monkeypatch.setattr(kernel_checks, "load_kernels", lambda: None)
    assert called(torch.float32) == []


@pytest.mark.parametrize("name", list(inputs_of(torch.float32, "cpu")))
def test_operators_pass_the_checks_of_torch(name: str) -> None:
    """Each has a fake implementation of the same shapes and strides, and a gradient that torch.compile can trace."""

    def first(*arguments: Any) -> Any:
        found = operator(*arguments)
        return found[0] if isinstance(found, tuple) else found

    arguments = inputs_of(torch.float32, "cpu")[name]
    operator = getattr(torch.ops.lmtool, name).default
    match name:
        case "rotary":
            arguments = *arguments, 1.0
        case "cross_entropy":
            arguments = *arguments, True
    x = arguments[0].requires_grad_()
    is_random = torch.Tag.nondeterministic_seeded in operator.tags
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, arguments, test_utils=checks[:-1] if is_random else checks)
    assert torch.autograd.grad(first(*arguments).sum(), x)[0].abs().sum() > 0
