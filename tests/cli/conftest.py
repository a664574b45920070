"""The command line in this process, and a small trained run."""

import logging
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmtool.cli import main

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
    """The outcome of a command: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


class CommandLine:
    """Calls `lmtool` in this process, as the shell would."""

    def __init__(self, capsys, monkeypatch):
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments):
        self._monkeypatch.setattr(sys, "argv", ["/somewhere/bin/lmtool", *map(str, arguments)])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        logger = logging.getLogger("lmtool")
        logs = logger.level, logger.handlers
        self._capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            logger.setLevel(logs[0])
            logger.handlers = logs[1]
        said = self._capsys.readouterr()
        return Outcome(code, said.out, said.err)

    def succeeds(self, *arguments):
        """The outcome of a command that must succeed."""
        outcome = self(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    def refuses(self, code, *arguments, words=()):
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
            assert word in outcome.err
        assert contents(os.environ["LMTOOL_RUNS"]) == runs
        return lines


@pytest.fixture
def lmtool(capsys, monkeypatch):
    return CommandLine(capsys, monkeypatch)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A text of a few kilobytes, one long one."""
    path = tmp_path_factory.mktemp("corpus") / "tales.txt"
    path.write_text("\n".join(SENTENCES * 2), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, corpus):
    """A finished run, trained once through the command line."""
    path = tmp_path_factory.mktemp("trained") / RUN
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lmtool", "pretrain", str(corpus), *SMALL, "-q", "-o", str(path)])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with pytest.raises(SystemExit) as end:
            main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not end.value.code
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working directory with a runs directory of its own."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LMTOOL_RUNS", "runs")
    return folder


@pytest.fixture
def run(home, trained):
    """A copy of the trained run, which a test may damage; it is the only one."""
    return Path(shutil.copytree(trained, home / "runs" / RUN))


def contents(folder):
    """The contents of all files below a folder."""
    return {
        os.path.relpath(path, folder): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


@pytest.fixture
def ngram(lmtool, files, home):
    """A 4-gram model of words, of the text.txt of a module's `files`."""
    keys = ("model.order=4", "model.context=16", "data.documents=blank-line", "data.split=document")
    settings = [word for key in ("tokenizer={kind: word, vocab_size: 40}", *keys) for word in ("-s", key)]
    lmtool.succeeds("pretrain", files / "text.txt", "-r", "ngram", "-q", *settings)
    return "last"
