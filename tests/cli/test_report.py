"""`lmtool report`, `runs compare`, the losses of `runs show`, and the page at the end of a session."""

import json
import re

import pytest
from rich.cells import cell_len

from lmtool.report import training as pages
from tests.cli.conftest import SMALL


def test_the_page_of_a_run(lmtool, run, tmp_path):
    file = tmp_path / "page.html"
    outcome = lmtool.succeeds("report", run.name, "-o", file)
    assert outcome.out.splitlines() == [str(file)]
    html = file.read_text()
    assert f"<title>{run.name}</title>" in html
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 6
    assert html.count(">Sessions<") == 1


def test_several_runs_twice_the_same_is_one(lmtool, run, tmp_path):
    file = tmp_path / "page.html"
    lmtool.succeeds("report", run.name, "last", "-o", file)
    assert f"<title>{run.name}</title>" in file.read_text()


def test_no_page_of_no_run_or_to_no_folder(lmtool, run, tmp_path):
    lmtool.refuses(4, "report", "nothing", words=["no run called"])
    lmtool.refuses(5, "report", "last", "-o", tmp_path / "none" / "page.html", words=["cannot write the page"])


def test_watching_a_run_that_is_over_ends(lmtool, run, tmp_path):
    file = tmp_path / "page.html"
    lmtool.succeeds("report", "last", "-o", file, "--watch")
    assert 'http-equiv="refresh"' not in file.read_text()


def test_watching_goes_on_until_the_run_ends(lmtool, run, tmp_path, monkeypatch):
    from lmtool.run.directory import Run

    file = tmp_path / "page.html"
    states = iter(["running", "running", "running", "finished"])
    monkeypatch.setattr(Run, "state", property(lambda run: next(states, "finished")))
    slept = []

    def sleep(seconds):
        slept.append('http-equiv="refresh"' in file.read_text())

    monkeypatch.setattr("time.sleep", sleep)
    lmtool.succeeds("report", "last", "-o", file, "--watch")
    assert slept
    assert all(slept)
    assert 'http-equiv="refresh"' not in file.read_text()


def test_a_session_ends_with_its_page(lmtool, home, corpus, tmp_path):
    folder = tmp_path / "run"
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", folder)
    assert outcome.err.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert outcome.out.splitlines() == [str(folder)]
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert "documents" in (folder / "report.html").read_text()
    quiet = lmtool.succeeds("resume", folder, "-s", "training.steps=+2", "-q")
    assert "report" not in quiet.err
    assert "resumed at step 6" in (folder / "report.html").read_text()


def test_a_page_that_fails_is_a_warning(lmtool, home, corpus, tmp_path, monkeypatch):
    def fails(run):
        raise OSError("the disk is full")

    monkeypatch.setattr(pages, "write_report", fails)
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", tmp_path / "run")
    assert outcome.err.splitlines()[-1] == "warning: no report of this run: the disk is full"


@pytest.mark.parametrize("columns", [40, 100, 300])
def test_losses_are_drawn_as_wide_as_there_is_room(lmtool, run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = lmtool.succeeds("runs", "show", "last").out.splitlines()
    drawn = [line for line in lines if re.match(r" *[\d.e-]* \|", line)]
    assert len(drawn) == 12
    assert max(map(cell_len, drawn)) == min(columns, 100)
    assert all(line.isascii() for line in drawn)
    assert "training loss" in lines[-1]


def test_losses_are_drawn_in_braille_and_colours_on_a_terminal(lmtool, run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    shown = lmtool.succeeds("runs", "show", "last").out
    assert re.search("[\u2801-\u28ff]", shown)
    assert "\x1b[3" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    shown = lmtool.succeeds("runs", "show", "last").out
    assert not re.search("[\u2800-\u28ff\x1b]", shown)
    assert "training loss" in shown


def test_comparing_runs(lmtool, run, corpus, tmp_path):
    wide = tmp_path / "wide"
    lmtool.succeeds("pretrain", corpus, *SMALL, "-s", "model.d_model=32", "-s", "training.steps=4", "-o", wide)
    rows = dict(line.split("\t", 1) for line in lmtool.succeeds("runs", "compare", run, wide).out.splitlines())
    assert rows[""] == f"{run.name}\twide"
    assert rows["model.d_model"] == "16\t32"
    assert rows["steps"] == "6\t4"
    assert "model.n_layers" not in rows
    found = json.loads(lmtool.succeeds("runs", "compare", run, wide, "--json").out)
    assert found["differences"]["training.steps"] == [6, 4]
    for entry, path in zip(found["runs"], (run, wide), strict=True):
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        measured = [record["valid_loss"] for record in records if record["valid_loss"] is not None]
        assert entry["best_loss"] == min(measured)
        assert entry["tokens"] == records[-1]["tokens"]
        # about so many bytes in a token of this text
        assert 0.5 < entry["best_loss"] / (entry["bits_per_byte"] * 0.6931) < 20
    lmtool.refuses(2, "runs", "compare", run, words=["nothing to be compared with"])
