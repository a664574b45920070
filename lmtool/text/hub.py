"""Hugging Face datasets: `hf:NAME[:CONFIG][@SPLIT]`, streamed once into a .jsonl file of the cache."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lmtool import durable
from lmtool.errors import DataError, LmtoolError
from lmtool.text.disk import locked, refusal, refusing_disk
from lmtool.text.files import content_hash, shown

PREFIX = "hf:"


def parse(source: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of `hf:NAME[:CONFIG][@SPLIT]`; the split is "train" when none is named."""
    name, _, split = source.removeprefix(PREFIX).partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise DataError(
            "no dataset is named", where=shown(source), fix="write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT"
        )
    return name, config or None, split or "train"


def fetch(source: str, column: str, cache: Path) -> Path:
    """Stream one column of a dataset into a .jsonl file, unless the cache holds it already.

    NAME is a name on the Hugging Face Hub or a local folder. The cache key is the revision of remote files and the
    content of local ones. Raises DataError when the dataset, split or column does not exist or cannot be reached.
    """
    import datasets

    name, config, split = parse(source)
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(name, config)
        files = [str(f) for f in (builder.config.data_files or {}).get(split, [])]
        identity = [name if not files else "", config, split, column, str(builder.hash), *map(_identity, files)]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        path = cache / "datasets" / f"{key}.jsonl"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                _write(builder.as_streaming_dataset(split=split), column, path, source)
        return path
    except LmtoolError:
        raise
    except Exception as error:  # datasets raises whatever its many back ends raise
        raise DataError(
            f"cannot load the dataset: {shown(str(error), 160)}",
            where=shown(source),
            fix="check its name, configuration and split, and the network",
        ) from error


def _identity(file: str) -> str:
    """What changes when a data file changes: remote addresses name their revision, local files are hashed."""
    return content_hash([Path(file)]) if os.path.exists(file) else file


def _write(rows: Iterable[dict[str, Any]], column: str, path: Path, source: str) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        file = open(temporary, "w", encoding="utf-8")  # noqa: SIM115  closed below; only its own errors are the disk's
    except OSError as error:
        raise refusal(path, error) from error
    with file:
        for number, row in enumerate(rows):
            if column not in row:
                near = ", ".join(map(str, row))
                raise DataError(
                    f"no column {shown(column)}; found {shown(near, 120)}",
                    where=shown(source),
                    fix="name one of these with --column",
                )
            if not isinstance(row[column], str | None):
                raise DataError(
                    f"column {shown(column)} holds {type(row[column]).__name__}, not text",
                    where=f"{shown(source)}, row {number + 1}",
                    fix="name the column of text with --column",
                )
            line = json.dumps({column: row[column]}) + "\n"
            with refusing_disk(path):
                file.write(line)
        with refusing_disk(path):
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    durable.sync_directory(path.parent)
