"""Corruption of text as the papers tell it: plain loops over tokens."""

from collections.abc import Sequence

from tests.reference.losses import log_softmax


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


def pseudo_nll(log_p, tokens: Sequence[int], mask: int, places: Sequence[int]) -> float:  # type: ignore[no-untyped-def]
    """Salazar et al. 2020: the sum over positions of -log p(token | all others), one masked at a time.

    log_p(row, t): log-probabilities at position t of a row.
    """
    total = 0.0
    for t in places:
        row = list(tokens)
        row[t] = mask
        total -= float(log_p(row, t)[tokens[t]])
    return total


def masked_and_next(logits, targets, scores, follows, ignore) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Devlin et al. 2019: the summed loss of masked tokens, and the same with that of next sentences added.

    A step divides by the number of masked tokens M, so that a row with m of them adds m / M times -log p(its label).
    """
    masked = both = 0.0
    for row, wanted, pair, label in zip(logits, targets, scores, follows, strict=True):
        chosen = [t for t, target in enumerate(wanted) if target != ignore]
        nats = sum(-log_softmax(row[t])[wanted[t]] for t in chosen)
        masked += nats
        both += nats + len(chosen) * -log_softmax(pair)[label]
    return masked, both
