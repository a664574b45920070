"""Downloads Hugging Face datasets, `hf:NAME[:CONFIG][@SPLIT]`, to .jsonl files of the cache."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lmtool.data.files import hash_files, quote
from lmtool.data.rowfile import missing_column_error, not_text_error
from lmtool.errors import DataError, LmtoolError
from lmtool.storage.checksum import sha256_of_json
from lmtool.storage.durable import cache_folder, find_cache_or_temporary_path, hold_lock, write_file

HUB_PREFIX = "hf:"

DATASETS_FOLDER = "datasets"
"""Folder of the cache with datasets."""


def import_hub_even_without_home() -> Any:
    """Imports huggingface_hub, whose files are in the cache of lmtool for a user without a home directory.

    Raises ResourceError if there is no cache either.
    """
    if os.path.expanduser("~") == "~":  # the library would make a folder of that name
        os.environ.setdefault("HF_HOME", str(cache_folder() / "huggingface"))
    import huggingface_hub.utils

    return huggingface_hub


def import_datasets_quietly() -> Any:
    """Imports the library `datasets`, which shows no progress and logs no attempts to connect."""
    huggingface_hub = import_hub_even_without_home()
    import datasets  # after import_hub_even_without_home, which may set where its files are

    datasets.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity(logging.ERROR)
    return datasets


class DatasetName(NamedTuple):
    """The parts of `hf:NAME[:CONFIG][@SPLIT]`."""

    name: str
    config: str | None
    split: str


def parse_dataset_name(source: str) -> DatasetName:
    """Parses `hf:NAME[:CONFIG][@SPLIT]`; the split is "train" if none is named. Raises DataError."""
    name, _, split = source.removeprefix(HUB_PREFIX).partition("@")
    name, _, config = name.partition(":")
    if not name:
        fix = "write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT"
        raise DataError("no dataset is named", where=quote(source), fix=fix)
    return DatasetName(name, config or None, split or "train")


def download_dataset(source: str, only_column: str | None) -> Path:
    """Downloads one column of a dataset, or all columns, to a .jsonl file, unless the cache holds it; returns its path.

    NAME is a name on the Hugging Face Hub or a local folder. The cache key is the revision of remote files and the
    content of local ones. When all columns are read, class indices become class names (-1, no class, becomes null), and
    a column of translations becomes one column per language.
    Raises DataError when the dataset, split or column does not exist or cannot be reached.
    """
    with _convert_dataset_errors(source):
        builder, split, files, identity = _load_builder_and_identity(source, only_column)
        # remote addresses include their revision
        contents = (hash_files([Path(file)]) if os.path.exists(file) else file for file in files)
        key = sha256_of_json([*identity, *contents])
        path = cache_folder() / DATASETS_FOLDER / f"{key}.jsonl"
        if path.exists():
            return path
        path = find_cache_or_temporary_path(path)
        with hold_lock(path.with_suffix(".lock")):
            if not path.exists():
                rows = builder.as_streaming_dataset(split=split)
                if only_column is None:
                    rows = _decode_classes_and_translations(rows)
                else:
                    rows = _check_and_select_text_column(rows, only_column, source)
                lines = (json.dumps(row, default=str).encode() + b"\n" for row in _convert_row_errors(rows, source))
                write_file(path, lines)
        return path


class DatasetShards:
    """A dataset that is read over the network or from its folder when it is needed, with one shard per file.

    n_bytes: size as far as it is known.
    identity: changes with the revision of remote files, and with the sizes of local ones.
    Raises DataError when the dataset cannot be reached.
    """

    def __init__(self, source: str, column: str) -> None:
        self._source, self._column = source, column
        with _convert_dataset_errors(source):
            builder, split, files, identity = _load_builder_and_identity(source, column)
            self._rows = builder.as_streaming_dataset(split=split)
            self.n_shards = int(self._rows.num_shards)
            sizes = [os.path.getsize(file) if os.path.exists(file) else 0 for file in files]
            self.n_bytes = sum(sizes) or int(builder.info.download_size or builder.info.dataset_size or 0)
        self.identity = [*identity, *(str(size) if size else file for file, size in zip(files, sizes, strict=True))]

    def read_texts(self, shard: int) -> Iterator[str]:
        """Yields the texts of a shard in order; skips nulls. Raises DataError."""
        with _convert_dataset_errors(self._source):
            rows = self._rows.shard(num_shards=self.n_shards, index=shard)
            for row in _check_and_select_text_column(rows, self._column, self._source):
                if row[self._column] is not None:
                    yield row[self._column]


class _DatasetBuilder(NamedTuple):
    """A builder of the library. files: those of the split. identity: values that identify the column of the split."""

    builder: Any
    split: str
    files: list[str]
    identity: list[str | None]


def _load_builder_and_identity(source: str, column: str | None) -> _DatasetBuilder:
    name, config, split = parse_dataset_name(source)
    builder = import_datasets_quietly().load_dataset_builder(name, config)
    files = [str(file) for file in (builder.config.data_files or {}).get(split, [])]
    return _DatasetBuilder(builder, split, files, ["" if files else name, config, split, column, str(builder.hash)])


@contextmanager
def _convert_dataset_errors(source: str) -> Iterator[None]:
    """Converts errors of the `datasets` library to a DataError."""
    try:
        yield
    except LmtoolError:
        raise
    except Exception as error:  # datasets raises whatever its many back ends raise
        fix = "check its name, configuration and split, and the network"
        raise DataError(f"cannot load the dataset: {quote(str(error), 160)}", where=quote(source), fix=fix) from error


def _convert_row_errors(rows: Iterable[dict[str, Any]], source: str) -> Iterator[dict[str, Any]]:
    """Yields the rows, and converts errors of reading them, so that they do not look like errors of writing."""
    with _convert_dataset_errors(source):
        yield from rows


def _check_and_select_text_column(rows: Iterable[dict[str, Any]], column: str, source: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows, 1):
        if column not in row:
            raise missing_column_error(column, list(row), quote(source), "--column")
        if not isinstance(row[column], str | None):
            raise not_text_error(row[column], f"{quote(source)}, row {number}, column {quote(column)}")
        yield {column: row[column]}


def _decode_classes_and_translations(rows: Any) -> Iterator[dict[str, Any]]:
    """Yields rows with class names for class indices, and with one column per language of a translation."""
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
