"""Output streams that can write any text."""

import io
import os
import sys


def prepare_streams() -> None:
    """Let both output streams take any text: what their encoding lacks is escaped. A closed one swallows all."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
