"""Files that survive a crash: written whole under another name, forced to disk, then renamed into place."""

import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp-"
"""How names of unfinished files and directories begin."""


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file that does not exist yet, and force it to disk. Raises OSError."""
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes | memoryview) -> None:
    """Put `content` in the place of the file `path`, or leave that as it was. One writer at a time. Raises OSError."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_new(temporary, [content])
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
