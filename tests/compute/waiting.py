"""Two processes in training, of which one waits for the other without end: run as `-m tests.compute.waiting`.

Each first prints its rank and its process id.
"""

import os
import sys
import time

from lmtool.cli.signals import StopAtStep
from lmtool.compute import processes
from lmtool.compute.device import CPU
from tests.compute.forked import forked


def wait() -> None:
    with CPU.join_process_group_once() as compute:
        world = compute.world
        StopAtStep(notify=False).open()
        os.write(1, f"{world.rank} {os.getpid()}\n".encode())
        if world.is_main:
            world.barrier()
        time.sleep(1e6)


if __name__ == "__main__":
    processes.ORPHAN_SECONDS = 0.3
    sys.exit(forked(2, wait))
