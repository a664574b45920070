"""A kernel that computes something else than its formula, as on a processor that no test has run on, is not used."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lmtool.compute.kernels import build, kernel_checks, matrices, ops
from lmtool.compute.kernels.matrices import NativeMatrix

pytestmark = pytest.mark.skipif(not ops.has_kernels(), reason="needs a C compiler")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache in which there are no results of the kernels, which are loaded."""
    (tmp_path / build.CACHE_FOLDER).mkdir()
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path))
    kernel_checks._read_or_compute_check_result.cache_clear()
    yield tmp_path
    kernel_checks._read_or_compute_check_result.cache_clear()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are called, of which the one of gates computes zeros."""
    names: list[str] = []
    call = ops._call_kernel_unless_fake

    def call_or_fail(name: str, *arguments: Any, work: Tensor) -> None:
        names.append(name)
        call(name, *arguments, work=work)
        if name == "swiglu":
            arguments[2].zero_()

    monkeypatch.setattr(ops, "_call_kernel_unless_fake", call_or_fail)
    return names


def test_a_wrong_kernel_is_refused_once(fresh: Path, called: list[str], caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 8)
    gate, value = x.chunk(2, -1)
    wanted = gate * gate.sigmoid() * value
    torch.testing.assert_close(ops.swiglu(x), wanted)
    assert "swiglu" in called  # compared
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    caplog.clear()
    called.clear()
    for _ in range(2):
        torch.testing.assert_close(ops.swiglu(x), wanted)
        kernel_checks._read_or_compute_check_result.cache_clear()  # as in a new process
    assert not called
    assert not caplog.records


def test_other_kernels_are_used(fresh: Path, called: list[str], caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 8)
    found = ops.rms_norm(x, torch.ones(8), 1e-5)
    torch.testing.assert_close(found, x * x.square().mean(-1, keepdim=True).add(1e-5).rsqrt())
    assert called
    called.clear()
    kernel_checks._read_or_compute_check_result.cache_clear()
    ops.rms_norm(x, torch.ones(8), 1e-5)
    assert called == ["rms_norm"]
    assert not caplog.records


@pytest.mark.parametrize("dtype", matrices.KERNEL_DTYPES)
def test_wrong_products_are_refused(fresh: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    weight = torch.randn(16, 32)
    assert NativeMatrix.create_if_supported(weight, dtype) is not None
    for file in fresh.rglob("*.json"):
        file.unlink()
    kernel_checks._read_or_compute_check_result.cache_clear()
    monkeypatch.setattr(NativeMatrix, "__call__", lambda self, x, bias: x.new_zeros(len(x), self.n_out))
    assert NativeMatrix.create_if_supported(weight, dtype) is None


def test_results_are_those_of_one_processor(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.kernel_check_results_path()
    monkeypatch.setattr(build, "_processor_features", lambda: "another")
    assert build.kernel_check_results_path() != before


@pytest.mark.parametrize("content", [b"no results", b"[1]"])
def test_damaged_results_are_made_again(fresh: Path, content: bytes) -> None:
    build.kernel_check_results_path().write_bytes(content)
    assert ops.has_kernel("swiglu")
    assert ops.has_kernel("rotary")
    kernel_checks._read_or_compute_check_result.cache_clear()
    assert ops.has_kernel("swiglu")


def test_kernels_are_used_where_the_cache_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(fresh / "none"))
    assert ops.has_kernel("swiglu")


def test_a_comparison_changes_nothing_of_what_is_going_on(fresh: Path) -> None:
    """The first use is inside of a recomputed layer, in inference mode, or under autocast. No number is drawn."""
    x = torch.randn(3, 8, requires_grad=True)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    y = checkpoint(lambda x: ops.swiglu(x) * ops.swiglu(x.sin()), x, use_reentrant=False)
    found = torch.autograd.grad(y.sum(), x)[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(found, torch.autograd.grad((ops.swiglu(x) * ops.swiglu(x.sin())).sum(), x)[0])
    for context in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        build.kernel_check_results_path().unlink()
        kernel_checks._read_or_compute_check_result.cache_clear()
        with context:
            assert ops.has_kernel("swiglu")
            assert ops.has_kernel("cross_entropy")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_first_use_may_be_traced(fresh: Path) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x: ops.swiglu(x).sum(), backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 8, requires_grad=True)
    torch.testing.assert_close(compiled(x), ops.swiglu(x).sum())
    assert build.kernel_check_results_path().is_file()
    torch.compiler.reset()
