"""Lists and removes entries of the cache, each under its lock, and no other files."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lmtool.compute.kernels import build
from lmtool.data.blocks import STREAMS_FOLDER
from lmtool.data.cached import SURVEYS, TOKENIZERS, TOKENS, remove_cache_folder, store_lock_path
from lmtool.data.hub import DATASETS_FOLDER
from lmtool.data.store import read_store_manifest
from lmtool.errors import UsageError
from lmtool.interop.references import IMPORTS_FOLDER
from lmtool.printable import format_count
from lmtool.runs.removal import find_bases_of_adapter_runs
from lmtool.storage import durable

_ENTRY_FILE_NAME = r"(?P<key>[0-9a-f]{64})\.entry"


@dataclass(frozen=True)
class CacheKind:
    """Entries of one folder of the cache.

    description: what they are, for people.
    name_pattern: of the names of entries. All else in the folder is left alone.
    find_lock: the lock file of the entry with a key, in its folder.
    """

    description: str
    folder: str
    name_pattern: str
    find_lock: Callable[[Path, str], Path] = lambda folder, key: folder / f"{key}.lock"


CACHE_KINDS = {
    "models": CacheKind(
        "published models",
        IMPORTS_FOLDER,
        r"[\w.-]+-(?P<key>[0-9a-f]{12})",
        lambda folder, key: next((folder / "locks").glob(f"{key}*"), folder / "locks" / key),
    ),
    "datasets": CacheKind("datasets of the Hub", DATASETS_FOLDER, r"(?P<key>[0-9a-f]{64})\.jsonl"),
    "tokens": CacheKind(
        "tokens of texts",
        TOKENS,
        r"\.?(?P<key>[0-9a-f]{64})(-[0-9a-f]{16}\.partial)?",
        lambda folder, key: store_lock_path(folder / key),
    ),
    "tokenizers": CacheKind("tokenizers of texts", TOKENIZERS, _ENTRY_FILE_NAME),
    "surveys": CacheKind("what texts were found to have", SURVEYS, _ENTRY_FILE_NAME),
    "kernels": CacheKind("compiled kernels", build.CACHE_FOLDER, r"(?P<key>[0-9a-f]{16})-[0-9a-f]{16}\.(so|json)"),
    "streams": CacheKind("texts that are tokenized beside training", STREAMS_FOLDER, "(?!)(?P<key>)"),
}
"""By name. Besides, each folder may have scratch folders of processes."""


@dataclass(frozen=True)
class CacheEntryInfo:
    """A file or folder of the cache. last_used: when it was last read or written, if the file system notes it."""

    kind: str
    path: Path
    lock: Path
    size: int
    last_used: datetime


def describe_cache_entry(entry: CacheEntryInfo) -> str:
    """Returns the name of an entry; for tokens its beginning, and the number of tokens and documents."""
    name = entry.path.name
    if entry.kind != "tokens":
        return name
    try:
        store = read_store_manifest(entry.path)
        size = f"{format_count(store.documents, 'document')}, a vocabulary of {store.vocab_size:,}"
        return f"{name[:12]}: {format_count(store.tokens, 'token')}, {size}"
    except (OSError, ValueError):
        return f"{name[:12]}: unfinished, or damaged"


def find_cache_entries(kinds: Sequence[str] = (), unused_for: timedelta | None = None) -> list[CacheEntryInfo]:
    """Returns the entries of the cache, of all kinds by default, the last used first.

    unused_for: omits entries that were used later. A folder of the cache that is a link has no entries.
    Raises UsageError for an unknown kind.
    """
    if unknown := [kind for kind in kinds if kind not in CACHE_KINDS]:
        what = f"the cache has no {unknown[0]!r:.40}"
        raise UsageError(what, where="KIND", fix=f"name some of {', '.join(CACHE_KINDS)}")
    found = [entry for kind in CACHE_KINDS if not kinds or kind in kinds for entry in _iterate_cache_entries(kind)]
    if unused_for is not None:
        limit = datetime.now(UTC) - unused_for
        found = [entry for entry in found if entry.last_used <= limit]
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def remove_cache_entry_or_explain(entry: CacheEntryInfo) -> str:
    """Removes an entry unless a process creates it or a run needs it; returns why it stays, or "".

    Raises ResourceError when it cannot be removed.
    """
    if entry.kind == "models" and (needed_by := find_bases_of_adapter_runs([entry.path])):
        return f"{next(iter(needed_by.values()))[0]} holds only adapters to its weights"
    with durable.hold_lock(entry.lock, wait=False) as is_free:
        if not is_free:
            return "a process is making it"
        if entry.path.is_dir() and not entry.path.is_symlink():
            remove_cache_folder(entry.path)
        else:
            with durable.convert_os_errors("cannot remove", entry.path, "change the permissions of its folder"):
                entry.path.unlink(missing_ok=True)
    return ""


def _iterate_cache_entries(kind: str) -> Iterator[CacheEntryInfo]:
    folder = durable.cache_folder() / CACHE_KINDS[kind].folder
    with suppress(OSError):
        if folder.is_symlink():
            return
        for path in folder.iterdir():
            match = re.fullmatch(
                CACHE_KINDS[kind].name_pattern, path.name.removeprefix(durable.TEMPORARY_PREFIX), re.ASCII
            )
            if match is not None:
                lock = CACHE_KINDS[kind].find_lock(folder, match["key"])
            elif path.name.startswith(durable.TEMPORARY_PREFIX) and os.path.lexists(path / durable.SCRATCH_LOCK_FILE):
                lock = path / durable.SCRATCH_LOCK_FILE
            else:
                continue
            with suppress(FileNotFoundError):  # a process has removed it since
                yield CacheEntryInfo(kind, path, lock, *_size_and_last_use(path))


def _size_and_last_use(path: Path) -> tuple[int, datetime]:
    """Returns the bytes of a file or folder, and when any file of it was last used. Raises FileNotFoundError."""
    size, used = 0, os.lstat(path).st_mtime  # that a folder was read says nothing: it may have been listed
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in files:
        status = os.lstat(file)
        size, used = size + status.st_size, max(used, status.st_atime, status.st_mtime)
    return size, datetime.fromtimestamp(used, UTC)
