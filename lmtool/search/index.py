"""An index of texts: a vector of each, memory-mapped, and the texts beside them.

    INDEX/vectors.f32      vectors of length 1, one after the other (N, D)
    INDEX/texts.sqlite     which model they are of, and the id, file, text and checksum of each vector, by its number
    INDEX/vectors.faiss    where there are many and faiss is installed: finds most of the nearest, and reads few

A vector is written and synced before its text is committed: a killed process leaves at most vectors without a text,
which the next one writes over. A text that is in the index already is not computed again, so an indexing that was
interrupted goes on when it is repeated. A text that is removed or replaced leaves its vector behind, which is never
found. All is compared with its checksum when an index is opened, which may be of somebody else.

Shapes: N vectors, D vector width, Q queries, K neighbours.
"""

import math
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from lmtool import durable
from lmtool.checksum import xxh3
from lmtool.compute.device import choose_compute
from lmtool.data.files import quote
from lmtool.data.survey import Progress
from lmtool.errors import CheckpointError, DataError, LmtoolError, UsageError
from lmtool.inference.embedding import Vectors, embed
from lmtool.inference.load import LoadedModel, load_packed
from lmtool.inference.reference import run_named_by_file
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Classification
from lmtool.search.database import check_regular, connect, damaged, sqlite_errors
from lmtool.search.entries import Entry, Hits
from lmtool.search.nearest import Ints, nearest, unit
from lmtool.tasks.metrics import positive
from lmtool.tasks.predict import TablePredictor, texts_of_a_row

TEXTS, VECTORS, LISTS = "texts.sqlite", "vectors.f32", "vectors.faiss"

STRIDE = 1024
"""Texts that are committed at once: the most that are computed again after a kill."""

RERANKED = 100
"""Nearest texts that a cross-encoder ranks, unless more are wanted."""

MANY = 1_000_000
"""Texts beyond which faiss is used, where it is installed."""

WIDEST = 1 << 20
"""Numbers of the widest vectors."""

BYTES_OF_ROW = 16
"""Each text takes more bytes than this in its file: a file with more texts than there is room for would never end."""

SCHEMA = """CREATE TABLE model (run TEXT, checkpoint TEXT, width INTEGER);
CREATE TABLE texts (vector INTEGER PRIMARY KEY, id TEXT UNIQUE, source TEXT, text TEXT, xxh3 TEXT);"""


class Index:
    """An index that is open for reading. What is added later, it does not see; what is removed, it no longer finds.

    run: name of its model. loaded: that model, without which no query is read. ranker: a model of pairs, which ranks
    texts anew. vectors_ND: all, memory-mapped. row_N: those that are of a text.
    """

    def __init__(self, path: Path, loaded: LoadedModel | None = None, ranker: TablePredictor | None = None) -> None:
        """Raises DataError for an index that is missing or damaged, CheckpointError for one of another model."""
        self.path, self.loaded, self.ranker = path, cast(LoadedModel, loaded), ranker
        with connect(path / TEXTS, SCHEMA) as db:
            db.execute("BEGIN")  # no text is removed, and its vector written over, until all are compared
            models = db.execute("SELECT run, checkpoint, width FROM model LIMIT 2").fetchall()
            most = (path / TEXTS).stat().st_size // BYTES_OF_ROW
            rows = db.execute("SELECT vector, xxh3 FROM texts ORDER BY vector LIMIT ?", (most + 1,)).fetchall()
            match models:
                case [(str(run), str(checkpoint), int(width))] if 0 < width <= WIDEST and len(rows) <= most:
                    self.run = run
                case _:
                    raise damaged(path, f"{TEXTS} names no model, or has more texts than there is room for")
            self.row_N: Ints = np.array([row for row, _ in rows], np.int64)
            self.vectors_ND = self._map_vectors(width, [checksum for _, checksum in rows])
        if loaded is not None and loaded.checkpoint_hash != checkpoint:
            what = f"the index is not of this model: {loaded.run_path}, step {loaded.step}"
            raise CheckpointError(what, where=str(path), fix=f"its model is --run {self.run}")

    def _map_vectors(self, width: int, checksums: Sequence[str]) -> Vectors:
        """The vectors, memory-mapped. Raises DataError unless those of texts are as they were written.

        checksums: of the vectors of `row_N`.
        """
        check_regular(self.path / VECTORS)
        shape = int(self.row_N.max(initial=0)) + 1, width
        is_counted = bool((np.diff(self.row_N, prepend=-1) > 0).all())
        if not is_counted or shape[0] * width * 4 > (self.path / VECTORS).stat().st_size:
            raise damaged(self.path, f"{VECTORS} has fewer vectors than there are texts")
        content, size = memoryview(durable.map_file(self.path / VECTORS)).cast("B"), 4 * width
        vectors_ND: Vectors = np.frombuffer(content, "<f4", shape[0] * width).reshape(shape)
        for row, checksum in zip(self.row_N.tolist(), checksums, strict=True):
            if xxh3(content[row * size : (row + 1) * size]) != checksum:
                raise damaged(self.path, f"{VECTORS} has changed in vector {row:,} since it was written")
        with np.errstate(all="ignore"):
            square_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND)[self.row_N]
        if not ((np.abs(square_N - 1) < 1e-3) | (square_N == 0)).all():
            raise damaged(self.path, f"{VECTORS} has vectors whose length is not 1")
        return vectors_ND

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Entry]]:
        """The k best texts for each query, the best first. Queries are truncated to the context.

        Raises UsageError for a query without tokens, DataError where there is none.
        """
        return [entries for _, entries in self.answers(queries, k)]

    def answers(self, queries: Sequence[str], k: int = 10) -> Iterator[Hits]:
        """The same, each with its query, one after the other: of many, only the vectors are in memory."""
        embedded = embed(self.loaded, queries, -1, "own", truncate=True)
        query_QD = np.concatenate([one.vectors for one in embedded])
        self.check_width(query_QD)
        n_nearest = k if self.ranker is None else max(k, RERANKED)
        for query, entries in zip(queries, self.nearest(query_QD, n_nearest), strict=True):
            yield query, entries if self.ranker is None else ranked(self.ranker, query, entries)[:k]

    def check_width(self, vectors_ND: Vectors) -> None:
        """Raise DataError unless vectors of the model are as wide as those of the index."""
        if vectors_ND.shape[1] != self.vectors_ND.shape[1]:
            raise damaged(self.path, f"its vectors have {self.vectors_ND.shape[1]} numbers, not {vectors_ND.shape[1]}")

    def nearest(self, query_QD: Vectors, k: int) -> Iterator[list[Entry]]:
        """The k texts whose vectors are the most similar to that of each query, by cosine, the nearest first."""
        hits: Iterable[tuple[Vectors, Ints]] = nearest(self.vectors_ND, unit(query_QD), k, self.row_N)
        if (lists := self.path / LISTS).is_file() and find_spec("faiss"):
            import faiss

            with suppress(RuntimeError):  # it is damaged; the exact search needs none
                hits = zip(*faiss.read_index(str(lists), faiss.IO_FLAG_MMAP).search(unit(query_QD), k), strict=True)
        sql = "SELECT id, source, text, ? FROM texts WHERE vector = ?"
        with connect(self.path / TEXTS, SCHEMA) as db:
            for score_K, row_K in hits:
                pairs = zip(score_K.tolist(), row_K.tolist(), strict=True)
                found = [Entry(*columns) for pair in pairs for columns in db.execute(sql, pair)]
                if not all(isinstance(value, str) for entry in found for value in entry[:3]):
                    raise damaged(self.path, f"{TEXTS} has ids or texts that are none")
                yield found

    def write_lists(self) -> None:
        """Write an inverted file for faiss (Jégou et al. 2011), of which a search reads one list in 16."""
        import faiss

        vectors_ND, n_lists = self.vectors_ND[self.row_N], math.isqrt(len(self.row_N))
        lists: Any = faiss.index_factory(vectors_ND.shape[1], f"IVF{n_lists},Flat", faiss.METRIC_INNER_PRODUCT)
        lists.train(vectors_ND)
        lists.add_with_ids(vectors_ND, self.row_N)
        lists.nprobe = 1 + n_lists // 16
        with durable.staged(self.path / LISTS) as new:
            faiss.write_index(lists, str(new))


def open_index(
    path: str | Path, run: str | None = None, rerank: str | None = None, device: DeviceName = "auto"
) -> Index:
    """An index of `lmtool search index` with its models: `.search(["a query"], k=10)`.

    run: its model, where that is no longer where it was. rerank: a run of pairs.
    Raises the errors of indexes and models.
    """
    compute = choose_compute(device, "float32")
    try:
        loaded = load_packed(run or run_named_by_file(Index(Path(path)).run), compute)
    except LmtoolError as error:
        if run is None and error.code == "run_not_found":
            error.fix = f"the index {path} is of it: name it where it is now, --run RUN, or make a new index"
        raise
    return Index(Path(path), loaded, None if rerank is None else as_ranker(load_packed(rerank, compute)))


def as_ranker(loaded: LoadedModel) -> TablePredictor:
    """A model of pairs as a cross-encoder. Raises UsageError unless it was fine-tuned to two classes or a number."""
    classifier, spec = TablePredictor.of(loaded), cast(Classification, loaded.recipe.objective)
    is_score = spec.task == "number" or (spec.task == "class" and positive(spec.labels) is not None)
    if not is_score or len(texts_of_a_row(loaded)[0]) != 2:
        fix = "name one that was fine-tuned on pairs of texts with two classes or a number"
        raise UsageError("this run cannot rank texts for a query", where=str(loaded.run_path), fix=fix)
    return classifier


def ranked(ranker: TablePredictor, query: str, entries: Sequence[Entry]) -> list[Entry]:
    """Texts by how well they answer a query: by the probability of the positive class, or the number.

    A model reads the query together with each text (Nogueira and Cho 2019).
    """
    p_RC = ranker.probabilities(ranker.encode([(query, entry.text) for entry in entries]))
    p_R = p_RC[:, positive(ranker.task.labels) or 0].tolist()
    scored = (entry._replace(score=p) for entry, p in zip(entries, p_R, strict=True))
    return sorted(scored, key=lambda entry: -entry.score)


def text_vectors(loaded: LoadedModel, texts: Iterable[str]) -> Vectors:
    """The vectors of texts, pooled as the model was trained to and scaled to length 1 (N, D); zeros without tokens.

    Raises DataError where no text has a token.
    """
    every = [*texts]
    read = [i for i, text in enumerate(every) if loaded.tokenizer.encode(text)]
    embedded = embed(loaded, (every[i] for i in read), -1, "own", truncate=True)
    found_ND = unit(np.concatenate([one.vectors for one in embedded]))
    vectors_ND = np.zeros((len(every), found_ND.shape[1]), found_ND.dtype)
    vectors_ND[read] = found_ND
    return vectors_ND


def add(path: Path, loaded: LoadedModel, entries: Sequence[Entry], report: Progress) -> dict[str, int]:
    """Add texts to an index, which is made if there is none. Those with the id of a text replace it where they differ.

    Returns how many were added, replaced and kept.
    Raises DataError for two texts of one id, and for a new index without a text; CheckpointError for an index of
    another model; UsageError for a folder that is none; ResourceError where it cannot be written.
    """
    if several := [name for name, n in Counter(entry.id for entry in entries).items() if n > 1]:
        fix = "name each file once, and a column whose values are all different: --id-column"
        raise DataError(f"two texts have the same id: {quote(several[0])}", fix=fix)
    if not (path / TEXTS).exists():
        durable.refuse_used(path)
        first = next(([entry.text] for entry in entries if loaded.tokenizer.encode(entry.text)), [])
        vectors_1D = text_vectors(loaded, first)
        with (
            durable.filling(path) as new,
            sqlite_errors(path, writes=True),
            closing(sqlite3.connect(new / TEXTS)) as db,
            db,
        ):
            durable.write_new(new / VECTORS, vectors_1D.tobytes())
            db.executescript(SCHEMA)
            model = f"{loaded.run_path}@{loaded.step}", loaded.checkpoint_hash, vectors_1D.size
            db.execute("INSERT INTO model VALUES (?, ?, ?)", model)
    with _changing(path, loaded) as (index, db):
        old = {name: rest for name, *rest in db.execute("SELECT id, source, text FROM texts")}
        fresh = [entry for entry in entries if old.get(entry.id) != [entry.source, entry.text]]
        ((end,),) = db.execute("SELECT coalesce(max(vector) + 1, 0) FROM texts")
        for begin in range(0, len(fresh), STRIDE):
            stride = fresh[begin : begin + STRIDE]
            vectors_ND = text_vectors(loaded, (entry.text for entry in stride))
            index.check_width(vectors_ND)
            with (path / VECTORS).open("r+b") as file:
                file.seek((end + begin) * vectors_ND[0].nbytes)
                file.write(vectors_ND.tobytes())
                file.flush()
                os.fsync(file.fileno())
            numbered = enumerate(zip(stride, vectors_ND, strict=True), end + begin)
            rows = ((i, *entry[:3], xxh3(vector_D.tobytes())) for i, (entry, vector_D) in numbered)
            with db:
                db.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", rows)
            report("indexing", begin + len(stride), len(fresh))
    n_replaced = sum(entry.id in old for entry in fresh)
    return {"added": len(fresh) - n_replaced, "replaced": n_replaced, "kept": len(entries) - len(fresh)}


def remove(path: Path, names: Collection[str]) -> dict[str, int]:
    """Remove the texts with these ids, and all of these files. Returns how many were removed.

    Raises DataError for a name that the index does not have, and then removes none.
    """
    with _changing(path) as (_, db), db:
        sql = "DELETE FROM texts WHERE ? IN (id, source)"
        if unknown := [name for name in names if not db.execute(sql, (name,)).rowcount]:
            what, fix = f"the index has no text and no file {unknown[0]!r}", "name ids, or files, of the index"
            raise DataError(what, where=str(path), fix=fix)
        return {"removed": db.total_changes}


@contextmanager
def _changing(path: Path, loaded: LoadedModel | None = None) -> Iterator[tuple[Index, sqlite3.Connection]]:
    """An index that no other process changes, and its texts, open for writing. Raises the errors of `Index`."""
    if link := next((name for name in (TEXTS, VECTORS) if (path / name).is_symlink()), None):
        raise damaged(path, f"{link} is a link, through which nothing is written")
    with connect(path / TEXTS, SCHEMA, writes=True) as db, durable.locked(path / ".lock"), durable.writing(path):
        index = Index(path, loaded)
        (path / LISTS).unlink(missing_ok=True)
        yield index, db
        if len((index := Index(path)).row_N) > MANY and find_spec("faiss"):
            index.write_lists()
