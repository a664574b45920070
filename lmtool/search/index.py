"""The index of a search: a vector of each text, memory-mapped, and the texts beside them.

    INDEX/index.json      which model, and how many rows are whole; written last
    INDEX/rows-000001/    vectors.f32 (N, D) of length 1; rows.jsonl, an Entry a line; keys.u64 (N, 3): where the line
                          ends, and hashes of the id, and of the id and the text

Rows are added at the ends of these files, and count once index.json says so: what a killed process has left behind them
is cut off by the next one. Where rows are removed, the others are written to a new folder. A text that is in the index
already is not computed again: so an indexing that was interrupted goes on when it is repeated.

Shapes: N rows, D vector width, Q queries, K neighbours.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import islice, tee
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash

from lmtool import durable, records
from lmtool.data.files import shown
from lmtool.data.survey import Report
from lmtool.errors import CheckpointError, DataError
from lmtool.inference.embedding import embed
from lmtool.inference.load import Loaded
from lmtool.search.nearest import Ints, Vectors, nearest, nearest_of_lists, read_lists, unit, write_lists

MANIFEST, FILES = "index.json", ("vectors.f32", "rows.jsonl", "keys.u64")

STRIDE = 1024
"""Rows after which an index is whole again: the most that a process loses that is killed."""

MANY = 1_000_000
"""Rows beyond which faiss is used, where it is installed."""


class Entry(NamedTuple):
    """A text of an index. id: unique in it. source: the file that it is of."""

    id: str
    source: str
    text: str

    @property
    def keys(self) -> tuple[int, int]:
        """Hashes of the id, and of the id and the text."""
        return xxhash.xxh3_64_intdigest(self.id.encode()), xxhash.xxh3_64_intdigest(f"{self.id}\0{self.text}".encode())


class Manifest(records.SealedModel):
    """index.json. run, model: name and checksum of the checkpoint whose vectors these are. width: of a vector.

    bytes: of the lines. folder: that of the rows.
    """

    format: Literal[1]
    run: str
    model: str
    width: int = 0
    rows: int = 0
    bytes: int = 0
    folder: str = "rows-000001"


class Index:
    """An index that is open for reading. What is changed later, it does not see."""

    def __init__(self, path: Path) -> None:
        """Raises DataError for an index that is missing or damaged."""
        self.path = path
        fix = "name a folder that lmtool search index has made"
        with durable.refusing("the index cannot be read", path, fix, DataError, missing="there is no index"):
            raw = durable.read(path / MANIFEST)
        try:
            self.manifest = records.read(Manifest, raw)
            n = self.manifest.rows
            shapes = (n, self.manifest.width), (self.manifest.bytes,), (n, 3)
            self.vectors_ND, self._lines, self.keys_N3 = (
                np.memmap(path / self.manifest.folder / name, dtype, "r", shape=shape) if n else np.empty(shape, dtype)
                for name, dtype, shape in zip(FILES, ("<f4", "u1", "<u8"), shapes, strict=True)
            )
        except (OSError, ValueError) as error:
            raise self._damage(str(error)) from error

    def _damage(self, what: str) -> DataError:
        fix = "delete the folder, and index again"
        return DataError(f"the index is damaged: {what}", where=str(self.path), fix=fix, code="damaged")

    def __len__(self) -> int:
        return len(self.vectors_ND)

    def __getitem__(self, row: int) -> Entry:
        """The text with this number, from 0. Raises DataError where it has changed."""
        begin = int(self.keys_N3[row - 1, 0]) if row else 0
        try:
            entry = Entry(**json.loads(self._lines[begin : int(self.keys_N3[row, 0])].tobytes()))
        except (ValueError, TypeError):
            entry = Entry("", "", "")
        if entry.keys != tuple(self.keys_N3[row, 1:].tolist()):
            raise self._damage(f"row {row + 1:,} has changed")
        return entry

    def check_model(self, loaded: Loaded) -> None:
        """Raise CheckpointError for another model than the one whose vectors these are."""
        if loaded.checkpoint_hash != self.manifest.model:
            what = f"the index is not of this model: {loaded.run_path}, step {loaded.step}"
            raise CheckpointError(what, where=str(self.path), fix=f"its model is --run {self.manifest.run}")

    def nearest(self, query_QD: Vectors, k: int) -> Iterator[tuple[Vectors, Ints]]:
        """Cosine similarities and numbers of the k nearest texts of each query, the nearest first (K each)."""
        if self.lists is None:
            return nearest(self.vectors_ND, unit(query_QD), k)
        return nearest_of_lists(self.lists, self.vectors_ND, unit(query_QD), k)

    @cached_property
    def lists(self) -> Any:
        """What faiss needs to propose rows, where there is such a file of these very rows."""
        return read_lists(self.lists_path) if len(self) > MANY else None

    @property
    def lists_path(self) -> Path:
        """The file for faiss."""
        return self.path / self.manifest.folder / f"{self.manifest.checksum}.faiss"


def add(path: Path, loaded: Loaded, texts: Iterable[Entry], report: Report) -> Mapping[str, int]:
    """Add texts to an index, which is made if there is none. Those with the id of a text replace it where they differ.

    texts: read twice. Returns how many were added, replaced and kept.
    Raises DataError for two texts of one id, and where there is none; CheckpointError for an index of another model;
    UsageError for a folder that is none; ResourceError where it cannot be written.
    """
    wanted: dict[int, int] = {}
    for number, entry in enumerate(texts, 1):
        wanted[entry.keys[0]] = entry.keys[1]
        if len(wanted) < number:
            fix = "name each file once, and a column whose values differ"
            raise DataError(f"two texts have the id {shown(entry.id)}", where=entry.source, fix=fix)
    if not wanted:
        raise DataError("there is no text to index", fix="name files with text")
    if not (path / MANIFEST).exists():
        durable.refuse_used(path)
        empty = Manifest(format=1, run=f"{loaded.run_path}@{loaded.step}", model=loaded.checkpoint_hash)
        with durable.filling(path) as new:
            durable.write_new(new / MANIFEST, empty.sealed())
    with _changing(path) as index:
        index.check_model(loaded)
        known = set(index.keys_N3[:, 2].tolist())
        n_new = len(set(wanted.values()) - known)
        entries, copies = tee(entry for entry in texts if entry.keys[1] not in known)
        embedded = embed(loaded, (entry.text for entry in copies), -1, "own", truncate=True) if n_new else ()
        rows = zip(entries, (one.vectors for one in embedded), strict=False)
        manifest, n_done = index.manifest, 0
        while stride := list(islice(rows, STRIDE)):
            vectors_ND = unit(np.concatenate([vectors for _, vectors in stride]))
            manifest = _appended(path, manifest, [entry for entry, _ in stride], vectors_ND)
            durable.write_file(path / MANIFEST, manifest.sealed())
            n_done += len(stride)
            report("indexing", n_done, n_new)
        index = Index(path)
        last = np.unique(index.keys_N3[::-1, 1], return_index=True)[1]
        stale = np.setdiff1d(np.arange(len(index)), len(index) - 1 - last)
        _without(index, stale)
    return {"added": n_new - len(stale), "replaced": len(stale), "kept": len(wanted) - n_new}


def remove(path: Path, names: Collection[str]) -> Mapping[str, int]:
    """Remove the texts with these ids, and all of these files, also from the disk. Returns how many were removed.

    Raises DataError for a name that the index does not have.
    """
    with _changing(path) as index:
        of_name = {name: [row for row in range(len(index)) if name in index[row][:2]] for name in names}
        if missing := [name for name, rows in of_name.items() if not rows]:
            what = f"no text and no file of the index is called {shown(missing[0])}"
            raise DataError(what, where=str(path), fix="name ids, or files, as lmtool search shows them")
        gone = np.unique(np.concatenate(list(of_name.values())))
        _without(index, gone)
    return {"removed": len(gone)}


@contextmanager
def _changing(path: Path) -> Iterator[Index]:
    """The index, which no other process changes meanwhile."""
    Index(path)  # no lock is left where there is none
    with durable.locked(path / ".lock"), durable.writing(path):
        yield Index(path)
        index = Index(path)
        for folder in path.glob("rows-*"):
            if folder.name != index.manifest.folder:
                durable.remove(folder)
        if len(index) > MANY and find_spec("faiss") and not index.lists_path.exists():
            write_lists(index.vectors_ND, index.lists_path)


def _without(index: Index, gone: Ints) -> None:
    """Write the index without these rows."""
    if len(gone):
        number = int(index.manifest.folder.removeprefix("rows-"))
        manifest = index.manifest.model_copy(update={"folder": f"rows-{number + 1:06}", "rows": 0, "bytes": 0})
        rows = np.setdiff1d(np.arange(len(index)), gone)
        for stride in np.split(rows, range(16 * STRIDE, len(rows), 16 * STRIDE)):
            manifest = _appended(index.path, manifest, [index[row] for row in stride], index.vectors_ND[stride])
        durable.write_file(index.path / MANIFEST, manifest.sealed())


def _appended(path: Path, manifest: Manifest, entries: Sequence[Entry], vectors_ND: Vectors) -> Manifest:
    """Write rows behind those of a manifest, and sync them; the manifest that has them, which is not written."""
    folder, (n, width), n_before, n_bytes = path / manifest.folder, vectors_ND.shape, manifest.rows, manifest.bytes
    lines = [json.dumps(entry._asdict(), ensure_ascii=False).encode() + b"\n" for entry in entries]
    ends = (n_bytes + np.cumsum([len(line) for line in lines])).tolist()
    keys_N3 = np.array([(end, *entry.keys) for end, entry in zip(ends, entries, strict=True)], "<u8")
    contents = vectors_ND.astype("<f4").tobytes(), b"".join(lines), keys_N3.tobytes()
    folder.mkdir(exist_ok=True)
    for name, begin, content in zip(FILES, (4 * n_before * width, n_bytes, 24 * n_before), contents, strict=True):
        with (folder / name).open("ab") as file:
            file.truncate(begin)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    durable.sync_directory(folder)
    return manifest.model_copy(update={"width": width, "rows": n_before + n, "bytes": ends[-1]})
