"""Opens the SQLite file of an index with care, because it may be damaged or malicious.

Only regular files are opened, since a pipe would block. The file must have exactly the expected tables, since a view or
a trigger may compute forever; nothing is read before this check.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from lmtool.errors import DataError, ResourceError
from lmtool.storage import durable

_MAGIC, _ROLLBACK = b"SQLite format 3\0", b"\1\1"
"""The first bytes of an SQLite file, and its bytes from 18 on if it has a rollback journal, not a write-ahead log."""

_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another one, which SQLite may delete. A journal of one file never does."""

MAX_SQLITE_BYTES = 1_000_000_000
"""Maximum bytes of a text that SQLite reads by default."""

_MAX_PROGRESS_CALLS, _OPERATIONS_PER_CALL = 1000, 1000
"""Maximum calls of the progress handler, and SQLite operations between them, while a schema is read."""

_ERRNO_BY_SQLITE_CODE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), errno.EACCES),
}
"""Errors of the operating system by SQLite errors that do not mean that the file is damaged."""


def damaged_index_error(folder: Path, why: str) -> DataError:
    """Makes the error for a damaged or missing index."""
    what = f"the index is damaged: {why}" if folder.is_dir() else "there is no index"
    return DataError(what, where=str(folder), fix="make a new one: lmtool search index FILES --run RUN -o NEW")


@contextmanager
def open_verified_database(file: Path, expected_schema: str, *, writable: bool = False) -> Iterator[sqlite3.Connection]:
    """Opens an SQLite file that has exactly the tables of `schema`, for reading, or for writing too.

    Raises DataError if it is missing, damaged or another file, ResourceError for errors of the system.
    """
    journal = file.with_name(f"{file.name}-journal")
    head, end = _read_first_and_last_bytes(file), _read_first_and_last_bytes(journal, must_exist=False)
    for log in ("wal", "shm"):
        _read_first_and_last_bytes(file.with_name(f"{file.name}-{log}"), must_exist=False)
    is_whole = head[0].startswith(_MAGIC) and head[0][18:] == _ROLLBACK and end[1] != _SUPER_JOURNAL
    if not is_whole:
        raise damaged_index_error(file.parent, f"{file.name} is not a file of an index")
    mode = "rw" if writable or end[0] else "ro"  # what a killed process began to write is undone
    with (
        convert_sqlite_errors(file.parent, writes=writable),
        closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", timeout=60, uri=True)) as db,
    ):
        calls = count()
        db.set_progress_handler(lambda: next(calls) >= _MAX_PROGRESS_CALLS, _OPERATIONS_PER_CALL)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        if _read_schema(db) != _expected_schema(expected_schema):
            raise damaged_index_error(file.parent, f"{file.name} has other tables than those of this version")
        db.set_progress_handler(None, 0)
        if not writable and (size := file.stat().st_size) < MAX_SQLITE_BYTES:  # no text is longer than the file
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1 << 16, size))
        elif db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise damaged_index_error(file.parent, f"{file.name} has pages that do not fit together")
        yield db


def check_regular_file(file: Path) -> None:
    """Raises DataError for a missing or irregular file of an index; ResourceError for one that may not be read."""
    _read_first_and_last_bytes(file)


def _read_first_and_last_bytes(file: Path, *, must_exist: bool = True) -> tuple[bytes, bytes]:
    """Reads the first 20 and the last 8 bytes of a regular file. Raises as `check_regular_file`."""
    with durable.convert_os_errors("cannot read", file, "make it readable, or make a new index"):
        try:
            with durable.open_regular_file(file) as opened:
                head = opened.read(20)
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - 8))
                return head, opened.read(8)
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not must_exist:
                return b"", b""
            raise damaged_index_error(file.parent, f"{file.name}: {error.strerror}") from error


@contextmanager
def convert_sqlite_errors(folder: Path, *, writes: bool) -> Iterator[None]:
    """Turns SQLite errors into a ResourceError if the system caused them, else into a DataError."""
    try:
        yield
    except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:  # the last where a message quotes what is no text
        default = sqlite3.SQLITE_NOMEM if isinstance(error, MemoryError) else sqlite3.SQLITE_ERROR
        code = getattr(error, "sqlite_errorcode", default) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            fix = "wait until it is done, then repeat the command"
            raise ResourceError("another process is changing the index", where=str(folder), fix=fix) from error
        if code not in _ERRNO_BY_SQLITE_CODE:
            raise damaged_index_error(folder, str(error)) from error
        with (
            durable.convert_write_errors(folder)
            if writes
            else durable.convert_os_errors("cannot read", folder, "check the disk")
        ):
            raise OSError(_ERRNO_BY_SQLITE_CODE[code], os.strerror(_ERRNO_BY_SQLITE_CODE[code]), str(folder)) from error


@cache
def _expected_schema(sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(sql)
        return _read_schema(db)


def _read_schema(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Reads all tables and other definitions of a file, with the statements that made them."""
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 9").fetchall()
