"""Hugging Face datasets: `hf:NAME[:CONFIG][@SPLIT]`, streamed once into a .jsonl file of the cache."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmtool.checksum import sha256_of_json
from lmtool.data.files import content_hash, shown
from lmtool.data.rowfile import missing_column, not_text
from lmtool.durable import cache_folder, locked, write_file
from lmtool.errors import DataError, LmtoolError

PREFIX = "hf:"

DATASETS = "datasets"
"""The folder of the cache with datasets."""


def import_hub() -> Any:
    """The library of the Hugging Face Hub; of a user without a home, its files are in the cache of lmtool.

    Raises ResourceError where there is no cache either.
    """
    if os.path.expanduser("~") == "~":  # the library would make a folder of that name
        os.environ.setdefault("HF_HOME", str(cache_folder() / "huggingface"))
    import huggingface_hub

    return huggingface_hub


def import_datasets() -> Any:
    """The library of datasets, which shows no progress and does not tell each attempt of a connection."""
    huggingface_hub = import_hub()
    import datasets  # after the line above, which says where its files are

    datasets.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity(logging.ERROR)
    return datasets


def parse(source: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of `hf:NAME[:CONFIG][@SPLIT]`; the split is "train" when none is named."""
    name, _, split = source.removeprefix(PREFIX).partition("@")
    name, _, config = name.partition(":")
    if not name:
        fix = "write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT"
        raise DataError("no dataset is named", where=shown(source), fix=fix)
    return name, config or None, split or "train"


def fetch(source: str, column: str | None) -> Path:
    """Stream one column of a dataset, or all of them, into a .jsonl file, unless the cache holds it already.

    NAME is a name on the Hugging Face Hub or a local folder. The cache key is the revision of remote files and the
    content of local ones. When all columns are read, class indices become class names (-1, no class, becomes null), and
    a column of translations becomes one column per language.
    Raises DataError when the dataset, split or column does not exist or cannot be reached.
    """
    with _loading(source):
        builder, split, files, identity = _builder(source, column)
        # remote addresses include their revision
        contents = (content_hash([Path(file)]) if os.path.exists(file) else file for file in files)
        key = sha256_of_json([*identity, *contents])
        path = cache_folder() / DATASETS / f"{key}.jsonl"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                rows = builder.as_streaming_dataset(split=split)
                rows = _named(rows) if column is None else _column(rows, column, source)
                lines = (json.dumps(row, default=str).encode() + b"\n" for row in _loaded(rows, source))
                write_file(path, lines)
        return path


class Shards:
    """A dataset that is read over the network, or from its folder, whenever it is needed: one shard for each of its
    files.

    n: shards.
    size: bytes as far as they are known.
    identity: changes with the revision of remote files, and with the sizes of local ones.
    Raises DataError when it cannot be reached.
    """

    def __init__(self, source: str, column: str) -> None:
        self._source, self._column = source, column
        with _loading(source):
            builder, split, files, identity = _builder(source, column)
            self._rows = builder.as_streaming_dataset(split=split)
            self.n = int(self._rows.num_shards)
            sizes = [os.path.getsize(file) if os.path.exists(file) else 0 for file in files]
            self.size = sum(sizes) or int(builder.info.download_size or builder.info.dataset_size or 0)
        self.identity = [*identity, *(str(size) if size else file for file, size in zip(files, sizes, strict=True))]

    def texts(self, number: int) -> Iterator[str]:
        """The texts of a shard in order; nulls are skipped. Raises DataError."""
        with _loading(self._source):
            rows = self._rows.shard(num_shards=self.n, index=number)
            for row in _column(rows, self._column, self._source):
                if row[self._column] is not None:
                    yield row[self._column]


def _builder(source: str, column: str | None) -> tuple[Any, str, list[str], list[str | None]]:
    """The builder of a dataset, its split and the files of that, and what tells a column of it from others."""
    name, config, split = parse(source)
    builder = import_datasets().load_dataset_builder(name, config)
    files = [str(file) for file in (builder.config.data_files or {}).get(split, [])]
    return builder, split, files, ["" if files else name, config, split, column, str(builder.hash)]


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Turn errors of the `datasets` library into a DataError."""
    try:
        yield
    except LmtoolError:
        raise
    except Exception as error:  # datasets raises whatever its many back ends raise
        fix = "check its name, configuration and split, and the network"
        raise DataError(f"cannot load the dataset: {shown(str(error), 160)}", where=shown(source), fix=fix) from error


def _loaded(rows: Iterable[dict[str, Any]], source: str) -> Iterator[dict[str, Any]]:
    """Rows whose errors are not taken for those of the disk that they are written to."""
    with _loading(source):
        yield from rows


def _column(rows: Iterable[dict[str, Any]], column: str, source: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows, 1):
        if column not in row:
            raise missing_column(column, list(row), shown(source), "--column")
        if not isinstance(row[column], str | None):
            raise not_text(row[column], f"{shown(source)}, row {number}, column {shown(column)}")
        yield {column: row[column]}


def _named(rows: Any) -> Iterator[dict[str, Any]]:
    """Rows of a dataset with class names, and translations flattened."""
    from datasets import ClassLabel, Translation

    features = rows.features or {}

    def name(value: Any, feature: Any) -> Any:
        if isinstance(value, list):
            inner = getattr(feature, "feature", None) or (feature[0] if isinstance(feature, list) else None)
            return [name(one, inner) for one in value]
        if isinstance(feature, ClassLabel) and isinstance(value, int):
            return feature.int2str(value) if value >= 0 else None
        return value

    for row in rows:
        flat: dict[str, Any] = {}
        for column, value in row.items():
            feature = features.get(column)
            if isinstance(feature, Translation) and value is not None:
                flat.update(value)
            else:
                flat[column] = name(value, feature)
        yield flat
