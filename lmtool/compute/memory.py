"""Available memory, and what is done with freed memory."""

import ctypes
import os
import sys
from pathlib import Path

from lmtool.compute.cgroup import control_groups

_FREED = 1 << 30
"""Bytes of freed memory at the end of the heap that are kept."""

_HEAP = 1 << 25
"""Bytes from which an allocation is a mapping of its own; the most that glibc takes."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_OF_ALLOCATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Let glibc keep what tensors free for the next ones, unless a variable of the environment sets how it allocates.

    By default it returns memory to the system, which clears each page anew at the next step: a fifth of the time of
    training a small model. Does nothing where the C library is another one.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _OF_ALLOCATOR):
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
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    for group, is_v2 in control_groups("memory", root):
        file = group / ("memory.max" if is_v2 else "memory.limit_in_bytes")
        try:
            sizes.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes)
