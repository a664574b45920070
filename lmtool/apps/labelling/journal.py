"""A journal of answers, a line of JSON each, which survives a crash; a torn last line is dropped."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtool import system
from lmtool.errors import DataError, UsageError
from lmtool.storage import durable, records


class LockedAnswerJournal:
    """A journal file that one process has open. entries: those that it had when it was opened.

    Raises UsageError if another process has it open, or if it has answers to another table; DataError if it is damaged.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """head: the first line, which identifies the table of the answers."""
        self.path = path
        with durable.convert_write_errors(path):
            self._file = path.open("a+b", buffering=0)
        try:
            with durable.convert_lock_errors(path):
                is_free = system.try_to_lock_file(self._file.fileno())
            if not is_free:
                raise UsageError("another process labels this table", where=str(path), fix="use its page, or end it")
            self._file.seek(0)
            content = self._file.read()
            self._size = content.rfind(b"\n") + 1
            known, *self.entries = map(
                records.parse_json, content[: self._size].splitlines() or [json.dumps(head).encode()]
            )
            if not self.entries and isinstance(known, dict) and known.keys() == head.keys() and known != head:
                self._size = 0  # a journal without answers is reused for any table
            elif known != head:
                fix = "choose another -o, or the table, column and --multi as they were"
                raise UsageError("these are answers to another table", where=str(path), fix=fix, code="data_changed")
            if not self._size:
                self.append_and_sync(head)
                durable.sync_directory(path.parent)
        except Exception as error:
            self.close()
            if not isinstance(error, ValueError):
                raise
            fix = "remove the line that is not JSON"
            raise DataError("the answers are damaged", where=str(path), fix=fix, code="damaged") from None

    def append_and_sync(self, entry: Mapping[str, Any]) -> None:
        """Writes an entry and syncs it to disk. If it raises ResourceError, the entry is not written."""
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with durable.convert_write_errors(self.path):
            os.ftruncate(self._file.fileno(), self._size)  # drops a line that a crash or a full disk cut
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        self._size += len(line)

    def close(self) -> None:
        """Closes the file, so that others can open it."""
        self._file.close()
