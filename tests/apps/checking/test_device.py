"""Fast ways of computing are compared with plain ones, and not taken where they differ or fail."""

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


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler but in the test of it."""
    ways = module._list_fast_path_pairs
    monkeypatch.setattr(
        module, "_list_fast_path_pairs", lambda device: {k: v for k, v in ways(device).items() if "compiled" not in k}
    )


def test_all_ways_of_this_device_agree() -> None:
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
    fault: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(self: LanguageModel) -> None:
        def call(batch: Any) -> Any:
            if fault == "fails":
                raise RuntimeError("no compiler")
            output = self.forward(batch)
            return output._replace(hidden_BTD=1.5 * output.hidden_BTD)

        self._compiled_call_impl = call

    work = Work(tmp_path)
    plain = work.pretrain(name="plain")
    monkeypatch.setattr(LanguageModel, "compile", compiled)
    found = work.pretrain("training.compile=true", name="compiled")
    told = "differs by 50 %" if fault == "differs" else "does not compile here (no compiler)"
    assert any(told in text for text in warnings_in(found))
    losses = [[event.step.loss for event in events if isinstance(event, StepCompleted)] for events in (plain, found)]
    assert losses[0] == losses[1]
