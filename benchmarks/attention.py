"""Memory and time of windowed and dense attention, forward and backward, by sequence length.

    python benchmarks/attention.py [--lengths 512 1024 2048 4096 8192] [--window 128 --dilation 1 --globals 0]

Each measurement is a process of its own; its peak memory is reported less that of a process that only creates the
inputs. Attention alone: queries, keys and values are given, one row, causal. "masked" is the window as a mask over all
pairs of positions, "dense" the fused kernel without a window. CPU time of one thread, so that other load on the machine
matters little.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch

from lmtool.batch import Mask
from lmtool.model.layers.attention import Attend

REPEATS = 3


def measure(length: int, kind: str, given: argparse.Namespace) -> None:
    """Print the peak memory of this process in kB, and the median CPU seconds of a forward and backward pass."""
    torch.set_num_threads(1)
    window = Mask(True, given.window, given.dilation, given.globals)
    mask = Mask(causal=True) if kind == "dense" else window
    dtype = torch.bfloat16 if given.bfloat16 else torch.float32
    q, k, v = (torch.randn(1, given.heads, length, given.width, dtype=dtype, requires_grad=True) for _ in range(3))
    seconds = []
    for _ in range({"nothing": 0, "masked": 1}.get(kind, REPEATS)):
        began = time.process_time()
        if kind == "masked":
            allowed = mask.allowed(length, length, q.device)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            mixed = Attend(mask, length, torch.arange(length, device=q.device)[None])(q, k, v, 0.0)
        mixed.sum().backward()
        seconds.append(time.process_time() - began)
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
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return measure(int(given.one[0]), given.one[1], given)
    kinds = ("window", "masked", "dense")
    print(
        f"{given.heads} heads x {given.width}, window {given.window}, dilation {given.dilation}, {given.globals} global"
    )
    print(f"torch {torch.__version__}, {'bfloat16' if given.bfloat16 else 'float32'}, 1 thread")
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
