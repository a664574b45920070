"""Writes and removes checkpoints: each is written under a hidden name, then renamed.

A process may be killed at any moment: step-... is always complete; partial writes are named .tmp-... and removed by the
next start or save.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool import system
from lmtool.errors import CheckpointError
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.checkpoint import (
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    SINGLE_PROCESS,
    STATE_FILE,
    Checkpoint,
    CheckpointProcessGroup,
    FileEntry,
)
from lmtool.storage import durable, records
from lmtool.storage.checksum import sha256

if TYPE_CHECKING:
    # torch takes seconds to import
    from torch import Tensor


@dataclass(frozen=True)
class CheckpointContent:
    """The content of a checkpoint to save.

    step: optimizer steps done.
    model, optimizer: tensors by name; only one of tied tensors.
    state: JSON-serialisable, without NaN and infinities.
    best_step: the step of the best validation, None before the first one.
    """

    step: int
    model: "Mapping[str, Tensor]"
    optimizer: "Mapping[str, Tensor]"
    state: Mapping[str, object]
    best_step: int | None = None

    def check_dtypes_and_shared_memory(self) -> None:
        """Raises ValueError for tensors that cannot be saved."""
        from lmtool.runs import tensors

        tensors.check_dtypes_and_shared_memory(self.model)
        tensors.check_dtypes_and_shared_memory(self.optimizer)


def save_checkpoint(
    folder: Path,
    snapshot: CheckpointContent,
    keep_last: int,
    removable_step: int | None = None,
    peers: CheckpointProcessGroup = SINGLE_PROCESS,
) -> Checkpoint:
    """Writes a checkpoint, then removes those that are neither among the last `keep_last` nor the best.

    removable_step: see `prune_checkpoints`.
    peers: the processes that write their shards; this is the main one, and the others call
        `save_shard_for_main_process`.

    The caller holds the lock of the run. Keeps an existing complete checkpoint of the step, because training is
    deterministic, and renames anything else of that name.

    Raises ResourceError when it cannot be written (full disk, permission), by any process, with no partial files and
    all earlier checkpoints intact; ValueError for tensors or a state that cannot be saved.
    """
    snapshot.check_dtypes_and_shared_memory()
    state = records.encode_json(dict(snapshot.state))
    path = folder / checkpoints.step_folder_name(snapshot.step)
    temporary = path.with_name(f"{durable.TEMPORARY_PREFIX}{path.name}")
    with durable.convert_os_errors(
        f"cannot save the checkpoint of step {snapshot.step}", folder, durable.suggest_write_fix
    ):
        saved, is_announced = None, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_partial_checkpoints(folder)
            with suppress(CheckpointError):
                saved = checkpoints.open_and_verify_checkpoint(path)
            if saved is None:
                rename_aside(path)
                temporary.mkdir()
                is_announced = True
                peers.gather_texts(json.dumps(str(temporary.absolute())))
                saved = _write_checkpoint(path, temporary, snapshot, state, peers)
        finally:
            if not is_announced:
                announce_no_checkpoint(peers)
    what = f"saved step {snapshot.step}, but cannot remove an older checkpoint"
    with durable.convert_os_errors(what, folder, durable.suggest_write_fix, use_error_filename=True):
        prune_checkpoints(folder, {snapshot.step, snapshot.best_step}, keep_last, removable_step)
    return saved


def save_shard_for_main_process(snapshot: CheckpointContent, peers: CheckpointProcessGroup) -> None:
    """Writes the tensors of this process for the `save_checkpoint` of the main process, which reports all errors."""
    snapshot.check_dtypes_and_shared_memory()
    folder = json.loads(peers.gather_texts(json.dumps(None))[0])
    if folder is not None:
        with suppress(OSError):
            _write_shard_and_gather_entries(Path(folder), snapshot, peers)


def announce_no_checkpoint(peers: CheckpointProcessGroup) -> None:
    """Lets the processes that wait in `save_shard_for_main_process` go on without a checkpoint."""
    peers.gather_texts(json.dumps(None))


def remove_optimizer_states(folder: Path) -> None:
    """Removes the optimizer state of all checkpoints, the oldest first in case of a kill. Raises OSError."""
    for _, path in checkpoints.list_checkpoints(folder):
        for file in checkpoints.list_optimizer_files(path):
            with system.ignore_open_files():
                file.unlink()
        durable.sync_directory(path)


def rename_aside(path: Path) -> None:
    """Renames a checkpoint so that it is neither used nor removed. Raises OSError."""
    if not path.is_symlink() and not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    durable.replace_path(path, aside)
    durable.sync_directory(path.parent)


def remove_partial_checkpoints(folder: Path) -> None:
    """Removes partial files of killed processes. Raises OSError."""
    for path in folder.glob(f"{durable.TEMPORARY_PREFIX}*"):
        durable.remove_file_or_tree(path)


def _write_checkpoint(
    path: Path, temporary: Path, snapshot: CheckpointContent, state: bytes, peers: CheckpointProcessGroup
) -> Checkpoint:
    """Writes a checkpoint to the temporary directory, then renames it."""
    try:
        files = _write_shard_and_gather_entries(temporary, snapshot, peers)
        files[STATE_FILE] = _write_and_digest(temporary / STATE_FILE, [state])
        manifest = checkpoints.encode_manifest(snapshot.step, snapshot.best_step, files)
        durable.write_and_sync_new_file(temporary / MANIFEST_FILE, manifest)
        durable.sync_directory(temporary)
        durable.replace_path(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    durable.sync_directory(path.parent)
    return Checkpoint(path, snapshot.step, snapshot.best_step, files, sha256(manifest))


def _write_shard_and_gather_entries(
    folder: Path, snapshot: CheckpointContent, peers: CheckpointProcessGroup
) -> dict[str, FileEntry]:
    """Writes the tensors of this process; returns the entries of the files of all processes.

    Raises OSError when any process cannot write.
    """
    from lmtool.runs import tensors

    written, problem, failure = {}, None, None
    try:
        for kind, content in ((MODEL_FILE, snapshot.model), (OPTIMIZER_FILE, snapshot.optimizer)):
            name = checkpoints.shard_file_names(kind, peers.size)[peers.rank]
            written[name] = dataclasses.asdict(_write_and_digest(folder / name, tensors.serialize_safetensors(content)))
    except OSError as error:
        problem, failure = [error.errno, error.strerror or str(error)], error
    files: dict[str, FileEntry] = {}
    for rank, text in enumerate(peers.gather_texts(json.dumps([written, problem]))):
        entries, problem = json.loads(text)
        if problem is not None:
            number, what = problem
            raise OSError(number, what if peers.size == 1 else f"{what} (process {rank})") from failure
        files |= {name: FileEntry(**entry) for name, entry in entries.items()}
    return {
        name: files[name]
        for kind in (MODEL_FILE, OPTIMIZER_FILE)
        for name in checkpoints.shard_file_names(kind, peers.size)
    }


def _write_and_digest(path: Path, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    digest, size = hashlib.sha256(), 0

    def measure_chunks() -> Iterator[bytes | memoryview]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk)
            digest.update(chunk)
            yield chunk

    durable.write_and_sync_new_file(path, measure_chunks())
    return FileEntry(size, digest.hexdigest())


def prune_checkpoints(
    folder: Path, kept_steps: Collection[int | None], keep_last: int, removable_step: int | None = None
) -> None:
    """Removes all checkpoints except the last `keep_last` and those of the steps `kept_steps`. Raises OSError.

    removable_step: step of an interruption after which training has gone on. It is not counted among the last, so
    that the same checkpoints stay as without the interruption.
    """
    saved = checkpoints.list_checkpoints(folder)
    last = [step for step, _ in saved if step != removable_step][-keep_last:]
    for step, path in saved:
        if step not in last and step not in kept_steps:
            # Renamed first, atomically: a kill in the middle leaves no partial checkpoint.
            doomed = path.with_name(f"{durable.TEMPORARY_PREFIX}{path.name}")
            with system.ignore_open_files():
                durable.replace_path(path, doomed)
                shutil.rmtree(doomed)
