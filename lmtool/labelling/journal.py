"""Answers on the disk, a line of JSON each: what is written survives the process, and a torn last line is dropped."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtool import durable, records, system
from lmtool.errors import DataError, UsageError


class Journal:
    """A file of one process. entries: those that it had when it was opened.

    Raises UsageError where another process has it, or it has answers to another table; DataError where it is damaged.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """head: the first line, which says to what the answers belong."""
        self.path = path
        with durable.writing(path):
            self._file = path.open("a+b", buffering=0)
        try:
            with durable.locking(path):
                is_free = system.try_lock(self._file.fileno())
            if not is_free:
                raise UsageError("another process labels this table", where=str(path), fix="use its page, or end it")
            self._file.seek(0)
            content = self._file.read()
            self._size = content.rfind(b"\n") + 1
            known, *self.entries = map(records.parse, content[: self._size].splitlines() or [json.dumps(head).encode()])
            if not self.entries and isinstance(known, dict) and known.keys() == head.keys() and known != head:
                self._size = 0  # without an answer, it belongs to nothing
            elif known != head:
                fix = "choose another -o, or the table, column and --multi as they were"
                raise UsageError("these are answers to another table", where=str(path), fix=fix, code="data_changed")
            if not self._size:
                self.append(head)
                durable.sync_directory(path.parent)
        except Exception as error:
            self.close()
            if not isinstance(error, ValueError):
                raise
            fix = "remove the line that is not JSON"
            raise DataError("the answers are damaged", where=str(path), fix=fix, code="damaged") from None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry, and sync it to disk. Raises ResourceError, and then it is not there."""
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with durable.writing(self.path):
            os.ftruncate(self._file.fileno(), self._size)  # what a crash or a full disk left of a line
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        self._size += len(line)

    def close(self) -> None:
        """Let others open it."""
        self._file.close()
