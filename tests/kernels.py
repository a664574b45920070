"""The kernels in C for a new cache, so that only the cache of the tests has them compiled, which takes seconds."""

import shutil
from contextlib import suppress
from pathlib import Path

from lmtool.compute import native


def put_kernels(cache: Path) -> None:
    """Put the kernels of this machine into a cache that has none; nothing where there is no compiler."""
    with suppress(FileNotFoundError):
        shutil.copytree(native._compiled().parent, cache / native.FOLDER)
