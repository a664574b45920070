"""The index of a search: a vector of each text, memory-mapped, and the texts beside them.

    INDEX/vectors.f32      vectors of length 1, one after the other (N, D)
    INDEX/texts.sqlite     which model they are of, and the id, file and text of each, with the number of its vector

A vector is written and synced before its text is committed, so that a killed process leaves at most vectors without a
text; these, and those of texts that are removed or replaced, are set to zero by the next change and never found. A text
that is in the index already is not computed again: an indexing that was interrupted goes on when it is repeated.

Shapes: N vectors, D vector width, Q queries, K neighbours.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmtool import durable
from lmtool.data.files import shown
from lmtool.data.survey import Report
from lmtool.errors import CheckpointError, DataError, ResourceError
from lmtool.inference.embedding import embed
from lmtool.inference.load import Loaded
from lmtool.search.nearest import Ints, Vectors, nearest, nearest_of_lists, read_lists, unit, write_lists

TEXTS, VECTORS, LISTS = "texts.sqlite", "vectors.f32", "vectors.faiss"

STRIDE = 1024
"""Texts that are committed at once: the most that are computed again after a kill."""

MANY = 1_000_000
"""Texts beyond which faiss is used, where it is installed."""

_TABLES = """
CREATE TABLE model (run TEXT, checkpoint TEXT, width INTEGER);
CREATE TABLE texts (id TEXT PRIMARY KEY, source TEXT, text TEXT, vector INTEGER UNIQUE);
"""


class Entry(NamedTuple):
    """A text of an index. id: unique in it. source: the file that it is of."""

    id: str
    source: str
    text: str


class Hit(NamedTuple):
    """A text that was found. score: the cosine similarity, or what a cross-encoder makes of the query and the text."""

    id: str
    source: str
    text: str
    score: float


class Index:
    """An index that is open for reading. What is added later, it does not see; what is removed, it no longer finds.

    run, checkpoint: name and hash of the model. vectors_ND: of all texts, and zeros. row_N: those that are of a text.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataError for an index that is missing or damaged."""
        self.path = path
        with _connected(path) as db:
            (self.run, self.checkpoint, width), *_ = db.execute("SELECT run, checkpoint, width FROM model").fetchall()
            rows = db.execute("SELECT vector FROM texts ORDER BY vector")
            self.row_N: Ints = np.fromiter(chain.from_iterable(rows), np.int64)
            self.vectors_ND: Vectors = np.empty((0, width), "<f4")
            if len(self.row_N):
                shape = int(self.row_N[-1]) + 1, width
                if (path / VECTORS).stat().st_size < 4 * shape[0] * width:
                    raise sqlite3.DatabaseError(f"{VECTORS} is too short")
                self.vectors_ND = np.memmap(path / VECTORS, "<f4", "r", shape=shape)

    def __len__(self) -> int:
        return len(self.row_N)

    def check_model(self, loaded: Loaded) -> None:
        """Raise CheckpointError for another model than the one whose vectors these are."""
        if loaded.checkpoint_hash != self.checkpoint:
            what = f"the index is not of this model: {loaded.run_path}, step {loaded.step}"
            raise CheckpointError(what, where=str(self.path), fix=f"its model is --run {self.run}")

    def nearest(self, query_QD: Vectors, k: int) -> Iterator[list[Hit]]:
        """The k texts whose vectors are the most similar to that of each query, by cosine, the nearest first."""
        rows = nearest(self.vectors_ND, unit(query_QD), k, self.row_N)
        if self.lists is not None:
            rows = nearest_of_lists(self.lists, self.vectors_ND, unit(query_QD), k)
        sql = "SELECT id, source, text, ? FROM texts WHERE vector = ?"
        with _connected(self.path) as db:
            for score_K, row_K in rows:
                pairs = zip(score_K.tolist(), row_K.tolist(), strict=True)
                yield [Hit(*columns) for pair in pairs for columns in db.execute(sql, pair)]

    @cached_property
    def lists(self) -> Any:
        """What faiss needs to propose texts, where there are many."""
        return read_lists(self.path / LISTS) if len(self) > MANY else None


def add(path: Path, loaded: Loaded, texts: Iterable[Entry], report: Report) -> Counter[str]:
    """Add texts to an index, which is made if there is none. Those with the id of a text replace it where they differ.

    texts: read twice. Returns how many were added, replaced and kept.
    Raises DataError for two texts of one id, and where there is none; CheckpointError for an index of another model;
    UsageError for a folder that is none; ResourceError where it cannot be written.
    """
    n_texts, counts, seen = sum(1 for _ in texts), Counter(added=0, replaced=0, kept=0), set[str]()
    if not n_texts:
        raise DataError("there is no text to index", fix="name files with text")
    if not (path / TEXTS).exists():
        durable.refuse_used(path)
        with durable.filling(path) as new, _connected(new, "rwc") as db:
            durable.write_new(new / VECTORS, b"")
            db.executescript(_TABLES)
            model = f"{loaded.run_path}@{loaded.step}", loaded.checkpoint_hash
            db.execute("INSERT INTO model VALUES (?, ?, 0)", model)

    def changed(db: sqlite3.Connection) -> Iterator[Entry]:
        for entry in texts:
            if entry.id in seen:
                fix = "name each file once, and a column whose values differ"
                raise DataError(f"two texts have the id {shown(entry.id)}", where=entry.source, fix=fix)
            seen.add(entry.id)
            old = db.execute("SELECT text FROM texts WHERE id = ?", entry[:1]).fetchone()
            counts["added" if old is None else "kept" if old[0] == entry.text else "replaced"] += 1
            if old is None or old[0] != entry.text:
                yield entry

    with _changing(path, loaded) as db:
        entries = changed(db)
        for first in islice(entries, 1):  # no text is embedded where none has changed
            entries, copies = tee(chain([first], entries))
            embedded = embed(loaded, (entry.text for entry in copies), -1, "own", truncate=True)
            pairs = zip(entries, embedded, strict=False)
            while stride := list(islice(pairs, STRIDE)):
                vectors_ND = unit(np.concatenate([one.vectors for _, one in stride]))
                row = _write_vectors(path / VECTORS, vectors_ND)
                with db:
                    db.execute("UPDATE model SET width = ?", vectors_ND.shape[1:])
                    numbered = [(*entry, row + i) for i, (entry, _) in enumerate(stride)]
                    db.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", numbered)
                report("indexing", counts.total(), n_texts)
    return counts


def remove(path: Path, names: Collection[str]) -> Counter[str]:
    """Remove the texts with these ids, and all of these files, also from the disk. Returns how many were removed.

    Raises DataError for a name that the index does not have, and then removes none.
    """
    counts = Counter(removed=0)
    with _changing(path) as db, db:
        for name in names:
            n = db.execute("DELETE FROM texts WHERE id = ? OR source = ?", (name, name)).rowcount
            if not n:
                what = f"no text and no file of the index is called {shown(name)}"
                raise DataError(what, where=str(path), fix="name ids, or files, as lmtool search shows them")
            counts["removed"] += n
    return counts


@contextmanager
def _changing(path: Path, loaded: Loaded | None = None) -> Iterator[sqlite3.Connection]:
    """The texts of an index that no other process changes; at the end, vectors that are of none become zeros."""
    with _connected(path) as db, durable.locked(path / ".lock"), durable.writing(path):
        if loaded is not None:
            Index(path).check_model(loaded)
        (path / LISTS).unlink(missing_ok=True)
        yield db
        index = Index(path)
        free = np.setdiff1d(np.arange(len(index.vectors_ND)), index.row_N)
        if len(free):
            vectors_ND = np.memmap(path / VECTORS, "<f4", "r+", shape=index.vectors_ND.shape)
            vectors_ND[free] = 0
            vectors_ND.flush()
        if len(index) > MANY and find_spec("faiss"):
            write_lists(index.vectors_ND, path / LISTS)


def _write_vectors(path: Path, vectors_ND: Vectors) -> int:
    """Write vectors behind all others, also those of a killed process, and sync them; the number of the first."""
    row: int = -(-path.stat().st_size // vectors_ND[0].nbytes)
    with path.open("r+b") as file:
        file.seek(row * vectors_ND[0].nbytes)
        file.write(vectors_ND.astype("<f4").tobytes())
        file.flush()
        os.fsync(file.fileno())
    return row


@contextmanager
def _connected(path: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """The texts of an index. Raises DataError where it is missing or damaged, and ResourceError for other errors."""
    if mode == "rw" and not (path / TEXTS).exists():
        fix = "name a folder that lmtool search index has made"
        raise DataError("there is no index", where=str(path), fix=fix, code="file_not_found")
    try:
        uri = f"{(path / TEXTS).absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, timeout=60, uri=True)) as db:
            db.execute("PRAGMA secure_delete = ON")
            yield db
            db.commit()
    except sqlite3.DatabaseError as error:
        kind = ResourceError if isinstance(error, sqlite3.OperationalError) else DataError
        fix = "free the disk, or delete the folder and index again"
        raise kind(f"the index cannot be used: {error}", where=str(path), fix=fix) from error
