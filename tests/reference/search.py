"""Search, plainly: every cosine by a loop, then sorted."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def cosine(a: Vector, b: Vector) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def ranking(query: Vector, rows: Sequence[Vector], k: int) -> list[tuple[int, float]]:
    """Numbers and cosines of the k most similar rows, the first of equal ones first."""
    scores = [cosine(query, row) for row in rows]
    return [(i, scores[i]) for i in sorted(range(len(rows)), key=lambda i: -scores[i])[:k]]


def without_near(rows: Sequence[Vector], threshold: float, n_kept: int) -> list[int]:
    """The rows that remain when each that is like a remaining one before it is left out."""
    kept: list[int] = []
    for i, row in enumerate(rows):
        if i < n_kept or all(cosine(row, rows[j]) < threshold for j in kept):
            kept.append(i)
    return kept
