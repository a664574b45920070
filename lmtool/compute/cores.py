"""The CPU cores that this process may use, and whether a person has set the number of threads."""

import math
import os
from pathlib import Path

from lmtool.compute.cgroup import control_groups


def n_cores(root: Path = Path("/")) -> int:
    """Number of CPU cores for this process: its affinity, or the CPU quota of its control group if lower, rounded up.

    root: of the system's files.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = []
    for group, is_v2 in control_groups("cpu", root):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
            if int(quota) > 0:  # -1 in version 1: no limit
                quotas.append(math.ceil(int(quota) / int(period)))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(allowed, *quotas) if quotas else allowed


def threads_are_given() -> bool:
    """Whether a variable of the environment sets the number of threads that compute."""
    return not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(os.environ)
