"""Entries of the cache that are computed once: each with its checksum, and made anew when it is damaged.

surveys/KEY.entry  tokenizers/KEY.entry     16 hexadecimal digits, XXH3 of what follows; a newline; the content
tokens/KEY/                                 a token store, which has checksums of its own
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from lmtool import durable
from lmtool.checksum import sha256, with_xxh3, without_xxh3
from lmtool.data.store import LARGEST, TokenStore
from lmtool.durable import cache_folder, locked, rename, write_file, writing
from lmtool.errors import DataError

T = TypeVar("T")

SURVEYS, TOKENIZERS, TOKENS = "surveys", "tokenizers", "tokens"

_ENTRY = ".entry"
_LOG = logging.getLogger(__name__)


def cached(folder: str, key: str, what: str, make: Callable[[], bytes], parse: Callable[[bytes], T]) -> T:
    """The entry `key` of a folder of the cache, made first where it is missing or damaged.

    what: it is, for the line that tells of a damaged one. parse: may raise ValueError. A second process waits.
    Raises ResourceError when it cannot be written.
    """
    path = cache_folder() / folder / f"{key}{_ENTRY}"
    with locked(path.with_suffix(".lock")):
        try:
            return parse(_read(path))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            tell(what, str(error))
        content = make()
        write_file(path, with_xxh3(content))
        return parse(content)


def lock_of_store(path: Path) -> Path:
    """The lock file of whoever makes the token store at a path, in the cache or not."""
    return cache_folder() / "locks" / f"{sha256(os.fsencode(path.absolute()))}.lock"


def tell(what: str, why: str) -> None:
    """Say on one line that an entry of the cache is made anew."""
    _LOG.warning("%s in the cache could not be used, and is made anew: %s", what, why)


def discard(path: Path) -> None:
    """Remove a folder of the cache; its name is free at once. Raises ResourceError."""
    doomed = path.with_name(f"{durable.TEMPORARY}{path.name}")
    with writing(path):
        shutil.rmtree(doomed, ignore_errors=True)
        rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def verify_cache() -> Iterator[tuple[Path, str]]:
    """Each entry of the cache that cannot be used, and why."""
    cache = cache_folder()
    for folder in (SURVEYS, TOKENIZERS):
        for path in sorted((cache / folder).glob(f"*{_ENTRY}")):
            try:
                _read(path)
            except (OSError, ValueError) as error:
                yield path, str(error)
    for path in sorted((cache / TOKENS).glob("[!.]*")):
        try:
            TokenStore(path).verify()
        except DataError as error:
            yield path, error.what


def _read(path: Path) -> bytes:
    """The content of an entry. Raises OSError, and ValueError when it is not what was written."""
    try:
        return without_xxh3(durable.read(path, LARGEST))
    except ValueError as error:
        raise ValueError(f"{path.name[:12]}... {error}") from None
