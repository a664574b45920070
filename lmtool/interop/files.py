"""Reads the small files of published models, and makes errors about them."""

import json
from pathlib import Path
from typing import Any

from lmtool.errors import CheckpointError
from lmtool.storage import durable
from lmtool.tokenization.tokenizer import MAX_TOKENIZER_BYTES

DOWNLOAD_FIX = "download it again, or name another model"


def import_error(what: str, where: Path | str, fix: str = DOWNLOAD_FIX) -> CheckpointError:
    """An error about a published model or one of its files."""
    return CheckpointError(what, where=str(where), fix=fix)


def read_bytes(path: Path, limit: int = MAX_TOKENIZER_BYTES) -> bytes:
    """Reads a file. Raises CheckpointError when it cannot be read, or has more bytes than `limit`."""
    with durable.convert_os_errors(f"{path.name} cannot be read", path, DOWNLOAD_FIX, CheckpointError):
        return durable.read_file(path, limit)


def read_text(path: Path) -> str:
    """Reads a file of text. Raises CheckpointError as `read_bytes` does, and when it is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise import_error(f"{path.name} is not UTF-8", path) from error


def read_json(path: Path, kind: type = dict) -> Any:
    """Reads the object, or the list, in a JSON file. Raises CheckpointError for any other content."""
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise import_error(f"{path.name} is not a JSON {'object' if kind is dict else 'list'}", path)
    return content


def read_json_if_exists(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file; empty when there is no file."""
    return dict(read_json(path)) if path.is_file() else {}
