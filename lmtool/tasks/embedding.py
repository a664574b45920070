"""Embedding: vectors of texts, trained and measured by which texts of a table should have similar ones.

Shapes: R rows, K texts of a row, D width, Q queries, M documents.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from lmtool.arrays import Floats
from lmtool.errors import UsageError
from lmtool.evaluation.loop import ValidationResult, evaluate_items
from lmtool.objective import Loss
from lmtool.objective.contrastive import EmbeddingObjective, split_texts
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import Embedding
from lmtool.tasks.labels import LabelKind
from lmtool.tasks.metrics import MetricValues, regression_metrics
from lmtool.tasks.reading import LabelledRow, LabelledTable
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import Cells, ModelWithObjective, Task
from lmtool.tokenization.prompt_format import PromptFormat

RANKING_DEPTH = 10
"""First documents of a ranking that are judged."""

LOSS_BATCH_ROWS = 32
"""Rows of a batch whose loss is computed, whatever the batch size of training, so that losses can be compared."""

QUERY_BATCH = 512
"""Queries whose documents are ranked at once."""


class EmbeddingTask(Task):
    """Vectors of the texts of a row. spec: its loss is that of the table."""

    row_kind = "related"

    @classmethod
    def get_label_kind(cls, spec: Embedding, columns: Columns) -> LabelKind:
        return "number" if len(columns.texts) > 1 else "class"

    @classmethod
    def resolve_spec_from_rows(cls, spec: Embedding, train: LabelledTable) -> Embedding:
        return with_inferred_or_checked_loss(spec, train.columns)

    def __init__(self, prompt_format: PromptFormat, spec: Embedding) -> None:
        super().__init__(prompt_format, "", ())
        self.spec = spec

    def encode(self, items: Sequence[LabelledRow]) -> list[EncodedRow]:
        """Encodes the texts of a row one after the other, each with its special tokens. Segments number the texts."""
        classes = {label: i for i, label in enumerate(sorted({str(item.label) for item in items}))}
        rows = []
        for item, ids in zip(items, self._encode_texts([item.texts for item in items]), strict=True):
            texts, _, cuts = zip(*(self.prompt_format.encode_and_truncate_row([text]) for text in ids), strict=True)
            label = item.label if isinstance(item.label, float | None) else classes[str(item.label)]
            number = None if label is None else np.array([label], dtype=np.float64)
            segments = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
            rows.append(EncodedRow(item.row, np.concatenate(texts), any(cuts), segments, number))
        return rows

    def compute_text_vectors(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> NDArray[np.float32]:
        """Computes the vectors of the texts of each row (R, K, D)."""
        objective = cast(EmbeddingObjective, model.objective)

        def embed_batch(indices: list[int]) -> tuple[Loss | None, Sequence[NDArray[Any]]]:
            batch = objective.collate([rows[i].to_example() for i in indices]).to(model.compute.device)
            return None, list(objective.embed_texts_by_row(model.lm, batch).vectors_NKD.float().cpu().numpy())

        lengths = [row.lengths for row in rows]
        return np.stack(evaluate_items(model.lm, lengths, embed_batch, model.compute, dtype=np.float32).arrays)

    def _compute_loss_and_metrics(
        self, model: ModelWithObjective, rows: Sequence[EncodedRow]
    ) -> tuple[float, MetricValues]:
        """Computes the mean loss of batches of LOSS_BATCH_ROWS, and the figures."""
        vectors_RKD = torch.from_numpy(self.compute_text_vectors(model, rows))
        known = [row.label for row in rows if row.label is not None]
        labels_R = torch.from_numpy(np.concatenate(known)) if known else None
        objective = EmbeddingObjective(self.spec, cast(EmbeddingObjective, model.objective).vocabulary)
        total = 0.0
        for start in range(0, len(rows), LOSS_BATCH_ROWS):
            part = slice(start, start + LOSS_BATCH_ROWS)
            loss = objective.batch_loss(vectors_RKD[part], None if labels_R is None else labels_R[part])
            total += len(vectors_RKD[part]) * float(loss)
        unit_RKD = F.normalize(vectors_RKD.double(), dim=-1).numpy()
        return total / len(rows), self.compute_metrics(unit_RKD, None if labels_R is None else labels_R.numpy(), rows)

    def compute_metrics(self, unit_RKD: Floats, labels_R: Floats | None, rows: Sequence[EncodedRow]) -> MetricValues:
        """Computes metrics of vectors of length 1 (R, K, D). labels_R: classes or numbers, if rows have them."""
        raise NotImplementedError

    def validate(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ValidationResult:
        return self.make_validation(*self._compute_loss_and_metrics(model, rows))

    def compute_results(self, model: ModelWithObjective, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        return Results(part, step, len(rows), *self._compute_loss_and_metrics(model, rows), [], ())

    def predict_cells(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Cells]:
        raise TypeError("a model of vectors of texts predicts nothing")


class SimilarityTask(EmbeddingTask):
    """Pairs with a number: the correlation of the cosines with the numbers."""

    metrics: ClassVar[Mapping[str, str]] = {"spearman": "spearman", "correlation": "pearson"}
    default_metric = "spearman"

    def compute_metrics(self, unit_RKD: Floats, labels_R: Floats | None, rows: Sequence[EncodedRow]) -> MetricValues:
        assert labels_R is not None
        figures = regression_metrics(labels_R, (unit_RKD[:, 0] * unit_RKD[:, 1]).sum(-1))
        return {name: figures[name] for name in ("spearman", "pearson")}


class RankingTask(EmbeddingTask):
    """Queries and their documents: how well each query ranks all documents of the rows."""

    metrics: ClassVar[Mapping[str, str]] = {"ndcg": "ndcg@10"}
    default_metric = "ndcg"

    def compute_metrics(self, unit_RKD: Floats, labels_R: Floats | None, rows: Sequence[EncodedRow]) -> MetricValues:
        texts = [
            [part.tobytes() for part in split_texts(row.tokens, cast(NDArray[np.int64], row.segments))] for row in rows
        ]
        queries = {key: i for i, key in enumerate(dict.fromkeys(row[0] for row in texts))}
        documents = {key: i for i, key in enumerate(dict.fromkeys(text for row in texts for text in row[1:]))}
        query_QD, document_MD = (np.empty((len(keys), unit_RKD.shape[-1])) for keys in (queries, documents))
        relevant: list[set[int]] = [set() for _ in queries]
        for row, unit_KD in zip(texts, unit_RKD, strict=True):
            query_QD[queries[row[0]]] = unit_KD[0]
            document_MD[[documents[text] for text in row[1:]]] = unit_KD[1:]
            relevant[queries[row[0]]].add(documents[row[1]])
        return ranking_metrics(query_QD, document_MD, relevant)


class TripletTask(RankingTask):
    """Anchors with a positive and negatives: whether the positive is more similar than each negative."""

    metrics: ClassVar[Mapping[str, str]] = {"ndcg": "ndcg@10", "accuracy": "accuracy"}
    default_metric = "accuracy"

    def compute_metrics(self, unit_RKD: Floats, labels_R: Floats | None, rows: Sequence[EncodedRow]) -> MetricValues:
        cosine_RK = (unit_RKD[:, :1] * unit_RKD[:, 1:]).sum(-1)
        accuracy = float((cosine_RK[:, :1] > cosine_RK[:, 1:]).all(1).mean())
        return {"accuracy": accuracy, **super().compute_metrics(unit_RKD, labels_R, rows)}


class NeighborTask(EmbeddingTask):
    """Texts with a label: whether the nearest other row has the same label."""

    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy"}
    default_metric = "accuracy"

    def compute_metrics(self, unit_RKD: Floats, labels_R: Floats | None, rows: Sequence[EncodedRow]) -> MetricValues:
        assert labels_R is not None
        cosine_RR = unit_RKD[:, 0] @ unit_RKD[:, 0].T
        np.fill_diagonal(cosine_RR, -np.inf)
        return {"accuracy": float((labels_R[cosine_RR.argmax(1)] == labels_R).mean())}


def with_inferred_or_checked_loss(spec: Embedding, columns: Columns) -> Embedding:
    """Returns the spec with the loss that fits these columns. Raises UsageError if its loss does not fit them."""
    n_texts, has_label = len(columns.texts), columns.label is not None
    fits = {
        "ranking": n_texts > 1 and not has_label,
        "cosent": n_texts == 2 and has_label,
        "triplet": n_texts == 3 and not has_label,
        "labels": n_texts == 1 and has_label,
    }
    possible = [loss for loss, is_possible in fits.items() if is_possible]
    if spec.loss == "auto" and possible:
        return spec.with_unvalidated_values({"loss": possible[0]})
    if spec.loss not in possible:
        rows = f"rows of {format_count(n_texts, 'text')} {'with' if has_label else 'without'} a label"
        what = f"loss {spec.loss} is not for {rows}"
        fix = f"take {' or '.join(possible)}" if possible else "name two texts with --text-column, or omit the label"
        raise UsageError(what, where="objective.loss", fix=fix)
    return spec


def ranking_metrics(unit_query_QD: Floats, unit_document_MD: Floats, relevant: Sequence[set[int]]) -> MetricValues:
    """Computes means over queries of how documents are ranked by the cosines of vectors of length 1.

    recall@k: share of the relevant documents among the first k. mrr: 1 / rank of the first relevant one. ndcg@10:
    discounted cumulative gain, divided by the best possible (Järvelin and Kekäläinen 2002); relevance is 0 or 1.

    relevant: the documents of each query.
    """
    discounts = 1 / np.log2(np.arange(RANKING_DEPTH) + 2)
    recalls: list[list[float]] = []
    reciprocal, gains = [], []
    for start in range(0, len(unit_query_QD), QUERY_BATCH):
        cosine_QM = unit_query_QD[start : start + QUERY_BATCH] @ unit_document_MD.T
        for cosine_M, documents in zip(cosine_QM, relevant[start:], strict=False):
            first_N = np.argsort(-cosine_M, kind="stable")[:RANKING_DEPTH]
            hit_N = np.isin(first_N, list(documents))
            recalls.append([hit_N[:k].sum() / len(documents) for k in (1, 5, RANKING_DEPTH)])
            reciprocal.append(1 / (1 + int((cosine_M > cosine_M[list(documents)].max()).sum())))
            gains.append((hit_N * discounts[: len(hit_N)]).sum() / discounts[: len(documents)].sum())
    named = zip(("recall@1", "recall@5", "recall@10"), np.mean(recalls, 0), strict=True)
    figures = {**dict(named), "mrr": np.mean(reciprocal), "ndcg@10": np.mean(gains)}
    return {name: float(value) for name, value in figures.items()}
