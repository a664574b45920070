"""Files that survive a crash: written under a temporary name, synced to disk, then renamed into place."""

import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files and directories."""


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a new file, and sync it to disk. Raises OSError."""
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes | memoryview) -> None:
    """Replace the file `path` by `content` atomically. One writer at a time. Raises OSError."""
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
    """Sync the entries of a directory to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
