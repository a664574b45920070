"""Ctrl-C and SIGTERM: a training run finishes its step and saves first, a chat on a terminal only stops its answer;
everything else exits at once."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

STOPPING = "stopping after this step and its validation; Ctrl-C again exits at once\n"
OVER_THE_BAR, SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"


def exit_on_signals() -> None:
    """Makes signals exit with code 128 + signal, after files that are being written are cleaned up."""
    for number in SIGNALS:
        signal.signal(number, lambda received, _: sys.exit(128 + received))


class StopAtStep:
    """Handles signals from `open` on: the first requests a stop after the step, the second exits at once.

    notify: whether to acknowledge the first signal on stderr. received: the signal, if any.
    """

    def __init__(self, notify: bool) -> None:
        self.received: int | None = None
        self._notify = notify

    def open(self) -> None:
        """Handles signals from now on, because there is something to save."""
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def requested(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """128 + signal; SIGTERM if another process of the run got the signal."""
        return 128 + (self.received or signal.SIGTERM)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if os.isatty(2):
                _write(SHOW_CURSOR)
            # no clean-up: the last checkpoint is intact, and a step may hang
            os._exit(128 + number)
        self.received = number
        if self._notify:
            _write((OVER_THE_BAR if os.isatty(2) else "") + STOPPING)


@contextmanager
def on_ctrl_c(handler: "Callable[[int, FrameType | None], object] | signal.Handlers") -> Iterator[None]:
    """Handles Ctrl-C inside the context."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, and ignores Ctrl-C from then on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _write(text: str) -> None:
    """Writes to stderr past Python's stream, which may be in the middle of a write."""
    with suppress(OSError):
        os.write(2, text.encode())
