"""`lmtool runs`: the list for people of any width, what is asked before runs or files of the cache are removed."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import Run
from lmtool.runs.files import RunInfo
from lmtool.runs.saving import CheckpointContent
from tests.support.cli import CommandLine

FILES = {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b"{}"}


def run_info(recipe: str, summary: str) -> RunInfo:
    return RunInfo.create(recipe=recipe, summary=summary, fingerprints={"data": "d0", "tokenizer": "t0"})


@pytest.fixture
def first(home: Path) -> Run:
    """A run whose names are markup and escape sequences."""
    with create_and_lock_run(home / "runs" / "first", run_info("[red]tiny[/red]", "decoder\t\x1b[31m"), FILES) as run:
        run.rewind_and_start_session(step=0, command=["lmtool", "\x07"], environment={"torch": "2", "gpu": None})
        run.metrics.append({"step": 1500, "valid_loss": 1.25})
        run.save_checkpoint(CheckpointContent(1500, {"w": torch.zeros(1000)}, {}, {}, 1500), keep_last=2)
        run.record_session_end("finished")
    return run


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 150])
def test_a_narrow_terminal_gets_fewer_columns(
    lmtool: CommandLine, first: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    first.path.rename(first.path.with_name("2026-11-20-shakespeare-char-7f3a"))
    out = lmtool.succeeds("runs", "ls").out
    heading, line = (re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in out.splitlines())
    assert "\x1b[31m" not in out
    assert len(line) <= max(columns, 55)
    assert "finished" in line
    assert "1.2500" in line
    assert ("model" in heading) == (columns == 150)
    assert columns < 150 or ("[red]tiny[/red]" in line and "\\x1b[31m" in line)


def test_a_list_of_no_runs_is_empty_and_says_so(lmtool: CommandLine, home: Path) -> None:
    told = lmtool.succeeds("runs", "ls")
    assert (told.out, bool(told.err)) == ("", True)
    assert lmtool.succeeds("runs", "ls", "--json").json() == []


Asked = Callable[[str], None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A terminal on which this is typed."""

    def answer(text: str) -> None:
        keyboard = io.StringIO(text)
        monkeypatch.setattr(keyboard, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", keyboard)

    return answer


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("n\n", True), ("\n", True), ("", True)])
def test_a_removal_is_asked_for(lmtool: CommandLine, first: Run, asked: Asked, answer: str, stays: bool) -> None:
    asked(answer)
    told = lmtool("runs", "rm", "first")
    assert first.path.exists() is stays
    assert "runs/first, " in told.err
    assert ("nothing is removed" in told.err) is stays
    assert bool(re.fullmatch(r"removed runs/first, \d\.\d kB freed\n", told.out)) is not stays


def test_nothing_is_removed_where_nobody_is_asked_and_never_a_file_of_others(
    lmtool: CommandLine, first: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    lmtool.refuses(2, "runs", "rm", "first")
    far = first.path.rename("far").resolve()
    (far / "notes.txt").write_text("mine")
    assert lmtool.succeeds("runs", "rm", far, "--yes").err.startswith(f"kept in {far}: ")
    assert [path.name for path in far.iterdir()] == ["notes.txt"]


def test_old_runs_are_removed(lmtool: CommandLine, first: Run) -> None:
    create_and_lock_run(first.path.with_name("other"), run_info("tiny", ""), FILES).release_lock()
    none = lmtool.succeeds("runs", "rm", "--older-than", "1h", "--yes")
    assert (none.out, none.err) == ("", "no runs older than 1h\n")
    lines = lmtool.succeeds("runs", "rm", "--older-than", "0h", "--yes").out.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"\d\.\d kB freed in all", lines[-1])
    assert list(Path("runs").iterdir()) == []


@pytest.fixture
def cached(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset and a survey in the cache."""
    monkeypatch.setenv("LMTOOL_CACHE", str(home / "cache"))
    for folder, ending in (("datasets", "jsonl"), ("surveys", "entry")):
        (home / "cache" / folder).mkdir(parents=True)
        (home / "cache" / folder / f"{'0' * 64}.{ending}").write_bytes(bytes(2000))
    return home / "cache"


def test_the_cache_is_shown(lmtool: CommandLine, cached: Path) -> None:
    datasets, surveys, total = lmtool.succeeds("runs", "cache").out.splitlines()
    assert datasets.split("\t")[::2] == ["datasets", "1", datasets.split("\t")[-1]]
    assert "2.0 kB" in surveys
    assert total == f"4.0 kB in {cached}"
    name, size, used = lmtool.succeeds("runs", "cache", "surveys").out.splitlines()[0].split("\t")
    assert (name, size, len(used)) == (f"{'0' * 64}.entry", "2.0 kB", len("2026-11-20 22:40"))
    told = lmtool.succeeds("runs", "cache", "--json").json()
    assert told["cache"] == str(cached)
    assert {(entry["kind"], entry["bytes"]) for entry in told["entries"]} == {("datasets", 2000), ("surveys", 2000)}
    assert {Path(entry["path"]).exists() for entry in told["entries"]} == {True}
    assert lmtool.succeeds("runs", "cache", "--older-than", "1h").out == f"0 bytes in {cached}\n"


def test_the_cache_is_cleared_after_asking(
    lmtool: CommandLine, cached: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> list[str]:
        return sorted(file.parent.name for file in cached.rglob("*") if file.is_file() and file.stat().st_size)

    asked("n\n")
    assert "nothing is removed" in lmtool("runs", "cache", "--clear").err
    assert left() == ["datasets", "surveys"]
    asked("y\n")
    told = lmtool.succeeds("runs", "cache", "surveys", "--clear")
    assert (told.out, left()) == ("2.0 kB freed\n", ["datasets"])
    assert f"{'0' * 64}.entry" in told.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    lmtool.refuses(2, "runs", "cache", "--clear")
    entries = json.loads(lmtool.succeeds("runs", "cache", "--clear", "--yes", "--json").out)["entries"]
    assert [(entry["kind"], entry["removed"]) for entry in entries] == [("datasets", True)]
    assert left() == []
    assert lmtool.succeeds("runs", "cache", "--clear").out == "0 bytes freed\n"
