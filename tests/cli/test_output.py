"""What is printed of data: to a terminal no control characters, to a file or pipe the bytes that `-o` writes."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.support.cli import RUN, CommandLine, Terminal, copied_run, exit_code_of

ESCAPES = "\x1b[1m\x07"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Iterator[Path]:
    """A working directory with data of strangers: a table, a classifier of it, lines, and an index of them."""
    home = tmp_path_factory.mktemp("hostile")
    rows = [f'"{"good" if i % 2 else "bad"} {ESCAPES} {i}",{f"y{ESCAPES}es" if i % 2 else "no"}' for i in range(40)]
    (home / "rows.csv").write_text("\n".join([f"te{ESCAPES}xt,label", *rows]) + "\n", encoding="utf-8")
    (home / "lines.txt").write_text(f"The moon {ESCAPES}\nA map\n", encoding="utf-8")
    copied_run(trained, home)
    linear = ("linear", "-s", "optimizer.l2=1", "-s", "evaluation.baseline=false", "-q", "-o", "classifier")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("LMTOOL_RUNS", "runs")
        patch.delenv("LMTOOL_RUN", raising=False)
        assert exit_code_of(["lmtool", "finetune", "rows.csv", "--recipe", *linear]) == 0
        assert exit_code_of(["lmtool", "search", "index", "lines.txt", "--run", RUN, "-o", "tales.index", "-q"]) == 0
        yield home


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


def test_a_terminal_gets_no_control_characters_and_a_shell_the_path(
    lmtool: CommandLine, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # without colours of our own
    for name, words in COMMANDS.items():
        if name in ("report", "export"):  # as in $(lmtool export ...)
            assert (hostile / lmtool.succeeds(*words[:-1], f"{name}{words[-1]}").out.removesuffix("\n")).exists()
        screen = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            outcome = lmtool(*words)
        assert outcome.code == 0, (name, outcome.err)
        shown = screen.content()
        assert shown, name
        assert not {"\x1b", "\x07"} & set(shown + outcome.err), name


@pytest.mark.parametrize("name", ["predict", "embed", "search --json"])
def test_a_pipe_gets_the_bytes_of_a_file(lmtool: CommandLine, hostile: Path, name: str) -> None:
    words = COMMANDS[name]
    file = "out.csv" if name == "predict" else f"{words[0]}.jsonl"
    printed = lmtool.succeeds(*words).out
    lmtool.succeeds(*words, "-o", file)
    assert printed.encode() == (hostile / file).read_bytes()
    with redirect_stdout(io.StringIO()) as kept:  # as in a notebook
        lmtool(*words)
    assert kept.getvalue() == printed


def test_halves_of_surrogates_are_written(lmtool: CommandLine, hostile: Path) -> None:
    """Which JSON can hold and UTF-8 cannot."""
    rows = [{f"te{ESCAPES}xt": f"good \ud800 {i}", "others": ["\ud800"]} for i in range(3)]
    (hostile / "halves.jsonl").write_text("\n".join(map(json.dumps, rows)))
    printed = lmtool.succeeds("predict", "classifier", "halves.jsonl").out
    lmtool.succeeds("predict", "classifier", "halves.jsonl", "-o", "halves.csv")
    assert printed.encode() == (hostile / "halves.csv").read_bytes()


def test_a_logged_warning_is_shown_as_one(lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text has no level, which the handler of each program adds in its own way."""

    def log(**_: object) -> None:
        logger = logging.getLogger("lmtool.data.cached")
        logger.warning("a file of %s is made anew", ESCAPES)
        logger.info("compiling")

    monkeypatch.setattr("lmtool.cli.app", log)
    assert lmtool().err.splitlines() == ["warning: a file of \\x1b[1m\\x07 is made anew", "compiling"]
