#!/usr/bin/env python3
"""Records commands on a terminal of their own, and writes what it showed, and when, as docs/pictures/recording.svg.

    scripts/recording.py [--svg]

The commands train for some minutes in build/recording/, which keeps what the terminal was sent and when; --svg draws
that once more. The picture plays once and ends still. Time is shortened, and none of the characters is made up.
"""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from itertools import groupby, pairwise
from time import monotonic

import pyte
from pages import BUILD, DOCS, copy_data, environment

FOLDER = BUILD / "recording"
COMMANDS = {
    "lmtool pretrain data/stories.txt": 14.0,
    'lmtool generate "One rainy morning in April," --temperature 0.5 --max-new-tokens 90': 6.0,
}
"""And for how many seconds each is shown."""
COLUMNS, ROWS = 92, 26
WIDTH, HEIGHT = 7.3, 17
"""Of a character, in pixels."""
SHORTEST = 0.2
"""Seconds between two states of the screen."""
COLOURS = dict(red="#ff8795", green="#8fd18f", brown="#e5c07b", blue="#7db0ff", cyan="#4fd1c0", magenta="#f08ae0")
BUTTONS = ("#ff5f57", "#febc2e", "#28c840")
STYLE = (
    "text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e4e7ec; white-space: pre; }"
    "@keyframes wait { from, to { opacity: 0 } } @keyframes seen { from, to { opacity: 1 } }"
    "@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }"
)


def record_terminal(command: str) -> Iterator[tuple[float, str]]:
    """Run a command on a terminal, and yield what it is sent after how many seconds. SystemExit where it fails."""
    env = environment(FOLDER) | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    del env["NO_COLOR"]
    begun, text = monotonic(), ""
    yield 0.0, f"\x1b[1m$ {command}\x1b[0m\r\n"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(["sh", "-c", command], cwd=FOLDER, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    with suppress(OSError):  # raised when the other end is closed
        while True:
            chunk = os.read(ours, 65536).decode(errors="replace")
            text += chunk
            yield monotonic() - begun, chunk
    if process.wait():
        raise SystemExit(f"{command}: exit code {process.returncode}\n{text}")
    yield monotonic() - begun, ""


def record_all() -> list[tuple[float, str]]:
    """What the terminal is sent by the commands, one after the other, and when in the picture."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    copy_data(FOLDER)
    sent: list[tuple[float, str]] = []
    begin = 0.0
    for command, seconds in COMMANDS.items():
        recorded = list(record_terminal(command))
        sent += [(begin + time * seconds / recorded[-1][0], text) for time, text in recorded]
        begin += seconds
    return sent


def split_spans(screen: pyte.Screen, row: int) -> Iterator[tuple[int, str, str, bool]]:
    """The stretches of a line: column, text, colour, and whether it is bold."""
    column = 0
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    for (colour, bold), stretch in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in stretch)
        if text.strip():
            yield column + len(text) - len(text.lstrip()), text.strip(), COLOURS.get(colour, ""), bold
        column += len(text)


def draw_lines(sent: list[tuple[float, str]]) -> Iterator[str]:
    """Each line that the terminal shows, as a group that is seen from one moment to another, or stays."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, last = pyte.Stream(screen), -SHORTEST
    states = []
    for number, (time, text) in enumerate(sent, 1):
        stream.feed(text)
        if time >= last + SHORTEST or number == len(sent):
            states.append((time, [list(split_spans(screen, row)) for row in range(ROWS)]))
            last = time
    for row in range(ROWS):
        changes = [next(same) for _, same in groupby(states, key=lambda state: state[1][row])]
        for (begin, lines), (end, _) in pairwise([*changes, (None, [])]):
            if not lines[row]:
                continue
            seen = f"opacity:0;animation:seen {end - begin:.2f}s {begin:.2f}s" if end is not None else ""
            yield f'<g style="{seen or f"animation:wait {begin:.2f}s"}">'
            for column, text, colour, bold in lines[row]:
                place = f'x="{12 + column * WIDTH:.1f}" y="{44 + row * HEIGHT}" textLength="{len(text) * WIDTH:.1f}"'
                look = (f' style="fill:{colour}"' if colour else "") + (' font-weight="700"' if bold else "")
                yield f"<text {place}{look}>{escape(text, quote=False)}</text>"
            yield "</g>"


def draw_picture(sent: list[tuple[float, str]]) -> str:
    """The picture. Its last state is what it is without animation."""
    width, height = round(COLUMNS * WIDTH + 24), ROWS * HEIGHT + 40
    label = escape("A terminal: " + "; ".join(COMMANDS))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#14171c"/>',
        *(f'<circle cx="{18 + 16 * i}" cy="16" r="5" fill="{colour}"/>' for i, colour in enumerate(BUTTONS)),
    ]
    return "\n".join([*lines, *draw_lines(sent), "</svg>", ""])


if __name__ == "__main__":
    kept = FOLDER / "sent.json"
    if sys.argv[1:] != ["--svg"]:
        kept.write_text(json.dumps(record_all()), encoding="utf-8")
    picture = draw_picture(json.loads(kept.read_text(encoding="utf-8")))
    (DOCS / "pictures" / "recording.svg").write_text(picture, encoding="utf-8")
