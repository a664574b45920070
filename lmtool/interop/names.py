"""Names of published models, and the runs that they were imported as."""

import os
import re
from pathlib import Path

from lmtool import durable
from lmtool.checksum import sha256
from lmtool.errors import CheckpointError
from lmtool.printable import printable
from lmtool.run.paths import RUN_INFO_FILE

HUB = "hf:"
IMPORTS = "imports"
CONFIG, MODULES = "config.json", "modules.json"
NOTE = "lmtool"
"""The key of config.json, or of a GGUF file, under which an export notes what predictions need, and published
configurations have no keys for: the context, the objective, and the columns of its tables."""
AS_DIRECTORY = "export it as a directory, by a name that does not end in .gguf"
"""What to do with a model that no GGUF file holds."""
HEAD = "head.safetensors"
"""The file of a head that no class of Transformers has, beside the body."""


def is_published(reference: str) -> bool:
    """Whether a RUN argument names a published model instead of a run. Reads no file."""
    if reference.startswith(HUB):
        return True
    if os.path.isdir(reference):
        has_run = os.path.exists(os.path.join(reference, RUN_INFO_FILE))
        return not has_run and any(os.path.exists(os.path.join(reference, name)) for name in (CONFIG, MODULES))
    return reference.lower().endswith(".gguf") and os.path.isfile(reference)


def parse_hub(reference: str) -> tuple[str, str | None]:
    """Name and revision of hf:ORG/NAME[@REVISION]. Raises CheckpointError."""
    name, _, revision = reference.removeprefix(HUB).partition("@")
    if re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*", name) is None or (
        "@" in reference and not revision
    ):
        fix = "write hf:ORG/NAME, or hf:ORG/NAME@REVISION for a branch, tag or commit"
        raise CheckpointError(f"{printable(reference)[:80]} does not name a model", where="RUN", fix=fix)
    return name, revision or None


def imports_folder() -> Path:
    """The folder of the cache with the runs of published models."""
    from lmtool.durable import cache_folder

    return cache_folder() / IMPORTS


def pointer_of(reference: str) -> Path:
    """The file that names the run of a name of the Hub. Raises CheckpointError for a wrong name."""
    name = "@".join(filter(None, parse_hub(reference)))
    return imports_folder() / "hub" / sha256(name.encode())


def known_run(reference: str) -> Path | None:
    """The run of a name of the Hub that was imported before; None when it was not."""
    name = noted(pointer_of(reference))
    run = imports_folder() / name
    return run if name and (run / RUN_INFO_FILE).exists() else None


def noted(file: Path) -> str:
    """The line of a file of the cache; empty when it cannot be read."""
    try:
        return durable.read_file(file).decode("ascii")
    except (OSError, ValueError):
        return ""
