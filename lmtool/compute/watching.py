"""Signals to a process that waits for others in compiled code, where Python calls no handler."""

import os
import select
import signal
from threading import Thread, current_thread, main_thread

STOPPING = (signal.SIGINT, signal.SIGTERM)

POLL_SECONDS = 1.0
"""Time between two looks whether torchrun is still there."""

PATIENCE_SECONDS = 30.0
"""Time that a process without torchrun has to save and end; torchrun itself gives its processes as much."""

_SHOW_CURSOR = b"\x1b[?25h"


def watch_signals() -> None:
    """From now on leave at once at the second signal to stop, and where torchrun ends take that for a signal.

    The first one is for the handlers of the program. Does nothing outside of the main thread, which has these.
    """
    if current_thread() is not main_thread():
        return
    received, sent = os.pipe()
    os.set_blocking(sent, False)
    signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    Thread(target=_watch, args=(received, os.getppid()), name="signals", daemon=True).start()


def _watch(pipe: int, parent: int) -> None:
    n_received, patience = 0, POLL_SECONDS
    while True:
        if select.select([pipe], [], [], patience)[0]:
            for number in os.read(pipe, 64):
                n_received += number in STOPPING
                if n_received > 1:
                    if os.isatty(2):
                        os.write(2, _SHOW_CURSOR)
                    os._exit(128 + number)
        elif os.getppid() != parent:
            patience = PATIENCE_SECONDS
            os.kill(os.getpid(), signal.SIGTERM)
