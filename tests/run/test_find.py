import os
import shutil
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError
from lmtool.inference.reference import Reference, resolve_reference
from lmtool.run.creation import create_run
from lmtool.run.files import RunInfo
from lmtool.run.find import find_resumable_run
from tests.run.conftest import MakeRun


def test_a_run_is_found_by_path_name_and_last(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = make(), make()
    for reference in (str(run.path), f"{run.path}/", run.name):
        found = resolve_reference(reference)
        assert found.run.path.samefile(run.path)
        assert found.named is None
        assert (found.newest_checkpoint()[0].step, found.checkpoint.step) == (20, 10)
    assert resolve_reference("last").run.path.samefile(other.path)
    monkeypatch.chdir(run.path)
    assert resolve_reference(".").run.name == run.name


def test_last_is_the_one_resumed_last(make: MakeRun) -> None:
    first, second = make(), make()
    assert resolve_reference("last").run.name == second.name
    with first:
        first.lock()
        first.start_session(step=20, command=[], environment={})
    assert resolve_reference("last").run.name == first.name
    (first.path / "run.json").write_text("damaged")
    assert resolve_reference("last").run.name == second.name


def test_a_run_elsewhere_is_remembered(make: MakeRun, tmp_path: Path) -> None:
    run = make(folder=tmp_path / "else where\n")
    assert resolve_reference("last").run.path.samefile(run.path)
    assert resolve_reference(run.name).run.path.samefile(run.path)
    inside = make()
    assert resolve_reference("last").run.name == inside.name
    with run:
        run.lock()
        run.start_session(step=20, command=[], environment={})
    assert resolve_reference("last").run.path.samefile(run.path)
    shutil.rmtree(run.path)
    assert resolve_reference("last").run.name == inside.name
    other = make(folder=tmp_path / "other")
    assert len((tmp_path / "runs" / ".elsewhere").read_text().splitlines()) == 1
    (tmp_path / "runs" / ".elsewhere").write_bytes(b"\xff{")
    assert resolve_reference("last").run.name == inside.name
    assert resolve_reference(str(other.path)).run.name == "other"


def test_a_name_of_two_runs_is_refused_unless_one_is_in_the_folder_of_runs(make: MakeRun, tmp_path: Path) -> None:
    both = [make(folder=tmp_path / sweep / "lr=0.1") for sweep in ("one", "two")]
    with pytest.raises(CheckpointError, match=r"2 runs are called 'lr=0\.1'") as refused:
        resolve_reference("lr=0.1")
    assert all(str(run.path) in str(refused.value.where) for run in both)
    assert resolve_reference(str(both[0].path)).run.path.samefile(both[0].path)
    inside = make(folder=tmp_path / "runs" / "lr=0.1")
    assert resolve_reference("lr=0.1").run.path.samefile(inside.path)


def test_a_runs_folder_that_cannot_be_written_does_not_matter(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "file"))
    assert make(folder=tmp_path / "out").newest_checkpoint()[0].step == 20


def test_a_checkpoint_is_found_by_its_path(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    path = run.path / "checkpoints" / "step-000010"
    for reference in (str(path), f"{path}/"):
        found = resolve_reference(reference)
        assert found.run.path.samefile(run.path)
        assert (found.newest_checkpoint()[0].step, found.checkpoint.step) == (10, 10)
    monkeypatch.chdir(path)
    assert resolve_reference(".").newest_checkpoint()[0].step == 10
    assert resolve_reference("../step-000020").newest_checkpoint()[0].step == 20


def test_a_checkpoint_is_found_by_its_path_on_windows(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make().name
    monkeypatch.setattr(os, "sep", "\\")
    assert resolve_reference(f"{name}\\checkpoints\\step-000010\\").newest_checkpoint()[0].step == 10


def test_a_named_checkpoint_that_is_damaged_is_refused(make: MakeRun) -> None:
    run = make()
    path = run.path / "checkpoints" / "step-000020"
    (path / "model.safetensors").write_bytes(b"")
    for read in (Reference.newest_checkpoint, lambda reference: reference.checkpoint):
        with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
            read(resolve_reference(str(path)))
    newest, (warning,) = resolve_reference(str(run.path)).newest_checkpoint()
    assert newest.step == 10
    assert "step-000020" in warning


def test_a_checkpoint_that_is_not_there(make: MakeRun) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint 'step-000099' in this run") as caught:
        resolve_reference(str(make().path / "checkpoints" / "step-000099"))
    assert caught.value.where == "it has: step-000010, step-000020"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_checkpoint_is_named_by_run_and_step(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    run = make(folder=tmp_path / "far" / "mine" if elsewhere else None)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in (run.name, str(run.path), "last"):
        for reference in (
            f"{name}@10",
            f"{name}@000010",
            f"{name}/checkpoints/step-10",
            f"{name}/checkpoints/step-000010/",
        ):
            found = resolve_reference(reference)
            assert found.run.path.samefile(run.path)
            assert (found.newest_checkpoint()[0].step, found.checkpoint.step) == (10, 10), reference
        with pytest.raises(CheckpointError, match="no checkpoint 'step-000015' in this run") as caught:
            resolve_reference(f"{name}@15")
        assert caught.value.where == "it has: step-000010, step-000020"


def test_a_name_may_end_like_a_step(make: MakeRun, tmp_path: Path) -> None:
    run = make(folder=tmp_path / "mine@10")
    assert resolve_reference("mine@10").named is None
    assert resolve_reference("mine@10@20").newest_checkpoint()[0].step == 20
    assert resolve_reference("mine@10").run.path.samefile(run.path)
    with pytest.raises(CheckpointError, match="no run called 'mine@best'"):
        resolve_reference("mine@best")


def test_an_unknown_name_lists_the_nearest(runs: Path) -> None:
    for name in ("gpt-tiny", "gpt-small", "lstm"):
        create_run(
            runs / name,
            RunInfo.create(
                recipe=name,
                summary="",
                fingerprints={"data": "", "tokenizer": ""},
            ),
            {"recipe.yaml": b"", "tokenizer.json": b""},
        ).release_lock()
    with pytest.raises(CheckpointError) as caught:
        resolve_reference("gpt-tyni")
    assert caught.value.exit_code == 4
    assert caught.value.what == "no run called 'gpt-tyni'"
    assert caught.value.where == "similar: gpt-tiny"
    with pytest.raises(CheckpointError, match="has a similar name") as caught:
        resolve_reference("zzzzzzzz")
    assert not any(name in str(caught.value.lines()) for name in ("gpt-tiny", "gpt-small", "lstm"))
    for reference in ("runs/small", "small@500"):
        with pytest.raises(CheckpointError, match="similar: gpt-small"):
            resolve_reference(reference)


def test_dates_make_no_names_similar(runs: Path) -> None:
    for name in ("2026-11-20-lstm-7f3a", "2026-11-21-tiny-01bc"):
        create_run(
            runs / name,
            RunInfo.create(
                recipe=name,
                summary="",
                fingerprints={"data": "", "tokenizer": ""},
            ),
            {"recipe.yaml": b"", "tokenizer.json": b""},
        ).release_lock()
    with pytest.raises(CheckpointError, match="has a similar name"):
        resolve_reference("2026-11-20-names-7f3b")
    with pytest.raises(CheckpointError, match="similar: 2026-11-21-tiny-01bc"):
        resolve_reference("2026-11-20-tinny-7f3b")


@pytest.mark.parametrize("reference", ["nothing", "", "a/b/c", "x" * 10_000, "\x1b[31m", "last"])
def test_nothing_to_find(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        resolve_reference(reference)
    lines = caught.value.lines()
    assert len(lines) <= 3
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert caught.value.fix


def test_a_folder_that_is_no_run(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CheckpointError, match=r"not a run: it has no run\.json"):
        resolve_reference(str(tmp_path / "a"))
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(CheckpointError, match="no run called"):
        resolve_reference(str(tmp_path / "loop"))


def test_a_name_wins_over_a_folder_that_is_no_run(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(folder=tmp_path / "runs" / "mine")
    (tmp_path / "work" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    assert resolve_reference("mine").run.path.samefile(run.path)


def test_what_is_resumed_is_the_last_run_that_was_stopped(make: MakeRun) -> None:
    """Not one that is finished, in use, damaged, or without a checkpoint."""
    older, stopped = make(), make()
    finished, another, empty, torn = make(finished=True), make(finished=True), make(steps=()), make()
    for checkpoint in (torn.path / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").unlink()
    used = make()
    with used:
        used.lock()
        run, passed = find_resumable_run(or_finished=False)
        assert run.name == stopped.name
        assert passed == [
            f"{used.name} is running",
            f"{torn.name} is without an intact checkpoint",
            "1 other newer run is without an intact checkpoint",
            "2 other newer runs are finished",
        ]
        shutil.rmtree(empty.path)
        assert find_resumable_run(or_finished=False)[1][2:] == ["2 other newer runs are finished"]
        shutil.rmtree(another.path)
        assert find_resumable_run(or_finished=True)[0].name == finished.name
    assert find_resumable_run(or_finished=False)[0].name == used.name
    for other in (used, stopped):
        shutil.rmtree(other.path)
    assert find_resumable_run(or_finished=False)[0].name == older.name
    shutil.rmtree(older.path)
    assert find_resumable_run(or_finished=False)[0].name == finished.name


def test_a_misspelt_last_is_recognized_and_a_file_is_no_run(make: MakeRun, tmp_path: Path) -> None:
    make()
    with pytest.raises(CheckpointError) as refused:
        resolve_reference("lst")
    assert refused.value.where == "similar: last"
    (tmp_path / "book.txt").write_text("text")
    with pytest.raises(CheckpointError, match="a file, not a run") as refused:
        resolve_reference(str(tmp_path / "book.txt"))
    assert "last" in refused.value.fix
