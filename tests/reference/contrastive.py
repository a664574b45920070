"""Losses of text vectors by loops over rows, in plain numbers; and the ranks of documents."""

import math
from collections.abc import Sequence

from tests.reference.losses import log_softmax
from tests.reference.search import cosine

Vector = Sequence[float]


def ranking(rows: Sequence[Sequence[Vector]], scale: float) -> float:
    """Mean of -log p of an anchor's positive among all texts but the anchors."""
    total = 0.0
    for i, row in enumerate(rows):
        positives = [scale * cosine(row[0], other[1]) for other in rows]
        negatives = [scale * cosine(row[0], text) for other in rows for text in other[2:]]
        total -= log_softmax(positives + negatives)[i]
    return total / len(rows)


def cosent(rows: Sequence[Sequence[Vector]], similarities: Sequence[float], scale: float) -> float:
    total = 1.0
    for (a, b), less in zip(rows, similarities, strict=True):
        for (c, d), more in zip(rows, similarities, strict=True):
            if less < more:
                total += math.exp(scale * (cosine(a, b) - cosine(c, d)))
    return math.log(total)


def triplet(rows: Sequence[Sequence[Vector]], margin: float) -> float:
    return sum(max(0.0, (1 - cosine(a, p)) - (1 - cosine(a, n)) + margin) for a, p, n in rows) / len(rows)


def supervised_contrastive(vectors: Sequence[Vector], labels: Sequence[int], scale: float) -> float:
    """Khosla et al. 2020, equation 2, over the anchors that have a positive."""
    means = []
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        scores = [scale * cosine(vector, vectors[j]) for j in others]
        same = [log_softmax(scores)[at] for at, j in enumerate(others) if labels[j] == labels[i]]
        if same:
            means.append(-sum(same) / len(same))
    return sum(means) / len(means) if means else 0.0


def label_similarity(vectors: Sequence[Vector], labels: Sequence[int]) -> float:
    errors: dict[bool, list[float]] = {True: [], False: []}
    for i in range(len(vectors)):
        for j in range(i):
            is_same = labels[i] == labels[j]
            errors[is_same].append((cosine(vectors[i], vectors[j]) - is_same) ** 2)
    return sum(sum(part) / len(part) for part in errors.values() if part) / 2


def ranks(query: Vector, documents: Sequence[Vector], relevant: set[int]) -> list[int]:
    """The ranks, from 1, of the relevant documents by their cosine."""
    order = sorted(range(len(documents)), key=lambda i: -cosine(query, documents[i]))
    return [rank for rank, i in enumerate(order, 1) if i in relevant]


def ndcg(ranks: Sequence[int], depth: int) -> float:
    """Järvelin and Kekäläinen 2002, with relevance 0 or 1."""
    best = sum(1 / math.log2(1 + rank) for rank in range(1, min(depth, len(ranks)) + 1))
    return sum(1 / math.log2(1 + rank) for rank in ranks if rank <= depth) / best
