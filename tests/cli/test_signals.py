"""Ctrl-C in each phase, in processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.cli.progress import Display
from lmtool.cli.signals import StopAtStep
from tests.support import forks
from tests.support.cli import RUN, SMALL, CommandLine, contents

Process = Any  # subprocess.Popen, or the same of a fork
Begin = Callable[..., Process]


@pytest.fixture
def start(home: Path) -> Iterator[Begin]:
    """Start lmtool, and kill it after the test if it still runs."""
    processes: list[Process] = []

    def go(*arguments: object) -> Process:
        words = ["-m", "lmtool", *map(str, arguments)]
        processes.append(forks.begin(words, files=(None, subprocess.PIPE, subprocess.PIPE)))
        return processes[-1]

    yield go
    for process in processes:
        process.kill()
        process.communicate()


def said(process: Process, word: str) -> list[str]:
    """Wait for a line with `word` on stderr; returns all lines until then."""
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if word in line:
            return lines
    pytest.fail(f"no {word!r} in: {''.join(lines)}")


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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_training_saves_and_says_how_to_go_on(
    start: Begin, lmtool: CommandLine, home: Path, corpus: Path, number: int
) -> None:
    long = ("-s", "training.steps=1000000", "-s", "evaluation.every=1000000")
    process = start("pretrain", corpus, *SMALL, *long)
    said(process, "step 1/1000000")
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err.startswith("stopping after this step and its validation; Ctrl-C again exits at once\n")
    found = re.search(r"step (\d+)/1000000 .*  valid loss ([\d.]+) \(best\)", err)
    assert found
    saved, loss = found.groups()
    step = int(saved)
    assert f"interrupted and saved at step {step}; best valid loss {loss} at step {step}; lmtool resume" in err
    run = Path(out.strip())
    assert (run / "checkpoints" / f"step-{step:06d}" / "MANIFEST.json").is_file()
    outcome = lmtool.succeeds("resume", "last", "-s", f"training.steps={step + 2}")
    assert f"plan: steps {step + 1:,} to {step + 2:,}" in outcome.err


@pytest.mark.system
def test_a_signal_while_a_text_is_written_changes_nothing(start: Begin, run: Path) -> None:
    before = contents(run)
    process = start("generate", "The", "--max-new-tokens", "10000000")
    said(process, RUN)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert (out, err) == ("", "")
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
