"""How much memory there is, and that freed memory is kept."""

import os
import platform
import subprocess
import sys

import pytest

from lmtool.compute.machine import physical_memory_limit_bytes


def test_memory_is_the_lowest_limit_of_the_control_groups_above(tmp_path):
    whole = physical_memory_limit_bytes(tmp_path)
    assert whole is not None
    assert whole > 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    inner = tmp_path / "sys/fs/cgroup/a/b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert physical_memory_limit_bytes(tmp_path) == whole
    (inner.parent / "memory.max").write_text("4096\n")
    assert physical_memory_limit_bytes(tmp_path) == 4096
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/\n4:memory:/docker/x\n")
    assert physical_memory_limit_bytes(tmp_path) == whole
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("8192\n")
    assert physical_memory_limit_bytes(tmp_path) == 8192


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
def test_freed_memory_is_kept_unless_the_environment_says_how_to_allocate():
    """A tensor of 4 MB in the place of the one before it: no page has to be cleared for it."""

    def faults(**variables: str) -> int:
        names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
        environment = {name: value for name, value in os.environ.items() if name not in names} | variables
        run = subprocess.run([sys.executable, "-c", FAULTS], env=environment, stdout=subprocess.PIPE, check=True)
        return int(run.stdout)

    assert 10 * faults() < faults(MALLOC_MMAP_THRESHOLD_="65536")
