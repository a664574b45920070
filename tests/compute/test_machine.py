"""How many CPU cores, threads and how much memory a process takes, how its threads wait, and what it keeps."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmtool.compute import device
from lmtool.compute.machine import count_cores, physical_memory_limit_bytes


def put(root: Path, files: dict[str, str]) -> Path:
    """Files of a system under a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


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
        ({}, 8),
        (v2("max 100000"), 8),
        (v2("150000 100000"), 2),
        (v2("5000 100000"), 1),
        (v2("1600000 100000"), 8),
        (v2("max 1", **{"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/cpu.max": "500000 100000"}), 3),
        (v1("-1", "100000"), 8),
        (v1("250000", "100000"), 3),
    ],
)
def test_cores_are_those_of_the_affinity_or_the_lowest_quota_of_the_groups_above_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert count_cores(put(tmp_path, files)) == cores


def test_a_system_that_tells_nothing_has_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores(tmp_path) == 1


def test_memory_is_the_lowest_limit_of_the_control_groups_above(tmp_path: Path) -> None:
    whole = physical_memory_limit_bytes(tmp_path)
    assert whole is not None
    assert whole > 0
    for files, limit in (
        ({**V2, "sys/fs/cgroup/a/b/memory.max": "max"}, whole),
        ({"sys/fs/cgroup/a/memory.max": "4096"}, 4096),
        (V1, whole),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "8192"}, 8192),
    ):
        assert physical_memory_limit_bytes(put(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("variables", "cores", "threads"),
    [({}, 1, 1), ({}, 8, 2), ({"OMP_NUM_THREADS": "2"}, 1, 2), ({"MKL_NUM_THREADS": "2"}, 1, 2)],
)
def test_torch_takes_no_more_threads_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cores: int, threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device, "count_cores", lambda: cores)
    with device.use_cpu_threads(2):
        device.limit_threads()
        assert torch.get_num_threads() == threads


def environment(**variables: str) -> dict[str, str]:
    """An environment that says of OpenMP only what is given."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    return env | variables


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.parametrize(
    "arguments", [["-c", "import lmtool.api"], ["-m", "lmtool", "eval", "nowhere", __file__]], ids=["python", "command"]
)
def test_the_library_of_threads_reads_the_bound(arguments: list[str]) -> None:
    """As libgomp itself tells, when torch loads it; all that comes after is not waited for."""
    env = environment(OMP_DISPLAY_ENV="verbose")
    with subprocess.Popen([sys.executable, *arguments], env=env, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        assert any("GOMP_SPINCOUNT = '3000'" in line for line in program.stderr)
        program.kill()


def test_a_choice_of_how_to_wait_is_kept() -> None:
    """Of any of four variables."""
    told = "import os, lmtool; print({k: v for k, v in os.environ.items() if k.startswith(('OMP_', 'GOMP_', 'KMP_'))})"

    def told_with(**variables: str) -> str:
        program = [sys.executable, "-c", told]
        return subprocess.run(program, env=environment(**variables), capture_output=True, text=True, check=True).stdout

    choices = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "5", "KMP_BLOCKTIME": "0", "KMP_LIBRARY": "turnaround"}
    for name, value in choices.items():
        assert told_with(**{name: value}) == f"{{'{name}': '{value}'}}\n"
    assert told_with() == "{'GOMP_SPINCOUNT': '3000', 'KMP_BLOCKTIME': '1'}\n"


FAULTS = """
import resource, torch
import lmtool.compute.device

def faults(n):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        torch.zeros(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(10)
print(faults(40))
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="for the allocator of glibc")
def test_freed_memory_is_kept_unless_the_environment_says_how_to_allocate() -> None:
    """A tensor of 4 MB in the place of the one before it: no page has to be cleared for it."""

    def faults(**variables: str) -> int:
        names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
        environment = {name: value for name, value in os.environ.items() if name not in names} | variables
        run = subprocess.run([sys.executable, "-c", FAULTS], env=environment, stdout=subprocess.PIPE, check=True)
        return int(run.stdout)

    assert 10 * faults() < faults(MALLOC_MMAP_THRESHOLD_="65536")
