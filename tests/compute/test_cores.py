"""How many CPU cores and threads a process takes, and how its threads wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmtool.compute import device
from lmtool.compute.machine import count_cores


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system without control groups, whose scheduler allows eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


def test_without_a_quota_the_cores_are_those_of_the_affinity(root, monkeypatch):
    assert count_cores(root) == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores(root) == 1


V2 = {"proc/self/cgroup": "0::/a/b"}
V1 = {"proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/"}
"""In a container, /proc names the group as the host sees it, and the topmost folder is that group."""


def v2(limit: str, **above: str) -> dict[str, str]:
    return V2 | {"sys/fs/cgroup/a/b/cpu.max": limit} | above


def v1(quota: str, period: str) -> dict[str, str]:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    return V1 | {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (v2("max 100000"), 8),
        (v2("150000 100000"), 2),
        (v2("200000 100000"), 2),
        (v2("5000 100000"), 1),
        (v2("1600000 100000"), 8),
        (v2("max 1", **{"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/cpu.max": "500000 100000"}), 3),
        (v1("-1", "100000"), 8),
        (v1("250000", "100000"), 3),
        (v1("1000", "50000"), 1),
    ],
)
def test_the_lowest_quota_of_the_groups_above_holds_and_is_rounded_up(root, files, cores):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert count_cores(root) == cores


@pytest.mark.parametrize(
    ("variables", "cores", "threads"),
    [({}, 1, 1), ({}, 8, 2), ({"OMP_NUM_THREADS": "2"}, 1, 2), ({"MKL_NUM_THREADS": "2"}, 1, 2)],
)
def test_torch_takes_no_more_threads_than_there_are_cores(monkeypatch, variables, cores, threads):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device, "count_cores", lambda: cores)
    try:
        torch.set_num_threads(2)
        device.limit_threads()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def environment(**variables: str) -> dict[str, str]:
    """An environment that says of OpenMP only what is given."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    return env | variables


def start(arguments: list[str], **variables: str) -> str:
    """What a new Python process prints, whose environment says of OpenMP only what is given."""
    done = subprocess.run([sys.executable, *arguments], env=environment(**variables), capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.parametrize(
    "arguments", [["-c", "import lmtool.api"], ["-m", "lmtool", "eval", "nowhere", __file__]], ids=["python", "command"]
)
def test_the_library_of_threads_reads_the_bound(arguments):
    """As libgomp itself tells, when torch loads it; all that comes after is not waited for."""
    env = environment(OMP_DISPLAY_ENV="verbose")
    with subprocess.Popen([sys.executable, *arguments], env=env, stderr=subprocess.PIPE, text=True) as program:
        assert any("GOMP_SPINCOUNT = '3000'" in line for line in program.stderr)
        program.kill()


@pytest.mark.parametrize(
    "given",
    [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "0"}, {"KMP_LIBRARY": "turnaround"}],
)
def test_a_choice_of_how_to_wait_is_kept(given):
    told = "import os, lmtool; print({k: v for k, v in os.environ.items() if k.startswith(('OMP_', 'GOMP_', 'KMP_'))})"
    assert start(["-c", told], **given) == f"{given}\n"
    assert start(["-c", told]) == "{'GOMP_SPINCOUNT': '3000', 'KMP_BLOCKTIME': '1'}\n"
