"""Watches what a process does to the files in a folder, and interferes before a chosen operation.

Python's own functions are watched, so no library, no privilege and no variable of the environment is needed. Files that
are opened for writing are those of `_pyio`, whose writes go through os.write one by one.
"""

import _pyio
import builtins
import fcntl
import io
import mmap
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Act = Callable[["Event"], int | None]
"""Called before an operation; of a write, the number of bytes to write before it is called again as `torn`."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
FREEING = ("unlink", "rmdir")
"""Operations that a full disk allows."""


@dataclass(frozen=True)
class Event:
    """An operation on a file. number: from 1. path: relative to the folder. torn: in the middle of a write."""

    number: int
    name: str
    path: str
    torn: bool = False


@dataclass
class Watch:
    """Calls what is installed before each operation that changes something in `folder`, in this process.

    reads: files that are opened for reading count as well. victim: the process that gets signals, if another.
    """

    folder: Path
    reads: bool = False
    victim: int = 0
    count: int = 0
    unsynced: dict[str, int] = field(default_factory=dict)
    """Bytes known to be on disk, of each file that has more."""

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self._prefix = f"{self.folder}{os.sep}"

    def signal(self, number: int) -> None:
        os.kill(self.victim or os.getpid(), number)

    def lose_unsynced(self) -> None:
        """What a power cut does: bytes that were not synced to disk are gone."""
        for path, size in self.unsynced.items():
            if os.path.isfile(path):
                _TRUNCATE(path, size)

    def _event(self, name: str, path: str, torn: bool = False) -> int | None:
        if not torn:
            self.count += 1
        return self._act(Event(self.count, name, path.removeprefix(self._prefix), torn))

    def _inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path, of a file in the folder only."""
        if isinstance(path, int):
            found = os.readlink(f"/proc/self/fd/{path}")
        else:
            base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            found = os.path.join(base, os.fsdecode(path))
            found = os.path.join(os.path.realpath(os.path.dirname(found)), os.path.basename(found))
        return found if found.startswith(self._prefix) and not found.endswith(" (deleted)") else None

    def install(self, act: Act) -> None:
        """Watch from now on, until this process ends."""
        self._act = act
        for name in ("mkdir", "unlink", "rmdir", "truncate", "ftruncate", "fsync"):
            self._wrap(name)
        os.remove = os.unlink
        self._wrap_open()
        self._wrap_write()
        for name in ("rename", "replace"):
            self._wrap_rename(name)
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]  # copies go through os.write
        genuine_open = io.open

        def watched_open(file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                return _pyio.open(file, mode, *others, **named)
            if self.reads and isinstance(file, str | os.PathLike) and (path := self._inside(file)):
                self._event("read", path)
            return genuine_open(file, mode, *others, **named)

        builtins.open = io.open = watched_open

    def _wrap(self, name: str) -> None:
        genuine = getattr(os, name)

        def watched(path: Any, *others: Any, **named: Any) -> Any:
            inside = self._inside(path, named.get("dir_fd"))
            if inside is None:
                return genuine(path, *others, **named)
            self._event(name, inside)
            result = genuine(path, *others, **named)
            if name in ("fsync", "unlink"):
                self.unsynced.pop(inside, None)
            return result

        setattr(os, name, watched)

    def _wrap_open(self) -> None:
        genuine = os.open

        def watched(path: Any, flags: int, *others: Any, **named: Any) -> int:
            if flags & WRITES and (inside := self._inside(path, named.get("dir_fd"))):
                self._event("open", inside)
                if flags & (os.O_TRUNC | os.O_EXCL):
                    self.unsynced[inside] = 0
            return genuine(path, flags, *others, **named)

        os.open = watched

    def _wrap_write(self) -> None:
        def wrapped(genuine: Callable[..., int]) -> Callable[..., int]:
            def write(handle: int, content: Any, *position: int) -> int:
                inside = self._inside(handle)
                if inside is None:
                    return genuine(handle, content, *position)
                self.unsynced.setdefault(inside, os.fstat(handle).st_size)
                size = self._event("write", inside)
                if size is None:
                    return genuine(handle, content, *position)
                genuine(handle, memoryview(content)[:size], *position)
                self._event("write", inside, torn=True)
                raise AssertionError("a torn write is the last")

            return write

        os.write, os.pwrite = wrapped(os.write), wrapped(os.pwrite)

    def _wrap_rename(self, name: str) -> None:
        genuine = getattr(os, name)

        def watched(old: Any, new: Any, **named: Any) -> None:
            before, after = self._inside(old), self._inside(new)
            if before is not None:
                self._event("rename", before)
            genuine(old, new, **named)
            if before is not None and after is not None:
                moved = {path: size for path, size in self.unsynced.items() if f"{path}/".startswith(f"{before}/")}
                self.unsynced.pop(after, None)
                for path, size in moved.items():
                    del self.unsynced[path]
                    self.unsynced[after + path.removeprefix(before)] = size

        setattr(os, name, watched)


_TRUNCATE, _WRITE = os.truncate, os.write


@dataclass(frozen=True)
class Record:
    """Writes all events to a file outside of the folder."""

    file: Path

    def __call__(self, watch: Watch) -> Act:
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def act(event: Event) -> None:
            _WRITE(handle, f"{event.name}\t{event.path}\n".encode())

        return act


@dataclass(frozen=True)
class Kill:
    """kill -9 before the n-th event. torn: in the middle of it, if it is a write. power: what is not synced is lost.

    below: only events in this part of the folder count.
    """

    number: int
    torn: bool = False
    power: bool = False
    below: str = ""

    def __call__(self, watch: Watch) -> Act:
        seen = 0

        def act(event: Event) -> int | None:
            nonlocal seen
            seen += event.path.startswith(self.below) and not event.torn
            if seen != self.number or not event.path.startswith(self.below):
                return None
            if self.torn and event.name == "write" and not event.torn:
                return 7
            if self.power:
                watch.lose_unsynced()
            watch.signal(signal.SIGKILL)
            return None

        return act


@dataclass(frozen=True)
class Send:
    """Signals, each before the event of its number."""

    at: tuple[tuple[int, int], ...]

    def __call__(self, watch: Watch) -> Act:
        def act(event: Event) -> None:
            for number, sent in self.at:
                if event.number == number:
                    watch.signal(sent)

        return act


@dataclass(frozen=True)
class Fail:
    """An error of the operating system in the n-th event; and in all that follow, for `times` of them.

    below: only in this part of the folder, of which the events are counted.
    """

    number: int
    error: int
    times: int = 1
    below: str = ""

    def __call__(self, watch: Watch) -> Act:
        seen = 0

        def act(event: Event) -> None:
            nonlocal seen
            if f"{event.path}/".startswith(self.below) and event.name not in FREEING:
                seen += 1
                if self.number <= seen < self.number + self.times:
                    raise OSError(self.error, os.strerror(self.error), str(watch.folder / event.path))

        return act


@dataclass(frozen=True)
class Lack:
    """A file system that lacks something: "locks", "maps" into memory, or "syncs" of folders.

    error: of the operating system. below: only in this part of the folder. The library of safetensors maps files by
    itself; it tells the number of an error in its text only.
    """

    what: str
    error: int
    below: str = ""

    def __call__(self, watch: Watch) -> Act:
        place = os.path.join(watch.folder, self.below)

        def lacking(handle: int) -> bool:
            return handle >= 0 and f"{os.readlink(f'/proc/self/fd/{handle}')}/".startswith(place)

        def wrap(module: Any, name: str, lacks: Callable[..., bool], number: int | None = self.error) -> None:
            genuine = getattr(module, name)

            def wrapped(*given: Any, **named: Any) -> Any:
                if not lacks(*given):
                    return genuine(*given, **named)
                told = os.strerror(self.error)
                raise OSError(f"{told} (os error {self.error})") if number is None else OSError(number, told)

            setattr(module, name, wrapped)

        match self.what:
            case "locks":
                wrap(fcntl, "flock", lambda handle, _: lacking(handle))
            case "maps":
                from lmtool.runs import tensors

                wrap(mmap, "mmap", lambda handle, *_: lacking(handle))
                wrap(tensors, "safe_open", lambda path, *_: os.path.abspath(path).startswith(place), None)
            case "syncs":
                wrap(os, "fsync", lambda handle: os.path.isdir(f"/proc/self/fd/{handle}") and lacking(handle))
        return lambda event: None


@dataclass(frozen=True)
class Homeless:
    """A user without a home, whom the system does not know. temporary: the folder for temporary files."""

    temporary: Path

    def __call__(self, watch: Watch) -> Act:
        import pwd
        import tempfile

        for name in ("HOME", "USER", "LOGNAME", "LMTOOL_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)

        def unknown(number: int) -> Any:
            raise KeyError(f"getpwuid(): uid not found: {number}")

        pwd.getpwuid = unknown
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        return lambda event: None


@dataclass(frozen=True)
class Jump:
    """The clock jumps by `seconds` at the n-th event. A clock that jumps twice does so at each of two events."""

    at: tuple[tuple[int, float], ...]

    def __call__(self, watch: Watch) -> Act:
        import datetime as dates
        import sys

        genuine, offset = time.time, 0.0

        class Shifted(dates.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> "Shifted":
                return cls.fromtimestamp(time.time(), tz)

        time.time = lambda: genuine() + offset
        for name, module in list(sys.modules.items()):
            if name.startswith("lmtool") and getattr(module, "datetime", None) is dates.datetime:
                module.datetime = Shifted  # type: ignore[attr-defined]

        def act(event: Event) -> None:
            nonlocal offset
            for number, seconds in self.at:
                if event.number == number:
                    offset += seconds

        return act
