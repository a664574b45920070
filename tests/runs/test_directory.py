"""Runs on disk: how they are named, begun, gone on with and read, and what damage and full disks do to them."""

import errno
import platform
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool import __version__
from lmtool.runs.creation import check_output_free_and_writable, create_and_lock_run
from lmtool.runs.directory import Run
from lmtool.runs.files import ValidationState, describe_environment
from lmtool.runs.lock import RunLock
from lmtool.runs.saving import CheckpointContent
from tests.support.damage import forge
from tests.support.disks import failing_call
from tests.support.errors import refuses
from tests.support.runs import FILES, MakeRun, locked, names, run_info, start_session, step_names


def validated(step: int, best_step: int | None) -> ValidationState:
    return ValidationState(step=step, best_step=best_step, best_value=1.5, stale=0)


def is_recorded(run: Run, state: ValidationState | None) -> bool:
    found = run.last_validation
    return (found and found.model_copy(update={"checksum": None})) == state


def validate(run: Run, step: int, best_step: int | None) -> None:
    with locked(run):
        run.record_validation_and_prune_checkpoints(validated(step, best_step))


def writes(run: Run) -> list[Callable[[], object]]:
    """All that changes a run of two steps, to go on at the second."""
    return [
        lambda: run.save_checkpoint(CheckpointContent(30, {}, {}, {}), keep_last=1),
        lambda: start_session(run, 20),
        lambda: start_session(run, 10),
        lambda: run.record_session_end("finished"),
        lambda: run.replace_recipe("seed: 3\n"),
        lambda: run.record_validation_and_prune_checkpoints(validated(20, 10)),
    ]


def logged_steps(run: Run) -> list[int]:
    """Those of both logs."""
    steps, of_samples = ([record["step"] for record in log.read_records()] for log in (run.metrics, run.samples))
    assert steps == of_samples
    return steps


@pytest.mark.parametrize(
    ("recipe", "shown"),
    [
        ("tiny", "tiny"),
        ("../my recipe (é)", "my-recipe"),
        ("é", "run"),
        ("HuggingFaceTB--SmolLM2-135M-Instruct", "SmolLM2-135M"),
        ("finetune-sentence-transformers--all-MiniLM-L6-v2", "finetune-all"),
        ("finetune-2026-11-27-finetune-tiny-0290", "finetune-tiny"),
        ("2026-11-27-tiny-0290-merged", "tiny-merged"),
        ("my.recipe.with.a.name.that.is.long", "my.recipe.with.a"),
    ],
)
def test_a_run_is_named_after_day_and_recipe_in_few_letters(runs: Path, recipe: str, shown: str) -> None:
    with create_and_lock_run(None, run_info(recipe), FILES) as run:
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-{re.escape(shown)}-[0-9a-f]{{4}}", run.name)
        assert len(run.name) <= 32
        assert run.path.parent == runs


def test_names_do_not_collide(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["7f3a", "7f3a", "7f3a", "01bc"])
    monkeypatch.setattr("secrets.token_hex", lambda n: next(tokens))
    with create_and_lock_run(None, run_info(), FILES) as first, create_and_lock_run(None, run_info(), FILES) as second:
        assert first.name.endswith("-tiny-7f3a")
        assert second.name.endswith("-tiny-01bc")


def test_a_new_run_keeps_its_files_and_environment(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with create_and_lock_run(folder, run_info(), FILES) as run:
        start_session(run, command=["lmtool", "pretrain"], environment=describe_environment("cpu"))
    assert names(run.path) == [".lock", "checkpoints", "notes.txt", "recipe.yaml", "run.json", "tokenizer.json"]
    assert {path.name: path.read_bytes() for path in (run.recipe_path, run.tokenizer_path)} == FILES
    again = Run.open(run.path)
    assert again.info.fingerprints.model_dump() == {"data": "d0", "tokenizer": "t0"}
    (session,) = again.info.sessions
    assert session.command == ["lmtool", "pretrain"]
    expected = {"lmtool": __version__, "python": platform.python_version(), "threads": torch.get_num_threads()}
    assert session.environment.items() >= (expected | {"gpu": None}).items()
    assert str(session.environment["torch"]).split("+")[0] == torch.__version__.split("+")[0]
    assert again.last_started == session.started > again.info.created


def attempts(folder: Path | None) -> list[Callable[[], object]]:
    return [
        lambda: check_output_free_and_writable(folder),
        lambda: create_and_lock_run(folder, run_info(), FILES),
    ]


@pytest.mark.parametrize("used", ["run.json", "recipe.yaml", "metrics.jsonl", "split.json", "checkpoints"])
def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path, used: str) -> None:
    (tmp_path / used).write_text("mine")
    for attempt in attempts(tmp_path):
        with refuses("output_exists") as caught:
            attempt()
        assert caught.value.where == str(tmp_path)
    assert (tmp_path / used).read_text() == "mine"
    assert names(tmp_path) == [used]


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    blocked = tmp_path / "file" / "out"
    monkeypatch.setenv("LMTOOL_RUNS", str(blocked))
    for attempt in attempts(blocked) + attempts(None):
        with refuses("resource") as caught:
            attempt()
        assert caught.value.where == str(blocked)
    check_output_free_and_writable(tmp_path / "a" / "b")
    assert names(tmp_path) == ["file"]  # a check leaves nothing
    with failing_call(tempfile, "TemporaryFile", code=errno.EROFS), refuses("resource"):
        check_output_free_and_writable(tmp_path / "a" / "b")


@pytest.mark.parametrize("number", range(1, 6))
def test_a_full_disk_while_making_a_run_frees_the_lock(tmp_path: Path, number: int) -> None:
    with failing_call(number=number), refuses("no_space"):
        create_and_lock_run(tmp_path / "out", run_info(), FILES)
    RunLock(tmp_path / "out").release()
    # Either there is no run, or a complete one.
    if (tmp_path / "out" / "run.json").exists():
        assert Run.open(tmp_path / "out").info.fingerprints == run_info().fingerprints


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_again(make: MakeRun, tmp_path: Path) -> None:
    aborted = make(folder=tmp_path / "out", steps=())
    with refuses("output_exists"):
        check_output_free_and_writable(aborted.path)
    check_output_free_and_writable(aborted.path, replace_aborted=True)
    with create_and_lock_run(aborted.path, run_info("other"), FILES, replace_aborted=True) as again:
        assert again.info.recipe == "other"
        assert names(again.path) == [".lock", "checkpoints", "recipe.yaml", "run.json", "tokenizer.json"]
        with refuses("checkpoint"):  # it is in use
            check_output_free_and_writable(aborted.path, replace_aborted=True)
    begun = make(folder=tmp_path / "begun")
    with refuses("checkpoint"):
        check_output_free_and_writable(begun.path, replace_aborted=True)
    with refuses("checkpoint"):
        create_and_lock_run(begun.path, run_info(), FILES, replace_aborted=True)
    (tmp_path / "recipe.yaml").write_text("mine")
    with refuses("output_exists"):
        check_output_free_and_writable(tmp_path, replace_aborted=True)


def test_only_the_process_with_the_lock_writes(make: MakeRun) -> None:
    run = make()
    for write in writes(run):
        with pytest.raises(RuntimeError, match="lock"):
            write()
    with locked(run):
        run.lock()
        with refuses("run_in_use"):
            Run.open(run.path).lock()
        assert Run.open(run.path).find_newest_checkpoint()[0].step == 20
    Run.open(run.path).lock()


def test_a_run_is_stopped_running_or_finished(make: MakeRun) -> None:
    run = make()
    assert run.state == "stopped"
    run.lock()
    assert Run.open(run.path).state == "running"
    run.record_session_end("finished")
    run.release_lock()
    assert Run.open(run.path).state == "finished"
    run.lock()
    start_session(run, 20)
    run.release_lock()
    assert Run.open(run.path).state == "stopped"


@pytest.mark.parametrize("pending", [False, True])
def test_resuming_takes_away_what_came_after_its_step(make: MakeRun, pending: bool) -> None:
    """And the records of a step that is still to be validated."""
    run = make(steps=(10, 20, 30))
    with run.metrics.path.open("ab") as file:
        file.write(b'{"step": 31, "lo')
    (run.path / "metrics.json").write_text("{}")
    with locked(run):
        start_session(run, 20, is_validation_pending=pending)
        assert logged_steps(run) == ([10] if pending else [10, 20])
        assert names(run.path / "checkpoints") == [*step_names(10, 20), "step-000030.aside-1"]
        assert not (run.path / "metrics.json").exists()
        assert [session.step for session in run.info.sessions] == [0, 20]
        assert run.find_newest_checkpoint()[0].step == 20
        run.save_checkpoint(CheckpointContent(30, {"w": torch.tensor([-30])}, {}, {}, 10), keep_last=1)
        assert run.find_newest_checkpoint()[0].load_model()["w"].item() == -30
        assert names(run.path / "checkpoints") == [*step_names(10, 30), "step-000030.aside-1"]


def test_a_damaged_best_gives_way_to_the_newest(make: MakeRun) -> None:
    run = make(steps=(10, 20, 30))
    best, warnings = run.find_best_or_newest_checkpoint()
    assert (best.step, warnings) == (10, [])
    (best.path / "state.json").unlink()
    best, (warning,) = run.find_best_or_newest_checkpoint()
    assert best.step == 30
    assert "step-000010" in warning
    validate(run, 30, 30)
    (best.path / "state.json").unlink()
    best, warnings = run.find_best_or_newest_checkpoint()
    assert best.step == 20
    assert len([text for text in warnings if "step-000030" in text]) == 1


@pytest.mark.parametrize("recorded", [None, 10, 20])
def test_the_best_is_found_without_reading_the_others(make: MakeRun, recorded: int | None) -> None:
    """Which may be large; from the recorded step, or else the newest manifest."""
    run = make(steps=(10, 20, 30))
    if recorded is not None:
        validate(run, 30, recorded)
    best_step = recorded or 10
    for step in {10, 20, 30} - {best_step}:
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            file = run.path / "checkpoints" / f"step-{step:06d}" / name
            file.write_bytes(bytes(len(file.read_bytes())))
    best, warnings = run.find_best_or_newest_checkpoint()
    assert (best.step, warnings) == (best_step, [])
    assert best.load_model()["w"].item() == best_step


def test_the_newest_is_the_best_before_any_validation(runs: Path) -> None:
    with create_and_lock_run(None, run_info(), FILES) as run:
        with refuses("no_checkpoint"):
            run.find_best_or_newest_checkpoint()
        for step in (1, 2):
            run.save_checkpoint(CheckpointContent(step, {}, {}, {}), keep_last=9)
        assert run.find_best_or_newest_checkpoint()[0].step == 2


@pytest.mark.parametrize("at_step", [None, validated(20, 10)])
def test_a_validation_is_recorded_until_a_session_begins_before_it(
    make: MakeRun, at_step: ValidationState | None
) -> None:
    run = make(steps=(10, 20, 30))
    assert run.last_validation is None
    with locked(run):
        run.record_validation_and_prune_checkpoints(validated(30, None))
        assert is_recorded(Run.open(run.path), validated(30, None))
        assert run.best_step is None
        run.record_validation_and_prune_checkpoints(validated(30, 20))
        assert run.best_step == 20
        start_session(run, 20, validated=at_step)
        assert is_recorded(run, at_step)
        assert run.best_step == 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, content) for name in ("run.json", "validated.json") for content in (b"{", b"[]", b"\xff")),
        ("validated.json", b'{"step": 1, "best_step": "2"}'),
        ("run.json", None),
        *(("run.json", {"created": "2026-01-01"}), ("run.json", {"base": {}}), ("run.json", {"format": 2})),
        *(("run.json", {"sessions": [{}]}), ("run.json", {"sessions": 3})),
        *(("run.json", {key: None}) for key in ("unknown", "fingerprints")),
        ("run.json", {"data": {"lines": [], "bytes_per_token": "many"}}),
    ],
)
def test_a_damaged_run_or_record_of_validation_is_refused(
    make: MakeRun, name: str, content: bytes | dict[str, Any] | None
) -> None:
    run = make()
    file = run.path / name
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        forge(file, **content)
    with refuses("checkpoint" if name == "run.json" else "damaged") as caught:
        Run.open(file.parent).find_best_or_newest_checkpoint()
    assert caught.value.where == str(file)
    assert len(caught.value.lines()) == 3


def test_a_full_disk_changes_nothing(make: MakeRun) -> None:
    run = make()
    with locked(run):
        run.record_validation_and_prune_checkpoints(validated(20, 20))
        run.replace_recipe("seed: 2\n")
        with failing_call():
            for write in writes(run):
                with refuses("no_space"):
                    write()
    again = Run.open(run.path)
    assert (again.info, again.recipe_path.read_text()) == (run.info, "seed: 2\n")
    assert again.find_newest_checkpoint()[0].step >= 10
