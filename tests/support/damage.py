"""Files that are damaged, and checkpoints that are forged: changed, with checksums that are right."""

import hashlib
import json
from pathlib import Path
from typing import Any

from lmtool.storage.records import encode_with_checksum


def flip_bit(path: Path, at: int | None = None) -> None:
    """Damage a byte of a file, by default the one in its middle; the last ones are of tensors."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def sign(checkpoint: Path, **changes: Any) -> None:
    """Write a manifest of the files of a checkpoint as they are now, as docs/runs.md describes it.

    changes: values of the manifest that are others.
    """
    manifest = checkpoint / "MANIFEST.json"
    content = json.loads(manifest.read_bytes())
    for name in content["files"]:
        raw = (checkpoint / name).read_bytes()
        content["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    content |= changes
    del content["sha256"]
    manifest.write_bytes(_encode(content | {"sha256": hashlib.sha256(_encode(content)).hexdigest()}))


def forge(file: Path, **changes: Any) -> dict[str, Any]:
    """Change values of a JSON file that states its checksum, which is right again. Returns all values."""
    values: dict[str, Any] = json.loads(file.read_bytes()) | changes
    values.pop("checksum", None)
    file.write_bytes(encode_with_checksum(values))
    return values


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode("ascii") + b"\n"
