"""Disks that are full, or fail, at a call of the test's choice."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def failing_call(
    owner: Any = os, name: str = "fsync", number: int | None = None, code: int = errno.ENOSPC
) -> Iterator[None]:
    """While it lasts, the call with this number of `owner.name` fails, or each one, as on a full disk."""
    genuine, calls = getattr(owner, name), 0

    def fail(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if number in (None, calls):
            raise OSError(code, os.strerror(code))
        return genuine(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """While it lasts, the system writes no file beyond this size."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
