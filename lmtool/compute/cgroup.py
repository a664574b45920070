"""The control groups of this process, which may limit its memory and CPU time."""

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """The folders of the process's control group and its ancestors, and whether they are of version 2.

    controller: "memory" or "cpu". root: of the system's files. Not all folders need exist: inside a container, its own
    group is the topmost folder.
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
        yield from ((folder, not controllers) for folder in (inner, *inner.parents) if folder.is_relative_to(base))
