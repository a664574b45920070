"""The lines of a list that a model is trained on, as hashes, by which a text that it generates is known to be new.

The file: 64-bit XXH3 hashes of the UTF-8 lines, little-endian in ascending order, and the hash of all of these.
"""

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from lmtool import durable
from lmtool.errors import CheckpointError

MOST_LINES = 2_000_000
"""Lines of a list, 8 bytes each, up to which a run keeps their hashes."""

_HASH = np.dtype("<u8")


class KnownLines:
    """A set of lines without their surrounding space. Of a million others it takes less than one for known."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """hashes: in ascending order."""
        self._hashes = hashes

    @classmethod
    def of(cls, lines: Iterable[str]) -> Self:
        """Those of an iterable."""
        return cls(np.unique(np.fromiter(map(_hash, lines), dtype=_HASH)))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Those of a file; None where there is none. Raises CheckpointError when it is damaged."""
        try:
            content = durable.read(path, _HASH.itemsize * (MOST_LINES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            what = f"{path.name} cannot be read: {error.strerror or errno.errorcode.get(error.errno or 0, error)}"
        else:
            if len(content) % _HASH.itemsize == 0 and content[-_HASH.itemsize :] == _checksum(content):
                return cls(np.frombuffer(content[: -_HASH.itemsize], dtype=_HASH))
            what = f"{path.name} is damaged"
        raise CheckpointError(what, where=str(path), fix="delete it: texts are then generated without regard to it")

    def to_bytes(self) -> bytes:
        """The file."""
        content = self._hashes.tobytes()
        return content + _checksum(content + bytes(_HASH.itemsize))

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, line: str) -> bool:
        found = _hash(line)
        where = int(np.searchsorted(self._hashes, np.uint64(found)))
        return where < len(self._hashes) and int(self._hashes[where]) == found


def _hash(line: str) -> int:
    return xxhash.xxh3_64_intdigest(line.strip().encode())


def _checksum(content: bytes) -> bytes:
    """Of all but the last 8 bytes."""
    return np.array(xxhash.xxh3_64_intdigest(content[: -_HASH.itemsize]), dtype=_HASH).tobytes()
