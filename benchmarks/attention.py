"""Memory and time of attention under a window beside dense attention, forward and backward, by the length of the row.

    python benchmarks/attention.py [--lengths 512 1024 2048 4096 8192] [--window 128 --dilation 1 --globals 0]

Each measurement is a process of its own, whose peak of memory is read off at its end, less that of a process that only
loads and makes the inputs. Attention alone: queries, keys and values are given, float32, one row, causal.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch

from lmtool.batch import Mask
from lmtool.model.attention import Attend

REPEATS = 3


def measure(length: int, kind: str, heads: int, width: int, window: int, dilation: int, n_global: int) -> None:
    """Print the peak memory of this process in kB, and the median seconds of a forward and backward pass."""
    masks = {"dense": Mask(causal=True), "window": Mask(True, window, dilation, n_global)}
    masks["masked"] = masks["window"]
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    seconds = []
    for _ in range({"nothing": 0, "masked": 1}.get(kind, REPEATS)):
        began = time.perf_counter()
        if kind == "masked":
            # the window as a mask over all pairs: what blocks save
            allowed = masks[kind].allowed(length, length, q.device)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            mixed = Attend(masks[kind], length, length, q.device)(q, k, v, 0.0)
        mixed.sum().backward()
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    print(peak, statistics.median(seconds or [0.0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--dilation", type=int, default=1)
    parser.add_argument("--globals", type=int, default=0)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        length, kind = int(given.one[0]), given.one[1]
        return measure(length, kind, given.heads, given.width, given.window, given.dilation, given.globals)
    kinds = ("window", "masked", "dense")
    print(
        f"{given.heads} heads x {given.width}, window {given.window}, dilation {given.dilation}, {given.globals} global"
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("length " + "".join(f"{kind:>20}" for kind in kinds))
    for length in given.lengths:
        found = {}
        for kind in ("nothing", *kinds):
            command = [sys.executable, __file__, *sys.argv[1:], "--one", str(length), kind]
            peak, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            found[kind] = (int(peak), float(seconds))
        cells = [f"{(found[k][0] - found['nothing'][0]) / 1024:8.0f} MB {found[k][1] * 1e3:6.0f} ms" for k in kinds]
        print(f"{length:6} " + "".join(f"{cell:>20}" for cell in cells), flush=True)
    return None


if __name__ == "__main__":
    main()
