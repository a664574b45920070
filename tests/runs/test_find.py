"""Runs and checkpoints found by path, name, step and `last`, and what is said of those that are not found."""

import os
import shutil
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError
from lmtool.interop.resolve import resolve_reference
from lmtool.runs.directory import Run
from lmtool.runs.find import find_resumable_or_last_run
from lmtool.runs.reference import Reference
from tests.support.errors import refuses
from tests.support.runs import MakeRun, locked, start_session


def found_run(reference: str) -> Path:
    return resolve_reference(reference).run.path.resolve()


def found_steps(reference: str) -> tuple[int, int]:
    """Of the newest checkpoint and of the one that is named, else of the best."""
    found = resolve_reference(reference)
    return found.find_named_or_newest_checkpoint()[0].step, found.checkpoint.step


def refused(reference: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        resolve_reference(reference)
    return caught.value


def resume(run: Run) -> None:
    with locked(run):
        start_session(run, 20)


def test_a_run_is_found_by_path_name_and_last(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = make(), make()
    for reference in (str(run.path), f"{run.path}/", run.name):
        assert found_run(reference) == run.path.resolve()
        assert found_steps(reference) == (20, 10)
        assert resolve_reference(reference).named is None
    assert found_run("last") == other.path.resolve()
    resume(run)
    assert found_run("last") == run.path.resolve()
    (run.path / "run.json").write_text("damaged")
    assert found_run("last") == other.path.resolve()
    monkeypatch.chdir(other.path)
    assert found_run(".") == other.path.resolve()


def test_a_run_elsewhere_is_remembered(make: MakeRun, tmp_path: Path) -> None:
    run = make(folder=tmp_path / "else where\n")
    assert found_run("last") == found_run(run.name) == run.path.resolve()
    inside = make()
    assert found_run("last") == inside.path.resolve()
    resume(run)
    assert found_run("last") == run.path.resolve()
    shutil.rmtree(run.path)
    assert found_run("last") == inside.path.resolve()
    other = make(folder=tmp_path / "other")
    assert len((tmp_path / "runs" / ".elsewhere").read_text().splitlines()) == 1
    (tmp_path / "runs" / ".elsewhere").write_bytes(b"\xff{")
    assert found_run("last") == inside.path.resolve()
    assert found_run(str(other.path)) == other.path.resolve()


def test_a_name_of_two_runs_is_refused_unless_one_is_in_the_folder_of_runs(make: MakeRun, tmp_path: Path) -> None:
    both = [make(folder=tmp_path / sweep / "lr=0.1") for sweep in ("one", "two")]
    assert all(str(run.path) in refused("lr=0.1").where for run in both)
    assert found_run(str(both[0].path)) == both[0].path.resolve()
    inside = make(folder=tmp_path / "runs" / "lr=0.1")
    assert found_run("lr=0.1") == inside.path.resolve()


def test_a_folder_of_runs_that_cannot_be_written_does_not_matter(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "file"))
    assert make(folder=tmp_path / "out").find_newest_checkpoint()[0].step == 20


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_checkpoint_is_found_by_its_path_or_by_run_and_step(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    run = make(folder=tmp_path / "far" / "mine" if elsewhere else None)
    monkeypatch.chdir(tmp_path)
    for name in (run.name, str(run.path), "last"):
        for step in ("@10", "@000010", "/checkpoints/step-10", "/checkpoints/step-000010/"):
            assert found_run(name + step) == run.path.resolve()
            assert found_steps(name + step) == (10, 10), name + step
        for missing in ("@15", "/checkpoints/step-000015"):
            assert "step-000010, step-000020" in refused(name + missing).where
    monkeypatch.chdir(run.path / "checkpoints" / "step-000010")
    assert found_steps(".") == (10, 10)
    assert found_steps("../step-000020") == (20, 20)
    monkeypatch.setattr(os, "sep", "\\")
    assert found_steps(f"{run.name}\\checkpoints\\step-000010\\") == (10, 10)


def test_a_named_checkpoint_that_is_damaged_is_refused(make: MakeRun) -> None:
    run = make()
    path = run.path / "checkpoints" / "step-000020"
    (path / "model.safetensors").write_bytes(b"")
    for read in (Reference.find_named_or_newest_checkpoint, lambda reference: reference.checkpoint):
        with pytest.raises(CheckpointError):
            read(resolve_reference(str(path)))
    newest, (warning,) = resolve_reference(str(run.path)).find_named_or_newest_checkpoint()
    assert newest.step == 10
    assert "step-000020" in warning


def test_a_name_may_end_like_a_step(make: MakeRun, tmp_path: Path) -> None:
    run = make(folder=tmp_path / "mine@10")
    assert resolve_reference("mine@10").named is None
    assert found_run("mine@10") == run.path.resolve()
    assert found_steps("mine@10@20") == (20, 20)
    with refuses("run_not_found"):
        resolve_reference("mine@best")


@pytest.mark.parametrize(
    ("reference", "similar"),
    [
        ("gpt-tyni", "gpt-tiny"),
        ("runs/small@500", "gpt-small"),
        ("lst", "lstm, last"),
        ("zzzzzzzz", ""),
        # dates and random ends make no names similar
        ("2026-11-20-names-7f3b", ""),
        ("2026-11-20-tinny-7f3b", "2026-11-21-tiny-01bc, gpt-tiny"),
    ],
)
def test_similar_names_are_listed_the_nearest_first(make: MakeRun, runs: Path, reference: str, similar: str) -> None:
    for name in ("gpt-tiny", "gpt-small", "lstm", "2026-11-20-gru-7f3a", "2026-11-21-tiny-01bc"):
        make(folder=runs / name, steps=())
    with refuses("run_not_found") as caught:
        resolve_reference(reference)
    assert caught.value.where.partition("similar: ")[2] == similar


@pytest.mark.parametrize("reference", ["", "a/b/c", "x" * 10_000, "\x1b[31m", "last"])
def test_without_runs_none_is_found(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(reference)
    assert len(error.lines()) <= 3
    assert all(line.isprintable() and len(line) < 300 for line in error.lines())
    assert error.fix


def test_other_files_and_folders_are_no_runs(make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "book.txt").write_text("text")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    for name in "a", "book.txt":
        error = refused(str(tmp_path / name))
        assert (error.code, error.where) == ("checkpoint", str(tmp_path / name))
    with refuses("run_not_found"):
        raise refused(str(tmp_path / "loop"))
    run = make(folder=tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    assert found_run("a") == run.path.resolve()


def test_the_last_run_that_was_stopped_is_resumed(make: MakeRun) -> None:
    """Not one that is finished, in use, damaged, or without a checkpoint."""
    older, stopped = make(), make()
    finished, another, empty, torn = make(finished=True), make(finished=True), make(steps=()), make()
    for checkpoint in (torn.path / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").unlink()
    used = make()
    with locked(used):
        run, skipped = find_resumable_or_last_run(include_finished=False)
        assert run.name == stopped.name
        assert skipped == [
            f"{used.name} is running",
            f"{torn.name} is without an intact checkpoint",
            "1 other newer run is without an intact checkpoint",
            "2 other newer runs are finished",
        ]
        shutil.rmtree(empty.path)
        assert find_resumable_or_last_run(include_finished=False)[1][2:] == ["2 other newer runs are finished"]
        shutil.rmtree(another.path)
        assert find_resumable_or_last_run(include_finished=True)[0].name == finished.name
    for run in (used, stopped, older, finished):
        assert find_resumable_or_last_run(include_finished=False)[0].name == run.name
        shutil.rmtree(run.path)
