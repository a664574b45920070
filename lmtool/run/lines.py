"""The lines of a list that a model is trained on, as hashes, by which a text that it generates is known to be new.

The file: 64-bit XXH3 hashes of the UTF-8 lines, little-endian in ascending order, and the hash of all of these.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lmtool import durable
from lmtool.checksum import xxh3
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
        fix = "delete it: texts are then generated without regard to it"
        with durable.reading_part(path, fix):
            if not path.exists():
                return None
            content = durable.read(path, _HASH.itemsize * (MOST_LINES + 1))
        if len(content) % _HASH.itemsize or content[-_HASH.itemsize :] != _checksum(content):
            raise CheckpointError(f"{path.name} is damaged", where=str(path), fix=fix)
        return cls(np.frombuffer(content[: -_HASH.itemsize], dtype=_HASH))

    def to_bytes(self) -> bytes:
        """The file."""
        content = self._hashes.tobytes()
        return content + _checksum(content + bytes(_HASH.itemsize))

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, line: str) -> bool:
        wanted = _hash(line)
        where = int(np.searchsorted(self._hashes, np.uint64(wanted)))
        return where < len(self._hashes) and int(self._hashes[where]) == wanted


def _hash(line: str) -> int:
    return int(xxh3(line.strip().encode()), 16)


def _checksum(content: bytes) -> bytes:
    """Of all but the last 8 bytes."""
    return bytes.fromhex(xxh3(content[: -_HASH.itemsize]))[::-1]
