"""Commands of lmtool, one after the other, in one group of two processes: run as `-m tests.training.commands COMMANDS`.

COMMANDS is JSON: a list of words for each. What both processes write goes to the files N.stdout and N.stderr of the
command N in the working directory.
"""

import importlib
import json
import os
import sys

from torch import distributed as dist

from lmtool import cli
from tests.compute.forked import forked


def main(commands: list[list[str]]) -> None:
    """All commands; each is to succeed."""
    dist.init_process_group("gloo")
    for number, words in enumerate(commands):
        for stream, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(f"{number}.{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(file, stream)
            os.close(file)
        sys.argv = ["lmtool", *words]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise
        sys.stdout.flush()
        dist.barrier()  # or the next command could begin while the other process ends this one
    dist.destroy_process_group()


if __name__ == "__main__":
    importlib.import_module("sklearn.metrics")  # takes seconds; once for both
    sys.exit(forked(2, lambda: main(json.loads(sys.argv[1]))))
