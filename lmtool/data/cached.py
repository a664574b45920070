"""Cache entries that are computed once. Each has a checksum, and is created again when it is damaged.

surveys/KEY.entry  tokenizers/KEY.entry     16 hexadecimal digits, XXH3 of what follows; a newline; the content
tokens/KEY/                                 a token store, which has checksums of its own

Where the cache may not be written, it is read, and new entries are in a temporary folder until the process ends.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from lmtool.data.store import MAX_CACHE_FILE_BYTES, TokenStore
from lmtool.errors import DataError
from lmtool.storage import durable
from lmtool.storage.checksum import prepend_checksum, sha256, verify_and_strip_checksum
from lmtool.storage.durable import (
    cache_folder,
    convert_write_errors,
    find_cache_or_temporary_path,
    hold_lock,
    replace_path,
    write_file,
)

T = TypeVar("T")

SURVEYS, TOKENIZERS, TOKENS = "surveys", "tokenizers", "tokens"

_ENTRY_SUFFIX = ".entry"
_LOG = logging.getLogger(__name__)


def load_or_create(
    folder: str, key: str, description: str, create: Callable[[], bytes], parse: Callable[[bytes], T]
) -> T:
    """Loads an entry of the cache, or creates and stores it if it is missing or damaged. A second process waits.

    description: of the entry, for the warning about a damaged one. parse: may raise ValueError.
    Raises ResourceError when the entry cannot be written.
    """
    cached = cache_folder() / folder / f"{key}{_ENTRY_SUFFIX}"
    path = find_cache_or_temporary_path(cached)
    if path != cached:
        with suppress(OSError, ValueError):
            return parse(_read_verified_entry(cached))
    with hold_lock(path.with_suffix(".lock")):
        try:
            return parse(_read_verified_entry(path))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            warn_recreated(description, str(error))
        content = create()
        write_file(path, prepend_checksum(content))
        return parse(content)


def store_lock_path(path: Path) -> Path:
    """Returns the path of the lock file that a writer of the token store at `path` holds.

    It is in the cache, or beside the store where the cache may not be written.
    """
    lock = cache_folder() / "locks" / f"{sha256(os.fsencode(path.absolute()))}.lock"
    return lock if find_cache_or_temporary_path(lock) == lock else path.with_name(f".{path.name}.lock")


def warn_recreated(description: str, reason: str) -> None:
    """Logs that an entry of the cache is damaged and created again."""
    _LOG.warning("%s in the cache could not be used, and is made anew: %s", description, reason)


def remove_cache_folder(path: Path) -> None:
    """Renames a folder of the cache, so that its name is free at once, and removes it. Raises ResourceError."""
    doomed = path.with_name(f"{durable.TEMPORARY_PREFIX}{path.name}")
    with convert_write_errors(path):
        shutil.rmtree(doomed, ignore_errors=True)
        replace_path(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def find_damaged_entries() -> Iterator[tuple[Path, str]]:
    """Yields the path of each damaged entry of the cache, and what is wrong with it."""
    cache = cache_folder()
    for folder in (SURVEYS, TOKENIZERS):
        for path in sorted((cache / folder).glob(f"*{_ENTRY_SUFFIX}")):
            try:
                _read_verified_entry(path)
            except (OSError, ValueError) as error:
                yield path, str(error)
    for path in sorted((cache / TOKENS).glob("[!.]*")):
        try:
            TokenStore(path).verify()
        except DataError as error:
            yield path, error.what


def _read_verified_entry(path: Path) -> bytes:
    """Returns the content of an entry. Raises OSError, and ValueError when its checksum does not match."""
    try:
        return verify_and_strip_checksum(durable.read_file(path, MAX_CACHE_FILE_BYTES))
    except ValueError as error:
        raise ValueError(f"{path.name[:12]}... {error}") from None
