import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lmtool.cli.commands.runs import app
from lmtool.errors import UsageError
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import Run
from lmtool.runs.files import RunInfo
from lmtool.runs.saving import CheckpointContent


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def run(runs: Path) -> Run:
    with create_and_lock_run(
        runs / "first",
        RunInfo.create(
            recipe="[red]tiny[/red]",
            summary="decoder\t\x1b[31m",
            fingerprints={"data": "d0", "tokenizer": "t0"},
        ),
        {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b"{}"},
    ) as run:
        run.rewind_and_start_session(
            step=0, command=["lmtool", "pretrain", "\x07"], environment={"torch": "2", "gpu": None}
        )
        run.metrics.append({"step": 1500, "valid_loss": 1.25})
        run.save_checkpoint(CheckpointContent(1500, {"w": torch.zeros(1000)}, {}, {}, 1500), keep_last=2)
        run.record_session_end("finished")
    return run


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_table_for_people(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    heading, line = call("ls").splitlines()
    assert "result" in heading
    assert "[red]tiny[/red]" in line
    assert "\x1b[31m" not in line
    assert "\\x1b[31m" in line


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 150])
def test_a_narrow_terminal_gets_fewer_columns(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    run.path.rename(run.path.with_name("2026-11-20-shakespeare-char-7f3a"))
    heading, line = (re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in call("ls").splitlines())
    assert len(line) <= max(columns, 55)
    assert "finished" in line
    assert "1.2500" in line
    assert ("model" in heading) == (columns == 150)


def test_the_record_of_a_run_has_all_that_is_kept_of_its_data(runs: Path, run: Run) -> None:
    data = {"lines": ["60 rows"], "valid_rows": 6, "features": [{"path": "runs/elmo", "width": 32}]}
    old = RunInfo.create(recipe="r", summary="s", fingerprints={"data": "d0", "tokenizer": "t0"}, data=data)
    with create_and_lock_run(runs / "old", old, {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b"{}"}):
        pass
    assert json.loads(call("show", "old", "--json"))["data"] == data
    assert json.loads(call("show", str(run.path), "--json"))["data"] is None


def test_no_runs(runs: Path) -> None:
    result = CliRunner().invoke(app, ["ls"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "there are no runs yet" in result.stderr
    assert json.loads(call("ls", "--json")) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A terminal on which this is typed."""

    def answer(text: str) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(sys, "stdin", Terminal(text))

    return answer


def removing(*arguments: str, command: str = "rm") -> tuple[str, str]:
    """Both outputs of `runs rm`, or of `runs cache`, in this process, so that standard input is that of the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        app([command, *arguments], standalone_mode=False)
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("n\n", True), ("\n", True), ("", True)])
def test_a_removal_is_asked_for(run: Run, asked: Callable[[str], None], answer: str, stays: bool) -> None:
    asked(answer)
    out, err = removing("first")
    assert run.path.exists() is stays
    assert f"{run.path}, " in err
    assert ("nothing is removed" in err) is stays
    assert bool(re.fullmatch(r"removed \S+/first, \d\.\d kB freed\n", out)) is not stays


def test_nothing_is_removed_where_nobody_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO("y\n"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UsageError, match="nobody is there to be asked"):
            removing("first")
    assert run.path.exists()
    removing("first", "--yes")
    assert not run.path.exists()


def test_old_runs_are_removed(run: Run, runs: Path) -> None:
    other = create_and_lock_run(
        runs / "other",
        RunInfo.create(
            recipe="tiny",
            summary="",
            fingerprints={"data": "", "tokenizer": ""},
        ),
        {"recipe.yaml": b"", "tokenizer.json": b"{}"},
    )
    other.release_lock()
    assert removing("--older-than", "1h", "--yes") == ("", "no runs older than 1h\n")
    out, _ = removing("--older-than", "0h", "--yes")
    assert len(out.splitlines()) == 3
    assert re.fullmatch(r"\d\.\d kB freed in all", out.splitlines()[-1])
    assert list(runs.iterdir()) == []
    for wrong in ([], ["first", "--older-than", "1h"], ["--older-than", "soon"]):
        with pytest.raises(UsageError):
            removing(*wrong)


def test_files_that_stay_are_told(run: Run, tmp_path: Path) -> None:
    run.path.rename(tmp_path / "far")
    (tmp_path / "far" / "notes.txt").write_text("mine")
    _, err = removing(str(tmp_path / "far"), "--yes")
    assert err == f"kept in {tmp_path / 'far'}: files that are not the run's\n"


@pytest.fixture
def cached(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset and a survey in the cache."""
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    for folder, ending in (("datasets", "jsonl"), ("surveys", "entry")):
        (tmp_path / "cache" / folder).mkdir(parents=True)
        (tmp_path / "cache" / folder / f"{'0' * 64}.{ending}").write_bytes(bytes(2000))
    return tmp_path / "cache"


def files_in(folder: Path) -> list[str]:
    return sorted(file.parent.name for file in folder.rglob("*") if file.is_file() and file.stat().st_size)


def test_the_cache_is_shown(cached: Path) -> None:
    datasets, surveys, total = call("cache").splitlines()
    assert datasets.split("\t")[::2] == ["datasets", "1", datasets.split("\t")[-1]]
    assert "2.0 kB" in surveys
    assert total == f"4.0 kB in {cached}"
    name, size, used = call("cache", "surveys").splitlines()[0].split("\t")
    assert (name, size, len(used)) == (f"{'0' * 64}.entry", "2.0 kB", len("2026-11-20 22:40"))
    told = json.loads(call("cache", "--json"))
    assert told["cache"] == str(cached)
    assert {(entry["kind"], entry["bytes"]) for entry in told["entries"]} == {("datasets", 2000), ("surveys", 2000)}
    assert {Path(entry["path"]).exists() for entry in told["entries"]} == {True}
    assert call("cache", "--older-than", "1h") == f"0 bytes in {cached}\n"


def test_the_cache_is_cleared_after_asking(
    cached: Path, asked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked("n\n")
    assert "nothing is removed" in removing("--clear", command="cache")[1]
    assert files_in(cached) == ["datasets", "surveys"]
    asked("y\n")
    out, err = removing("surveys", "--clear", command="cache")
    assert (out, files_in(cached)) == ("2.0 kB freed\n", ["datasets"])
    assert f"{'0' * 64}.entry" in err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="nobody is there"):
        removing("--clear", command="cache")
    told = json.loads(removing("--clear", "--yes", "--json", command="cache")[0])
    assert [(entry["kind"], entry["removed"]) for entry in told["entries"]] == [("datasets", True)]
    assert files_in(cached) == []
    assert removing("--clear", command="cache") == ("0 bytes freed\n", "")
    with pytest.raises(UsageError, match="no 'survey'"):
        removing("survey", command="cache")
