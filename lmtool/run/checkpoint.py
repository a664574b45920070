"""Checkpoints: written atomically, verified by digest, immutable.

    checkpoints/step-000500/{model.safetensors, optimizer.safetensors, state.json, MANIFEST.json}

MANIFEST.json has the size and SHA-256 of each file, and its own SHA-256. A process may be killed at any moment:
step-... is always complete; partial writes are named .tmp-... and removed by the next start or save. Only
optimizer.safetensors may go later, when a run is finished; the manifest still names it.

Processes that share a model each write their rows of its tensors: model-1-of-2.safetensors, model-2-of-2.safetensors,
and so on. A tensor is its rows in these files, in their order; one that is not shared is in the first only.
"""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmtool import durable
from lmtool.errors import CheckpointError, ResourceError

if TYPE_CHECKING:
    # torch takes seconds to import, and listing runs needs manifests only.
    from torch import Tensor

    from lmtool.run.tensors import Deferred, SavedTensors

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"
FILES = (MODEL, OPTIMIZER, STATE)


def shard_names(name: str, n: int) -> tuple[str, ...]:
    """The files in which n processes keep what one keeps in the file `name`."""
    stem, dot, kind = name.partition(".")
    return (name,) if n == 1 else tuple(f"{stem}-{i}-of-{n}{dot}{kind}" for i in range(1, n + 1))


class Peers(Protocol):
    """The processes that write or verify a checkpoint together."""

    @property
    def rank(self) -> int:
        """Number of this process; 0 leads."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def texts(self, text: str) -> list[str]:
        """The texts that all processes give at the same time, in the order of ranks."""


class Alone:
    """A process by itself."""

    rank, size = 0, 1

    def texts(self, text: str) -> list[str]:
        return [text]


ALONE = Alone()

_FIX = "name another checkpoint of the run, or name the run to take the newest whole one"


@dataclass(frozen=True)
class FileEntry:
    """Manifest entry of one file: its size in bytes, and SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match its manifest.

    path: its directory. step: optimizer steps done. best_step: the step of the best validation when it was saved,
    None before the first one. digest: SHA-256 of the manifest, and so of all content. verified: the files whose digests
    were verified; others are verified when read.
    """

    path: Path
    step: int
    best_step: int | None
    files: Mapping[str, FileEntry]
    digest: str
    verified: frozenset[str] = frozenset()

    @property
    def n_shards(self) -> int:
        """Number of files in which the weights are, and of those in which the optimizer's tensors are."""
        return len(self.files) // 2

    @property
    def model_files(self) -> tuple[str, ...]:
        """Names of the files of the model's tensors."""
        return shard_names(MODEL, self.n_shards)

    @property
    def optimizer_files(self) -> tuple[str, ...]:
        """Names of the files of the optimizer's tensors."""
        return shard_names(OPTIMIZER, self.n_shards)

    @property
    def model_digest(self) -> str:
        """SHA-256 of the file of the model's tensors; of several files, that of their SHA-256 in hexadecimal."""
        digests = [self.files[name].sha256 for name in self.model_files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def model(self) -> "SavedTensors":
        """The model's tensors by name. Raises CheckpointError when a file is damaged."""
        return self._tensors(self.model_files)

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's tensors are still there."""
        return has_optimizer(self.path)

    def optimizer(self) -> "SavedTensors":
        """The optimizer's tensors by name. Raises CheckpointError when a file is damaged."""
        return self._tensors(self.optimizer_files)

    def state(self) -> dict[str, object]:
        """The state passed to `save`. Raises CheckpointError when the file is damaged."""
        self._compare(STATE)
        return _parse(self.path / STATE, _read(self.path / STATE))

    def _tensors(self, names: Iterable[str]) -> "SavedTensors":
        from lmtool.run.tensors import SavedTensors

        for name in names:
            self._compare(name)
        return SavedTensors([self.path / name for name in names])

    def _compare(self, name: str) -> None:
        if name not in self.verified:
            _compare_digest(self.path / name, self.files[name].sha256)


def step_name(step: int) -> str:
    """Name of the directory of a checkpoint."""
    return f"step-{step:06d}"


def listed(folder: Path) -> list[tuple[int, Path]]:
    """Step and directory of every checkpoint in `folder`, complete or not, oldest first."""
    found = []
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list the checkpoints: {error.strerror}", where=str(folder)) from error
    for path in paths:
        match = re.fullmatch(r"step-(\d{6,15})", path.name, re.ASCII)
        if match and path.name == step_name(int(match[1])):
            found.append((int(match[1]), path))
    return sorted(found)


def inspect(path: Path) -> Checkpoint:
    """Read the manifest of a checkpoint, and verify file sizes only: fast, but does not detect changed bytes.

    The optimizer's files may be missing. Raises CheckpointError that names the first that is or that differs, and how.
    """
    if not path.is_dir():
        raise _damage(path, "there is no such checkpoint directory")
    checkpoint = _read_manifest(path)
    for name, entry in checkpoint.files.items():
        try:
            size = (path / name).stat().st_size
        except FileNotFoundError:
            if name in checkpoint.optimizer_files:
                continue
            raise _damage(path / name, f"{name} is missing") from None
        except OSError as error:
            raise _damage(path / name, f"{name} cannot be read: {error.strerror}") from None
        if size < entry.bytes:
            raise _damage(path / name, f"{name} is truncated: {size} of {entry.bytes} bytes")
        if size > entry.bytes:
            raise _damage(path / name, f"{name} is too long: {size} bytes instead of {entry.bytes}")
    return checkpoint


def verify(path: Path, *, optimizer: bool = True, peers: Peers = ALONE) -> Checkpoint:
    """Verify sizes and digests of all files of a checkpoint; the optimizer's digests only if requested.

    peers: processes that do so at the same time, each for some of the files.
    Raises CheckpointError that names the first file that is missing or differs, and how; in all processes alike.
    """
    found: Checkpoint | None = None
    problem: CheckpointError | None = None
    try:
        found = _compared(path, optimizer, peers)
    except CheckpointError as error:
        problem = error
    own = None if problem is None else [problem.what, problem.where, problem.fix]
    for text in peers.texts(json.dumps(own)):
        if (told := json.loads(text)) is not None:
            raise CheckpointError(told[0], where=told[1], fix=told[2]) from problem
    assert found is not None
    return found


def _compared(path: Path, optimizer: bool, peers: Peers) -> Checkpoint:
    """The checkpoint, when this process has compared its share of the digests."""
    checkpoint = inspect(path)
    wanted = (*checkpoint.model_files, *(checkpoint.optimizer_files if optimizer else ()), STATE)
    if missing := [name for name in wanted if not os.path.lexists(path / name)]:
        raise _damage(path / missing[0], f"{missing[0]} is missing")
    for name in wanted[peers.rank :: peers.size]:
        _compare_digest(path / name, checkpoint.files[name].sha256)
    return dataclasses.replace(checkpoint, verified=frozenset(wanted))


def newest_valid(folder: Path, *, optimizer: bool = True, peers: Peers = ALONE) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint in `folder` that passes `verify`, and a warning for each newer one that does not.

    One without optimizer state is found where `optimizer` asks for it and none has it, as after `drop_optimizers`.
    Raises CheckpointError when there is none.
    """
    warnings: list[str] = []
    paths = [path for _, path in reversed(listed(folder))]
    for path in paths:
        try:
            return verify(path, optimizer=optimizer, peers=peers), warnings
        except CheckpointError as error:
            warnings.append(f"skipped the damaged checkpoint {path.name}: {error.what}")
    for n_newer, path in enumerate(paths):
        if optimizer and not has_optimizer(path):
            with suppress(CheckpointError):
                return verify(path, optimizer=False, peers=peers), warnings[:n_newer]
    if warnings:
        raise CheckpointError(
            f"no checkpoint of this run is complete; of the newest: {warnings[0].split(': ', 1)[1]}",
            where=str(folder),
            fix="restore the checkpoints from a copy, or train again",
        )
    raise CheckpointError(
        "this run has no checkpoint yet",
        where=str(folder),
        fix="train until its first checkpoint, or name another run (lmtool runs ls)",
    )


def save(
    folder: Path,
    step: int,
    model: "Mapping[str, Tensor | Deferred]",
    optimizer: "Mapping[str, Tensor | Deferred]",
    state: Mapping[str, object],
    *,
    best_step: int | None,
    keep_last: int,
    superseded: int | None = None,
    peers: Peers = ALONE,
) -> Checkpoint:
    """Write a checkpoint, then remove those that are neither among the last `keep_last` nor the best.

    superseded: the step of one that counts no longer, see `prune`.

    The caller holds the lock of the run. An existing complete checkpoint of the step is kept, since training is
    deterministic. Anything else of that name is set aside. Of tied tensors, pass only one.

    state: JSON-serialisable, without NaN and infinities. peers: processes that write their parts; this is the first
    of them, and the others call `save_part`.
    Raises ResourceError when it cannot be written (full disk, permission), by any process, with no partial files and
    all earlier checkpoints intact; ValueError for tensors or a state that cannot be saved.
    """
    from lmtool.run import tensors

    tensors.check(model)
    tensors.check(optimizer)
    content = _encode(dict(state))
    path = folder / step_name(step)
    temporary = path.with_name(f"{durable.TEMPORARY}{path.name}")
    told = False
    try:
        saved = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            with suppress(CheckpointError):
                saved = verify(path)
            if saved is None:
                set_aside(path)
                temporary.mkdir()
                told = True
                peers.texts(json.dumps(str(temporary.absolute())))
                saved = _write(path, temporary, step, best_step, model, optimizer, content, peers)
        finally:
            if not told:
                leave(peers)
    except OSError as error:
        raise ResourceError(
            f"cannot save the checkpoint of step {step}: {error.strerror or error}",
            where=str(folder),
            fix="free some disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check this folder",
        ) from error
    try:
        prune(folder, {step, best_step}, keep_last, superseded)
    except OSError as error:
        raise ResourceError(
            f"saved step {step}, but cannot remove an older checkpoint: {error.strerror or error}",
            where=str(error.filename or folder),
            fix="check this folder",
        ) from error
    return saved


def save_part(
    model: "Mapping[str, Tensor | Deferred]", optimizer: "Mapping[str, Tensor | Deferred]", peers: Peers
) -> None:
    """Write what this process holds, as part of the `save` of the first one, which reports all errors."""
    from lmtool.run import tensors

    tensors.check(model)
    tensors.check(optimizer)
    place = json.loads(peers.texts(json.dumps(None))[0])
    if place is not None:
        with suppress(OSError):
            _write_part(Path(place), model, optimizer, peers)


def leave(peers: Peers) -> None:
    """Let the others, which wait in `save_part`, go on without a checkpoint."""
    peers.texts(json.dumps(None))


def drop_optimizers(folder: Path) -> None:
    """Remove the optimizer state of all checkpoints. Raises OSError.

    Oldest first: when killed in the middle, the newest one is still whole.
    """
    for _, path in listed(folder):
        for file in _optimizers(path):
            file.unlink()
        durable.sync_directory(path)


def has_optimizer(path: Path) -> bool:
    """Whether the optimizer state of a checkpoint is still there: its first file, which is removed first."""
    found = [file.name for file in _optimizers(path)]
    return bool(found) and (found[0] == OPTIMIZER or found[0].startswith(f"{Path(OPTIMIZER).stem}-1-"))


def _optimizers(path: Path) -> list[Path]:
    """The files of the optimizer's tensors, the first one first."""
    stem, _, kind = OPTIMIZER.partition(".")
    pattern = re.compile(rf"{stem}(-\d+-of-\d+)?\.{kind}", re.ASCII)
    try:
        return sorted(file for file in path.iterdir() if pattern.fullmatch(file.name))
    except OSError:
        return []


def set_aside(path: Path) -> None:
    """Rename a checkpoint so that it is neither used nor removed. Raises OSError."""
    if not path.is_symlink() and not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    path.rename(aside)
    durable.sync_directory(path.parent)


def sweep(folder: Path) -> None:
    """Remove partial files of killed processes. Raises OSError."""
    for path in folder.glob(f"{durable.TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(
    path: Path,
    temporary: Path,
    step: int,
    best_step: int | None,
    model: "Mapping[str, Tensor | Deferred]",
    optimizer: "Mapping[str, Tensor | Deferred]",
    state: bytes,
    peers: Peers,
) -> Checkpoint:
    """Write a checkpoint to the temporary directory, then rename it."""
    try:
        files = _write_part(temporary, model, optimizer, peers)
        files[STATE] = _write_file(temporary / STATE, [state])
        manifest = _encode_manifest(step, best_step, files)
        durable.write_new(temporary / MANIFEST, [manifest])
        durable.sync_directory(temporary)
        temporary.rename(path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    durable.sync_directory(path.parent)
    return Checkpoint(path, step, best_step, files, hashlib.sha256(manifest).hexdigest())


def _write_part(
    place: Path,
    model: "Mapping[str, Tensor | Deferred]",
    optimizer: "Mapping[str, Tensor | Deferred]",
    peers: Peers,
) -> dict[str, FileEntry]:
    """Write what this process holds; returns the entries of the files of all processes, once all have written.

    Raises OSError when any of them could not.
    """
    from lmtool.run import tensors

    own: dict[str, FileEntry] = {}
    failed: OSError | None = None
    try:
        for kind, content in ((MODEL, model), (OPTIMIZER, optimizer)):
            name = shard_names(kind, peers.size)[peers.rank]
            own[name] = _write_file(place / name, tensors.serialise(content))
    except OSError as error:
        failed = error
    entries = {name: dataclasses.asdict(entry) for name, entry in own.items()}
    problem = None if failed is None else [failed.errno, failed.strerror or str(failed)]
    found: dict[str, FileEntry] = {}
    for rank, text in enumerate(peers.texts(json.dumps([entries, problem]))):
        entries, problem = json.loads(text)
        if problem is not None:
            number, what = problem
            raise OSError(number, what if peers.size == 1 else f"{what} (process {rank})") from failed
        found |= {name: FileEntry(**entry) for name, entry in entries.items()}
    return {name: found[name] for kind in (MODEL, OPTIMIZER) for name in shard_names(kind, peers.size)}


def _write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    meter = _Meter()
    durable.write_new(path, meter.through(chunks))
    return FileEntry(meter.bytes, meter.sha256.hexdigest())


class _Meter:
    """Counts and digests the bytes written."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def through(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for chunk in chunks:
            self.bytes += len(chunk)
            self.sha256.update(chunk)
            yield chunk


def prune(folder: Path, spared: Collection[int | None], keep_last: int, superseded: int | None = None) -> None:
    """Remove all checkpoints but the last `keep_last` and those of the steps `spared`. Raises OSError.

    superseded: the step of one that is removed as well, and is none of the last: of an interruption, when training
    has gone on, so that the same ones are left as without it.
    """
    checkpoints = listed(folder)
    last = [step for step, _ in checkpoints if step != superseded][-keep_last:]
    for step, path in checkpoints:
        if step not in last and step not in spared:
            # Renamed first, atomically: a kill in the middle leaves no partial checkpoint.
            doomed = path.with_name(f"{durable.TEMPORARY}{path.name}")
            path.rename(doomed)
            shutil.rmtree(doomed)


def _encode(content: object) -> bytes:
    return json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n"


def _encode_manifest(step: int, best_step: int | None, files: Mapping[str, FileEntry]) -> bytes:
    content = {
        "format": FORMAT,
        "step": step,
        "best_step": best_step,
        "files": {name: dataclasses.asdict(entry) for name, entry in files.items()},
    }
    return _encode(content | {"sha256": hashlib.sha256(_encode(content)).hexdigest()})


def _read_manifest(path: Path) -> Checkpoint:
    raw = _read(path / MANIFEST)
    content = _parse(path / MANIFEST, raw)
    if content.get("format") != FORMAT:
        raise _damage(
            path / MANIFEST, f"{MANIFEST} has format {content.get('format')!r:.20}; this lmtool reads {FORMAT}"
        )
    try:
        step, best_step = content["step"], content["best_step"]
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        if not (
            isinstance(step, int)
            and isinstance(best_step, int | None)
            and all(isinstance(entry.bytes, int) and isinstance(entry.sha256, str) for entry in files.values())
        ):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise _damage(path / MANIFEST, f"{MANIFEST} is not a manifest") from None
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise _damage(path / MANIFEST, f"{MANIFEST} names {name!r:.60}, which is outside the checkpoint")
    if set(files) != {STATE}.union(*(shard_names(name, max(1, len(files) // 2)) for name in (MODEL, OPTIMIZER))):
        raise _damage(path / MANIFEST, f"{MANIFEST} should name {', '.join(FILES)}, and nothing else")
    # Byte for byte, because damage in parts not compared would go undetected.
    if raw != _encode_manifest(step, best_step, files):
        raise _damage(path / MANIFEST, f"{MANIFEST} does not match the digest that it states")
    if re.fullmatch(r"step-\d+", path.name) and path.name != step_name(step):
        raise _damage(path / MANIFEST, f"{MANIFEST} is that of step {step}")
    return Checkpoint(path, step, best_step, files, hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> bytes:
    try:
        return durable.read(path)
    except FileNotFoundError:
        raise _damage(path, f"{path.name} is missing") from None
    except OSError as error:
        raise _damage(path, f"{path.name} cannot be read: {error.strerror}") from None


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _damage(path, f"{path.name} is not a JSON object ({len(raw)} bytes)")
    return content


def _compare_digest(path: Path, expected: str) -> None:
    try:
        with durable.open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damage(path, f"{path.name} cannot be read: {error.strerror}") from None
    if digest != expected:
        raise _damage(path, f"{path.name} has changed: its SHA-256 is {digest[:12]}..., not {expected[:12]}...")


def _damage(path: Path, what: str) -> CheckpointError:
    return CheckpointError(what, where=str(path), fix=_FIX)
