"""The texts that come with lmtool, and their entropy, which is a lower bound for the loss of every model."""

import json
from collections.abc import Sequence
from pathlib import Path

from lmtool.recipe.load import find_bundled_folder
from lmtool.storage.checksum import sha256_of_file

ENTROPY_FILE = "limits.json"


def data_folder() -> Path:
    """Returns the folder of the bundled texts."""
    return find_bundled_folder("data")


def find_bundled_file(path: Path) -> Path | None:
    """Returns the bundled file that the path `data/NAME` refers to if the path does not exist; None for other paths."""
    file = data_folder() / path.name
    return file if path.parent == Path("data") and file.is_file() else None


def known_entropy_bits_per_byte(files: Sequence[Path]) -> float | None:
    """Returns the entropy of these files in bits per byte; None unless all are bundled texts.

    It covers what a model is scored on in document mode: the text of each document and its end. Files are recognized
    by their content (SHA-256), so a changed copy has no bound.
    """
    if not (data_folder() / ENTROPY_FILE).is_file():
        return None
    # compares sizes first, because hashing a large file takes long
    sizes = {file.stat().st_size for file in data_folder().iterdir()}
    if not files or not all(file.stat().st_size in sizes for file in files):
        return None
    known = json.loads((data_folder() / ENTROPY_FILE).read_text("utf-8"))
    texts = [known.get(sha256_of_file(file), {}) for file in files]
    if not all("documents" in text for text in texts):
        return None
    return float(sum(text["bits"] for text in texts) / sum(text["bytes"] for text in texts))
