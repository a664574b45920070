"""`lmtool report`, `runs compare`, the losses of `runs show`, and the page at the end of a session."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from lmtool.report import training as pages
from lmtool.runs.directory import Run
from tests.support.cli import SMALL, CommandLine


@pytest.mark.parametrize("content", [b'<meta name="generator" content="lmtool 1"><h2>Weights</h2>', b"\xff"])
def test_only_a_report_is_overwritten(lmtool: CommandLine, run: Path, content: bytes) -> None:
    file = run.parents[1] / "report.html"
    file.write_bytes(content)
    for words in ((), ("-o", file)):
        lmtool.refuses(2, "report", run.name, *words, words=["report.html"])
    assert file.read_bytes() == content
    file.unlink()
    for _ in range(2):
        lmtool.succeeds("report", run.name)
    lmtool.succeeds("report", run.name, "-o", run / "report.html")


def test_a_run_is_watched_until_it_ends(
    lmtool: CommandLine, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "page.html"
    states = iter(["running", "running", "running", "finished"])
    monkeypatch.setattr(Run, "state", property(lambda run: next(states, "finished")))
    slept: list[bool] = []
    monkeypatch.setattr("time.sleep", lambda seconds: slept.append('http-equiv="refresh"' in file.read_text()))
    lmtool.succeeds("report", "last", "-o", file, "--watch")
    assert slept
    assert all(slept)
    assert 'http-equiv="refresh"' not in file.read_text()


def test_a_page_that_fails_is_a_warning(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Run) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(pages, "write_run_page", fails)
    last = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", "run").err.splitlines()[-1]
    assert last.startswith("warning: ")
    assert "the disk is full" in last


@pytest.mark.parametrize("dies", ["write_run_page", "record_session_end"])
def test_a_run_that_was_killed_after_its_last_step_gets_the_page_that_is_missing(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    """Not the one of the session before, which is no longer true."""

    class KilledError(BaseException):
        pass

    def kill(*arguments: object) -> None:
        raise KilledError

    page = home / "run" / "report.html"
    lmtool.succeeds("pretrain", corpus, *SMALL, "--until", "0.5", "-o", "run")
    assert "resumed at step 3" not in page.read_text()
    with monkeypatch.context() as killing:
        killing.setattr(pages if dies == "write_run_page" else Run, dies, kill)
        with pytest.raises(KilledError):
            lmtool("resume", "run")
    assert "report: run/report.html" in lmtool.succeeds("resume", "run").err.splitlines()
    assert "resumed at step 3" in page.read_text()
    before = page.stat().st_mtime_ns
    assert "report: " not in lmtool.succeeds("resume", "run").err
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize("columns", [40, 300])
def test_losses_are_drawn_as_wide_as_there_is_room(
    lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = lmtool.succeeds("runs", "show", "last").out.splitlines()
    drawn = [line for line in lines if re.match(r" *[\d.e-]* \|", line)]
    assert len(drawn) == 12
    assert max(map(cell_len, drawn)) == min(columns, 100)
    assert all(line.isascii() for line in drawn)
