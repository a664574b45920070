"""Removing runs: whole ones, only theirs, and none that another run needs."""

import errno
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lmtool.errors import CheckpointError, ResourceError
from lmtool.runs.directory import Run
from lmtool.runs.find import find_run
from lmtool.runs.lock import RunLock
from lmtool.runs.removal import find_removable_runs_older_than, parse_age, remove_run, resolve_removable_runs
from tests.support.damage import forge
from tests.support.disks import failing_call
from tests.support.errors import refuses
from tests.support.runs import MakeRun, names

DAY = timedelta(days=1)
BASE = "model: {kind: recurrent, d_model: 8, context: 8}\ntraining: {steps: 1, batch_size: 1}\n"
ADAPTERS = BASE.replace("recurrent", "transformer, n_layers: 1, n_heads: 1") + "tuning: {lora: {rank: 1}}\n"


def aged(run: Run, days: float) -> Run:
    """The same run, last used so many days ago."""
    when = (datetime.now(UTC) - days * DAY).isoformat()
    sessions = forge(run.path / "run.json")["sessions"]
    forge(
        run.path / "run.json",
        sessions=[one | {"started": when, "ended": when if one["ended"] else None} for one in sessions],
    )
    return run


def adapt(run: Run, base: Run, recipe: str = ADAPTERS) -> None:
    path = str(base.path.resolve())
    forge(run.path / "run.json", base={"run": base.name, "path": path, "checkpoint": "step-000010", "sha256": ""})
    (run.path / "recipe.yaml").write_text(recipe)


def test_an_age_is_a_whole_number_and_a_unit() -> None:
    ages = {"12h": 12, "30d": 720, "2w": 336, "0d": 0}
    assert {text: parse_age(text) / timedelta(hours=1) for text in ages} == ages
    for text in ("", "30", "d", "-1d", "1.5d", "30 d", "30m", "999999999d", "٣d"):
        with refuses("usage"):
            parse_age(text)


def test_a_run_in_the_runs_directory_goes_as_a_whole(make: MakeRun, runs: Path) -> None:
    run, other = make(), make()
    (run.path / "notes.txt").write_text("mine")
    (run.path / "checkpoints" / "step-000005.aside-1").mkdir()
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert resolve_removable_runs([run.name, str(run.path)]) == [run.path]
    assert remove_run(run.path) == size
    assert names(runs) == [other.name]
    with refuses("run_not_found"):
        resolve_removable_runs([run.name])


def test_of_a_folder_elsewhere_only_the_files_of_the_run_go(make: MakeRun, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoints-old").mkdir()
    run = make(folder=folder)
    assert find_run("project")[0].path.samefile(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) - len("mine")
    assert remove_run(run.path) == size
    assert names(folder) == ["checkpoints-old", "notes.txt"]
    alone = make(folder=tmp_path / "alone")
    runs.mkdir(exist_ok=True)
    (runs / "link").symlink_to(alone.path)
    remove_run(runs / "link")
    assert not alone.path.exists()
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


def test_a_run_in_use_is_not_removed(make: MakeRun) -> None:
    run = aged(make(), 100)
    lock = RunLock(run.path)
    for attempt in (lambda: resolve_removable_runs([run.name]), lambda: remove_run(run.path)):
        with pytest.raises(CheckpointError):
            attempt()
    assert find_removable_runs_older_than(DAY) == []
    lock.release()
    assert find_removable_runs_older_than(DAY) == [run.path]


def test_only_runs_are_removed(make: MakeRun, tmp_path: Path) -> None:
    run = make()
    (tmp_path / "photos").mkdir()
    for other in (str(tmp_path / "photos"), f"{run.name}@10", str(run.path / "checkpoints" / "step-000010")):
        with pytest.raises(CheckpointError):
            resolve_removable_runs([run.name, other])
    assert run.find_newest_checkpoint()[0].step == 20


def test_a_damaged_run_goes_by_its_name(make: MakeRun, runs: Path) -> None:
    run = aged(make(), 100)
    (run.path / "run.json").write_text("{")
    assert find_removable_runs_older_than(DAY) == []
    assert resolve_removable_runs([run.name]) == [run.path]
    with failing_call(shutil, "rmtree", code=errno.EACCES), pytest.raises(ResourceError):
        remove_run(run.path)
    assert resolve_removable_runs([run.name]) == [run.path]  # again, after a removal that failed
    remove_run(run.path)
    assert list(runs.iterdir()) == []


def test_old_runs_are_found_but_for_imported_ones(make: MakeRun) -> None:
    make()
    old, oldest, imported = aged(make(finished=True), 40), aged(make(), 400), aged(make("imported"), 100)
    forge(
        imported.path / "run.json", origin={"reference": "hf:a/b", "revision": None, "model_type": "gpt2", "sha256": {}}
    )
    assert find_removable_runs_older_than(DAY) == find_removable_runs_older_than(30 * DAY) == [oldest.path, old.path]
    assert find_removable_runs_older_than(300 * DAY) == [oldest.path]
    assert resolve_removable_runs([imported.name]) == [imported.path]


def test_the_base_of_adapters_stays(make: MakeRun) -> None:
    base, adapters, whole = aged(make(), 100), make("adapters"), make("whole")
    adapt(whole, base, BASE)
    assert resolve_removable_runs([base.name]) == [base.path]
    adapt(adapters, base)
    with pytest.raises(CheckpointError) as caught:
        resolve_removable_runs([base.name])
    assert f"lmtool runs merge {adapters.name}" in caught.value.fix
    assert find_removable_runs_older_than(30 * DAY) == []
    assert resolve_removable_runs([base.name, adapters.name]) == [base.path, adapters.path]
    aged(adapters, 90)
    assert find_removable_runs_older_than(30 * DAY) == [base.path, adapters.path]
