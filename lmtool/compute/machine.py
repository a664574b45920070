"""What the machine gives this process: CPU cores and memory, which control groups may limit."""

import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

from lmtool import system

_TRIM_THRESHOLD_BYTES = 1 << 30
"""Freed memory at the end of the heap that is kept."""

_MMAP_THRESHOLD_BYTES = 1 << 25
"""The size from which an allocation is a mapping of its own; the largest that glibc takes."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def _iterate_cgroup_limits(controller: str, v2_files: str, v1_files: str, root: Path) -> Iterator[list[int]]:
    """Iterates over the numbers in files of the process's control group and of its ancestors that set a limit.

    controller: "memory" or "cpu". v2_files, v1_files: names of both versions of control groups, separated by spaces.
    root: of the system's files. Not all folders need exist: inside a container, its own group is the topmost folder.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        inner = base / group.lstrip("/")
        names = (v1_files if controllers else v2_files).split()
        for folder in (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base)):
            try:
                yield [int(word) for name in names for word in (folder / name).read_text(encoding="ascii").split()]
            except (OSError, ValueError):  # no such file, or "max"
                continue


def count_cores(root: Path = Path("/")) -> int:
    """Counts the CPU cores for this process: its affinity, or the CPU quota of its control group if lower, rounded up.

    root: of the system's files.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = _iterate_cgroup_limits("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us", root)
    # -1 in version 1: no limit
    return min([allowed, *(math.ceil(quota / period) for quota, period in limits if quota > 0)])


def has_thread_setting() -> bool:
    """Whether a variable of the environment sets the number of threads that compute."""
    return not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(os.environ)


def make_glibc_keep_freed_memory() -> None:
    """Lets glibc keep what tensors free for the next ones, unless a variable of the environment sets how it allocates.

    By default it returns memory to the system, which clears each page anew at the next step: a fifth of the time of
    training a small model. Does nothing where the C library is another one.
    """
    if system.IS_WINDOWS or any(name in os.environ for name in _ALLOCATOR_VARIABLES):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        set_option(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def physical_memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The memory limit of this process: the machine's, or its control group's if lower; None if unknown.

    root: of the system's files.
    """
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    return min(
        [size, *(limit for (limit,) in _iterate_cgroup_limits("memory", "memory.max", "memory.limit_in_bytes", root))]
    )
