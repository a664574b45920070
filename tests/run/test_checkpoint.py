import errno
import hashlib
import json
import math
import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from lmtool.errors import CheckpointError, ResourceError
from lmtool.run import checkpoint, saving
from lmtool.run import tensors as saved_tensors
from lmtool.run.checkpoint import CHECKPOINT_FILES, Checkpoint
from lmtool.run.saving import Snapshot


def tensors(step: int) -> dict[str, Tensor]:
    return {
        "weight": torch.full((2, 3), float(step)),
        "half": torch.tensor([step, -0.0, math.inf, math.nan], dtype=torch.bfloat16),
        "count": torch.tensor(step),
        "empty": torch.empty(0, 4),
        "mask": torch.tensor([[True], [False]]),
    }


def save(
    folder: Path, step: int, best_step: int | None = None, keep_last: int = 99, superseded: int | None = None
) -> Checkpoint:
    return saving.save_checkpoint(
        folder,
        Snapshot(step, tensors(step), {"moment": torch.tensor([step])}, {"step": step}, best_step),
        keep_last=keep_last,
        interrupted_step=superseded,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Bit for bit, types and shapes included."""
    return safetensors.torch.save(dict(a)) == safetensors.torch.save(dict(b))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = {"lr": 0.1 + 0.2, "words": "é\n\ud800", "none": None, "list": [1, 2]}
    saved = saving.save_checkpoint(tmp_path, Snapshot(7, tensors(7), {}, state, 3), keep_last=1)
    loaded = checkpoint.verify_checkpoint(tmp_path / "step-000007")
    assert equal(loaded.load_model(), tensors(7))
    assert dict(loaded.load_optimizer()) == {}
    assert loaded.load_state() == state
    assert (loaded.step, loaded.best_step, loaded.digest) == (7, 3, saved.digest)
    assert loaded.digest == hashlib.sha256((tmp_path / "step-000007/MANIFEST.json").read_bytes()).hexdigest()
    assert equal(saved.load_model(), tensors(7))


def test_tensor_files_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert (tmp_path / "step-000001/model.safetensors").read_bytes() == safetensors.torch.save(tensors(1))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_types_and_strides_survive(tmp_path: Path, dtype: torch.dtype) -> None:
    given = {"t": torch.arange(12).reshape(3, 4).to(dtype).t(), "slice": torch.arange(9).to(dtype)[2:8:3]}
    saving.save_checkpoint(tmp_path, Snapshot(1, given, {}, {}), keep_last=1)
    loaded = checkpoint.verify_checkpoint(tmp_path / "step-000001").load_model()
    assert loaded.keys() == given.keys()
    assert all(torch.equal(loaded[name], given[name]) and loaded[name].dtype == dtype for name in given)


def test_loaded_tensors_can_be_trained_on(tmp_path: Path) -> None:
    path = save(tmp_path, 1).path
    checkpoint.verify_checkpoint(path).load_model()["weight"].add_(1)
    assert equal(checkpoint.verify_checkpoint(path).load_model(), tensors(1))


def test_tied_tensors_are_refused_by_name(tmp_path: Path) -> None:
    weight = torch.ones(2)
    with pytest.raises(ValueError, match="'embedding' and 'head' share memory"):
        saving.save_checkpoint(tmp_path, Snapshot(1, {"embedding": weight, "head": weight}, {}, {}), keep_last=1)
    with pytest.raises(ValueError, match="complex64"):
        saving.save_checkpoint(tmp_path, Snapshot(1, {}, {"z": torch.zeros(1, dtype=torch.complex64)}, {}), keep_last=1)
    with pytest.raises(ValueError, match="JSON"):
        saving.save_checkpoint(tmp_path, Snapshot(1, {}, {}, {"loss": math.nan}), keep_last=1)
    assert names(tmp_path) == []


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    for step, best_step in [(10, None), (20, 20), (30, 20), (40, 20), (50, 20)]:
        save(tmp_path, step, best_step, keep_last=2)
    assert names(tmp_path) == ["step-000020", "step-000040", "step-000050"]
    save(tmp_path, 60, best_step=60, keep_last=2)
    assert names(tmp_path) == ["step-000050", "step-000060"]


@pytest.mark.parametrize(("best_step", "left"), [(20, [20, 40, 60]), (45, [40, 45, 60])])
def test_one_that_is_superseded_is_none_of_the_last(tmp_path: Path, best_step: int, left: list[int]) -> None:
    for step in (20, 40, 45):
        save(tmp_path, step)
    save(tmp_path, 60, best_step, keep_last=2, superseded=45)
    assert names(tmp_path) == [f"step-{step:06d}" for step in left]


def test_the_one_just_saved_is_never_removed(tmp_path: Path) -> None:
    save(tmp_path, 900)
    save(tmp_path, 10, keep_last=1)
    assert names(tmp_path) == ["step-000010", "step-000900"]


def test_a_million_steps_sort_as_numbers(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        save(tmp_path, step, keep_last=1)
    assert names(tmp_path) == ["step-1000000"]
    assert checkpoint.find_newest_valid(tmp_path)[0].step == 1_000_000


def test_saving_a_step_again_changes_nothing(tmp_path: Path) -> None:
    first = save(tmp_path, 5)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in first.path.iterdir()}
    again = save(tmp_path, 5, best_step=5, keep_last=1)
    assert again.digest == first.digest
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in first.path.iterdir()} == before
    assert names(tmp_path) == ["step-000005"]


def test_what_is_in_the_way_is_set_aside_not_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        (save(tmp_path, 5).path / "state.json").write_text("damaged")
    assert checkpoint.verify_checkpoint(save(tmp_path, 5, keep_last=1).path).load_state() == {"step": 5}
    (tmp_path / "step-000006").write_text("a file")
    save(tmp_path, 6)
    assert names(tmp_path) == [
        "step-000005",
        "step-000005.aside-1",
        "step-000005.aside-2",
        "step-000006",
        "step-000006.aside-1",
    ]
    assert (tmp_path / "step-000005.aside-2/state.json").read_text() == "damaged"
    assert (tmp_path / "step-000006.aside-1").read_text() == "a file"


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-1", "step-000004-copy", "step-00000٣", "best", f"step-{'9' * 200}"]
    for name in others:
        (tmp_path / name).mkdir()
    for step in (8, 9):
        save(tmp_path, step, keep_last=1)
    assert names(tmp_path) == sorted([*others, "step-000009"])


def test_leftovers_are_removed_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-000004").mkdir()
    (tmp_path / ".tmp-step-000004/model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-file").write_bytes(b"half")
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-000005"]


# Damage


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Each of the manifest, and one in each byte of the files whose digests it has."""
    path = save(tmp_path, 5, best_step=4).path
    for file in path.iterdir():
        whole = file.read_bytes()
        for position in range(0, 8 * len(whole), 1 if file.name == "MANIFEST.json" else 9):
            damaged = bytearray(whole)
            damaged[position // 8] ^= 1 << position % 8
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError) as caught:
                checkpoint.verify_checkpoint(path)
            assert file.name in caught.value.what
        file.write_bytes(whole)
    assert checkpoint.verify_checkpoint(path).step == 5


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 5).path
    for file in path.iterdir():
        whole = file.read_bytes()
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            with pytest.raises(CheckpointError) as caught:
                checkpoint.verify_checkpoint(path, optimizer=False)
            assert file.name in caught.value.what
            if file.name in CHECKPOINT_FILES:
                assert f"truncated: {length} of {len(whole)} bytes" in caught.value.what
        file.write_bytes(whole + b"\0")
        with pytest.raises(CheckpointError, match=file.name):
            checkpoint.verify_checkpoint(path)
        file.unlink()
        with pytest.raises(CheckpointError, match=f"{file.name} is missing"):
            checkpoint.verify_checkpoint(path)
        file.symlink_to(file)
        with pytest.raises(CheckpointError, match=f"{file.name} cannot be read"):
            checkpoint.verify_checkpoint(path)
        file.unlink()
        file.write_bytes(whole)


def test_an_error_has_three_lines_and_says_what_to_do(tmp_path: Path) -> None:
    path = save(tmp_path, 5).path
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.verify_checkpoint(path)
    assert caught.value.exit_code == 4
    what, where, fix = caught.value.lines()
    assert "model.safetensors is truncated: 0 of" in what
    assert str(path / "model.safetensors") in where
    assert "name another checkpoint" in fix


def test_the_optimizer_is_compared_when_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 5).path
    content = bytearray((path / "optimizer.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "optimizer.safetensors").write_bytes(content)
    unread = checkpoint.verify_checkpoint(path, optimizer=False)
    assert equal(unread.load_model(), tensors(5))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has changed"):
        unread.load_optimizer()


def rewrite_manifest(path: Path, **changes: Any) -> None:
    """Change a manifest the way someone would who knows the format, digest included."""
    content = json.loads((path / "MANIFEST.json").read_text()) | changes
    del content["sha256"]
    digest = hashlib.sha256((json.dumps(content, indent=1) + "\n").encode()).hexdigest()
    (path / "MANIFEST.json").write_text(json.dumps(content | {"sha256": digest}, indent=1) + "\n")


ENTRY = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {"../secret": ENTRY}}, "outside the checkpoint"),
        ({"files": {"/etc/passwd": ENTRY}}, "outside the checkpoint"),
        ({"files": {"..": ENTRY}}, "outside the checkpoint"),
        ({"files": {"": ENTRY}}, "outside the checkpoint"),
        ({"files": {"a\0b\n": ENTRY}}, "outside the checkpoint"),
        ({"files": {}}, "should name model.safetensors"),
        ({"files": {"state.json": ENTRY}}, "should name model.safetensors"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, 3)}, "is not a manifest"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, ENTRY | {"bytes": "1"})}, "is not a manifest"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, ENTRY | {"more": 1})}, "is not a manifest"),
        ({"files": [1]}, "is not a manifest"),
        ({"step": "5"}, "is not a manifest"),
        ({"step": 6}, "is that of step 6"),
        ({"format": 2}, "has format 2; this lmtool reads 1"),
        ({"note": "hello"}, "does not match the digest"),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = save(tmp_path, 5).path
    rewrite_manifest(path)
    checkpoint.verify_checkpoint(path)
    rewrite_manifest(path, **changes)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.verify_checkpoint(path)
    assert message in caught.value.what
    assert all(line.isprintable() for line in caught.value.lines())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"[" * 100_000, b"9" * 10_000])
@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json"])
def test_bad_json_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, 5).path
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.verify_checkpoint(path)


def test_tensors_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 5).path
    (path / "model.safetensors").write_bytes(b"junk")
    entries = json.loads((path / "MANIFEST.json").read_text())["files"]
    entries["model.safetensors"] = {"bytes": 4, "sha256": hashlib.sha256(b"junk").hexdigest()}
    rewrite_manifest(path, files=entries)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        checkpoint.verify_checkpoint(path).load_model()


def test_the_newest_whole_one_is_taken_with_a_warning(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-000003/state.json").unlink()
    (tmp_path / "step-000002/model.safetensors").write_bytes(b"")
    taken, warnings = checkpoint.find_newest_valid(tmp_path)
    assert taken.step == 1
    assert [warning.split(":")[0] for warning in warnings] == [
        f"skipped the damaged checkpoint step-00000{step}" for step in (3, 2)
    ]
    assert "state.json is missing" in warnings[0]
    shutil.rmtree(tmp_path / "step-000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint of this run is complete.*state\.json is missing"):
        checkpoint.find_newest_valid(tmp_path)


@pytest.mark.parametrize("missing", [True, False])
def test_no_checkpoint_is_said_so(tmp_path: Path, missing: bool) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint yet") as caught:
        checkpoint.find_newest_valid(tmp_path / "checkpoints" if missing else tmp_path)
    assert caught.value.fix


# The disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
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
def test_a_full_disk_leaves_the_earlier_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, code: int
) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    genuine = getattr(owner, name)
    calls = 0

    def fail_at_number(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(code, os.strerror(code))
        return genuine(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail_at_number)
        with pytest.raises(ResourceError) as caught:
            save(tmp_path, 3, keep_last=1)
    assert caught.value.exit_code == 5
    assert os.strerror(code) in caught.value.what
    assert ("free some disk space" in caught.value.fix) == (code in (errno.ENOSPC, errno.EDQUOT))
    assert {"step-000001", "step-000002"} <= set(names(tmp_path)) <= {"step-000001", "step-000002", "step-000003"}
    assert all(checkpoint.verify_checkpoint(path).step == step for step, path in checkpoint.list_checkpoints(tmp_path))
    save(tmp_path, 4, keep_last=1)
    assert names(tmp_path) == ["step-000004"]


def test_a_write_cut_short_by_the_system_leaves_the_earlier_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 1)
    large = {"weight": torch.zeros(50_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ResourceError, match="step 2: File too large"):
            saving.save_checkpoint(tmp_path, Snapshot(2, large, {}, {}), keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.find_newest_valid(tmp_path)[0].step == 1


def test_a_checkpoint_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        with pytest.raises(ResourceError, match=r"saved step 2, but cannot remove .*: Permission denied"):
            save(tmp_path, 2, keep_last=1)
    assert checkpoint.find_newest_valid(tmp_path)[0].step == 2


def test_all_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        fsync(handle)
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


def test_where_files_cannot_be_mapped_a_copy_of_them_is(tmp_path, monkeypatch):
    """The library has the number of an error in its text only."""
    saved = save(tmp_path, 1)
    genuine, opened = saved_tensors.safe_open, []

    def safe_open(path: Any, **named: Any) -> Any:
        opened.append(Path(path))
        if opened[-1].is_relative_to(tmp_path):
            raise OSError(f"{os.strerror(errno.ENODEV)} (os error {errno.ENODEV})")
        return genuine(path, **named)

    monkeypatch.setattr(saved_tensors, "safe_open", safe_open)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    assert equal(saved_tensors.SavedTensors([saved.path / "model.safetensors"]), tensors(1))
    assert len(opened) == 2
    assert not opened[1].exists()
    with pytest.raises(CheckpointError, match="cannot be read"):
        saved_tensors.SavedTensors([tmp_path / "none"])
