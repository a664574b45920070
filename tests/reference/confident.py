"""Confident learning (Northcutt et al. 2021), in loops: slow and plain."""

from collections.abc import Sequence


def issues(probabilities: Sequence[Sequence[float]], labels: Sequence[int]) -> dict[int, int]:
    """The other class of each row off the diagonal of the confident joint, unless its label is predicted."""
    n_classes = len(probabilities[0])
    thresholds = []
    for c in range(n_classes):
        own = [row[c] for row, label in zip(probabilities, labels, strict=True) if label == c]
        thresholds.append(sum(own) / len(own) if own else float("inf"))
    found = {}
    for i, (row, label) in enumerate(zip(probabilities, labels, strict=True)):
        sure = [c for c in range(n_classes) if row[c] >= thresholds[c] - 1e-6]
        if not sure or max(range(n_classes), key=lambda c: row[c]) == label:
            continue
        best = max(sure, key=lambda c: row[c])
        if best != label:
            found[i] = best
    return found
