"""Traces of training steps by torch.profiler, and model FLOPs utilization where the peak of the device is known."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.compute.device import ExecutionContext
from lmtool.compute.processes import World
from lmtool.report.training import render_runs_page
from lmtool.runs.directory import PROFILE, Run
from lmtool.runs.history import RunHistory
from lmtool.training.events import Info, TrainingStarted
from lmtool.training.job import SessionOptions
from tests.support.processes import TOGETHER
from tests.support.training import Work, after, lasting, metrics, of_kind, warnings_in
from tests.training.programs import TORCHRUN, output, pretraining, start


class ProfiledWork(Work):
    """Work of which each session is profiled."""

    def session(self, *args: Any, **named: Any) -> SessionOptions:
        return replace(super().session(*args, **named), profiles=True)


def traced_steps(path: Path) -> set[str]:
    """The steps of a trace, each of which has matrix products and a backward pass."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert "aten::mm" in names
    assert any("Backward" in name for name in names)
    return {name for name in names if name.startswith("ProfilerStep#")}


def test_steps_after_the_first_ones_of_each_session_are_traced_and_results_stay_the_same(work: Work) -> None:
    """Interrupted while it is traced, a session has the steps till then; the resumed run ends as an unbroken one."""
    work.pretrain(name="whole")
    profiled = ProfiledWork(work.folder)
    told = [*profiled.pretrain(stop=after(4)), *profiled.resume()]
    assert warnings_in(told) == []
    traces = [work.run() / PROFILE / f"step-{step:06d}-rank-0.json.gz" for step in (0, 4)]
    assert sorted((work.run() / PROFILE).iterdir()) == traces
    assert traced_steps(traces[0]) < traced_steps(traces[1]) == {f"ProfilerStep#{n}" for n in (3, 4, 5)}
    assert all(any(str(trace) in event.text for event in of_kind(told, Info)) for trace in traces)
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
    assert not (work.run("whole") / PROFILE).exists()


def test_a_session_of_too_few_steps_and_a_folder_that_cannot_be_made_are_warnings(work: Work) -> None:
    profiled = ProfiledWork(work.folder)
    (warning,) = warnings_in(profiled.pretrain(stop=after(2)))
    assert "no step was traced" in warning
    assert not (work.run() / PROFILE).exists()
    (work.run() / PROFILE).write_text("in the way")
    (warning,) = warnings_in(profiled.resume())
    assert str(work.run() / PROFILE) in warning


@pytest.mark.system
def test_each_process_writes_its_own_trace(work: Work) -> None:
    process = start(work, [*TORCHRUN, *pretraining(work, *TOGETHER), "--profile"])
    assert process.wait() == 0, output(work)
    traces = sorted((work.run() / PROFILE).iterdir())
    assert [trace.name for trace in traces] == [f"step-000000-rank-{rank}.json.gz" for rank in range(2)]
    assert all(map(traced_steps, traces))


def test_utilization_is_the_share_of_the_speed_at_the_peak(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose peak is 1e9 FLOP/s stands in for this device, a CPU, of which nothing is said.

    Nor is anything said of runs of which weights are frozen or rows are of a table.
    """
    assert [event.peak_speed for event in of_kind(work.pretrain(name="unknown"), TrainingStarted)] == [None]
    assert all("mfu" not in record for record in metrics(work.run("unknown")))
    assert "Utilization over steps" not in render_runs_page([RunHistory.from_run(Run.open(work.run("unknown")))])
    monkeypatch.setattr(ExecutionContext, "total_peak_flops", 1e9)
    (plan,) = of_kind(work.pretrain(), TrainingStarted)
    assert plan.peak_speed is not None
    assert 1e9 / plan.peak_speed > 6 * 16 * 16 * 12  # of the matrices of a layer
    for record in metrics(work.run()):
        assert record["mfu"] == pytest.approx(record["tokens_per_second"] / plan.peak_speed, abs=1e-3)
    assert "Utilization over steps" in render_runs_page([RunHistory.from_run(Run.open(work.run()))])
    frozen = work.pretrain("tuning.lora={rank: 2}", source=work.run(), name="lora")
    of_rows = work.finetune("data.valid_fraction=0.2", source=work.run())
    for told in (frozen, of_rows):
        assert [event.peak_speed for event in of_kind(told, TrainingStarted)] == [None]


def test_the_peak_follows_from_the_name_of_the_gpu_and_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    gpu = torch.device("cuda", 0)
    assert ExecutionContext(gpu, "bfloat16", World(size=2)).total_peak_flops == 2 * 989e12
    assert ExecutionContext(gpu, "float32").total_peak_flops is None
    assert ExecutionContext(torch.device("cpu"), "bfloat16").total_peak_flops is None
