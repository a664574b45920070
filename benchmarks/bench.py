"""What the measurements share: contenders that take turns, commands of lmtool, and tables.

A measurement names its contenders, lets them take turns with `run_in_turns`, and prints medians as rows of a table,
below a line of `describe_machine`.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

Found = TypeVar("Found")


def options_of(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_in_turns(
    contenders: Mapping[str, Callable[[], Found]], rounds: int, warm_up: int = 0
) -> dict[str, list[Found]]:
    """Returns what each contender gave in each round; a round calls all of them, so that other load affects all alike.

    Args:
        contenders: By name; each does its work once and returns a measurement of it.
        rounds: How many are kept.
        warm_up: Rounds before these whose results are dropped.
    """
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for turn in range(warm_up + rounds):
        for name, work in contenders.items():
            result = work()
            if turn >= warm_up:
                found[name].append(result)
    return found


def time_call(work: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Returns the seconds of a call. `wait` returns when the device has computed everything."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in found.items()}


def describe_machine() -> str:
    """Returns the processor, its cores and the load average, which belong to every figure."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def print_head(*cells: str) -> None:
    print_row(*cells)
    print_row(*["---"] * len(cells))


def run_lmtool(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    """Returns what a command prints, run in a process of its own in a folder. Raises CalledProcessError."""
    command, variables = [sys.executable, "-m", "lmtool", *arguments], os.environ | environment
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=variables).stdout
