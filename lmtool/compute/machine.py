"""What the machine gives this process: CPU cores and memory, which control groups may limit."""

import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

from lmtool import system

_FREED = 1 << 30
"""Bytes of freed memory at the end of the heap that are kept."""

_HEAP = 1 << 25
"""Bytes from which an allocation is a mapping of its own; the most that glibc takes."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_OF_ALLOCATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def _group_limits(controller: str, files: str, files_of_version_1: str, root: Path) -> Iterator[list[int]]:
    """The numbers in files of the process's control group and of its ancestors, where these set a limit.

    controller: "memory" or "cpu". files: names, separated by spaces. root: of the system's files. Not all folders need
    exist: inside a container, its own group is the topmost folder.
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
        names = (files_of_version_1 if controllers else files).split()
        for folder in (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base)):
            try:
                yield [int(word) for name in names for word in (folder / name).read_text(encoding="ascii").split()]
            except (OSError, ValueError):  # no such file, or "max"
                continue


def n_cores(root: Path = Path("/")) -> int:
    """Number of CPU cores for this process: its affinity, or the CPU quota of its control group if lower, rounded up.

    root: of the system's files.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = _group_limits("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us", root)
    # -1 in version 1: no limit
    return min([allowed, *(math.ceil(quota / period) for quota, period in limits if quota > 0)])


def threads_are_set() -> bool:
    """Whether a variable of the environment sets the number of threads that compute."""
    return not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(os.environ)


def keep_freed_memory() -> None:
    """Let glibc keep what tensors free for the next ones, unless a variable of the environment sets how it allocates.

    By default it returns memory to the system, which clears each page anew at the next step: a fifth of the time of
    training a small model. Does nothing where the C library is another one.
    """
    if system.IS_WINDOWS or any(name in os.environ for name in _OF_ALLOCATOR):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, _FREED)
        set_option(_MMAP_THRESHOLD, _HEAP)


def machine_memory(root: Path = Path("/")) -> int | None:
    """Memory limit of this process in bytes: the machine's, or its control group's if lower; None if unknown.

    root: of the system's files.
    """
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    return min([size, *(limit for (limit,) in _group_limits("memory", "memory.max", "memory.limit_in_bytes", root))])
