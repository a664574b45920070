"""Append-only logs of a run with one JSON object per line: metrics and samples."""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lmtool.errors import CheckpointError
from lmtool.storage import durable, records
from lmtool.storage.durable import convert_os_errors

LogRecord = dict[str, Any]

MAX_NAMED = 5
"""Lines or steps that a message names."""

MAX_LOG_LINE_BYTES = 16 << 20
"""Limit of a line."""

_MOVE_FIX = "move the file aside: the run can do without it, but its earlier records are lost"


class RunLog:
    """A log file whose records have a `step`. Appending needs the lock of the run.

    record_type: validates each record.
    """

    def __init__(self, path: Path, record_type: type[BaseModel]) -> None:
        self.path = path
        self._record_type = record_type

    def append(self, record: Mapping[str, object]) -> None:
        """Appends a record, which then survives a crash of this process. NaN and infinities become null.

        Raises ResourceError when it cannot be written; the log is then unchanged.
        """
        line = json.dumps(records.replace_nonfinite(record), allow_nan=False) + "\n"
        refused = convert_os_errors("cannot write the log", self.path, durable.suggest_write_fix)
        with refused, self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line.encode("ascii")) != len(line):
                    raise OSError(errno.ENOSPC, "only part of the record was written")
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise

    def describe_damage(self, last_step: int, expected_steps: Sequence[int] = ()) -> list[str]:
        """Returns a line about damaged lines, and one about expected steps up to `last_step` without a record.

        An incomplete last line, which a killed process leaves, is no damage.
        """
        damaged: list[int] = []
        n_damaged = 0
        seen: set[int] = set()
        for number, line, record, _ in self._parse_lines():
            if record is not None and record["step"] <= last_step:
                seen.add(record["step"])
            elif record is None and line.endswith(b"\n"):
                n_damaged += 1
                damaged += [number] if n_damaged <= MAX_NAMED else []
        problems = []
        if damaged:
            problems.append(f"{self.path.name}: damaged and removed: {_join_numbers('line', damaged, n_damaged)}")
        if missing := list(islice((number for number in expected_steps if number not in seen), MAX_NAMED)):
            n_missing = len(expected_steps) - sum(number in expected_steps for number in seen)
            problems.append(f"{self.path.name} has no record of {_join_numbers('step', missing, n_missing)}")
        return problems

    def read_records(self) -> Iterator[LogRecord]:
        """Yields all records in order, without an incomplete last line, which is being written.

        Raises CheckpointError at a line that is not a record.
        """
        for number, line, record, why in self._parse_lines():
            if record is None and line.endswith(b"\n"):
                raise CheckpointError(
                    f"this line of the log is not a record: {why}", where=f"{self.path}:{number}", fix="delete the line"
                )
            if record is not None:
                yield record

    def read_lines_until_step(self, step: int) -> Iterator[bytes]:
        """Yields the lines of the records up to a step. Raises CheckpointError when the log cannot be read."""
        for _, line, record, _ in self._parse_lines():
            if record is not None and record["step"] <= step:
                yield line

    def rewind(self, step: int) -> None:
        """Removes atomically all records after `step` and lines that are not records.

        Raises ResourceError when the log cannot be written.
        """
        if not self.path.exists() or sum(map(len, self.read_lines_until_step(step))) == self.path.stat().st_size:
            return
        with convert_os_errors("cannot rewrite the log", self.path, durable.suggest_write_fix):
            durable.replace_file(self.path, self.read_lines_until_step(step))

    def sync(self) -> None:
        """Syncs appended records to disk. Raises OSError."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())

    def _parse_lines(self) -> Iterator[tuple[int, bytes, LogRecord | None, str]]:
        """Yields number, bytes, record and "" for each line, or None and the reason for a line that is no record."""
        with convert_os_errors("cannot read the log", self.path, _MOVE_FIX, CheckpointError):
            if not self.path.exists():
                return
            file = durable.open_regular_file(self.path)
        with file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LOG_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LOG_LINE_BYTES:
                    what = f"this line of the log is not a record: it has more than {MAX_LOG_LINE_BYTES:,} bytes"
                    raise CheckpointError(what, where=f"{self.path}:{number}", fix=_MOVE_FIX)
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("it is incomplete")
                    record = records.parse_json(line)
                    records.validate_model(self._record_type, record)
                    yield number, line, record, ""
                except ValueError as error:
                    yield number, line, None, str(error)


def _join_numbers(what: str, first: list[int], n: int) -> str:
    """Returns for example "lines 3, 4, 7, 8, 9 and 2 more". n: number of all, of which `first` are shown."""
    more = f" and {n - len(first):,} more" if n > len(first) else ""
    return f"{what}{'s' * (n > 1)} {', '.join(map(str, first))}{more}"
