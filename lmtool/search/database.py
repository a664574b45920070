"""The SQLite file of an index. It may be damaged, or made by somebody to do harm, so it is opened with care.

Only a regular file is opened, with files of SQLite beside it that are regular, too: a pipe would be waited for. It must
have exactly the tables that are expected: a view or a trigger may compute forever. Nothing is read of it before that.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from lmtool import durable
from lmtool.errors import DataError, ResourceError

_MAGIC, _ROLLBACK = b"SQLite format 3\0", b"\1\1"
"""How a file of SQLite begins; and at byte 18, that a rollback journal is kept beside it, no write-ahead log."""

_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that names another one, which SQLite may delete. A journal of a single file never does."""

LONGEST = 1_000_000_000
"""Bytes of a text, beyond which SQLite reads none of itself."""

_MOST_CALLS, _OPERATIONS = 1000, 1000
"""Calls of the handler, and operations of SQLite between them, in which a schema must be read."""

_SYSTEM_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    **dict.fromkeys((sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY), errno.EACCES),
}
"""Errors of SQLite that say nothing of the file, and those of the operating system that they come from."""


def damaged(folder: Path, why: str) -> DataError:
    """The error for an index that is damaged, or is none."""
    what = f"the index is damaged: {why}" if folder.is_dir() else "there is no index"
    return DataError(what, where=str(folder), fix="make a new one: lmtool search index FILES --run RUN -o NEW")


@contextmanager
def connect(file: Path, schema: str, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
    """A file of SQLite that has exactly the tables of `schema`, open for reading, or for writing too.

    Raises DataError where it is missing, damaged or another file, ResourceError where the system refuses it.
    """
    journal = file.with_name(f"{file.name}-journal")
    head, end = _ends_of(file), _ends_of(journal, required=False)
    for log in ("wal", "shm"):
        _ends_of(file.with_name(f"{file.name}-{log}"), required=False)
    is_whole = head[0].startswith(_MAGIC) and head[0][18:] == _ROLLBACK and end[1] != _SUPER_JOURNAL
    if not is_whole:
        raise damaged(file.parent, f"{file.name} is not a file of an index")
    mode = "rw" if writes or end[0] else "ro"  # what a killed process began to write is undone
    with (
        sqlite_errors(file.parent, writes=writes),
        closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", timeout=60, uri=True)) as db,
    ):
        calls = count()
        db.set_progress_handler(lambda: next(calls) >= _MOST_CALLS, _OPERATIONS)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        if _schema_of(db) != _schema_made_by(schema):
            raise damaged(file.parent, f"{file.name} has other tables than those of this version")
        db.set_progress_handler(None, 0)
        if not writes and (size := file.stat().st_size) < LONGEST:  # no text is longer than the file
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1 << 16, size))
        elif db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise damaged(file.parent, f"{file.name} has pages that do not fit together")
        yield db


def check_regular(file: Path) -> None:
    """Raise DataError for a file of an index that is missing, or no regular file; ResourceError if it is forbidden."""
    _ends_of(file)


def _ends_of(file: Path, *, required: bool = True) -> tuple[bytes, bytes]:
    """The first 20 and the last 8 bytes of a regular file. Raises as `check_regular`, unless it need not be there."""
    with durable.refusing("cannot read", file, "make it readable, or make a new index"):
        try:
            with durable.open_regular(file) as opened:
                head = opened.read(20)
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - 8))
                return head, opened.read(8)
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not required:
                return b"", b""
            raise damaged(file.parent, f"{file.name}: {error.strerror}") from error


@contextmanager
def sqlite_errors(folder: Path, *, writes: bool) -> Iterator[None]:
    """Turn errors of SQLite into a ResourceError where the system is the reason, else into a DataError."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes what is no text
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            fix = "wait until it is done, then repeat the command"
            raise ResourceError("another process is changing the index", where=str(folder), fix=fix) from error
        if code not in _SYSTEM_ERRORS:
            raise damaged(folder, str(error)) from error
        with durable.writing(folder) if writes else durable.refusing("cannot read", folder, "check the disk"):
            raise OSError(_SYSTEM_ERRORS[code], os.strerror(_SYSTEM_ERRORS[code]), str(folder)) from error


@cache
def _schema_made_by(sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(sql)
        return _schema_of(db)


def _schema_of(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    """The tables of a file, and all else that it defines, with the statements that made them."""
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 9").fetchall()
