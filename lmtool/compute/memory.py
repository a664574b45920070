"""Available memory."""

import os
from collections.abc import Iterator
from pathlib import Path


def machine_memory(root: Path = Path("/")) -> int | None:
    """Memory limit of this process in bytes: the machine's, or its control group's if lower; None if unknown.

    root: of the system's files.
    """
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    for file in _limit_files(root):
        try:
            sizes.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes)


def _limit_files(root: Path) -> Iterator[Path]:
    """The files that may set a limit: those of the process's control group and its ancestors, versions 2 and 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "sys/fs/cgroup" / controllers
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        inner = base / group.lstrip("/")
        yield from (folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(base))
