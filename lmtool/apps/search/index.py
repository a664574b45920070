"""An index of texts: a vector of each, memory-mapped, and the texts beside them.

    INDEX/vectors.f32      vectors of length 1, one after the other (N, D)
    INDEX/texts.sqlite     the model that made them, and the id, file, text and checksum of each vector, by its number
    INDEX/vectors.faiss    an approximate index that reads few vectors, if there are many and faiss is installed

A vector is written and synced before its text is committed. A killed process leaves at most vectors without a text,
which the next one overwrites. A text that is in the index already is not computed again, so indexing continues where it
was interrupted. A text that is removed or replaced leaves its vector behind, which is never found. Opening an index
compares all vectors with their checksums, because it may come from somebody else.

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

from lmtool.apps.search.database import (
    check_regular_file,
    convert_sqlite_errors,
    damaged_index_error,
    open_verified_database,
)
from lmtool.apps.search.entries import Entry, Hits
from lmtool.apps.search.nearest import find_nearest_by_cosine
from lmtool.arrays import Ints
from lmtool.compute.device import configure_compute
from lmtool.data.files import quote
from lmtool.data.survey import Progress
from lmtool.errors import CheckpointError, DataError, LmtoolError, UsageError
from lmtool.evaluation.embedding import Vectors, embed, embed_to_unit_vectors, normalize
from lmtool.interop.resolve import import_if_published_refusing_downloads, resolve_reference
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Classification
from lmtool.runs.load import LoadedModel, load_packed_for_inference
from lmtool.storage import durable
from lmtool.storage.checksum import xxh3
from lmtool.tasks.metrics import find_positive_class_index
from lmtool.tasks.predict import LabelPredictor, get_text_columns

TEXTS, VECTORS, LISTS = "texts.sqlite", "vectors.f32", "vectors.faiss"

COMMIT_TEXTS = 1024
"""Texts that are committed at once, and the most that are computed again after a kill."""

RERANKED_TEXTS = 100
"""Nearest texts that a cross-encoder ranks, unless more are requested."""

MIN_FAISS_TEXTS = 1_000_000
"""Texts beyond which faiss is used, if it is installed."""

MAX_VECTOR_WIDTH = 1 << 20
"""Maximum width of vectors."""

MIN_BYTES_PER_TEXT = 16
"""Minimum bytes of a text in its file, which bounds the number of texts that are read from a malicious one."""

SCHEMA = """CREATE TABLE model (run TEXT, checkpoint TEXT, width INTEGER);
CREATE TABLE texts (vector INTEGER PRIMARY KEY, id TEXT UNIQUE, source TEXT, text TEXT, xxh3 TEXT);"""


class Index:
    """An index that is open for reading. It does not see texts that are added later, nor find those removed.

    run: name of its model. loaded: that model, which embeds queries. ranker: a cross-encoder that reranks texts.
    vectors_ND: all vectors, memory-mapped. row_N: indices of the vectors that belong to a text.
    """

    def __init__(self, path: Path, loaded: LoadedModel | None = None, ranker: LabelPredictor | None = None) -> None:
        """Raises DataError for a missing or damaged index, CheckpointError for one of another model."""
        self.path, self.ranker = path, ranker
        with open_verified_database(path / TEXTS, SCHEMA) as db:
            db.execute("BEGIN")  # keeps texts from being removed, and their vectors overwritten, until all are compared
            models = db.execute("SELECT run, checkpoint, width FROM model LIMIT 2").fetchall()
            most = (path / TEXTS).stat().st_size // MIN_BYTES_PER_TEXT
            rows = db.execute("SELECT vector, xxh3 FROM texts ORDER BY vector LIMIT ?", (most + 1,)).fetchall()
            match models:
                case [(str(run), str(checkpoint), int(width))] if 0 < width <= MAX_VECTOR_WIDTH and len(rows) <= most:
                    self.run, self._checkpoint = run, checkpoint
                case _:
                    raise damaged_index_error(path, f"{TEXTS} names no model, or has more texts than there is room for")
            self.row_N: Ints = np.array([row for row, _ in rows], np.int64)
            self.vectors_ND = self._map_and_verify_vectors(width, [checksum for _, checksum in rows])
        if loaded is not None:
            self.set_model(loaded)

    def set_model(self, loaded: LoadedModel) -> None:
        """Sets the model that embeds queries. Raises CheckpointError unless it is the index's."""
        if loaded.checkpoint_hash != self._checkpoint:
            what = f"the index is not of this model: {loaded.run_path}, step {loaded.step}"
            raise CheckpointError(what, where=str(self.path), fix=f"its model is --run {self.run}")
        self.loaded = loaded

    def _map_and_verify_vectors(self, width: int, checksums: Sequence[str]) -> Vectors:
        """Maps the vectors into memory. Raises DataError unless the vectors of `row_N` have these checksums."""
        check_regular_file(self.path / VECTORS)
        shape = int(self.row_N.max(initial=0)) + 1, width
        is_counted = bool((np.diff(self.row_N, prepend=-1) > 0).all())
        if not is_counted or shape[0] * width * 4 > (self.path / VECTORS).stat().st_size:
            raise damaged_index_error(self.path, f"{VECTORS} has fewer vectors than there are texts")
        content, size = memoryview(durable.map_file(self.path / VECTORS)).cast("B"), 4 * width
        vectors_ND: Vectors = np.frombuffer(content, "<f4", shape[0] * width).reshape(shape)
        for row, checksum in zip(self.row_N.tolist(), checksums, strict=True):
            if xxh3(content[row * size : (row + 1) * size]) != checksum:
                raise damaged_index_error(self.path, f"{VECTORS} has changed in vector {row:,} since it was written")
        with np.errstate(all="ignore"):
            square_N = np.einsum("nd,nd->n", vectors_ND, vectors_ND)[self.row_N]
        if not ((np.abs(square_N - 1) < 1e-3) | (square_N == 0)).all():
            raise damaged_index_error(self.path, f"{VECTORS} has vectors whose length is not 1")
        return vectors_ND

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Entry]]:
        """Finds the k best texts for each query, the best first. Queries are truncated to the context.

        Raises UsageError for a query without tokens, DataError without queries.
        """
        return [entries for _, entries in self.search_each(queries, k)]

    def search_each(self, queries: Sequence[str], k: int = 10) -> Iterator[Hits]:
        """Yields each query with its results, as `search` finds them, without keeping all results in memory."""
        embedded = embed(self.loaded, queries, -1, "own", truncate=True)
        query_QD = np.concatenate([one.vectors for one in embedded])
        self.check_width(query_QD)
        n_nearest = k if self.ranker is None else max(k, RERANKED_TEXTS)
        for query, entries in zip(queries, self.find_nearest(query_QD, n_nearest), strict=True):
            yield query, entries if self.ranker is None else rerank_entries(self.ranker, query, entries)[:k]

    def check_width(self, vectors_ND: Vectors) -> None:
        """Raises DataError unless vectors of the model are as wide as those of the index."""
        if vectors_ND.shape[1] != self.vectors_ND.shape[1]:
            raise damaged_index_error(
                self.path, f"its vectors have {self.vectors_ND.shape[1]} numbers, not {vectors_ND.shape[1]}"
            )

    def find_nearest(self, query_QD: Vectors, k: int) -> Iterator[list[Entry]]:
        """Yields the k texts of the highest cosine similarity to each query, the nearest first."""
        hits: Iterable[tuple[Vectors, Ints]] = find_nearest_by_cosine(
            self.vectors_ND, normalize(query_QD), k, self.row_N
        )
        if (lists := self.path / LISTS).is_file() and find_spec("faiss"):
            import faiss

            with suppress(RuntimeError):  # the file is damaged; the exact search does not need it
                hits = zip(
                    *faiss.read_index(str(lists), faiss.IO_FLAG_MMAP).search(normalize(query_QD), k), strict=True
                )
        sql = "SELECT id, source, text, ? FROM texts WHERE vector = ?"
        with open_verified_database(self.path / TEXTS, SCHEMA) as db:
            for score_K, row_K in hits:
                pairs = zip(score_K.tolist(), row_K.tolist(), strict=True)
                found = [Entry(*columns) for pair in pairs for columns in db.execute(sql, pair)]
                if not all(isinstance(value, str) for entry in found for value in entry[:3]):
                    raise damaged_index_error(self.path, f"{TEXTS} has ids or texts that are none")
                yield found

    def write_faiss_index(self) -> None:
        """Writes an inverted file for faiss (Jégou et al. 2011), of which a search reads one list in 16."""
        import faiss

        vectors_ND, n_lists = self.vectors_ND[self.row_N], math.isqrt(len(self.row_N))
        lists: Any = faiss.index_factory(vectors_ND.shape[1], f"IVF{n_lists},Flat", faiss.METRIC_INNER_PRODUCT)
        lists.train(vectors_ND)
        lists.add_with_ids(vectors_ND, self.row_N)
        lists.nprobe = 1 + n_lists // 16
        with durable.atomic_output(self.path / LISTS) as new:
            faiss.write_index(lists, str(new))


def open_index(
    path: str | Path, run: str | None = None, rerank: str | None = None, device: DeviceName = "auto"
) -> Index:
    """An index of `lmtool search index` with its models: `.search(["a query"], k=10)`.

    run: its model, where that is no longer where it was. rerank: a run of pairs.
    Raises the errors of indexes and models.
    """
    compute, index = configure_compute(device, "float32"), Index(Path(path))
    try:
        run_path = resolve_reference(run) if run else import_if_published_refusing_downloads(index.run)
        index.set_model(load_packed_for_inference(run_path, compute))
    except LmtoolError as error:
        if run is None and error.code == "run_not_found":
            error.fix = f"the index {path} is of it: name it where it is now, --run RUN, or make a new index"
        raise
    if rerank is not None:
        index.ranker = make_cross_encoder(load_packed_for_inference(resolve_reference(rerank), compute))
    return index


def make_cross_encoder(loaded: LoadedModel) -> LabelPredictor:
    """Makes a cross-encoder of a model of pairs. Raises UsageError unless it predicts two classes or a number."""
    classifier, spec = LabelPredictor.from_model(loaded), cast(Classification, loaded.recipe.objective)
    is_score = spec.task == "number" or (spec.task == "class" and find_positive_class_index(spec.labels) is not None)
    if not is_score or len(get_text_columns(loaded)) != 2:
        fix = "name one that was fine-tuned on pairs of texts with two classes or a number"
        raise UsageError("this run cannot rank texts for a query", where=str(loaded.run_path), fix=fix)
    return classifier


def rerank_entries(cross_encoder: LabelPredictor, query: str, entries: Sequence[Entry]) -> list[Entry]:
    """Sorts texts by the score of a cross-encoder (Nogueira and Cho 2019): probability of a class, or a number."""
    p_RC = cross_encoder.compute_probabilities(cross_encoder.encode([(query, entry.text) for entry in entries]))
    p_R = p_RC[:, find_positive_class_index(cross_encoder.task.labels) or 0].tolist()
    scored = (entry._replace(score=p) for entry, p in zip(entries, p_R, strict=True))
    return sorted(scored, key=lambda entry: -entry.score)


def add_or_replace_texts(path: Path, loaded: LoadedModel, entries: Sequence[Entry], report: Progress) -> dict[str, int]:
    """Adds texts to an index, a new one if there is none. A text with the id of another one replaces it.

    Returns how many texts were added, replaced and kept.
    Raises DataError for two texts of one id, and for a new index without a text; CheckpointError for an index of
    another model; UsageError for a folder that is no index; ResourceError if it cannot be written.
    """
    if several := [name for name, n in Counter(entry.id for entry in entries).items() if n > 1]:
        fix = "name each file once, and a column whose values are all different: --id-column"
        raise DataError(f"two texts have the same id: {quote(several[0])}", fix=fix)
    if not (path / TEXTS).exists():
        durable.check_folder_is_empty(path)
        first = next(([entry.text] for entry in entries if loaded.tokenizer.encode(entry.text)), [])
        vectors_1D = embed_to_unit_vectors(loaded, first)
        with (
            durable.atomic_output_folder(path) as new,
            convert_sqlite_errors(path, writes=True),
            closing(sqlite3.connect(new / TEXTS)) as db,
            db,
        ):
            durable.write_and_sync_new_file(new / VECTORS, vectors_1D.tobytes())
            db.executescript(SCHEMA)
            model = f"{loaded.run_path}@{loaded.step}", loaded.checkpoint_hash, vectors_1D.size
            db.execute("INSERT INTO model VALUES (?, ?, ?)", model)
    with _lock_for_update_and_rebuild_faiss(path, loaded) as (index, db):
        old = {name: rest for name, *rest in db.execute("SELECT id, source, text FROM texts")}
        fresh = [entry for entry in entries if old.get(entry.id) != [entry.source, entry.text]]
        ((end,),) = db.execute("SELECT coalesce(max(vector) + 1, 0) FROM texts")
        for begin in range(0, len(fresh), COMMIT_TEXTS):
            stride = fresh[begin : begin + COMMIT_TEXTS]
            vectors_ND = embed_to_unit_vectors(loaded, (entry.text for entry in stride))
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


def remove_texts_by_id_or_source(path: Path, ids_or_sources: Collection[str]) -> dict[str, int]:
    """Removes the texts with these ids, and all texts of these files. Returns how many were removed.

    Raises DataError for an unknown name, and then removes none.
    """
    with _lock_for_update_and_rebuild_faiss(path) as (_, db), db:
        sql = "DELETE FROM texts WHERE ? IN (id, source)"
        if unknown := [name for name in ids_or_sources if not db.execute(sql, (name,)).rowcount]:
            what, fix = f"the index has no text and no file {unknown[0]!r}", "name ids, or files, of the index"
            raise DataError(what, where=str(path), fix=fix)
        return {"removed": db.total_changes}


@contextmanager
def _lock_for_update_and_rebuild_faiss(
    path: Path, loaded: LoadedModel | None = None
) -> Iterator[tuple[Index, sqlite3.Connection]]:
    """Locks an index against other processes, and yields it and its texts, open for writing. Raises as `Index` does.

    Removes the index of faiss before, and writes a new one after the block if there are many texts.
    """
    if link := next((name for name in (TEXTS, VECTORS) if (path / name).is_symlink()), None):
        raise damaged_index_error(path, f"{link} is a link, through which nothing is written")
    with (
        open_verified_database(path / TEXTS, SCHEMA, writable=True) as db,
        durable.hold_lock(path / ".lock"),
        durable.convert_write_errors(path),
    ):
        index = Index(path, loaded)
        (path / LISTS).unlink(missing_ok=True)
        yield index, db
        if len((index := Index(path)).row_N) > MIN_FAISS_TEXTS and find_spec("faiss"):
            index.write_faiss_index()
