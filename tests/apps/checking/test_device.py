"""Fast ways of computing are compared with plain ones, and not taken where they differ or fail."""

import timeit
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.apps.checking import device as module
from lmtool.apps.checking.device import check_fast_paths
from lmtool.compute.agreement import agrees
from lmtool.compute.kernels import ops
from lmtool.model import LanguageModel
from lmtool.training.events import StepCompleted
from tests.support.training import Work, warnings_in

CPU = torch.device("cpu")


def test_all_ways_of_this_device_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those by a compiler, and on a small model, once each."""
    ways, repeat = module._list_fast_path_pairs, timeit.repeat
    monkeypatch.setattr(
        module, "_list_fast_path_pairs", lambda device: {k: v for k, v in ways(device).items() if "compiled" not in k}
    )
    monkeypatch.setattr(module, "MODEL_SPEC", {**module.MODEL_SPEC, "d_model": 128, "context": 96})
    monkeypatch.setattr(timeit, "repeat", lambda *given, **more: repeat(*given, **more | {"repeat": 1}))
    compared = list(check_fast_paths(CPU))
    assert {way.verdict for way in compared} == {"same"}
    assert {"matrices in int4", "fused AdamW"} <= {way.name for way in compared}
    by_kernels = [*ops.KERNEL_CHECKS, "training step", "one text"]
    assert all(any(way.name.startswith(name) for way in compared) == ops.has_kernels() for name in by_kernels)
    assert all(way.fast and way.plain for way in compared)


def test_a_number_that_is_not_finite_is_no_rounding() -> None:
    one, none = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    assert agrees(one + 1e-3, one)
    assert not agrees(none, one)
    assert agrees(one, none)


@pytest.mark.parametrize("fault", ["differs", "fails"])
def test_a_compiled_model_that_differs_is_trained_without(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(self: LanguageModel) -> None:
        def call(batch: Any) -> Any:
            if fault == "fails":
                raise RuntimeError("no compiler")
            output = self.forward(batch)
            return output._replace(hidden_BTD=1.5 * output.hidden_BTD)

        self._compiled_call_impl = call

    work = Work(tmp_path)
    plain = work.pretrain("training.steps=3", name="plain")
    monkeypatch.setattr(LanguageModel, "compile", compiled)
    found = work.pretrain("training.steps=3", "training.compile=true", name="compiled")
    told = "differs by 50 %" if fault == "differs" else "does not compile here (no compiler)"
    assert any(told in text for text in warnings_in(found))
    losses = [[event.step.loss for event in events if isinstance(event, StepCompleted)] for events in (plain, found)]
    assert losses[0] == losses[1]
