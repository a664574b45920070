"""`python -m tests.fuzz`: many mutations of valid files for every reader, in forks of this process: `make fuzz`.

A failure is any exception but lmtool's own, an end of the process, 10 seconds for one input, or 2 GiB more memory.
Failing inputs are written to build/fuzz/.
"""

import os
import random
import resource
import signal
import sys
from functools import partial
from pathlib import Path

from lmtool.errors import LmtoolError
from tests.campaigns.harness import PROGRESS, Campaign, Generator, Told, main
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS

SECONDS = 10
"""For one input."""
MEMORY = 2 << 30
"""Bytes that one input may take, besides what the process has."""
INPUTS, CASES = 500, 20
"""Inputs of a case, and cases of each reader."""
FAILED = Path(__file__).parents[2] / "build" / "fuzz"


def read_mutations(name: str, home: Path, rng: random.Random, number: int) -> Told:
    """Reads the inputs of a case, which ends with the process where one of them takes too long."""
    reader = READERS[name]
    os.environ |= {"LMTOOL_CACHE": f"{home}/cache", "LMTOOL_RUNS": f"{home}/runs"}
    (home / "seeds").mkdir()
    seeds = reader.seeds(home / "seeds")
    for position, content in enumerate(seeds):
        (home / str(position)).mkdir()
        reader.read(home / str(position), content)  # imports what it needs
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    place = home / "place"
    place.mkdir()
    did: list[str] = []
    problems: list[str] = []
    for position in range(INPUTS):
        content = mutated(seeds, rng)
        (home / PROGRESS).write_text(f"input {position}")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        why = ""
        try:
            reader.read(place, content)
            did.append("read")
        except LmtoolError as error:
            did.append(error.code)
            why = f"exit code 1: {error.what[:200]}" if error.exit_code == 1 else ""
        except BaseException as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        if why:
            problems.append(f"input {position}: {why}")
            FAILED.mkdir(parents=True, exist_ok=True)
            (FAILED / f"{name.replace(' ', '-')}-{number}-{position}").write_bytes(content)
    return did, problems


def build(folder: Path) -> None:
    (folder / "home").mkdir(parents=True, exist_ok=True)


FUZZ = Generator("fuzz", [Campaign(name, CASES, partial(read_mutations, name)) for name in READERS], build, minutes=60)

if __name__ == "__main__":
    sys.exit(main(FUZZ))
