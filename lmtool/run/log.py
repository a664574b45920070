"""Append-only logs of a run, one JSON object a line: metrics and samples."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmtool import durable
from lmtool.errors import CheckpointError, ResourceError

Record = dict[str, Any]


class Log:
    """One log file. Every record has its `step`. Appending needs the lock of the run; reading needs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, object]) -> None:
        """Append one record, which survives a crash of this process on return. NaN and infinities become null.

        Raises ResourceError when it cannot be written; the log is then unchanged.
        """
        line = json.dumps({key: _finite(value) for key, value in record.items()}, allow_nan=False) + "\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                end = file.tell()
                try:
                    if file.write(line.encode("ascii")) != len(line):
                        raise OSError(0, "only part of the record was written")
                except OSError:
                    os.ftruncate(file.fileno(), end)
                    raise
        except OSError as error:
            raise ResourceError(
                f"cannot write the log: {error.strerror}", where=str(self.path), fix="free some disk space"
            ) from error

    def read(self) -> Iterator[Record]:
        """All records, in order. An incomplete last line is being written, and skipped.

        Raises CheckpointError at a line that is not a record.
        """
        for number, line, record in self._lines():
            if record is None and line.endswith(b"\n"):
                raise CheckpointError(
                    "this line of the log is not a JSON object with a step",
                    where=f"{self.path}:{number}",
                    fix="delete the line",
                )
            if record is not None:
                yield record

    def rewind(self, step: int) -> None:
        """Remove atomically all records after `step` and lines that are not records.

        Raises ResourceError when the log cannot be written.
        """
        kept = []
        complete = True
        for _, line, record in self._lines():
            if record is not None and record["step"] <= step:
                kept.append(line)
            else:
                complete = False
        if complete:
            return
        try:
            durable.replace(self.path, b"".join(kept))
        except OSError as error:
            raise ResourceError(
                f"cannot rewrite the log: {error.strerror}", where=str(self.path), fix="free some disk space"
            ) from error

    def sync(self) -> None:
        """Sync appended records to disk. Raises OSError."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _lines(self) -> Iterator[tuple[int, bytes, Record | None]]:
        """Number, bytes and record of each line; None if it is not a record."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"cannot read the log: {error.strerror}", where=str(self.path)) from error
        with file:
            for number, line in enumerate(file, start=1):
                yield number, line, _parse(line)


def _parse(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
