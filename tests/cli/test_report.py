"""`lmtool report`, `runs compare`, the losses of `runs show`, and the page at the end of a session."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from lmtool.report import training as pages
from lmtool.run.directory import Run
from lmtool.run.listing import save_evaluation
from tests.support.cli import SMALL, CommandLine, film_rows, write_table


def test_the_page_of_a_run(lmtool: CommandLine, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert lmtool.succeeds("report", run.name, "-o", file).out == f"{file}\n"
    html = file.read_text()
    assert f"<title>{run.name}</title>" in html
    assert html.count(">Sessions<") == 1
    for words in ((), (run.name, "last")):  # twice the same is one
        lmtool.succeeds("report", *words, "-o", file)
        assert file.read_text() == html


@pytest.mark.parametrize("content", [b"mine", b'<meta name="generator" content="lmtool 1"><h2>Weights</h2>', b"\xff"])
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


def test_a_session_ends_with_its_page(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", "run")
    assert outcome.err.splitlines()[-1] == "report: run/report.html"
    assert outcome.out == "run\n"
    assert (home / "run/report.html").read_text().startswith("<!doctype html>")
    assert "report" not in lmtool.succeeds("resume", "run", "-s", "training.steps=+2", "-q").err
    assert "resumed at step 6" in (home / "run/report.html").read_text()


def test_a_page_that_fails_is_a_warning(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Run) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(pages, "write_run_page", fails)
    last = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", "run").err.splitlines()[-1]
    assert last.startswith("warning: ")
    assert "the disk is full" in last


@pytest.mark.parametrize("dies", ["write_run_page", "end_session"])
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


def test_runs_are_compared_by_what_differs(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    lmtool.succeeds("pretrain", corpus, *SMALL, "-s", "model.d_model=32", "-s", "training.steps=4", "-o", "wide")
    lines = lmtool.succeeds("runs", "compare", run, "wide").out.splitlines()
    rows = dict(line.split("\t", 1) for line in lines)
    assert rows[""] == f"{run.name}\twide"
    assert rows["model.d_model"] == "16\t32"
    assert rows["steps"] == "6\t4"
    assert "model.n_layers" not in rows
    found = lmtool.succeeds("runs", "compare", run, "wide", "--json").json()
    assert found["differences"]["training.steps"] == [6, 4]
    assert [entry["name"] for entry in found["runs"]] == [run.name, "wide"]


def test_figures_of_tables_are_listed_and_compared(lmtool: CommandLine, home: Path) -> None:
    """Those of tests come first; few rows are not taken to rank runs, and what was trained on is no test."""
    write_table(home / "train.csv", film_rows(60))
    write_table(home / "few.csv", [(f"{text} again", label) for text, label in film_rows(12)])
    linear = ("-r", "linear", "-s", "model.buckets=5000", "-s", "data.valid_fraction=0.1", "-q")
    for name, options in (("one", ("--test", "few.csv")), ("two", ("-s", "seed=2"))):
        lmtool.succeeds("finetune", "train.csv", *linear, *options, "-o", f"runs/{name}")
    notes = lmtool.succeeds("runs", "compare", "one", "two", "--json").json()["notes"]
    assert any("no test figures of the same data" in note for note in notes)
    lmtool.succeeds("eval", "two", "few.csv", "-q")
    lmtool.succeeds("eval", "two", "train.csv", "-q")
    listed = {entry["name"]: entry for entry in lmtool.succeeds("runs", "ls", "--json").json()}
    assert {name: figures["rows"] for name, figures in listed["two"]["test"].items()} == {"few.csv": 12}
    lines = lmtool.succeeds("runs", "compare", "one", "two").out.splitlines()
    assert lines[1].startswith("few.csv accuracy\t")
    rows = dict(line.split("\t", 1) for line in lines)
    assert rows["few.csv rows"] == "12\t12"
    assert "bits per byte" not in rows
    for name, accuracy in (("one", 0.75), ("two", 0.5)):
        figures = {"step": Run.open(Path("runs") / name).best_step, "rows": 12, "accuracy": accuracy}
        save_evaluation(Path("runs") / name, ["other.csv"], [], figures)
    notes = lmtool.succeeds("runs", "compare", "one", "two", "--json").json()["notes"]
    assert any("other.csv: 12 rows are too few" in note for note in notes)
    printed = lmtool.succeeds("runs", "compare", "one", "two").out.splitlines()
    assert all(f"note\t{note}" in printed for note in notes)
    assert any("few.csv: rows 12, loss " in line for line in lmtool.succeeds("runs", "show", "two").out.splitlines())
