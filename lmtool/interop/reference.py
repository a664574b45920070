"""RUN arguments that name a published model instead of a run."""

import hashlib
import os
import re
from pathlib import Path

from lmtool.errors import CheckpointError
from lmtool.printable import plain
from lmtool.run.places import INFO

HUB = "hf:"
CONFIG, MODULES = "config.json", "modules.json"


def is_published(reference: str) -> bool:
    """Whether a RUN argument names a published model instead of a run. Reads no file."""
    if reference.startswith(HUB):
        return True
    if os.path.isdir(reference):
        has_run = os.path.exists(os.path.join(reference, INFO))
        return not has_run and any(os.path.exists(os.path.join(reference, name)) for name in (CONFIG, MODULES))
    return reference.lower().endswith(".gguf") and os.path.isfile(reference)


def parse_hub(reference: str) -> tuple[str, str | None]:
    """Name and revision of hf:ORG/NAME[@REVISION]. Raises CheckpointError."""
    name, _, revision = reference.removeprefix(HUB).partition("@")
    if re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*", name) is None or (
        "@" in reference and not revision
    ):
        raise CheckpointError(
            f"no model is named by {plain(reference)[:80]}",
            where="RUN",
            fix="write hf:ORG/NAME, or hf:ORG/NAME@REVISION for a branch, tag or commit",
        )
    return name, revision or None


def run_of(reference: str) -> str:
    """A RUN argument; for a published model the directory of the run that it is imported as.

    Raises CheckpointError for a model that cannot be imported.
    """
    if not is_published(reference):
        return reference
    if reference.startswith(HUB) and (known := known_run(reference)) is not None:
        return str(known)
    from lmtool.interop.importing import imported

    return str(imported(reference))


def imports_folder() -> Path:
    """The folder of the cache with the runs of published models."""
    from lmtool.text.prepare import default_cache

    return default_cache() / "imports"


def pointer_of(reference: str) -> Path:
    """The file that names the run of a name of the Hub. Raises CheckpointError for a wrong name."""
    name = "@".join(filter(None, parse_hub(reference)))
    return imports_folder() / "hub" / hashlib.sha256(name.encode()).hexdigest()


def known_run(reference: str) -> Path | None:
    """The run of a name of the Hub that was imported before; None when it was not."""
    name = noted(pointer_of(reference))
    run = imports_folder() / name
    return run if name and (run / INFO).exists() else None


def noted(file: Path) -> str:
    """The line of a file of the cache; empty when it cannot be read."""
    try:
        return file.read_text("ascii")
    except (OSError, ValueError):
        return ""
