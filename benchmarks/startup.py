"""Start-up: seconds and peak memory of commands that do next to nothing, and of the first token of a run.

    python benchmarks/startup.py [--run RUN] [--rounds 5]

Each command is a process of its own, and all take turns. `import torch` is there to compare with: what needs a model
needs it. With --run, one token of it is generated too.
"""

import os
import subprocess
import sys
import time
from functools import partial
from statistics import median

from bench import describe_machine, options_of, print_head, print_row, run_in_turns

COMMANDS = {
    "python": ["-c", ""],
    "import lmtool": ["-c", "import lmtool"],
    "import torch": ["-c", "import torch"],
    "lmtool --help": ["-m", "lmtool", "--help"],
    "lmtool recipes": ["-m", "lmtool", "recipes"],
    "a recipe with a mistake": ["-m", "lmtool", "pretrain", "data/stories.txt", "-s", "model.n_layrs=2"],
}


def run(arguments: list[str]) -> tuple[float, float]:
    """Returns the seconds and the peak resident memory, in MB, of a process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return time.perf_counter() - began, usage.ru_maxrss / 1e3


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--run", metavar="RUN", help="generate a token of this run too")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    commands = dict(COMMANDS)
    if given.run:
        one_token = ["--run", given.run, "--max-new-tokens", "1"]
        commands["lmtool generate, one token"] = ["-m", "lmtool", "generate", *one_token]
    found = run_in_turns({name: partial(run, words) for name, words in commands.items()}, given.rounds, warm_up=1)
    print(f"{describe_machine()}; medians of {given.rounds} rounds")
    print_head("command", "seconds", "peak memory, MB")
    for name, rounds in found.items():
        seconds, peak = (median(column) for column in zip(*rounds, strict=True))
        print_row(name, f"{seconds:.2f}", f"{peak:.0f}")


if __name__ == "__main__":
    main()
