"""Small disks and read-only places, as mounts that only this process and its children see.

They need a Linux that lets this user mount; where it does not, there is none, and errors are injected instead.
"""

import ctypes
import os
import shutil
from pathlib import Path

_NEW_NAMESPACE = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def small_disk(home: Path, room: int) -> Path | None:
    """A copy of a folder on a disk that has so many bytes left; None where this user cannot mount one."""
    place = home.with_name("disk") / home.name  # beside it is room for what a command prints
    place.mkdir(parents=True)
    if not (_own_namespace() and _mount("tmpfs", place, "tmpfs", 0, "size=64m")):
        return None
    shutil.copytree(home, place, symlinks=True, dirs_exist_ok=True)
    used = os.statvfs(place)
    size = (used.f_blocks - used.f_bfree) * used.f_frsize + room
    return place if _mount("tmpfs", place, "tmpfs", _REMOUNT, f"size={size}") else None


def make_read_only(place: Path) -> bool:
    """Let nothing be written to a folder; False where this user cannot do so."""
    if not (_own_namespace() and _mount(str(place), place, "", _BIND)):
        return False
    if not _mount("", place, "", _BIND | _REMOUNT | _READ_ONLY):
        make_writable(place)
        return False
    return True


def make_writable(place: Path) -> None:
    """Undo `make_read_only`."""
    _libc.umount2(os.fsencode(place), _DETACH)


def _own_namespace() -> bool:
    """Mounts of this process are its own from now on."""
    return bool(_libc.unshare(_NEW_NAMESPACE) == 0) and _mount("none", Path("/"), "", _PRIVATE | _RECURSIVE)


def _mount(source: str, target: Path, kind: str, flags: int, data: str = "") -> bool:
    given = data.encode() if data else None
    failed = _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), given)
    return not failed
