"""References to published models, and the runs in the cache that they were imported as."""

import os
import re
from contextlib import suppress
from pathlib import Path

from lmtool.errors import CheckpointError, ResourceError
from lmtool.printable import printable
from lmtool.runs.paths import RUN_INFO_FILE
from lmtool.storage import durable
from lmtool.storage.checksum import sha256

HUB_PREFIX = "hf:"
IMPORTS_FOLDER = "imports"
CONFIG_FILE, MODULES_FILE = "config.json", "modules.json"
HEAD_FILE = "head.safetensors"
"""The file of a head that no class of Transformers has, beside the body."""
NOTE_KEY = "lmtool"
"""The key of config.json, or of a GGUF file, under which an export notes what predictions need, and published
configurations have no keys for: the context, the objective, and the columns of its tables."""
USE_DIRECTORY_FIX = "export it as a directory, by a name that does not end in .gguf"
"""What to do with a model that no GGUF file holds."""


def is_published(reference: str) -> bool:
    """Whether a RUN argument names a published model instead of a run. Reads no file."""
    if reference.startswith(HUB_PREFIX):
        return True
    if os.path.isdir(reference):
        names = [name for name in (RUN_INFO_FILE, CONFIG_FILE, MODULES_FILE) if os.path.exists(f"{reference}/{name}")]
        return bool(names) and RUN_INFO_FILE not in names
    return reference.lower().endswith(".gguf") and os.path.isfile(reference)


def parse_hub_reference(reference: str) -> tuple[str, str | None]:
    """Splits hf:ORG/NAME[@REVISION] into name and revision. Raises CheckpointError."""
    name, _, revision = reference.removeprefix(HUB_PREFIX).partition("@")
    if re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*", name) is None or (
        "@" in reference and not revision
    ):
        fix = "write hf:ORG/NAME, or hf:ORG/NAME@REVISION for a branch, tag or commit"
        raise CheckpointError(f"{printable(reference)[:80]} does not name a model", where="RUN", fix=fix)
    return name, revision or None


def imports_folder() -> Path:
    """The folder of the cache with the runs of published models."""
    return durable.cache_folder() / IMPORTS_FOLDER


def hub_note_file(reference: str) -> Path:
    """The file of the cache that names the run of a Hub reference. Raises CheckpointError for a wrong reference."""
    name = "@".join(filter(None, parse_hub_reference(reference)))
    return imports_folder() / "hub" / sha256(name.encode())


def find_cached_run(hub_reference: str) -> Path | None:
    """Finds the run in the cache that a Hub reference was imported as before; None when it was not."""
    name = read_cache_line_or_empty(hub_note_file(hub_reference))
    run = imports_folder() / name
    return run if name and (run / RUN_INFO_FILE).exists() else None


def read_cache_line_or_empty(file: Path) -> str:
    """Reads the line in a file of the cache; empty when it cannot be read."""
    try:
        return durable.read_file(file).decode("ascii")
    except (OSError, ValueError):
        return ""


def try_write_cache_line(file: Path, line: str) -> None:
    """Writes a file of the cache atomically, for `read_cache_line_or_empty`. Does nothing when it cannot be written."""
    # several commands may write the same note
    with suppress(ResourceError), durable.hold_lock(imports_folder() / "locks" / file.name):
        with durable.convert_write_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(file, line.encode("ascii"))
