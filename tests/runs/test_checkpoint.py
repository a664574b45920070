"""Checkpoints: what is saved is loaded bit for bit, damage is found, and a failing disk leaves the earlier ones."""

import errno
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from lmtool.errors import CheckpointError, LmtoolError, ResourceError
from lmtool.runs import checkpoint, saving
from lmtool.runs import tensors as saved_tensors
from lmtool.runs.checkpoint import CHECKPOINT_FILES, Checkpoint
from lmtool.runs.saving import CheckpointContent
from tests.support.damage import flip_bit, sign
from tests.support.disks import failing_call
from tests.support.errors import refuses
from tests.support.runs import names, step_names

TYPES = (torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
STRIDED = {
    "transposed": torch.arange(12).reshape(3, 4).t(),
    **{str(dtype): torch.arange(9).to(dtype)[2:8:3] for dtype in TYPES},
}


def tensors(step: int) -> dict[str, Tensor]:
    return {
        "weight": torch.full((2, 3), float(step)),
        "half": torch.tensor([step, -0.0, math.inf, math.nan], dtype=torch.bfloat16),
        "count": torch.tensor(step),
        "empty": torch.empty(0, 4),
        "mask": torch.tensor([[True], [False]]),
    }


def save(folder: Path, step: int, best_step: int | None = None, keep_last: int = 99, **options: Any) -> Checkpoint:
    snapshot = CheckpointContent(step, tensors(step), {"moment": torch.tensor([step])}, {"step": step}, best_step)
    return saving.save_checkpoint(folder, snapshot, keep_last=keep_last, **options)


def as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Types and shapes included."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def refused(path: Path, **options: Any) -> LmtoolError:
    with refuses("checkpoint") as caught:
        checkpoint.open_and_verify_checkpoint(path, **options)
    assert len(caught.value.lines()) == 3
    assert all(line.isprintable() for line in caught.value.lines())
    return caught.value


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {"lr": 0.1 + 0.2, "words": "é\n\ud800", "none": None, "list": [1, 2]}
    saved = saving.save_checkpoint(tmp_path, CheckpointContent(7, tensors(7), STRIDED, state, 3), keep_last=1)
    path = tmp_path / "step-000007"
    loaded = checkpoint.open_and_verify_checkpoint(path)
    assert as_bytes(loaded.load_model()) == as_bytes(saved.load_model()) == as_bytes(tensors(7))
    assert (path / "model.safetensors").read_bytes() == as_bytes(tensors(7))
    assert as_bytes(loaded.load_optimizer()) == as_bytes(STRIDED)
    assert loaded.load_state() == state
    assert (loaded.step, loaded.best_step, loaded.digest) == (7, 3, saved.digest)
    assert loaded.digest == hashlib.sha256((path / "MANIFEST.json").read_bytes()).hexdigest()
    loaded.load_model()["weight"].add_(1)  # in memory only
    assert as_bytes(checkpoint.open_and_verify_checkpoint(path).load_model()) == as_bytes(tensors(7))


@pytest.mark.parametrize(
    ("model", "optimizer", "state"),
    [
        (dict.fromkeys(("embedding", "head"), torch.ones(2)), {}, {}),  # which share memory
        ({}, {"z": torch.zeros(1, dtype=torch.complex64)}, {}),
        ({}, {}, {"loss": math.nan}),
    ],
)
def test_what_no_file_can_hold_is_refused(model: Any, optimizer: Any, state: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'embedding' and 'head'|complex64|JSON"):
        saving.save_checkpoint(tmp_path, CheckpointContent(1, model, optimizer, state), keep_last=1)
    assert names(tmp_path) == []


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    for step, best_step in [(10, None), (20, 20), (30, 20), (40, 20), (50, 20)]:
        save(tmp_path, step, best_step, keep_last=2)
    assert names(tmp_path) == step_names(20, 40, 50)
    save(tmp_path, 999_999, best_step=999_999, keep_last=2)
    assert names(tmp_path) == step_names(50, 999_999)
    save(tmp_path, 10, keep_last=1)  # the one just saved
    assert names(tmp_path) == step_names(10, 999_999)
    save(tmp_path, 1_000_000, keep_last=1)  # by number, though its name sorts before
    assert names(tmp_path) == ["step-1000000"]
    assert checkpoint.find_newest_valid_checkpoint(tmp_path)[0].step == 1_000_000


@pytest.mark.parametrize(("best_step", "left"), [(20, [20, 40, 60]), (45, [40, 45, 60])])
def test_a_checkpoint_of_an_interruption_is_none_of_the_last(tmp_path: Path, best_step: int, left: list[int]) -> None:
    for step in (20, 40, 45):
        save(tmp_path, step)
    save(tmp_path, 60, best_step, keep_last=2, removable_step=45)
    assert names(tmp_path) == step_names(*left)


def test_saving_a_step_again_changes_nothing(tmp_path: Path) -> None:
    first = save(tmp_path, 5)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in first.path.iterdir()}
    assert save(tmp_path, 5, best_step=5, keep_last=1).digest == first.digest
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in first.path.iterdir()} == before
    assert names(tmp_path) == step_names(5)


def test_files_in_the_way_are_set_aside_and_others_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-1", "step-000004-copy", "step-00000٣", "best", f"step-{'9' * 200}"]
    for name in others:
        (tmp_path / name).mkdir()
    for _ in range(2):
        (save(tmp_path, 5).path / "state.json").write_text("damaged")
    (tmp_path / ".tmp-step-000004").mkdir()
    (tmp_path / ".tmp-step-000004/model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-file").write_bytes(b"half")
    assert checkpoint.open_and_verify_checkpoint(save(tmp_path, 5, keep_last=1).path).load_state() == {"step": 5}
    (tmp_path / "step-000006").write_text("a file")
    save(tmp_path, 6)
    aside = ["step-000005.aside-1", "step-000005.aside-2", "step-000006.aside-1"]
    assert names(tmp_path) == sorted([*others, *step_names(5, 6), *aside])
    assert (tmp_path / "step-000005.aside-2/state.json").read_text() == "damaged"
    assert (tmp_path / "step-000006.aside-1").read_text() == "a file"


def test_every_damage_of_a_file_is_found(tmp_path: Path) -> None:
    """A bit of each byte of a file, each length, and what is there in its place."""
    path = save(tmp_path, 5, best_step=4).path
    for file in path.iterdir():
        whole = file.read_bytes()
        for at in range(len(whole)):
            flip_bit(file, at)
            assert file.name in refused(path).what
            file.write_bytes(whole)
        for length in range(0, len(whole), 5):
            file.write_bytes(whole[:length])
            error = refused(path, verify_optimizer=False)
            assert file.name in error.what
            assert file.name not in CHECKPOINT_FILES or f"{length} of {len(whole)} bytes" in error.what
        file.write_bytes(whole + b"\0")
        assert file.name in refused(path).what
        file.unlink()
        assert file.name in refused(path).what
        file.symlink_to(file)
        assert refused(path).where == str(file)
        file.unlink()
        file.write_bytes(whole)
    flip_bit(path / "optimizer.safetensors", at=-1)  # which is compared when it is read
    unread = checkpoint.open_and_verify_checkpoint(path, verify_optimizer=False)
    assert as_bytes(unread.load_model()) == as_bytes(tensors(5))
    with pytest.raises(CheckpointError):
        unread.load_optimizer()


ENTRY = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        *(({"files": {name: ENTRY}}, "outside") for name in ("../secret", "/etc/passwd", "..", "", "a\0b\n")),
        ({"files": {}}, "model.safetensors"),
        ({"files": {"state.json": ENTRY}}, "model.safetensors"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, 3)}, "manifest"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, ENTRY | {"bytes": "1"})}, "manifest"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, ENTRY | {"more": 1})}, "manifest"),
        ({"files": [1]}, "manifest"),
        ({"step": "5"}, "manifest"),
        ({"step": 6}, "step 6"),
        ({"format": 2}, "format 2"),
        ({"note": "hello"}, "digest"),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    path = save(tmp_path, 5).path
    sign(path, **changes)
    assert part in refused(path).what


def test_signed_tensors_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5).path
    (path / "model.safetensors").write_bytes(b"junk")
    sign(path)
    with pytest.raises(CheckpointError):
        checkpoint.open_and_verify_checkpoint(path).load_model()


@pytest.mark.parametrize("content", [b"[]", b"\xff\xfe", b"{}", b"[" * 100_000, b"9" * 10_000])
@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json"])
def test_other_json_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, 5).path
    (path / name).write_bytes(content)
    assert name in refused(path).what


def test_the_newest_whole_checkpoint_is_taken_with_a_warning(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-000003/state.json").unlink()
    (tmp_path / "step-000002/model.safetensors").write_bytes(b"")
    taken, warnings = checkpoint.find_newest_valid_checkpoint(tmp_path)
    assert taken.step == 1
    assert ["step-000003" in warnings[0], "step-000002" in warnings[1], len(warnings)] == [True, True, 2]
    shutil.rmtree(tmp_path / "step-000001")
    for folder in tmp_path, tmp_path / "step-000002" / "none", tmp_path / "none":
        with pytest.raises(CheckpointError) as caught:
            checkpoint.find_newest_valid_checkpoint(folder)
        assert ("state.json" in caught.value.what) == (folder == tmp_path)
        assert caught.value.fix


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        # Four files, the directory they are in, and the one above.
        *((os, "fsync", number) for number in range(1, 7)),
        (Path, "mkdir", 1),
        (Path, "mkdir", 2),
        (os, "replace", 1),
    ],
)
def test_a_failing_disk_leaves_the_earlier_checkpoints(
    tmp_path: Path, owner: Any, name: str, number: int, code: int
) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    with (
        failing_call(owner, name, number, code),
        refuses("no_space" if code == errno.ENOSPC else "resource") as caught,
    ):
        save(tmp_path, 3, keep_last=1)
    assert os.strerror(code) in caught.value.what
    assert set(step_names(1, 2)) <= set(names(tmp_path)) <= set(step_names(1, 2, 3))
    for step, path in checkpoint.list_checkpoints(tmp_path):
        assert checkpoint.open_and_verify_checkpoint(path).step == step
    save(tmp_path, 4, keep_last=1)
    assert names(tmp_path) == step_names(4)


def test_a_checkpoint_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with failing_call(shutil, "rmtree", code=errno.EACCES), pytest.raises(ResourceError) as caught:
        save(tmp_path, 2, keep_last=1)
    assert "saved step 2" in caught.value.what
    assert checkpoint.find_newest_valid_checkpoint(tmp_path)[0].step == 2


def test_all_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    done: list[tuple[str, str]] = []
    replace = os.replace

    def record_fsync(handle: int) -> None:
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))

    def record_rename(old: Path, new: Path) -> None:
        done.append(("rename", old.name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_rename)
    save(tmp_path, 2, keep_last=1)
    temporary = ".tmp-step-000002"
    assert done == [
        *(("fsync", name) for name in (*CHECKPOINT_FILES, "MANIFEST.json", temporary)),
        ("rename", temporary),
        ("fsync", tmp_path.name),
        ("rename", "step-000001"),
    ]


def test_files_that_cannot_be_mapped_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library has the number of an error in its text only."""
    saved = save(tmp_path, 1)
    genuine, opened = safetensors.safe_open, list[Path]()

    def safe_open(path: Any, **named: Any) -> Any:
        opened.append(Path(path))
        if opened[-1].is_relative_to(tmp_path):
            raise OSError(f"{os.strerror(errno.ENODEV)} (os error {errno.ENODEV})")
        return genuine(path, **named)

    monkeypatch.setattr(saved_tensors, "safe_open", safe_open)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    read = saved_tensors.SavedTensors([saved.path / "model.safetensors"])
    assert as_bytes(read) == as_bytes(tensors(1))
    assert len(opened) == 2
    assert not opened[1].exists()
    with pytest.raises(CheckpointError):
        saved_tensors.SavedTensors([tmp_path / "none"])
