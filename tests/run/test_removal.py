import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import CheckpointError, ResourceError, UsageError
from lmtool.records import encode_with_checksum
from lmtool.run.directory import Run
from lmtool.run.find import find_run
from lmtool.run.lock import RunLock
from lmtool.run.removal import find_removable_runs, find_runs_older_than, parse_age, remove_run
from tests.errors import refuses
from tests.run.conftest import MakeRun

BASE = "model: {kind: recurrent, d_model: 8, context: 8}\ntraining: {steps: 1, batch_size: 1}\n"
ADAPTERS = BASE.replace("recurrent, d_model: 8", "transformer, n_layers: 1, n_heads: 1, d_model: 8") + (
    "tuning: {lora: {rank: 1}}\n"
)


def unsealed(run: Run) -> dict[str, Any]:
    """What its run.json says, without the checksum."""
    info: dict[str, Any] = json.loads((run.path / "run.json").read_text())
    del info["checksum"]
    return info


def aged(run: Run, days: float) -> Run:
    """The same run, last used so many days ago."""
    info = unsealed(run)
    when = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    for session in info["sessions"]:
        session["started"] = when
        if session["ended"]:
            session["ended"] = when
    (run.path / "run.json").write_bytes(encode_with_checksum(info))
    return run


def adapted(run: Run, base: Run, recipe: str = ADAPTERS) -> None:
    info = unsealed(run)
    info["base"] = {"run": base.name, "path": str(base.path.resolve()), "checkpoint": "step-000010", "sha256": ""}
    (run.path / "run.json").write_bytes(encode_with_checksum(info))
    (run.path / "recipe.yaml").write_text(recipe)


@pytest.mark.parametrize(("text", "hours"), [("12h", 12), ("30d", 720), ("2w", 336), ("0d", 0)])
def test_ages(text: str, hours: int) -> None:
    assert parse_age(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "30 d", "30m", "999999999d", "٣d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(UsageError, match="is not an age") as caught:
        parse_age(text)
    assert caught.value.exit_code == 2


def test_a_run_in_the_runs_directory_goes_as_a_whole(make: MakeRun, runs: Path) -> None:
    run, other = make(), make()
    (run.path / "notes.txt").write_text("mine")
    (run.path / "checkpoints" / "step-000005.aside-1").mkdir()
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert find_removable_runs([run.name, str(run.path)]) == [run.path]
    assert remove_run(run.path) == size
    assert [path.name for path in runs.iterdir()] == [other.name]
    with refuses("run_not_found"):
        find_removable_runs([run.name])


def test_files_of_others_stay_where_a_run_is_elsewhere(make: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoints-old").mkdir()
    run = make(folder=folder)
    assert find_run("project")[0].path.samefile(folder)
    assert remove_run(run.path) > 0
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints-old", "notes.txt"]
    alone = make(folder=tmp_path / "alone")
    remove_run(alone.path)
    assert not alone.path.exists()


def test_a_link_to_a_run(make: MakeRun, runs: Path, tmp_path: Path) -> None:
    run = make(folder=tmp_path / "far")
    runs.mkdir(exist_ok=True)
    (runs / "link").symlink_to(run.path)
    remove_run(runs / "link")
    assert not run.path.exists()
    assert list(runs.glob("link")) == []


def test_links_in_a_run_are_not_followed(make: MakeRun, tmp_path: Path) -> None:
    run = make()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text("mine")
    (run.path / "data").symlink_to(tmp_path / "data")
    shutil.move(run.path / "checkpoints", tmp_path / "checkpoints")
    (run.path / "checkpoints").symlink_to(tmp_path / "checkpoints")
    remove_run(run.path)
    assert (tmp_path / "data" / "text.txt").read_text() == "mine"
    assert (tmp_path / "checkpoints" / "step-000010").is_dir()
    assert not run.path.exists()


def test_a_run_that_is_used_is_not_removed(make: MakeRun) -> None:
    run = aged(make(), 100)
    lock = RunLock(run.path)
    for attempt in (lambda: find_removable_runs([run.name]), lambda: remove_run(run.path)):
        with pytest.raises(CheckpointError, match="process is using this run"):
            attempt()
    assert find_runs_older_than(timedelta(days=1)) == []
    lock.release()
    assert find_runs_older_than(timedelta(days=1)) == [run.path]


def test_what_is_no_run_is_not_removed(make: MakeRun, tmp_path: Path) -> None:
    run = make()
    (tmp_path / "photos").mkdir()
    with pytest.raises(CheckpointError, match="not a run"):
        find_removable_runs([run.name, str(tmp_path / "photos")])
    for reference in (f"{run.name}@10", str(run.path / "checkpoints" / "step-000010")):
        with pytest.raises(CheckpointError, match="names a checkpoint, not a run"):
            find_removable_runs([reference])
    assert run.newest_checkpoint()[0].step == 20


def test_a_damaged_run_goes_by_its_name(make: MakeRun, runs: Path) -> None:
    run = aged(make(), 100)
    (run.path / "run.json").write_text("{")
    assert find_runs_older_than(timedelta(days=1)) == []
    assert find_removable_runs([run.name]) == [run.path]
    remove_run(run.path)
    assert list(runs.iterdir()) == []


def test_only_old_runs_are_old(make: MakeRun) -> None:
    new, old, oldest = make(), aged(make(finished=True), 40), aged(make(), 400)
    imported = aged(make("imported"), 100)
    origin = {"reference": "hf:a/b", "revision": None, "model_type": "gpt2", "sha256": {}}
    info = unsealed(imported) | {"origin": origin}
    (imported.path / "run.json").write_bytes(encode_with_checksum(info))
    assert find_runs_older_than(timedelta(days=30)) == [oldest.path, old.path]
    assert find_runs_older_than(timedelta(days=300)) == [oldest.path]
    assert find_removable_runs([imported.name]) == [imported.path]
    assert new.path not in find_runs_older_than(timedelta(days=1))


def test_the_base_of_adapters_stays(make: MakeRun) -> None:
    base, adapters, whole = aged(make(), 100), make("adapters"), make("whole")
    adapted(whole, base, BASE)
    assert find_removable_runs([base.name]) == [base.path]
    adapted(adapters, base)
    with pytest.raises(CheckpointError, match=f"{adapters.name} holds only adapters") as caught:
        find_removable_runs([base.name])
    assert f"lmtool runs merge {adapters.name}" in caught.value.fix
    assert find_runs_older_than(timedelta(days=30)) == []
    assert find_removable_runs([base.name, adapters.name]) == [base.path, adapters.path]
    aged(adapters, 90)
    assert find_runs_older_than(timedelta(days=30)) == [base.path, adapters.path]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove everything")
def test_a_folder_that_cannot_be_written(make: MakeRun) -> None:
    run = make()
    (run.path / "checkpoints").chmod(0o500)
    with pytest.raises(ResourceError, match="cannot be removed"):
        remove_run(run.path)
    (run.path / "checkpoints").chmod(0o700)
    remove_run(run.path)
    assert not run.path.exists()


def test_a_removal_that_fails_can_be_repeated(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(ResourceError, match="Permission denied"):
            remove_run(run.path)
    assert find_removable_runs([run.name]) == [run.path]
    remove_run(run.path)
    assert not run.path.exists()
