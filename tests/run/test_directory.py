import errno
import json
import math
import os
import platform
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool import __version__
from lmtool.errors import CheckpointError, ResourceError, UsageError
from lmtool.run.creation import check_output_folder, create_run
from lmtool.run.directory import Run
from lmtool.run.files import RunInfo, ValidationState, describe_environment
from lmtool.run.lock import RunLock
from lmtool.run.saving import Snapshot
from tests.errors import refuses
from tests.support.runs import MakeRun

FILES = {"recipe.yaml": b"seed: 1\n", "tokenizer.json": b"{}"}


def info(name: str = "tiny") -> RunInfo:
    return RunInfo.create(recipe=name, summary="", fingerprints={"data": "d0", "tokenizer": "t0"})


def validated(step: int, best_step: int | None) -> ValidationState:
    return ValidationState(step=step, best_step=best_step, best_value=1.5, stale=0)


def without_checksum(noted: ValidationState | None) -> ValidationState | None:
    return None if noted is None else noted.model_copy(update={"checksum": None})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_is_named_after_day_and_recipe(runs: Path) -> None:
    with create_run(None, info("../my recipe (é)"), FILES) as run:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-my-recipe-[0-9a-f]{4}", run.name)
        assert run.path.parent == runs
    with create_run(None, info("é"), FILES) as other:
        assert "-run-" in other.name


@pytest.mark.parametrize(
    ("recipe", "shown"),
    [
        ("tiny", "tiny"),
        ("finetune-default", "finetune-default"),
        ("HuggingFaceTB--SmolLM2-135M-Instruct", "SmolLM2-135M"),
        ("finetune-sentence-transformers--all-MiniLM-L6-v2", "finetune-all"),
        ("finetune-finetune-tiny-merged", "finetune-tiny"),
        ("finetune-2026-11-27-tiny-0290", "finetune-tiny"),
        ("finetune-2026-11-27-finetune-tiny-0290", "finetune-tiny"),
        ("2026-11-27-tiny-0290-merged", "tiny-merged"),
        ("my.recipe.with.a.name.that.is.long", "my.recipe.with.a"),
        ("--", "run"),
    ],
)
def test_a_name_that_is_made_is_short(runs: Path, recipe: str, shown: str) -> None:
    with create_run(None, info(recipe), FILES) as run:
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-{re.escape(shown)}-[0-9a-f]{{4}}", run.name)
        assert len(run.name) <= 32


def test_names_do_not_collide(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["7f3a", "7f3a", "7f3a", "01bc"])
    monkeypatch.setattr("secrets.token_hex", lambda n: next(tokens))
    with create_run(None, info(), FILES) as first, create_run(None, info(), FILES) as second:
        assert first.name.endswith("-tiny-7f3a")
        assert second.name.endswith("-tiny-01bc")


def test_what_is_kept_of_a_new_run(runs: Path, tmp_path: Path) -> None:
    with create_run(tmp_path / "deep" / "er", info(), FILES | {"tokenizer.json": b'{"kind": "word"}'}) as run:
        run.start_session(step=0, command=["lmtool", "pretrain"], environment=describe_environment("cpu"))
    assert names(run.path) == [".lock", "checkpoints", "recipe.yaml", "run.json", "tokenizer.json"]
    assert run.recipe_path.read_text() == "seed: 1\n"
    assert run.tokenizer_path.read_text() == '{"kind": "word"}'
    again = Run.open(run.path)
    assert again.info.fingerprints.model_dump() == {"data": "d0", "tokenizer": "t0"}
    (session,) = again.info.sessions
    assert session.command == ["lmtool", "pretrain"]
    assert session.environment["lmtool"] == __version__
    assert session.environment["python"] == platform.python_version()
    assert session.environment["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert session.environment["threads"] == torch.get_num_threads()
    assert session.environment["gpu"] is None
    assert again.last_started == session.started > again.info.created


@pytest.mark.parametrize(
    "used",
    [
        *("run.json", "recipe.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "validated.json"),
        *("split.json", "metrics.json", "checkpoints"),
    ],
)
def test_a_folder_that_holds_a_run_is_refused(runs: Path, tmp_path: Path, used: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / used).write_text("mine")
    for attempt in (lambda: check_output_folder(tmp_path / "out"), lambda: create_run(tmp_path / "out", info(), FILES)):
        with pytest.raises(UsageError, match=f"already holds {used}") as caught:
            attempt()
        assert caught.value.where == str(tmp_path / "out")
    assert (tmp_path / "out" / used).read_text() == "mine"
    assert names(tmp_path / "out") == [used]


def test_other_files_in_the_folder_stay(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create_run(tmp_path, info(), FILES).release_lock()
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("explicit", [True, False])
def test_a_folder_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explicit: bool
) -> None:
    (tmp_path / "file").write_text("")
    blocked = tmp_path / "file" / "out"
    monkeypatch.setenv("LMTOOL_RUNS", str(blocked))
    folder = blocked if explicit else None
    for attempt in (lambda: check_output_folder(folder), lambda: create_run(folder, info(), FILES)):
        with pytest.raises(ResourceError) as caught:
            attempt()
        assert caught.value.exit_code == 5
        assert caught.value.where == str(blocked)
        assert len(caught.value.lines()) == 3


def test_a_read_only_disk_is_noticed_without_a_trace(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_output_folder(tmp_path / "a" / "b")
    assert names(tmp_path) == []

    def read_only(**keywords: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(ResourceError, match="Read-only file system"):
        check_output_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_full_disk_while_making_a_run_frees_the_lock(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    count = 0
    fsync = os.fsync

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ResourceError, match="No space left"):
            create_run(tmp_path / "out", info(), FILES)
    RunLock(tmp_path / "out").release()
    # Either there is no run, or a complete one.
    if (tmp_path / "out" / "run.json").exists():
        assert Run.open(tmp_path / "out").info.fingerprints.model_dump() == info().fingerprints.model_dump()


def test_only_one_process_writes(make: MakeRun) -> None:
    run = make()
    with pytest.raises(RuntimeError, match="lock"):
        run.save_checkpoint(Snapshot(30, {}, {}, {}), keep_last=1)
    with pytest.raises(RuntimeError, match="lock"):
        run.start_session(step=0, command=[], environment={})
    with pytest.raises(RuntimeError, match="lock"):
        run.end_session("finished")
    with pytest.raises(RuntimeError, match="lock"):
        run.write_recipe("")
    with run:
        run.lock()
        run.lock()
        with pytest.raises(CheckpointError, match=f"pid {os.getpid()}"):
            Run.open(run.path).lock()
        assert Run.open(run.path).newest_checkpoint()[0].step == 20
    Run.open(run.path).lock()


def test_states(make: MakeRun) -> None:
    run = make()
    assert run.state == "stopped"
    run.lock()
    assert Run.open(run.path).state == "running"
    run.end_session("finished")
    run.release_lock()
    assert Run.open(run.path).state == "finished"
    run.lock()
    run.start_session(step=20, command=[], environment={})
    run.release_lock()
    assert Run.open(run.path).state == "stopped"


def test_resuming_takes_away_what_came_after(make: MakeRun) -> None:
    run = make(steps=(10, 20, 30))
    with run.metrics.path.open("ab") as file:
        file.write(b'{"step": 31, "lo')
    with run:
        run.lock()
        run.start_session(step=20, command=["lmtool", "resume"], environment={})
        assert [record["step"] for record in run.metrics.read_records()] == [10, 20]
        assert [record["step"] for record in run.samples.read_records()] == [10, 20]
        assert names(run.path / "checkpoints") == ["step-000010", "step-000020", "step-000030.aside-1"]
        assert [session.step for session in run.info.sessions] == [0, 20]
        run.save_checkpoint(Snapshot(30, {"w": torch.tensor([-30])}, {}, {}, 10), keep_last=1)
        assert run.newest_checkpoint()[0].load_model()["w"].item() == -30
        assert names(run.path / "checkpoints") == ["step-000010", "step-000030", "step-000030.aside-1"]


def test_the_recipe_is_replaced_whole(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as run:
        run.lock()
        run.write_recipe("seed: 2\n")
        assert run.recipe_path.read_text() == "seed: 2\n"

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with refuses("no_space"):
            run.write_recipe("seed: 3\n")
    assert run.recipe_path.read_text() == "seed: 2\n"


def test_the_best_is_found(make: MakeRun) -> None:
    run = make(steps=(10, 20, 30))
    best, warnings = run.best_checkpoint()
    assert (best.step, warnings) == (10, [])
    (best.path / "state.json").unlink()
    best, (warning,) = run.best_checkpoint()
    assert best.step == 30
    assert "using step-000030 instead of the best, step-000010: state.json is missing" in warning


@pytest.mark.parametrize("noted", [None, 10, 20])
def test_the_best_is_found_without_a_look_at_the_weights_of_others(make: MakeRun, noted: int | None) -> None:
    """Which may be large; from the recorded step, or else the newest manifest."""
    run = make(steps=(10, 20, 30))
    if noted is not None:
        with run:
            run.lock()
            run.save_validation(validated(30, noted))
    best_step = noted or 10
    for step in {10, 20, 30} - {best_step}:
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            file = run.path / "checkpoints" / f"step-{step:06d}" / name
            file.write_bytes(bytes(len(file.read_bytes())))
    best, warnings = run.best_checkpoint()
    assert (best.step, warnings) == (best_step, [])
    assert best.load_model()["w"].item() == best_step


def test_a_best_that_is_the_newest_and_damaged_is_told_once(make: MakeRun) -> None:
    run = make(steps=(10, 20))
    with run:
        run.lock()
        run.save_validation(validated(20, 20))
    (run.path / "checkpoints" / "step-000020" / "state.json").unlink()
    best, warnings = run.best_checkpoint()
    assert best.step == 10
    assert warnings == ["skipped the damaged checkpoint step-000020: state.json is missing"]


def test_what_is_noted_of_a_validation_is_there_again(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    assert run.last_validation is None
    with pytest.raises(RuntimeError, match="lock"):
        run.save_validation(validated(20, 10))
    with run:
        run.lock()
        run.save_validation(validated(20, None))
        assert without_checksum(Run.open(run.path).last_validation) == validated(20, None)
        assert run.best_step is None
        run.save_validation(validated(20, 20))

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with refuses("no_space"):
                run.save_validation(validated(20, 10))
        assert (run.best_step, run.best_checkpoint()[0].step) == (20, 20)


@pytest.mark.parametrize("noted", [None, validated(20, 10)])
def test_a_session_begins_with_what_is_known_of_its_step(make: MakeRun, noted: ValidationState | None) -> None:
    run = make(steps=(10, 20, 30))
    with run:
        run.lock()
        run.save_validation(validated(30, 30))
        run.start_session(step=20, command=[], environment={}, validated=noted)
        assert without_checksum(run.last_validation) == noted
        assert run.best_step == 10


@pytest.mark.parametrize("pending", [False, True])
def test_a_step_that_is_still_to_be_validated_is_still_to_be_logged(make: MakeRun, pending: bool) -> None:
    run = make(steps=(10, 20, 30))
    with run:
        run.lock()
        run.start_session(step=20, command=[], environment={}, pending=pending)
        assert [record["step"] for record in run.metrics.read_records()] == [10, 20][: 2 - pending]
        assert [record["step"] for record in run.samples.read_records()] == [10, 20][: 2 - pending]
        assert run.newest_checkpoint()[0].step == 20


def test_what_was_measured_at_the_end_goes_when_a_run_goes_on(make: MakeRun) -> None:
    run = make()
    (run.path / "metrics.json").write_text("{}")
    with run:
        run.lock()
        run.start_session(step=20, command=[], environment={})
    assert not (run.path / "metrics.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"step": 1}', b'{"step": 1, "best_step": "2"}'])
def test_a_damaged_note_is_refused(make: MakeRun, content: bytes) -> None:
    run = make()
    (run.path / "validated.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        run.best_checkpoint()
    assert len(caught.value.lines()) == 3
    assert "delete it" in caught.value.fix


def test_the_newest_is_the_best_before_any_validation(runs: Path) -> None:
    with create_run(None, info(), FILES) as run:
        with refuses("no_checkpoint"):
            run.best_checkpoint()
        for step in (1, 2):
            run.save_checkpoint(Snapshot(step, {}, {}, {}), keep_last=9)
        assert run.best_checkpoint()[0].step == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (b"\xff", "damaged"),
        (b"[" * 100_000, "damaged"),
        ({"format": 2}, "format should be 1, not 2"),
        ({"sessions": [{}]}, "damaged"),
        ({"sessions": 3}, "damaged"),
        ({"sessions": [{"started": "2026", "step": 0, "command": [], "outcome": None}]}, "damaged"),
        ({"created": 3}, "created should be a valid string"),
        ({"created": "2026-01-01"}, "created is no time of a session, or has no time zone"),
        ({"unknown": 3}, "unknown is unknown"),
        ({"base": {"run": "a"}}, "base.path is missing"),
        ({"data": {"lines": [], "bytes_per_token": math.nan}}, "damaged"),
        ({"fingerprints": None}, "damaged"),
        (None, "missing"),
    ],
)
def test_a_damaged_run_is_refused(make: MakeRun, content: bytes | dict[str, Any] | None, message: str) -> None:
    file = make().path / "run.json"
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | content))
    with pytest.raises(CheckpointError) as caught:
        Run.open(file.parent)
    assert message in caught.value.what
    assert caught.value.where == str(file)
    assert len(caught.value.lines()) == 3


def test_a_full_disk_is_a_resource_error_everywhere(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    run.lock()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for attempt in (
            lambda: run.start_session(step=20, command=[], environment={}),
            lambda: run.start_session(step=10, command=[], environment={}),
            lambda: run.end_session("finished"),
            lambda: run.save_checkpoint(Snapshot(30, {}, {}, {}), keep_last=1),
        ):
            with refuses("no_space") as caught:
                attempt()
            assert isinstance(caught.value, ResourceError)
            assert "free some disk space" in caught.value.fix
    run.release_lock()
    assert Run.open(run.path).info == run.info
    assert Run.open(run.path).newest_checkpoint()[0].step >= 10
