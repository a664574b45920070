"""Model FLOPs utilization in the records, on the display and on the page, where the peak of the device is known."""

import pytest

from lmtool.compute.device import ExecutionContext
from lmtool.report.training import render_runs_page
from lmtool.run.directory import Run
from lmtool.run.history import RunHistory
from lmtool.training.events import FitStarted
from tests.support.training import Work, metrics, of_kind


def test_utilization_is_the_share_of_the_speed_at_the_peak(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose peak is 1e9 FLOP/s stands in for this device, a CPU, of which nothing is said."""
    assert [event.peak_speed for event in of_kind(work.pretrain(name="unknown"), FitStarted)] == [None]
    assert all("mfu" not in record for record in metrics(work.run("unknown")))
    assert "tilization" not in render_runs_page([RunHistory.from_run(Run.open(work.run("unknown")))])
    monkeypatch.setattr(ExecutionContext, "peak_flops", 1e9)
    (plan,) = of_kind(work.pretrain(), FitStarted)
    assert plan.peak_speed is not None
    assert 1e9 / plan.peak_speed > 6 * 16 * 16 * 12  # of the matrices of a layer
    for record in metrics(work.run()):
        assert record["mfu"] == pytest.approx(record["tokens_per_second"] / plan.peak_speed, abs=1e-3)
    assert "Utilization over steps" in render_runs_page([RunHistory.from_run(Run.open(work.run()))])


def test_it_is_not_known_where_weights_are_frozen_or_rows_are_of_a_table(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.pretrain()
    monkeypatch.setattr(ExecutionContext, "peak_flops", 1e9)
    for told in (
        work.pretrain("tuning.lora={rank: 2}", source=work.run(), name="lora"),
        work.finetune(source=work.run()),
    ):
        assert [event.peak_speed for event in of_kind(told, FitStarted)] == [None]


def test_the_peak_follows_from_the_name_of_the_gpu_and_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lmtool.compute.processes import World

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    gpu = torch.device("cuda", 0)
    assert ExecutionContext(gpu, "bfloat16", World(size=2)).peak_flops == 2 * 989e12
    assert ExecutionContext(gpu, "float32").peak_flops is None
    assert ExecutionContext(torch.device("cpu"), "bfloat16").peak_flops is None
