"""Traces of training steps by torch.profiler."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.run.directory import PROFILE
from lmtool.training.events import Info
from tests.support.cli import CommandLine
from tests.support.processes import TOGETHER
from tests.support.training import Work, after, lasting, of_kind, warnings_in
from tests.training.programs import TORCHRUN, output, pretraining, start


class ProfiledWork(Work):
    """Work of which each session is profiled."""

    def session(self, *args, **named):
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
    assert [traced_steps(trace) for trace in traces] == [
        {"ProfilerStep#3", "ProfilerStep#4"},
        {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"},
    ]
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


def test_the_commands_have_the_option(
    work: Work, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed run takes its traces with it."""
    lmtool = CommandLine(capsys, monkeypatch)
    told = lmtool.succeeds(*pretraining(work), "--profile")
    assert str(work.run() / PROFILE) in told.err
    lmtool.succeeds("resume", work.run(), "-s", "training.steps=+6", "--profile")
    assert len(list((work.run() / PROFILE).iterdir())) == 2
    lmtool.succeeds("runs", "rm", work.run(), "--yes")
    assert not work.run().exists()


@pytest.mark.system
def test_each_process_writes_its_own_trace(work: Work) -> None:
    process = start(work, [*TORCHRUN, *pretraining(work, *TOGETHER), "--profile"])
    assert process.wait() == 0, output(work)
    traces = sorted((work.run() / PROFILE).iterdir())
    assert [trace.name for trace in traces] == [f"step-000000-rank-{rank}.json.gz" for rank in range(2)]
    assert all(map(traced_steps, traces))
