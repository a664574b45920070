"""Writing and removing checkpoints: each is written under a hidden name, then renamed.

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

from lmtool import durable, records, system
from lmtool.checksum import sha256
from lmtool.errors import CheckpointError
from lmtool.run import checkpoint as checkpoints
from lmtool.run.checkpoint import MANIFEST, MODEL, OPTIMIZER, SINGLE_PROCESS, STATE, Checkpoint, FileEntry, Peers

if TYPE_CHECKING:
    # torch takes seconds to import
    from torch import Tensor


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is to hold.

    step: optimizer steps done.
    model, optimizer: tensors by name; of tied ones only one.
    state: JSON-serialisable, without NaN and infinities.
    best_step: the step of the best validation, None before the first one.
    """

    step: int
    model: "Mapping[str, Tensor]"
    optimizer: "Mapping[str, Tensor]"
    state: Mapping[str, object]
    best_step: int | None = None

    def check(self) -> None:
        """Raise ValueError for tensors that cannot be saved."""
        from lmtool.run import tensors

        tensors.check(self.model)
        tensors.check(self.optimizer)


def save(
    folder: Path, snapshot: Snapshot, keep_last: int, superseded: int | None = None, peers: Peers = SINGLE_PROCESS
) -> Checkpoint:
    """Write a checkpoint, then remove those that are neither among the last `keep_last` nor the best.

    superseded: the step of one that counts no longer, see `prune`.
    peers: processes that write their parts; this is the main one of them, and the others call `save_part`.

    The caller holds the lock of the run. An existing complete checkpoint of the step is kept, since training is
    deterministic. Anything else of that name is set aside.

    Raises ResourceError when it cannot be written (full disk, permission), by any process, with no partial files and
    all earlier checkpoints intact; ValueError for tensors or a state that cannot be saved.
    """
    snapshot.check()
    state = records.encode(dict(snapshot.state))
    path = folder / checkpoints.step_name(snapshot.step)
    temporary = path.with_name(f"{durable.TEMPORARY}{path.name}")
    with durable.refusing(f"cannot save the checkpoint of step {snapshot.step}", folder, durable.way_to_write):
        saved, is_announced = None, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            with suppress(CheckpointError):
                saved = checkpoints.verify(path)
            if saved is None:
                set_aside(path)
                temporary.mkdir()
                is_announced = True
                peers.texts(json.dumps(str(temporary.absolute())))
                saved = _write(path, temporary, snapshot, state, peers)
        finally:
            if not is_announced:
                leave(peers)
    what = f"saved step {snapshot.step}, but cannot remove an older checkpoint"
    with durable.refusing(what, folder, durable.way_to_write, names_file=True):
        prune(folder, {snapshot.step, snapshot.best_step}, keep_last, superseded)
    return saved


def save_part(snapshot: Snapshot, peers: Peers) -> None:
    """Write the tensors that this process holds, as part of the `save` of the main one, which reports all errors."""
    snapshot.check()
    folder = json.loads(peers.texts(json.dumps(None))[0])
    if folder is not None:
        with suppress(OSError):
            _write_part(Path(folder), snapshot, peers)


def leave(peers: Peers) -> None:
    """Let the others, which wait in `save_part`, go on without a checkpoint."""
    peers.texts(json.dumps(None))


def drop_optimizers(folder: Path) -> None:
    """Remove the optimizer state of all checkpoints. Raises OSError.

    Oldest first: when killed in the middle, the newest one is still whole.
    """
    for _, path in checkpoints.listed(folder):
        for file in checkpoints.optimizer_files(path):
            with system.sparing_open_files():
                file.unlink()
        durable.sync_directory(path)


def set_aside(path: Path) -> None:
    """Rename a checkpoint so that it is neither used nor removed. Raises OSError."""
    if not path.is_symlink() and not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    durable.rename(path, aside)
    durable.sync_directory(path.parent)


def sweep(folder: Path) -> None:
    """Remove partial files of killed processes. Raises OSError."""
    for path in folder.glob(f"{durable.TEMPORARY}*"):
        durable.remove(path)


def _write(path: Path, temporary: Path, snapshot: Snapshot, state: bytes, peers: Peers) -> Checkpoint:
    """Write a checkpoint to the temporary directory, then rename it."""
    try:
        files = _write_part(temporary, snapshot, peers)
        files[STATE] = _write_file(temporary / STATE, [state])
        manifest = checkpoints.encode_manifest(snapshot.step, snapshot.best_step, files)
        durable.write_new(temporary / MANIFEST, manifest)
        durable.sync_directory(temporary)
        durable.rename(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    durable.sync_directory(path.parent)
    return Checkpoint(path, snapshot.step, snapshot.best_step, files, sha256(manifest))


def _write_part(folder: Path, snapshot: Snapshot, peers: Peers) -> dict[str, FileEntry]:
    """Write what this process holds; returns the entries of the files of all processes, once all have written.

    Raises OSError when any of them could not.
    """
    from lmtool.run import tensors

    written, problem, failure = {}, None, None
    try:
        for kind, content in ((MODEL, snapshot.model), (OPTIMIZER, snapshot.optimizer)):
            name = checkpoints.shard_names(kind, peers.size)[peers.rank]
            written[name] = dataclasses.asdict(_write_file(folder / name, tensors.serialise(content)))
    except OSError as error:
        problem, failure = [error.errno, error.strerror or str(error)], error
    files: dict[str, FileEntry] = {}
    for rank, text in enumerate(peers.texts(json.dumps([written, problem]))):
        entries, problem = json.loads(text)
        if problem is not None:
            number, what = problem
            raise OSError(number, what if peers.size == 1 else f"{what} (process {rank})") from failure
        files |= {name: FileEntry(**entry) for name, entry in entries.items()}
    return {name: files[name] for kind in (MODEL, OPTIMIZER) for name in checkpoints.shard_names(kind, peers.size)}


def _write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    digest, size = hashlib.sha256(), 0

    def measured() -> Iterator[bytes | memoryview]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk)
            digest.update(chunk)
            yield chunk

    durable.write_new(path, measured())
    return FileEntry(size, digest.hexdigest())


def prune(folder: Path, spared: Collection[int | None], keep_last: int, superseded: int | None = None) -> None:
    """Remove all checkpoints but the last `keep_last` and those of the steps `spared`. Raises OSError.

    superseded: the step of one that is removed as well, and is none of the last: of an interruption, when training
    has gone on, so that the same ones are left as without it.
    """
    saved = checkpoints.listed(folder)
    last = [step for step, _ in saved if step != superseded][-keep_last:]
    for step, path in saved:
        if step not in last and step not in spared:
            # Renamed first, atomically: a kill in the middle leaves no partial checkpoint.
            doomed = path.with_name(f"{durable.TEMPORARY}{path.name}")
            with system.sparing_open_files():
                durable.rename(path, doomed)
                shutil.rmtree(doomed)
