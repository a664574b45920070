"""Available memory."""

import os
from pathlib import Path

from lmtool.compute.cgroup import control_groups


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
