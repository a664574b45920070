"""Append-only logs of a run, one JSON object a line: metrics and samples."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, NonNegativeInt

from lmtool import durable, records
from lmtool.durable import refusing
from lmtool.errors import CheckpointError
from lmtool.records import FileModel

Record = dict[str, Any]

LISTED = 5
"""Lines or steps that a message names."""

LONGEST = 16 << 20
"""Bytes of a line."""

_ASIDE = "move the file aside: the run can do without it, but its earlier records are lost"


class LogMark(FileModel):
    """The first `bytes` bytes of a log, and their SHA-256."""

    bytes: NonNegativeInt
    sha256: str


class LogMarks(FileModel):
    """The content of logs.json."""

    metrics: LogMark
    samples: LogMark


class Log:
    """One log file. Every record has its `step`. Appending needs the lock of the run; reading needs nothing.

    kind: what a record is.
    """

    def __init__(self, path: Path, kind: type[BaseModel]) -> None:
        self.path = path
        self._kind = kind
        self._digest: tuple[int, Any] | None = None
        """Bytes of the file, and the running SHA-256 of them, once they are known."""

    def append(self, record: Mapping[str, object]) -> None:
        """Append one record, which survives a crash of this process on return. NaN and infinities become null.

        Raises ResourceError when it cannot be written; the log is then unchanged.
        """
        line = json.dumps(records.finite(record), allow_nan=False) + "\n"
        refused = refusing("cannot write the log", self.path, durable.way_to_write)
        with refused, self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line.encode("ascii")) != len(line):
                    raise OSError(errno.ENOSPC, "only part of the record was written")
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise
        if self._digest is not None:
            size, digest = self._digest
            digest.update(line.encode("ascii"))
            self._digest = size + len(line), digest

    def mark(self) -> LogMark:
        """The whole log as it is now. Raises OSError."""
        if self._digest is None:
            size, digest = 0, hashlib.sha256()
            if self.path.exists():
                with self.path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256")
                    size = file.tell()
            self._digest = size, digest
        size, digest = self._digest
        return LogMark(bytes=size, sha256=digest.hexdigest())

    def check(self, step: int, mark: LogMark | None, expected: Sequence[int] = ()) -> list[str]:
        """What is damaged or missing up to a step, a line each. mark: of an earlier time. expected: steps in order.

        An incomplete last line is that of a killed process.
        """
        digest, left = hashlib.sha256(), 0 if mark is None else mark.bytes
        damaged: list[int] = []
        n_damaged = 0
        seen: set[int] = set()
        last = 0
        is_ordered = True
        for number, line, record, _ in self._lines():
            digest.update(line[:left])
            left -= min(left, len(line))
            if record is None:
                if line.endswith(b"\n"):
                    n_damaged += 1
                    damaged += [number] if n_damaged <= LISTED else []
            elif record["step"] <= step:
                is_ordered &= record["step"] >= last
                last = record["step"]
                seen.add(last)
        name = self.path.name
        problems = []
        if damaged:
            problems.append(f"{name}: damaged and removed: {_listed('line', damaged, n_damaged)}")
        if missing := list(islice((wanted for wanted in expected if wanted not in seen), LISTED)):
            n_missing = len(expected) - sum(number in expected for number in seen)
            problems.append(f"{name} has no record of {_listed('step', missing, n_missing)}")
        if not problems and not is_ordered:
            problems.append(f"{name}: its records are not in the order of their steps")
        if not problems and mark is not None and (left or digest.hexdigest() != mark.sha256):
            problems.append(f"{name} has been changed since it was written: its numbers may be wrong")
        return problems

    def read(self) -> Iterator[Record]:
        """All records, in order. An incomplete last line is being written, and skipped.

        Raises CheckpointError at a line that is not a record.
        """
        for number, line, record, why in self._lines():
            if record is None and line.endswith(b"\n"):
                raise CheckpointError(
                    f"this line of the log is not a record: {why}", where=f"{self.path}:{number}", fix="delete the line"
                )
            if record is not None:
                yield record

    def until(self, step: int) -> Iterator[bytes]:
        """The lines of the records up to a step. Raises CheckpointError when the log cannot be read."""
        for _, line, record, _ in self._lines():
            if record is not None and record["step"] <= step:
                yield line

    def rewind(self, step: int) -> None:
        """Remove atomically all records after `step` and lines that are not records.

        Raises ResourceError when the log cannot be written.
        """
        if not self.path.exists() or sum(map(len, self.until(step))) == self.path.stat().st_size:
            return
        self._digest = None
        with refusing("cannot rewrite the log", self.path, durable.way_to_write):
            durable.replace(self.path, self.until(step))

    def sync(self) -> None:
        """Sync appended records to disk. Raises OSError."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())

    def _lines(self) -> Iterator[tuple[int, bytes, Record | None, str]]:
        """Number, bytes and record of each line; None if it is not a record, and why."""
        with refusing("cannot read the log", self.path, _ASIDE, CheckpointError):
            if not self.path.exists():
                return
            file = durable.open_regular(self.path)
        with file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b""), start=1):
                if len(line) > LONGEST:
                    what = f"this line of the log is not a record: it has more than {LONGEST:,} bytes"
                    raise CheckpointError(what, where=f"{self.path}:{number}", fix=_ASIDE)
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("it is incomplete")
                    record = records.parse(line)
                    records.check(self._kind, record)
                    yield number, line, record, ""
                except ValueError as error:
                    yield number, line, None, str(error)


def _listed(what: str, first: list[int], n: int) -> str:
    """For example "lines 3, 4, 7, 8, 9 and 2 more", of n numbers with these as the first ones."""
    more = f" and {n - len(first):,} more" if n > len(first) else ""
    return f"{what}{'s' * (n > 1)} {', '.join(map(str, first))}{more}"
