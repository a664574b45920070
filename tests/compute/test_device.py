"""Where and in which number type to compute."""

from typing import Any

import pytest
import torch

from lmtool.compute.device import Compute, choose_compute
from lmtool.errors import ResourceError


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A pretended GPU; returns what torch is told about it."""
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    return told


@pytest.fixture
def only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_takes_the_best_device(cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_compute("auto", "float32").device == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_compute("auto", "auto") == Compute(torch.device("mps"), "float32")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_compute("auto", "float32").device == torch.device("cpu")


def test_a_process_takes_its_own_gpu(cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_compute("cuda", "bfloat16") == Compute(torch.device("cuda", 3), "bfloat16")
    assert torch.device("cuda", 3) in cuda


@pytest.mark.parametrize(("asked", "products"), [("float32", "highest"), ("auto", "high"), ("bfloat16", "high")])
def test_float32_products_use_tensorfloat_unless_float32_is_asked_for(
    cuda: list[Any], asked: Any, products: str
) -> None:
    choose_compute("cuda", asked)
    assert cuda[-1] == products


@pytest.mark.parametrize(("emulated_only", "precision"), [(True, "float16"), (False, "bfloat16")])
def test_older_gpus_compute_in_float16(
    cuda: list[Any], monkeypatch: pytest.MonkeyPatch, emulated_only: bool, precision: str
) -> None:
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or not emulated_only
    )
    assert choose_compute("cuda", "auto").precision == precision


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there(only_cpu: None, device: Any) -> None:
    with pytest.raises(ResourceError, match=f"{device} is not available") as caught:
        choose_compute(device, "auto")
    assert len(caught.value.lines()) == 3
    assert "cpu" in caught.value.where
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("known", "precision"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": False, "avx2": True}, "float32"),
        ({}, "float32"),
    ],
)
def test_a_cpu_computes_in_bfloat16_where_it_has_the_instructions(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert choose_compute("cpu", "auto").precision == precision


def test_a_torch_that_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_compute("cpu", "auto").precision == "float32"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_what_is_asked_for_is_taken(precision: Any) -> None:
    compute = choose_compute("cpu", precision)
    assert compute == Compute(torch.device("cpu"), precision)
    assert compute.dtype == getattr(torch, precision)
    assert compute.describe() == f"cpu, {precision}"
    assert compute.scales_gradients == (precision == "float16")
    with compute.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == compute.dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_the_widest_sums() -> None:
    assert Compute(torch.device("cpu"), "float32").sum_dtype == torch.float64
    assert Compute(torch.device("mps"), "float32").sum_dtype == torch.float32


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    compute = choose_compute("auto", "auto")
    assert compute.device.type == "cuda"
    assert torch.cuda.get_device_name() in compute.describe()
    with compute.autocast():
        product = torch.ones(2, 2, device=compute.device) @ torch.ones(2, 2, device=compute.device)
    assert product.dtype == compute.dtype
