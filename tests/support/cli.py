"""The command line called in this process, and what it is called with: a short text, settings of a small run."""

import io
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from lmtool import cli
from lmtool.errors import LmtoolError

RUN = "2026-11-20-tiny-7f3a"

_SETTINGS = {
    "model.n_layers": 1,
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.context": 16,
    "tokenizer.vocab_size": 300,
    "training.steps": 6,
    "training.batch_size": 4,
    "training.precision": "float32",
    "evaluation.every": 2,
    "evaluation.tokens": 200,
    "evaluation.sample_tokens": 4,
    "checkpoint.every": 2,
    "checkpoint.keep_last": 3,
    "checkpoint.keep_optimizer": "true",
    "evaluation.baseline": "false",
}


def settings(**values: object) -> list[str]:
    """The words that set keys of the recipe; of a name of a parameter the first underscores are dots."""
    return [word for key, value in values.items() for word in ("-s", f"{key.replace('_', '.', 1)}={value}")]


SMALL = [word for key, value in _SETTINGS.items() for word in ("-s", f"{key}={value}")]
"""Makes the default recipe train quickly, and save checkpoints at steps 2, 4 and 6."""

SENTENCES = [
    f"The {who} {did} a {what} {where}."
    for who in ("baker", "sailor", "señora", "twin")
    for did in ("found", "sold", "forgot", "painted")
    for what in ("kettle", "map", "moon")
    for where in ("at dawn", "by the sea")
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: its exit code, stdout and stderr, and the error that it reported."""

    code: int
    out: str
    err: str
    error: LmtoolError | None = None

    def json(self) -> Any:
        return json.loads(self.out)

    def records(self) -> list[Any]:
        """The records of standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """Calls `lmtool` in this process, as the shell would."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: object) -> Outcome:
        errors: list[LmtoolError] = []

        def kept(error: Exception) -> LmtoolError:
            errors.append(_to_lmtool_error(error))
            return errors[-1]

        self._capsys.readouterr()
        self._monkeypatch.setattr(cli, "to_lmtool_error", kept)
        code = exit_code_of(["/somewhere/bin/lmtool", *map(str, arguments)])
        said = self._capsys.readouterr()
        return Outcome(code, said.out, said.err, *errors)

    def succeeds(self, *arguments: object) -> Outcome:
        """The outcome of a command that must succeed."""
        outcome = self(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    def refuses(self, code: int, *arguments: object, words: Sequence[object] = ()) -> list[str]:
        """Assert that a command fails with this code and at most three lines with `words`; returns these lines.

        And that all runs are unchanged, and none was created.
        """
        runs = contents(os.environ["LMTOOL_RUNS"])
        outcome = self(*arguments)
        assert outcome.code == code, outcome
        assert outcome.out == ""
        lines = outcome.err.splitlines()
        assert 1 <= len(lines) <= 3, outcome.err
        assert all(line.isprintable() for line in lines), outcome.err
        assert "Traceback" not in outcome.err
        assert "--debug" not in outcome.err
        for word in words:
            assert str(word) in outcome.err
        assert contents(os.environ["LMTOOL_RUNS"]) == runs
        return lines


_to_lmtool_error = cli.to_lmtool_error


def exit_code_of(words: Sequence[str]) -> int:
    """The exit code of the command line in this process, whose handlers of signals and logs stay as they are."""
    with pytest.MonkeyPatch.context() as patch, _own_handlers():
        patch.setattr(sys, "argv", list(words))
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
    raise AssertionError("it ends with an exit code")


@contextmanager
def _own_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logger = logging.getLogger("lmtool")
    level, written = logger.level, logger.handlers
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logger.setLevel(level)
        logger.handlers = written


def contents(folder: str | Path) -> dict[str, bytes]:
    """The contents of all files below a folder."""
    return {
        os.path.relpath(path, folder): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: str | bytes, encoding: str = "utf-8") -> None:
    """Put text or bytes into standard input."""
    raw = content if isinstance(content, bytes) else content.encode(encoding)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


class Terminal(io.TextIOWrapper):
    """Standard output that is a terminal."""

    def __init__(self) -> None:
        self._written = io.BytesIO()
        super().__init__(self._written, encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def content(self) -> str:
        self.flush()
        return self._written.getvalue().decode()


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with its words, the program itself included."""
    group = group or typer.main.get_command(cli.app)
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


GROUPS = {" ".join(path) or "lmtool": command for path, command in commands()}
COMMANDS = {name: command for name, command in GROUPS.items() if not hasattr(command, "commands")}
"""Every command by its words."""


def options_of(command: Any) -> dict[str, Any]:
    """The options of a command by each of their names."""
    return {name: one for one in command.params if one.param_type_name == "option" for name in one.opts}


def arguments_of(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def copied_run(trained: Path, home: Path) -> Path:
    return Path(shutil.copytree(trained, home / "runs" / RUN))


def write_table(path: Path, rows: Iterable[Sequence[object]], header: str = "text,label", delimiter: str = ",") -> Path:
    """A table without cells that need quotes."""
    lines = [header, *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def film_rows(n: int = 40) -> list[tuple[str, str]]:
    """Rows whose first word says their class."""
    return [(f"{'good' if i % 2 else 'bad'} film {i}", "yes" if i % 2 else "no") for i in range(n)]
