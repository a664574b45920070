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
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pyte
from course_models import environment

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "recording.svg"
FOLDER = ROOT / "build" / "recording"
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
COLOURS = {
    "red": "#ff8795",
    "green": "#8fd18f",
    "brown": "#e5c07b",
    "blue": "#7db0ff",
    "cyan": "#4fd1c0",
    "magenta": "#f08ae0",
}


class Shown(NamedTuple):
    """A line of the screen from one moment to another, in seconds; without an end it stays."""

    row: int
    spans: tuple[tuple[int, str, str, bool], ...]
    begin: float
    end: float | None


def record(commands: dict[str, float]) -> list[tuple[float, str]]:
    """What a terminal is sent by the commands, one after the other, and when in the picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "data").unlink(missing_ok=True)
    (FOLDER / "data").symlink_to(ROOT / "data")
    env = environment(FOLDER) | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    env.pop("NO_COLOR")
    sent: list[tuple[float, str]] = []
    begun = 0.0
    for command, seconds in commands.items():
        told = [(monotonic(), f"\x1b[1m$ {command}\x1b[0m\r\n")]
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=FOLDER, env=env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        told += [(monotonic(), text) for text in chunks(ours)]
        if process.wait():
            raise SystemExit(f"{command}: exit code {process.returncode}\n" + "".join(text for _, text in told))
        pace = seconds / (monotonic() - told[0][0])
        sent += [(begun + (time - told[0][0]) * pace, text) for time, text in told]
        begun += seconds
    return sent


def chunks(terminal: int) -> Iterator[str]:
    while True:
        try:
            yield os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            return


def lines_of(sent: list[tuple[float, str]]) -> list[Shown]:
    """Each line that the terminal shows, with the time for which it does."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, last = pyte.Stream(screen), -SHORTEST
    open_lines: dict[int, tuple[tuple[tuple[int, str, str, bool], ...], float]] = {}
    shown: list[Shown] = []
    for number, (time, text) in enumerate(sent):
        stream.feed(text)
        if time < last + SHORTEST and number < len(sent) - 1:
            continue
        last = time
        for row in range(ROWS):
            spans, old = tuple(spans_of(screen, row)), open_lines.get(row)
            if old is None or old[0] != spans:
                if old is not None and old[0]:
                    shown.append(Shown(row, *old, time))
                open_lines[row] = (spans, time)
    return shown + [Shown(row, *line, None) for row, line in open_lines.items() if line[0]]


def spans_of(screen: pyte.Screen, row: int) -> Iterator[tuple[int, str, str, bool]]:
    """The stretches of a line: column, text, colour, and whether it is bold."""
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    column = 0
    for (colour, bold), stretch in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in stretch)
        if text.strip():
            inset = len(text) - len(text.lstrip())
            yield column + inset, text.strip(), COLOURS.get(colour, ""), bold
        column += len(text)


def drawn(shown: list[Shown]) -> str:
    """The picture. Its last state is what it is without animation."""
    width, height = round(COLUMNS * WIDTH + 24), ROWS * HEIGHT + 40
    label = "A terminal: " + "; ".join(COMMANDS)
    style = (
        "text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e4e7ec; white-space: pre; }"
        "@keyframes wait { from, to { opacity: 0 } } @keyframes seen { from, to { opacity: 1 } }"
        "@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}">',
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#14171c"/>',
        *(
            f'<circle cx="{18 + 16 * i}" cy="16" r="5" fill="{c}"/>'
            for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
    ]
    for line in shown:
        seen = f"opacity:0;animation:seen {(line.end or 0) - line.begin:.2f}s {line.begin:.2f}s"
        parts.append(f'<g style="{seen if line.end is not None else f"animation:wait {line.begin:.2f}s"}">')
        for column, text, colour, bold in line.spans:
            x, y = 12 + column * WIDTH, 44 + line.row * HEIGHT
            extra = (f' style="fill:{colour}"' if colour else "") + (' font-weight="700"' if bold else "")
            length = f' textLength="{len(text) * WIDTH:.1f}"'
            parts.append(f'<text x="{x:.1f}" y="{y}"{length}{extra}>{escape(text, quote=False)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "sent.json"
    if arguments != ["--svg"]:
        kept.write_text(json.dumps(record(COMMANDS)), encoding="utf-8")
    PICTURE.write_text(drawn(lines_of(json.loads(kept.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
