"""Where and in which number type to compute."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmtool.batch import Batch, widest_float_dtype
from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.compute.device_kinds import DEVICE_KINDS, find_peak_flops
from lmtool.model import ngram
from lmtool.model.layers import positions
from lmtool.objective import masked
from lmtool.recipe.spec.objective import Masked
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.vocabularies import VOCABULARY


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A pretended GPU; returns what torch is told about it."""
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    return told


def test_auto_takes_the_best_device_and_others_that_are_not_there_are_refused(
    cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configure_compute("auto", "float32").device == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert configure_compute("auto", "auto") == ExecutionContext(torch.device("mps"), "float32")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert configure_compute("auto", "float32").device == torch.device("cpu")
    devices: list[Any] = ["cuda", "mps"]
    for device in devices:
        with refuses("resource"):
            configure_compute(device, "auto")


def test_a_process_takes_its_own_gpu(cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert configure_compute("cuda", "bfloat16") == ExecutionContext(torch.device("cuda", 3), "bfloat16")
    assert torch.device("cuda", 3) in cuda


@pytest.mark.parametrize(("asked", "products"), [("float32", "highest"), ("auto", "high"), ("bfloat16", "high")])
def test_float32_products_use_tensorfloat_unless_float32_is_asked_for(
    cuda: list[Any], asked: Any, products: str
) -> None:
    configure_compute("cuda", asked)
    assert cuda[-1] == products


@pytest.mark.parametrize(("has_bfloat16", "precision"), [(False, "float16"), (True, "bfloat16")])
def test_older_gpus_which_emulate_bfloat16_compute_in_float16(
    cuda: list[Any], monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, precision: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation | has_bfloat16)
    assert configure_compute("cuda", "auto").precision == precision


@pytest.mark.parametrize(
    ("known", "precision"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx2": True}, "float32")],
)
def test_a_cpu_computes_in_bfloat16_where_it_has_the_instructions(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert configure_compute("cpu", "auto").precision == precision


def test_a_torch_that_cannot_tell_instructions_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert configure_compute("cpu", "auto").precision == "float32"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_what_is_asked_for_is_taken(precision: Any) -> None:
    compute = configure_compute("cpu", precision)
    assert compute == ExecutionContext(torch.device("cpu"), precision)
    assert compute.dtype == getattr(torch, precision)
    assert compute.describe() == f"cpu, {precision}"
    assert compute.needs_loss_scaling == (precision == "float16")
    with compute.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == compute.dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    compute = configure_compute("auto", "auto")
    assert compute.device.type == "cuda"
    assert torch.cuda.get_device_name() in compute.describe()
    with compute.autocast():
        product = torch.ones(2, 2, device=compute.device) @ torch.ones(2, 2, device=compute.device)
    assert product.dtype == compute.dtype


def test_a_mac_falls_back_to_the_cpu_for_operations_that_its_gpu_lacks() -> None:
    """Before torch is imported, which reads the variable once; a choice of the person stays."""
    program = "import os, sys, lmtool; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'], 'torch' in sys.modules)"
    for value, expected in ((None, "1 False"), ("0", "0 False")):
        env = {key: text for key, text in os.environ.items() if key != "PYTORCH_ENABLE_MPS_FALLBACK"}
        env |= {} if value is None else {"PYTORCH_ENABLE_MPS_FALLBACK": value}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_nothing_is_summed_in_float64_where_the_gpu_has_none() -> None:
    for name, widest in (("mps", torch.float32), ("cpu", torch.float64)):
        device = torch.device(name)
        assert widest_float_dtype(device) == ExecutionContext(device, "float32").widest_dtype == widest


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        *((name, "a100") for name in ("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA GeForce RTX 4090 D", None),
    ],
)
def test_a_gpu_has_the_peak_of_its_kind_unless_it_is_a_variant_or_a_part(name: str, kind: str | None) -> None:
    assert find_peak_flops(name) == (DEVICE_KINDS[kind].peak_flops if kind else None)


class WithoutFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what the MPS device refuses: tensors of float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            is_from_numpy = func is torch.ops.aten.lift_fresh.default  # on the CPU, whatever the device
            if isinstance(one, torch.Tensor) and one.dtype == torch.float64 and not is_from_numpy:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return made


@pytest.mark.parametrize("name", tiny.of_each_kind(tiny.FAMILIES))
def test_models_compute_without_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, as on a device that has none."""
    for module in (positions, ngram):
        monkeypatch.setattr(module, "widest_float_dtype", lambda device: torch.float32)
    lm = tiny.model(dtype=torch.float32, **tiny.FAMILIES[name])
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        logits_BTV = lm.logits(tiny.read(lm, tiny.tokens(2, 6)))
        if logits_BTV.requires_grad:
            torch.autograd.backward(logits_BTV.log_softmax(-1).mean())
    assert logits_BTV.isfinite().any()


def test_the_pseudo_likelihood_is_measured_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "widest_float_dtype", lambda device: torch.float32)
    lm = tiny.model(dtype=torch.float32, **tiny.BERT)
    objective = masked.MaskedObjective(Masked(kind="masked"), VOCABULARY)
    tokens_BT = tiny.tokens(2, 5)
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        assert objective.score_text(lm, Batch(tokens_BT, tokens_BT)).total.dtype == torch.float32
