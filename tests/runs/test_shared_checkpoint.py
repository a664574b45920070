"""A checkpoint that several processes write, each its rows, is read as any other."""

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from lmtool.errors import CheckpointError, ResourceError
from lmtool.runs import checkpoint, saving
from lmtool.runs.checkpoint import Checkpoint
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.saving import CheckpointContent
from lmtool.storage import durable
from tests.support.damage import flip_bit, sign
from tests.support.disks import failing_call
from tests.support.errors import refuses
from tests.support.runs import FILES, names, run_info

N = 3


@dataclass
class Thread:
    """One of N threads that write as processes do."""

    rank: int
    meeting: threading.Barrier
    texts: list[str]
    size: int = N

    def gather_texts(self, text: str) -> list[str]:
        self.texts[self.rank] = text
        self.meeting.wait(60)
        found = [*self.texts]
        self.meeting.wait(60)
        return found


def tensors(step: int) -> dict[str, Tensor]:
    return {
        "weight": torch.arange(10.0).reshape(5, 2) + step,
        "short": torch.tensor([step, -1], dtype=torch.bfloat16),  # the last process has none of it
        "count": torch.tensor(step),
    }


def part(whole: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What a process holds, as torch.chunk divides rows."""
    chunks = {name: tensor.chunk(N) if tensor.ndim else (tensor,) for name, tensor in whole.items()}
    return {name: parts[rank].clone() for name, parts in chunks.items() if rank < len(parts)}


def together(lead: Callable[[Any], Any], follow: Callable[[Any], Any]) -> Any:
    """What `lead` gives in the first thread, while the others do `follow`."""
    meeting, texts = threading.Barrier(N), [""] * N
    with ThreadPoolExecutor(N) as threads:
        others = [threads.submit(follow, Thread(rank, meeting, texts)) for rank in range(1, N)]
        try:
            return lead(Thread(0, meeting, texts))
        finally:
            for other in others:
                other.result()


def save(folder: Path, step: int) -> Checkpoint:
    whole, moments = tensors(step), {"moment": torch.full((4,), float(step))}

    def snapshot(rank: int) -> CheckpointContent:
        return CheckpointContent(step, part(whole, rank), part(moments, rank), {"step": step} if rank == 0 else {})

    saved: Checkpoint = together(
        lambda peers: saving.save_checkpoint(folder, snapshot(0), keep_last=9, peers=peers),
        lambda peers: saving.save_shard_for_main_process(snapshot(peers.rank), peers),
    )
    return saved


def test_each_process_writes_its_rows_and_all_are_read(tmp_path: Path) -> None:
    saved = save(tmp_path, 4)
    path = tmp_path / "step-000004"
    shards = [f"{kind}-{i}-of-3.safetensors" for kind in ("model", "optimizer") for i in (1, 2, 3)]
    assert names(path) == ["MANIFEST.json", *shards, "state.json"]
    assert list(safetensors.torch.load_file(path / "model-3-of-3.safetensors")) == ["weight"]
    loaded = checkpoint.open_and_verify_checkpoint(path)
    assert loaded.files == saved.files
    found = loaded.load_model()
    assert safetensors.torch.save(dict(found)) == safetensors.torch.save(tensors(4))
    assert loaded.load_optimizer()["moment"].tolist() == [4.0] * 4
    assert loaded.load_state() == {"step": 4}
    for start in range(6):
        for stop in range(6):
            rows = found.read_rows("weight", slice(start, stop))
            assert rows.tolist() == tensors(4)["weight"][start:stop].tolist()
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.meta_tensors.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in tensors(4).items()
    }


def test_only_files_with_the_rows_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, 4).path
    found = checkpoint.open_and_verify_checkpoint(path).load_model()
    with (path / "model-1-of-3.safetensors").open("r+b") as file:
        file.truncate(0)  # a read of it would end the process
    assert found.read_rows("weight", slice(2, 5)).tolist() == tensors(4)["weight"][2:].tolist()


@pytest.mark.parametrize("name", ["model-2-of-3.safetensors", "optimizer-1-of-3.safetensors"])
def test_a_damaged_shard_is_named_and_an_older_checkpoint_used(tmp_path: Path, name: str) -> None:
    save(tmp_path, 4)
    file = save(tmp_path, 6).path / name
    flip_bit(file, at=-1)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.open_and_verify_checkpoint(file.parent)
    assert caught.value.where == str(file)
    taken, (warning,) = checkpoint.find_newest_valid_checkpoint(tmp_path)
    assert taken.step == 4
    assert name in warning
    if name.startswith("opt"):
        assert checkpoint.open_and_verify_checkpoint(file.parent, verify_optimizer=False).load_model()["count"] == 6


def test_each_process_compares_some_digests_and_all_hear_of_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 4)
    path, genuine = save(tmp_path, 6).path, checkpoint._verify_digest
    compared: list[Path] = []

    def compare(file: Path, expected: str) -> None:
        compared.append(file)
        genuine(file, expected)

    monkeypatch.setattr(checkpoint, "_verify_digest", compare)
    found: list[tuple[int, list[str]]] = []

    def verify(peers: Any) -> None:
        newest, warnings = checkpoint.find_newest_valid_checkpoint(tmp_path, peers=peers)
        found.append((newest.step, warnings))

    together(verify, verify)
    assert found == [(6, [])] * N
    assert sorted(compared) == sorted(path / name for name in checkpoint.open_and_verify_checkpoint(path).files)
    with (path / "optimizer-2-of-3.safetensors").open("r+b") as file:
        file.write(b"\0")
    found.clear()
    together(verify, verify)
    assert found[0][0] == 4
    assert "optimizer-2-of-3.safetensors" in found[0][1][0]
    assert found == [found[0]] * N


@pytest.mark.parametrize(
    "weight", [torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.int64), torch.tensor(1.0)], ids=str
)
def test_shards_that_disagree_are_refused(tmp_path: Path, weight: Tensor) -> None:
    """Also where all digests are right."""
    path = save(tmp_path, 4).path
    safetensors.torch.save_file({"weight": weight}, path / "model-2-of-3.safetensors")
    sign(path)
    with pytest.raises(CheckpointError, match=r"model-2-of-3"):
        checkpoint.open_and_verify_checkpoint(path).load_model()


@pytest.mark.parametrize("change", ["model-1-of-3.safetensors", "model-4-of-3.safetensors"])
def test_a_manifest_that_lacks_shards_or_has_more_is_refused(tmp_path: Path, change: str) -> None:
    path = save(tmp_path, 4).path
    files = json.loads((path / "MANIFEST.json").read_text())["files"]
    if files.pop(change, None) is None:
        files[change] = {"bytes": 2, "sha256": hashlib.sha256(b"").hexdigest()}
    sign(path, files=files)
    with pytest.raises(CheckpointError):
        checkpoint.open_and_verify_checkpoint(path)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_full_disk_of_any_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """All go on, with no partial files; and the next checkpoint is written."""
    save(tmp_path, 4)
    genuine = durable.write_and_sync_new_file

    def write_new(path: Path, chunks: Any) -> None:
        if path.name == f"optimizer-{failing + 1}-of-3.safetensors":
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        genuine(path, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_and_sync_new_file", write_new)
        with pytest.raises(ResourceError, match=rf"process {failing}"):
            save(tmp_path, 6)
    assert names(tmp_path) == ["step-000004"]
    assert save(tmp_path, 8).n_shards == N


def test_no_process_waits_for_one_that_cannot_begin_or_end_or_has_nothing_to_write(tmp_path: Path) -> None:
    first = save(tmp_path, 4)
    before = (first.path / "model-2-of-3.safetensors").stat().st_mtime_ns
    assert save(tmp_path, 4).digest == first.digest
    assert (first.path / "model-2-of-3.safetensors").stat().st_mtime_ns == before
    for owner, name in ((Path, "mkdir"), (os, "replace")):
        with failing_call(owner, name, code=errno.EACCES), pytest.raises(ResourceError):
            save(tmp_path, 6)
        assert names(tmp_path) == ["step-000004"]


def test_no_process_waits_for_logs_that_cannot_be_written(tmp_path: Path) -> None:
    run = create_and_lock_run(tmp_path / "run", run_info(), FILES)
    with run, failing_call(run, "_sync_logs"), refuses("no_space"):
        together(
            lambda peers: run.save_checkpoint(CheckpointContent(4, {}, {}, {}), keep_last=1, peers=peers),
            lambda peers: saving.save_shard_for_main_process(CheckpointContent(0, {}, {}, {}), peers),
        )


def test_optimizer_files_are_removed_the_first_one_first(tmp_path: Path) -> None:
    """So that a removal that is killed leaves a checkpoint without moments, and none that is damaged."""
    path = save(tmp_path, 4).path
    with failing_call(Path, "unlink", number=2), pytest.raises(OSError, match="No space"):
        saving.remove_optimizer_states(tmp_path)
    assert not (path / "optimizer-1-of-3.safetensors").exists()
    assert not checkpoint.has_optimizer(path)
    assert checkpoint.find_newest_valid_checkpoint(tmp_path)[0].load_model()["count"] == 4
    saving.remove_optimizer_states(tmp_path)
    assert not list(path.glob("optimizer*"))
    assert checkpoint.open_and_verify_checkpoint(path, verify_optimizer=False).step == 4
