"""Real processes without torchrun: forked after the imports, which take longest of a small program."""

import os
import signal
import socket
import traceback
from collections.abc import Callable


def forked(size: int, work: Callable[[], None]) -> int:
    """Do `work` in so many processes that can join, and wait for all; as with torchrun, all end when one fails.

    Returns 0, or 1 when one failed. The program has to be one that has started no threads.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = set()
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(
                {name: str(value) for name, value in (group | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            )
            _do(work)
        running.add(pid)
    failed = False
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status and not failed:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    return int(failed)


def _do(work: Callable[[], None]) -> None:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
