"""The texts that come with lmtool, and their entropy, a lower bound for every model."""

import json
from collections.abc import Sequence
from pathlib import Path

from lmtool.checksum import sha256_of_file
from lmtool.recipe.load import bundled

LIMITS = "limits.json"


def folder() -> Path:
    """Where the bundled texts are."""
    return bundled("data")


def find(path: Path) -> Path | None:
    """The bundled file that `data/NAME` refers to where there is no such file."""
    file = folder() / path.name
    return file if path.parent == Path("data") and file.is_file() else None


def limit(files: Sequence[Path]) -> float | None:
    """The entropy of these files in bits per byte, a lower bound for all models; None unless all are bundled texts.

    It covers what a model is scored on in document mode: the text of each document and its end. Files are recognized
    by their content (SHA-256), so a changed copy has no limit.
    """
    if not (folder() / LIMITS).is_file():
        return None
    # reading all of a large file only to find that it is another takes long
    sizes = {file.stat().st_size for file in folder().iterdir()}
    if not files or not all(file.stat().st_size in sizes for file in files):
        return None
    known = json.loads((folder() / LIMITS).read_text("utf-8"))
    texts = [known.get(sha256_of_file(file), {}) for file in files]
    if not all("documents" in text for text in texts):
        return None
    return float(sum(text["bits"] for text in texts) / sum(text["bytes"] for text in texts))
