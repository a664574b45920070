"""Corruption of text as the papers tell it: plain loops over tokens."""

from collections.abc import Sequence


def reassembled(
    source: Sequence[int], target: Sequence[int], sentinels: Sequence[int], end: Sequence[int]
) -> list[int]:
    """The text that T5's source and target came from: each sentinel of the source replaced by its span."""
    spans: dict[int, list[int]] = {}
    current: int | None = None
    for token in target:
        if token in sentinels or token in end:
            current = token
            spans[current] = []
        else:
            assert current is not None
            spans[current].append(token)
    text: list[int] = []
    for token in source:
        text += spans[token] if token in sentinels else [token]
    return text


def pseudo_nll(log_p, tokens: Sequence[int], mask: int) -> float:  # type: ignore[no-untyped-def]
    """Salazar et al. 2020: the sum over positions of -log p(token | all others), one masked at a time.

    log_p(row, t): log-probabilities at position t of a row.
    """
    total = 0.0
    for t, token in enumerate(tokens):
        row = list(tokens)
        row[t] = mask
        total -= float(log_p(row, t)[token])
    return total
