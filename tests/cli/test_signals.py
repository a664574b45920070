"""Ctrl-C while a text is prepared or written, and a second one; tests/training has it in a training."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.cli.progress import Display
from lmtool.cli.signals import StopAtStep
from tests.support import forks
from tests.support.cli import RUN, SMALL, CommandLine, contents


@pytest.mark.parametrize(("stage", "number"), [("reading", signal.SIGINT), ("tokenizing", signal.SIGTERM)])
def test_a_signal_while_text_is_prepared_leaves_no_run(
    lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch, stage: str, number: int
) -> None:
    """It exits at once, no run is created, and the same command then works."""
    text = "\n".join(f"In the year {year} it rained in {stage}." for year in range(5000 + number))
    (home / "rain.txt").write_text(text)

    def report(self: Display, now: str, done: int, total: int) -> None:
        if now == stage:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "report", report)
        outcome = lmtool("pretrain", "rain.txt", *SMALL)
    assert (outcome.code, outcome.out, outcome.err) == (128 + number, "", "")
    assert contents("runs") == {}
    lmtool.succeeds("pretrain", "rain.txt", *SMALL)


@pytest.mark.system
def test_a_signal_while_a_text_is_written_changes_nothing(home: Path, run: Path) -> None:
    before = contents(run)
    words = ["-m", "lmtool", "generate", "The", "--max-new-tokens", "10000000"]
    with forks.begin(words, files=(None, subprocess.PIPE, subprocess.PIPE)) as process:
        assert process.stderr
        while RUN not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 130
    assert contents(run) == before


def test_the_second_signal_leaves_at_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = StopAtStep(notify=True)
    try:
        stop.open()
        assert not stop.requested()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested()
        assert stop.exit_code == 143
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGINT)
        assert end.value.code == 130
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert capfd.readouterr().err == "stopping after this step and its validation; Ctrl-C again exits at once\n"
