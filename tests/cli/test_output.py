"""What is printed of data: to a terminal no control characters, to a file or pipe the bytes that `-o` writes."""

import json
import logging
import sys
from pathlib import Path

import pytest

from tests.support.cli import RUN, CommandLine, Terminal

ESCAPES = "\x1b[1m\x07"


@pytest.fixture
def hostile(lmtool: CommandLine, run: Path, home: Path) -> None:
    """Data of strangers: a table, a classifier of it, lines, and an index of them."""
    rows = [f'"{"good" if i % 2 else "bad"} {ESCAPES} {i}",{f"y{ESCAPES}es" if i % 2 else "no"}' for i in range(40)]
    (home / "rows.csv").write_text("\n".join([f"te{ESCAPES}xt,label", *rows]) + "\n", encoding="utf-8")
    (home / "lines.txt").write_text(f"The moon {ESCAPES}\nA map\n", encoding="utf-8")
    lmtool.succeeds("finetune", "rows.csv", "--recipe", "linear", "-q", "-o", "classifier")
    lmtool.succeeds("search", "index", "lines.txt", "--run", RUN, "-o", "tales.index", "-q")


COMMANDS = {
    "predict": ("predict", "classifier", "rows.csv"),
    "embed": ("embed", RUN, "lines.txt", "--pool", "mean"),
    "search": ("search", "tales.index", "moon"),
    "search --json": ("search", "tales.index", "moon", "--json"),
    "generate": ("generate", f"The {ESCAPES}", "--run", RUN, "--greedy", "--max-new-tokens", "2"),
    "generate --json": ("generate", f"The {ESCAPES}", "--run", RUN, "--greedy", "--max-new-tokens", "2", "--json"),
    "tokenize --show": ("tokenize", "--tokenizer", RUN, "--show", ESCAPES),
    "runs show": ("runs", "show", "classifier"),
    "runs ls": ("runs", "ls"),
    "eval": ("eval", "classifier", "rows.csv"),
    "check": ("check", "rows.csv"),
    "report": ("report", RUN, "-o", f"{ESCAPES}.html"),
    "export": ("export", RUN, f"{ESCAPES}.out"),
}


def test_a_terminal_gets_no_control_characters(
    lmtool: CommandLine, hostile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # without colours of our own
    for name, words in COMMANDS.items():
        screen = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            outcome = lmtool(*words)
        assert outcome.code == 0, (name, outcome.err)
        shown = screen.content()
        assert shown, name
        assert not {"\x1b", "\x07"} & set(shown + outcome.err), name


@pytest.mark.parametrize("name", ["predict", "embed", "search --json"])
def test_a_pipe_gets_the_bytes_of_a_file(lmtool: CommandLine, hostile: None, home: Path, name: str) -> None:
    words = COMMANDS[name]
    ending = ".csv" if name == "predict" else ".jsonl"
    printed = lmtool.succeeds(*words).out
    lmtool.succeeds(*words, "-o", f"out{ending}")
    assert printed.encode() == (home / f"out{ending}").read_bytes()


def test_a_path_can_be_used_in_a_shell(lmtool: CommandLine, hostile: None, home: Path) -> None:
    """As in $(lmtool export ...)."""
    for name in ("report", "export"):
        assert (home / lmtool.succeeds(*COMMANDS[name]).out.removesuffix("\n")).exists()


def test_halves_of_surrogates_are_written(lmtool: CommandLine, hostile: None, home: Path) -> None:
    """Which JSON can hold and UTF-8 cannot."""
    rows = [{f"te{ESCAPES}xt": f"good \ud800 {i}", "others": ["\ud800"]} for i in range(3)]
    (home / "halves.jsonl").write_text("\n".join(map(json.dumps, rows)))
    printed = lmtool.succeeds("predict", "classifier", "halves.jsonl").out
    lmtool.succeeds("predict", "classifier", "halves.jsonl", "-o", "out.csv")
    assert printed.encode() == (home / "out.csv").read_bytes()


def test_a_logged_warning_is_shown_as_one(lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text has no level, which the handler of each program adds in its own way."""

    def log() -> None:
        logger = logging.getLogger("lmtool.data.cached")
        logger.warning("a file of %s is made anew", ESCAPES)
        logger.info("compiling")

    monkeypatch.setattr("lmtool.cli.app", lambda **_: log())
    assert lmtool().err.splitlines() == ["warning: a file of \\x1b[1m\\x07 is made anew", "compiling"]
