"""Perplexity by definition, one token at a time."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

NextLogits = Callable[[Sequence[int]], NDArray[np.float64]]
"""Scores of every token of the vocabulary, after these tokens."""


def nats(documents: Sequence[Sequence[int]], next_logits: NextLogits, context: int, stride: int) -> tuple[float, int]:
    """Sum of -log p over all tokens but the first of each document, and their number.

    Windows of `context` tokens start at 0, stride, 2 stride, ... of each document. A token is predicted by the first
    window that reaches the one before it, from all tokens of that window before it.
    """
    total, count = 0.0, 0
    for document in documents:
        for place in range(1, len(document)):
            window = 0
            while window + context < place:
                window += stride
            logits = next_logits(document[window:place])
            total += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[document[place]]
            count += 1
    return float(total), count
