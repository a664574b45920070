"""From queries to the texts of an index that answer them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import numpy as np

from lmtool.compute.device import Compute
from lmtool.errors import UsageError
from lmtool.inference.embedding import Vectors, embed
from lmtool.inference.load import Loaded, load_packed
from lmtool.recipe.spec.objective import Classification
from lmtool.search.index import Hit, Index
from lmtool.tables.predict import TextClassifier, texts_of_a_row
from lmtool.tables.tasks.metrics import positive

RERANKED = 100
"""Nearest texts that a cross-encoder ranks, unless more are wanted."""


@dataclass(frozen=True)
class CrossEncoder:
    """A model of pairs of texts, which ranks texts for a query (Nogueira and Cho 2019).

    column: of what it predicts: the probability of the positive class of two, or the number.
    """

    classifier: TextClassifier
    column: int

    @classmethod
    def of(cls, loaded: Loaded) -> Self:
        """Raises UsageError for a model that was not fine-tuned on pairs with two classes or a number."""
        classifier, spec = TextClassifier.of(loaded), cast(Classification, loaded.recipe.objective)
        column = {"class": positive(spec.labels), "number": 0}.get(spec.task)
        if column is None or (n_texts := len(texts_of_a_row(loaded)[0])) != 2:
            what = f"its labels are {', '.join(spec.labels)}" if column is None else f"it reads {n_texts} text in a row"
            fix = "name one that was fine-tuned on pairs of texts with two classes or a number"
            raise UsageError(f"this run cannot rank texts: {what:.100}", where=str(loaded.run_path), fix=fix)
        return cls(classifier, column)

    def ranked(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same texts by how well they answer the query."""
        rows = self.classifier.encode([(query, hit.text) for hit in hits])
        scores = self.classifier.probabilities(rows)[:, self.column].tolist()
        scored = [hit._replace(score=score) for hit, score in zip(hits, scores, strict=True)]
        return sorted(scored, key=lambda hit: -hit.score)


@dataclass(frozen=True)
class Searcher:
    """An index with the model that reads queries, and a cross-encoder where there is one."""

    index: Index
    loaded: Loaded
    cross_encoder: CrossEncoder | None = None

    @classmethod
    def open(cls, path: Path, compute: Compute, run: str | None = None, rerank: str | None = None) -> Self:
        """run: the model, where it is no longer where it was. rerank: the run of the cross-encoder.

        Raises the errors of indexes and models.
        """
        index = Index(path)
        loaded = load_packed(run or index.run, compute)
        index.check_model(loaded)
        return cls(index, loaded, None if rerank is None else CrossEncoder.of(load_packed(rerank, compute)))

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The k best texts for each query, the best first. Queries are truncated to the context."""
        embedded = embed(self.loaded, queries, -1, "own", truncate=True)
        return self.hits(queries, np.concatenate([one.vectors for one in embedded]), k)

    def hits(self, queries: Sequence[str], query_QD: Vectors, k: int) -> list[list[Hit]]:
        """As `search`, where the vectors of the queries are known."""
        nearest = self.index.nearest(query_QD, k if self.cross_encoder is None else max(k, RERANKED))
        if self.cross_encoder is None:
            return list(nearest)
        ranked = self.cross_encoder.ranked
        return [ranked(query, hits)[:k] for query, hits in zip(queries, nearest, strict=True)]
