"""`lmtool report`, `runs compare`, the losses of `runs show`, and the page at the end of a session."""

import json
import re

import pytest
from rich.cells import cell_len

from lmtool.report import training as pages
from lmtool.run.directory import Run
from lmtool.run.history import RunHistory, find_indistinct_scores
from lmtool.run.listing import MAIN_METRICS, save_evaluation
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
    lmtool.succeeds("report", "-o", file)
    assert file.read_text() == html
    assert lmtool.succeeds("runs", "show").out == lmtool.succeeds("runs", "show", "last").out


def test_several_runs_twice_the_same_is_one(lmtool, run, tmp_path):
    file = tmp_path / "page.html"
    lmtool.succeeds("report", run.name, "last", "-o", file)
    assert f"<title>{run.name}</title>" in file.read_text()


def test_no_page_of_no_run_or_to_no_folder(lmtool, run, tmp_path):
    lmtool.refuses(4, "report", "nothing", words=["no run called"])
    lmtool.refuses(5, "report", "last", "-o", tmp_path / "none" / "page.html", words=["cannot write"])


@pytest.mark.parametrize("content", ["mine", '<meta name="generator" content="lmtool 1"><h2>Weights</h2>', b"\xff"])
def test_no_other_file_is_overwritten(lmtool, run, content):
    file = run.parents[1] / "report.html"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = file.read_bytes()
    for words in ((), ("-o", file)):
        lmtool.refuses(2, "report", run.name, *words, words=["the file exists already", "report.html"])
    lmtool.refuses(2, "report", run.name, "-o", run, words=["a folder is there"])
    assert file.read_bytes() == before
    file.unlink()
    for _ in range(2):
        lmtool.succeeds("report", run.name)
    lmtool.succeeds("report", run.name, "-o", run / "report.html")


def test_watching_a_run_that_is_over_ends(lmtool, run, tmp_path):
    file = tmp_path / "page.html"
    lmtool.succeeds("report", "last", "-o", file, "--watch")
    assert 'http-equiv="refresh"' not in file.read_text()


def test_watching_goes_on_until_the_run_ends(lmtool, run, tmp_path, monkeypatch):
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

    monkeypatch.setattr(pages, "write_run_page", fails)
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL, "-o", tmp_path / "run")
    assert outcome.err.splitlines()[-1] == "warning: no report of this run: the disk is full"


@pytest.mark.parametrize("dies", ["write_run_page", "end_session"])
def test_a_run_that_was_killed_after_its_last_step_gets_the_page_that_is_missing(
    lmtool, home, corpus, tmp_path, monkeypatch, dies
):
    """Not the one of the session before, which is no longer true."""

    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    folder = tmp_path / "run"
    page = folder / "report.html"
    lmtool.succeeds("pretrain", corpus, *SMALL, "--until", "0.5", "-o", folder)
    assert "resumed at step 3" not in page.read_text()
    with monkeypatch.context() as killing:
        killing.setattr(pages if dies == "write_run_page" else Run, dies, kill)
        with pytest.raises(Killed):
            lmtool("resume", folder)
    outcome = lmtool.succeeds("resume", folder)
    assert f"report: {page}" in outcome.err.splitlines()
    assert "resumed at step 3" in page.read_text()
    assert "finished" in page.read_text()
    before = page.stat().st_mtime_ns
    assert "report: " not in lmtool.succeeds("resume", folder).err
    assert page.stat().st_mtime_ns == before


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
    assert found["notes"] == []
    lmtool.refuses(2, "runs", "compare", run, words=["one run cannot be compared"])


LINEAR = ("--recipe", "linear", "-s", "model.buckets=5000", "-s", "training.min_steps=1", "--epochs", "2", "-q")


@pytest.fixture
def tables(home):
    """Rows for training, few of which are held out, and for testing."""
    for name, first, n in (("train.csv", 0, 60), ("few.csv", 60, 12), ("many.csv", 100, 600)):
        rows = [f"{'poor' if i % 2 else 'good'} play {i},{'no' if i % 2 else 'yes'}" for i in range(first, first + n)]
        (home / name).write_text("\n".join(["text,label", *rows]))
    return home


def test_test_figures_come_first_and_rows_are_called_rows(lmtool, tables):
    lmtool.succeeds("finetune", "train.csv", *LINEAR, "--test", "few.csv", "-o", "runs/one")
    lmtool.succeeds(
        "finetune", "train.csv", *LINEAR, "--test", "few.csv", "-s", "model.log_ratios=false", "-o", "runs/two"
    )
    found = json.loads(lmtool.succeeds("runs", "compare", "one", "two", "--json").out)
    assert list(found["runs"][0])[:2] == ["name", "test"]
    figures = found["runs"][0]["test"]["few.csv"]
    assert (next(iter(figures)), list(figures.items())[-1]) == ("accuracy", ("rows", 12))
    lines = lmtool.succeeds("runs", "compare", "one", "two").out.splitlines()
    assert lines[1].startswith("few.csv accuracy\t")
    rows = dict(line.split("\t", 1) for line in lines)
    assert rows["few.csv rows"] == "12\t12"
    assert rows["valid rows"] == "6\t6"
    assert rows["rows"].split("\t")[0] == f"{128 * int(rows['steps'].split(chr(9))[0]):,}"
    assert "rows per second" in rows
    assert "bits per byte" not in rows


def test_few_rows_are_not_taken_to_rank_runs(lmtool, tables):
    """Neither those of validation nor those of a test; many are."""
    for name, options in (("one", ()), ("two", ("-s", "seed=2"))):
        lmtool.succeeds("finetune", "train.csv", *LINEAR, *options, "-o", f"runs/{name}")
    listed = lmtool.succeeds("runs", "ls").out.splitlines()
    assert all(re.search(r"\taccuracy [\d.]+ ± 0\.\d+, 6 rows\t", line) for line in listed)
    for name, accuracy in (("one", 0.75), ("two", 0.5)):
        for file, n in (("few.csv", 12), ("many.csv", 600)):
            step = Run.open(tables / "runs" / name).best_step
            figures = {"step": step, "rows": n, "accuracy": accuracy}
            save_evaluation(tables / "runs" / name, [file], [], figures)
    notes = json.loads(lmtool.succeeds("runs", "compare", "one", "two", "--json").out)["notes"]
    assert any(note == "accuracy on few.csv: 12 rows are too few to tell one from two" for note in notes)
    assert not any("many.csv" in note for note in notes)
    printed = lmtool.succeeds("runs", "compare", "one", "two").out
    assert all(f"note\t{note}" in printed.splitlines() for note in notes)
    page = tables / "page.html"
    lmtool.succeeds("report", "one", "two", "-o", page)
    assert "12 rows are too few to tell one from two" in page.read_text()


def test_runs_that_are_compared_on_a_table_do_not_lack_one(lmtool, tables):
    """Though the figures that they have are of different tables."""
    for name, options in (("one", ("--test", "few.csv")), ("two", ())):
        lmtool.succeeds("finetune", "train.csv", *LINEAR, *options, "-o", f"runs/{name}")
    lacking = "the runs have no test figures of the same data"
    for options, lacks in (((), True), (("--test", "few.csv"), False)):
        found = json.loads(lmtool.succeeds("runs", "compare", "one", "two", *options, "--json").out)
        assert any(note.startswith(lacking) for note in found["notes"]) == lacks


def test_what_eval_measures_is_listed(lmtool, tables):
    """Unless the run was trained on it, or at another checkpoint than the best one."""
    lmtool.succeeds("finetune", "train.csv", *LINEAR, "-o", "runs/one")
    lmtool.succeeds("eval", "one", "train.csv", "-q")
    assert "\taccuracy " in lmtool.succeeds("runs", "ls").out
    (before,) = json.loads(lmtool.succeeds("runs", "ls", "--json").out)
    assert before["test"] == {}
    lmtool.succeeds("eval", "one", "few.csv", "many.csv", "-q")
    (summary,) = json.loads(lmtool.succeeds("runs", "ls", "--json").out)
    assert (summary["part"], summary["value"]) == (before["part"], before["value"])
    assert {name: figures["rows"] for name, figures in summary["test"].items()} == {"few.csv": 12, "many.csv": 600}
    assert "\ttest accuracy " not in lmtool.succeeds("runs", "ls").out
    shown = lmtool.succeeds("runs", "show", "one").out.splitlines()
    assert any("few.csv: rows 12, loss " in line for line in shown)
    lmtool.succeeds("check", "one", "-q")
    save_evaluation(tables / "runs/one", ["latest"], [], {"step": Run.open(tables / "runs/one").best_step, "rows": 2})
    assert any("latest: rows 2" in line for line in lmtool.succeeds("runs", "show", "one").out.splitlines())


def test_what_few_rows_say_of_a_loss_is_left_open(lmtool, tables):
    """Its standard error does not follow from it."""
    for name, rate in (("one", "1e-3"), ("two", "1e-1")):
        options = (*LINEAR, "-s", "model.log_ratios=false", "-s", f"optimizer.lr={rate}")
        lmtool.succeeds("finetune", "train.csv", *options, "-o", f"runs/{name}")
        for file in ("metrics.json", "evaluations.json"):
            (tables / "runs" / name / file).unlink(missing_ok=True)
    runs = [RunHistory.from_run(Run.open(tables / "runs" / name)) for name in ("one", "two")]
    records = [{k: v for k, v in run.best_checkpoint_record.items() if k not in MAIN_METRICS} for run in runs]
    for run, record in zip(runs, records, strict=True):
        run.__dict__["best_checkpoint_record"] = record
    assert find_indistinct_scores(runs) == [
        "loss on validation rows: of 6 rows; lmtool finetune --seeds 5 shows how far it varies"
    ]


def test_what_eval_measures_of_a_text_is_listed_and_does_not_count_for_the_run(lmtool, run, corpus, home):
    (home / "other.txt").write_text("The sailor found a moon at dawn.\n" * 40)
    (home / "bytes.txt").write_text("any 12 bytes")
    (before,) = json.loads(lmtool.succeeds("runs", "ls", "--json").out)
    for words in (["other.txt", "--stride", "4"], ["--text", "The sailor"], [corpus]):
        lmtool.succeeds("eval", "last", *words, "-q")
        assert json.loads(lmtool.succeeds("runs", "ls", "--json").out)[0]["test"] == {}
    losses = {
        name: json.loads(lmtool.succeeds("eval", "last", name, "--json").out)["loss"]
        for name in ("other.txt", "bytes.txt")
    }
    (summary,) = json.loads(lmtool.succeeds("runs", "ls", "--json").out)
    for key in ("part", "metric", "value", "rows"):
        assert summary[key] == before[key]
    assert {name: figures["loss"] for name, figures in summary["test"].items()} == losses
    shown = lmtool.succeeds("runs", "show", "last").out
    assert all(f"{name}: loss {loss:.4f}" in shown for name, loss in losses.items())
