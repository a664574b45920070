"""Many mutations of valid files for every reader, in processes of their own: `make fuzz`.

    python -m tests.fuzz.campaign --inputs 10000 --seed 0 --only gguf

Input n of a seed is the same everywhere. A failure is any exception but lmtool's own, an end of the process, 10 seconds
for one input, or 2 GiB more memory. Failing inputs are written to build/fuzz/; the exit code is 1 if there are any.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 10
"""For one input."""

MEMORY = 2 << 30
"""Bytes that one input may take, besides what the process has."""

FAILURES = 20
"""Failures after which a reader is left."""

ROOT = Path(__file__).parents[2]


def work(name: str, start: int, stop: int, seed: int, until: float, folder: Path) -> None:
    """Read inputs `start` to `stop`, or until a time, and print each that fails. The process may end at any of them."""
    from lmtool.errors import LmtoolError
    from tests.fuzz.mutation import mutated
    from tests.fuzz.readers import READERS

    reader = READERS[name]
    (folder / "seeds").mkdir()
    seeds = reader.seeds(folder / "seeds")
    for number, content in enumerate(seeds):
        (folder / str(number)).mkdir()
        reader.read(folder / str(number), content)  # imports what it needs
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    place = folder / "place"
    place.mkdir()
    progress = os.open(folder / "progress", os.O_WRONLY | os.O_CREAT)
    for number in range(start, stop):
        os.pwrite(progress, b"%012d" % number, 0)
        if time.time() > until:
            return
        content = mutated(seeds, number, seed)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            reader.read(place, content)
        except LmtoolError as error:
            if error.exit_code == 1:
                print(json.dumps([number, f"exit code 1: {error.what[:200]}"]), flush=True)
        except BaseException as error:
            told = f"{type(error).__name__}: {str(error)[:200]}"
            print(json.dumps([number, told]), flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
    os.pwrite(progress, b"%012d" % stop, 0)


def campaign(name: str, inputs: int, seed: int, until: float) -> tuple[int, list[tuple[int, str]]]:
    """How many inputs a reader was tried with until a time, and those that failed, with why."""
    failures: list[tuple[int, str]] = []
    start = 0
    while start < inputs and time.time() < until and len(failures) < FAILURES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            told = folder / "told"
            with told.open("wb") as out, (folder / "errors").open("wb") as errors:
                arguments = ["--worker", name, str(start), str(inputs), str(seed), str(until), temporary]
                environment = {**os.environ, "LMTOOL_CACHE": f"{temporary}/cache", "LMTOOL_RUNS": f"{temporary}/runs"}
                done = subprocess.run(
                    [sys.executable, "-m", "tests.fuzz.campaign", *arguments],
                    cwd=ROOT,
                    stdout=out,
                    stderr=errors,
                    env={**environment, "PYTHONHASHSEED": "0"},
                )
            failures += [(number, why) for number, why in map(json.loads, told.read_text().splitlines())]
            reached = folder / "progress"
            if not reached.exists():
                raise RuntimeError(f"{name} cannot read its valid files:\n{(folder / 'errors').read_text()[-2000:]}")
            start = int(reached.read_bytes())
            if done.returncode:
                why = "more than 10 seconds" if done.returncode == -signal.SIGALRM else f"ended with {done.returncode}"
                failures.append((start, why))
                start += 1
    return start, failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try every reader with mutations of valid files.")
    parser.add_argument("--inputs", type=int, default=10_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="time for all readers together, divided evenly")
    parser.add_argument("--only", action="append", help="the name of a reader; may be repeated")
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        name, start, stop, seed, until, folder = asked.worker
        work(name, int(start), int(stop), int(seed), float(until), Path(folder))
        return 0
    from tests.fuzz.readers import READERS

    names = asked.only or list(READERS)
    kept = ROOT / "build" / "fuzz"
    shutil.rmtree(kept, ignore_errors=True)
    n_failed = 0
    ends = time.time() + 60 * asked.minutes
    print(f"{'reader':36} {'tried':>8} {'failed':>7}   seed {asked.seed}")
    for position, name in enumerate(names):
        now = time.time()
        tried, failures = campaign(name, asked.inputs, asked.seed, now + (ends - now) / (len(names) - position))
        print(f"{name:36} {tried:8,} {len(failures):7,}", flush=True)
        n_failed += len(failures)
        for number, why in failures:
            print(f"    input {number}: {why}", flush=True)
        if failures:
            _keep(kept, name, asked.seed, [number for number, _ in failures])
    return 1 if n_failed else 0


def _keep(kept: Path, name: str, seed: int, numbers: Sequence[int]) -> None:
    """Write failing inputs."""
    from tests.fuzz.mutation import mutated
    from tests.fuzz.readers import READERS

    with tempfile.TemporaryDirectory() as folder:
        seeds = READERS[name].seeds(Path(folder))
    kept.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (kept / f"{name.replace(' ', '-')}-{seed}-{number}").write_bytes(mutated(seeds, number, seed))


if __name__ == "__main__":
    sys.exit(main())
