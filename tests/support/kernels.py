"""The kernels in C for a new cache, so that only the cache of the tests has them compiled, which takes seconds."""

import shutil
from pathlib import Path

from lmtool.compute.kernels import build
from lmtool.storage import durable


def put_kernels(cache: Path) -> None:
    """Put the kernels of this machine into a cache that has none; nothing where there is no compiler."""
    if build.load_kernels() is not None:
        build._read_or_compile_library()  # where they were loaded from another cache
        shutil.copytree(durable.cache_folder() / build.CACHE_FOLDER, cache / build.CACHE_FOLDER)
