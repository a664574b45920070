"""Compares each kernel with its plain formula when it is first used on a processor, and refuses one that differs.

Tests run on few processors and with few compilers. Results are kept in the cache beside the compiled kernels, so a
comparison, which takes milliseconds, is made once.
"""

import json
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from lmtool.compute.agreement import agrees, relative_difference
from lmtool.compute.kernels.build import kernel_check_results_path, load_kernels
from lmtool.errors import LmtoolError
from lmtool.storage import durable

SAME_RESULT = "same"

Comparison = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Yields pairs of a result of a kernel and that of its formula. In float32 they have to agree more closely."""

_LOG = logging.getLogger(__name__)


@cache
def _read_or_compute_check_result(kernel_name: str, compare: Comparison) -> str:
    """Returns SAME_RESULT, or how much a kernel differs, from the cache or by a comparison, which is then cached."""
    path = kernel_check_results_path()
    results: dict[str, str] = {}
    with suppress(OSError, ValueError, TypeError, LmtoolError):  # none, or a damaged one
        results = dict(json.loads(durable.read_file(path)))
    if kernel_name not in results:
        # a thread of its own, in which no context of the caller counts: autocast, inference mode, hooks of autograd
        with ThreadPoolExecutor(1) as thread:
            results[kernel_name] = thread.submit(_compute_check_result, compare).result()
        if results[kernel_name] != SAME_RESULT:
            message = "the kernel %s %s from its formula and is not used on this processor"
            _LOG.warning(message, kernel_name, results[kernel_name])
        with suppress(OSError, LmtoolError):  # a cache that cannot be written
            durable.replace_file(path, json.dumps(results).encode())
    return results[kernel_name]


def _compute_check_result(compare: Comparison) -> str:
    for fast, plain in compare():
        if not agrees(fast, plain, in_float32=fast.dtype == torch.float32):
            return f"differs by {100 * relative_difference(fast, plain):.0f} %"
    return SAME_RESULT


def is_kernel_right(name: str, compare: Comparison) -> bool:
    """Returns whether a kernel is there, and gave what its formula gives at its first use on this processor."""
    return load_kernels() is not None and _read_or_compute_check_result(name, compare) == SAME_RESULT
