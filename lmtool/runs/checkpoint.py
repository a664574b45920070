"""Reads and verifies checkpoints, which are immutable and have digests.

    checkpoints/step-000500/{model.safetensors, optimizer.safetensors, state.json, MANIFEST.json}

MANIFEST.json has the size and SHA-256 of each file, and its own SHA-256; `lmtool.runs.saving` writes them. Only
optimizer.safetensors may go later, when a run is finished; the manifest still names it.

Processes that share a model each write their rows of its tensors: model-1-of-2.safetensors, model-2-of-2.safetensors,
and so on. A tensor is its rows in these files, in their order; one that is not shared is in the first only.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lmtool.errors import CheckpointError
from lmtool.storage import durable, records
from lmtool.storage.checksum import sha256, sha256_of_file

if TYPE_CHECKING:
    # torch takes seconds to import, and listing runs needs manifests only.
    from lmtool.runs.tensors import SavedTensors

CHECKPOINT_FORMAT = 1
MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
STATE_FILE, MANIFEST_FILE = "state.json", "MANIFEST.json"
CHECKPOINT_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)


def shard_file_names(name: str, n: int) -> tuple[str, ...]:
    """Returns the names of the files in which n processes store what one process stores in `name`."""
    stem, dot, kind = name.partition(".")
    return (name,) if n == 1 else tuple(f"{stem}-{i}-of-{n}{dot}{kind}" for i in range(1, n + 1))


class CheckpointProcessGroup(Protocol):
    """The group of processes that write or verify a checkpoint together."""

    @property
    def rank(self) -> int:
        """Number of this process; 0 is the main one."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def gather_texts(self, text: str) -> list[str]:
        """Gathers the text of each process in the order of ranks. Every process calls it equally often."""


class SingleProcess:
    """The group of one process."""

    rank, size = 0, 1

    def gather_texts(self, text: str) -> list[str]:
        return [text]


SINGLE_PROCESS = SingleProcess()

_FIX = "name another checkpoint of the run, or name the run to take the newest whole one"


@dataclass(frozen=True)
class FileEntry:
    """The entry of a file in the manifest: its size in bytes, and SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match its manifest.

    path: its directory.
    step: optimizer steps done.
    best_step: the step of the best validation when it was saved, None before the first one.
    digest: SHA-256 of the manifest, and so of all content.
    verified: files whose digests are verified already; the others are verified when they are read.
    """

    path: Path
    step: int
    best_step: int | None
    files: Mapping[str, FileEntry]
    digest: str
    verified: frozenset[str] = frozenset()

    @property
    def n_shards(self) -> int:
        """Returns the number of files of the weights, which is that of the optimizer's tensors too."""
        return len(self.files) // 2

    @property
    def model_files(self) -> tuple[str, ...]:
        """Returns the names of the files of the model's tensors."""
        return shard_file_names(MODEL_FILE, self.n_shards)

    @property
    def optimizer_files(self) -> tuple[str, ...]:
        """Returns the names of the files of the optimizer's tensors."""
        return shard_file_names(OPTIMIZER_FILE, self.n_shards)

    @property
    def model_digest(self) -> str:
        """Returns the SHA-256 of the file of the model's tensors; of several files, that of their digests."""
        digests = [self.files[name].sha256 for name in self.model_files]
        return digests[0] if len(digests) == 1 else sha256("".join(digests).encode())

    def load_model(self) -> "SavedTensors":
        """Loads the model's tensors by name. Raises CheckpointError when a file is damaged."""
        return self._load_tensors(self.model_files)

    @property
    def has_optimizer(self) -> bool:
        """Returns whether the optimizer's tensors exist."""
        return has_optimizer(self.path)

    def load_optimizer(self) -> "SavedTensors":
        """Loads the optimizer's tensors by name. Raises CheckpointError when a file is damaged."""
        return self._load_tensors(self.optimizer_files)

    def load_state(self) -> dict[str, object]:
        """The state passed to `save`. Raises CheckpointError when the file is damaged."""
        self._verify_file(STATE_FILE)
        return _read_json(self.path / STATE_FILE)[1]

    def _load_tensors(self, file_names: Iterable[str]) -> "SavedTensors":
        from lmtool.runs.tensors import SavedTensors

        for name in file_names:
            self._verify_file(name)
        return SavedTensors([self.path / name for name in file_names])

    def _verify_file(self, name: str) -> None:
        if name not in self.verified:
            _verify_digest(self.path / name, self.files[name].sha256)


class CheckpointWithWarnings(NamedTuple):
    """A checkpoint, and a warning for each damaged one in whose place it is taken."""

    checkpoint: Checkpoint
    warnings: list[str]


def step_folder_name(step: int) -> str:
    """Returns the name of the directory of a checkpoint."""
    return f"step-{step:06d}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Returns step and directory of every checkpoint in `folder`, complete or not, oldest first."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list the checkpoints: {error.strerror}", where=str(folder)) from error
    steps = ((path, re.fullmatch(r"step-(\d{6,15})", path.name, re.ASCII)) for path in paths)
    return sorted((int(step[1]), path) for path, step in steps if step and path.name == step_folder_name(int(step[1])))


def open_checkpoint_checking_sizes(path: Path) -> Checkpoint:
    """Reads the manifest of a checkpoint, and verifies file sizes only: fast, but does not detect changed bytes.

    The optimizer's files may be missing. Raises CheckpointError for the first file that is missing or differs.
    """
    if not path.is_dir():
        raise _damage_error(path, "there is no such checkpoint directory")
    checkpoint = _read_manifest(path)
    for name, entry in checkpoint.files.items():
        if name in checkpoint.optimizer_files and not os.path.exists(path / name):
            continue
        with durable.convert_checkpoint_read_errors(path / name, _FIX):
            size = (path / name).stat().st_size
        if size < entry.bytes:
            raise _damage_error(path / name, f"{name} is truncated: {size} of {entry.bytes} bytes")
        if size > entry.bytes:
            raise _damage_error(path / name, f"{name} is too long: {size} bytes instead of {entry.bytes}")
    return checkpoint


def open_and_verify_checkpoint(
    path: Path, *, verify_optimizer: bool = True, peers: CheckpointProcessGroup = SINGLE_PROCESS
) -> Checkpoint:
    """Verifies sizes and digests of all files of a checkpoint; the optimizer's digests only if requested.

    peers: processes that each verify some of the files at the same time.
    Raises CheckpointError, in all processes alike, for the first file that is missing or differs.
    """
    checkpoint, problem = None, None
    try:
        checkpoint = open_checkpoint_checking_sizes(path)
        wanted = (*checkpoint.model_files, *(checkpoint.optimizer_files if verify_optimizer else ()), STATE_FILE)
        if missing := [name for name in wanted if not os.path.lexists(path / name)]:
            raise _damage_error(path / missing[0], f"{missing[0]} is missing")
        for name in wanted[peers.rank :: peers.size]:
            _verify_digest(path / name, checkpoint.files[name].sha256)
        checkpoint = dataclasses.replace(checkpoint, verified=frozenset(wanted))
    except CheckpointError as error:
        problem = error
    for text in peers.gather_texts(json.dumps(problem and [problem.what, problem.where, problem.fix])):
        if (refusal := json.loads(text)) is not None:
            raise CheckpointError(refusal[0], where=refusal[1], fix=refusal[2]) from problem
    assert checkpoint is not None
    return checkpoint


def find_newest_valid_checkpoint(
    folder: Path, *, verify_optimizer: bool = True, peers: CheckpointProcessGroup = SINGLE_PROCESS
) -> CheckpointWithWarnings:
    """Returns the newest checkpoint that `open_and_verify_checkpoint` accepts, and a warning for each newer one.

    Returns one without optimizer state if none has it, as after `remove_optimizer_states`. Raises CheckpointError when
    there is none.
    """
    warnings: list[str] = []
    paths = [path for _, path in reversed(list_checkpoints(folder))]
    for path in paths:
        try:
            checkpoint = open_and_verify_checkpoint(path, verify_optimizer=verify_optimizer, peers=peers)
            return CheckpointWithWarnings(checkpoint, warnings)
        except CheckpointError as error:
            warnings.append(f"skipped the damaged checkpoint {path.name}: {error.what}")
    for n_newer, path in enumerate(paths):
        if verify_optimizer and not has_optimizer(path):
            with suppress(CheckpointError):
                checkpoint = open_and_verify_checkpoint(path, verify_optimizer=False, peers=peers)
                return CheckpointWithWarnings(checkpoint, warnings[:n_newer])
    if warnings:
        what = f"no checkpoint of this run is complete; of the newest: {warnings[0].split(': ', 1)[1]}"
        raise CheckpointError(what, where=str(folder), fix="restore the checkpoints from a copy, or train again")
    fix = "train until its first checkpoint, or name another run (lmtool runs ls)"
    raise CheckpointError("this run has no checkpoint yet", where=str(folder), fix=fix, code="no_checkpoint")


def has_optimizer(path: Path) -> bool:
    """Returns whether the optimizer state of a checkpoint exists, by its first file, which is removed first."""
    return any(re.match(r"optimizer(-1-.*)?\.", file.name) for file in list_optimizer_files(path)[:1])


def list_optimizer_files(path: Path) -> list[Path]:
    """Returns the files of the optimizer's tensors in order."""
    pattern = re.compile(r"optimizer(-\d+-of-\d+)?\.safetensors", re.ASCII)
    try:
        return sorted(file for file in path.iterdir() if pattern.fullmatch(file.name))
    except OSError:
        return []


def encode_manifest(step: int, best_step: int | None, files: Mapping[str, FileEntry]) -> bytes:
    """Returns the content of MANIFEST.json."""
    entries = {name: dataclasses.asdict(entry) for name, entry in files.items()}
    content = {"format": CHECKPOINT_FORMAT, "step": step, "best_step": best_step, "files": entries}
    return records.encode_with_checksum(content, "sha256", sha256)


def _read_manifest(path: Path) -> Checkpoint:
    manifest = path / MANIFEST_FILE
    raw, content = _read_json(manifest)
    if content.get("format") != CHECKPOINT_FORMAT:
        what = f"{MANIFEST_FILE} has format {content.get('format')!r:.20}; this lmtool reads {CHECKPOINT_FORMAT}"
        raise _damage_error(manifest, what)
    try:
        step, best_step = content["step"], content["best_step"]
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        sound = all(isinstance(entry.bytes, int) and isinstance(entry.sha256, str) for entry in files.values())
        if not (sound and isinstance(step, int) and isinstance(best_step, int | None)):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise _damage_error(manifest, f"{MANIFEST_FILE} is not a manifest") from None
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise _damage_error(manifest, f"{MANIFEST_FILE} names {name!r:.60}, which is outside the checkpoint")
    if set(files) != {STATE_FILE}.union(
        *(shard_file_names(name, max(1, len(files) // 2)) for name in (MODEL_FILE, OPTIMIZER_FILE))
    ):
        raise _damage_error(manifest, f"{MANIFEST_FILE} should name {', '.join(CHECKPOINT_FILES)}, and nothing else")
    # Byte for byte, because damage in parts not compared would go undetected.
    if raw != encode_manifest(step, best_step, files):
        raise _damage_error(manifest, f"{MANIFEST_FILE} does not match the digest that it states")
    if re.fullmatch(r"step-\d+", path.name) and path.name != step_folder_name(step):
        raise _damage_error(manifest, f"{MANIFEST_FILE} is that of step {step}")
    return Checkpoint(path, step, best_step, files, sha256(raw))


def _read_json(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Returns the bytes of a file, and the JSON object in it."""
    with durable.convert_checkpoint_read_errors(path, _FIX):
        raw = durable.read_file(path)
    with suppress(ValueError, RecursionError):
        if isinstance(content := json.loads(raw), dict):
            return raw, content
    raise _damage_error(path, f"{path.name} is not a JSON object ({len(raw)} bytes)")


def _verify_digest(path: Path, expected: str) -> None:
    with durable.convert_checkpoint_read_errors(path, _FIX):
        digest = sha256_of_file(path)
    if digest != expected:
        raise _damage_error(path, f"{path.name} has changed: its SHA-256 is {digest[:12]}..., not {expected[:12]}...")


def _damage_error(path: Path, what: str) -> CheckpointError:
    return CheckpointError(what, where=str(path), fix=_FIX, code="damaged")
