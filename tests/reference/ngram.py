"""Interpolated modified Kneser-Ney with dictionaries and loops, from Chen and Goodman 1999 (section 3) and, for what
begins a document, Heafield et al. 2013 (section 2.3)."""

from collections import Counter, defaultdict
from collections.abc import Sequence

Gram = tuple[int, ...]


def relative_frequency(
    order: int, documents: Sequence[Sequence[int]], vocab_size: int, history: Sequence[int], token: int, k: float
) -> float:
    """(c(hw) + k) / (c(h.) + k V), h being the last order - 1 tokens of the history, or all; 1 / V where that is 0 / 0.

    The first token of each document is given, never predicted.
    """
    known = tuple(history)[-(order - 1) :] if order > 1 else ()
    following = Counter(
        document[end]
        for document in documents
        for end in range(max(1, len(known)), len(document))
        if tuple(document[end - len(known) : end]) == known
    )
    below = sum(following.values()) + k * vocab_size
    return (following[token] + k) / below if below else 1 / vocab_size


class KneserNey:
    """documents: token ids; the first of each is given, never predicted."""

    def __init__(self, order: int, documents: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.order, self.vocab_size = order, vocab_size
        seen: dict[int, Counter[Gram]] = {n: Counter() for n in range(1, order + 1)}
        at_start: dict[int, Counter[Gram]] = {n: Counter() for n in range(1, order + 1)}
        behind: dict[Gram, set[int]] = defaultdict(set)
        for document in documents:
            for end in range(1, len(document)):
                for n in range(1, order + 1):
                    start = end - n + 1
                    if start < 0:
                        continue
                    gram = tuple(document[start : end + 1])
                    seen[n][gram] += 1
                    if start == 0:
                        at_start[n][gram] += 1
                    else:
                        behind[gram].add(document[start - 1])
        self.adjusted: dict[int, dict[Gram, int]] = {order: dict(seen[order])}
        for n in range(1, order):
            self.adjusted[n] = {gram: len(behind[gram]) + at_start[n][gram] for gram in seen[n]}
        self.discounts = {n: self._discounts(n) for n in range(1, order + 1)}

    def _discounts(self, n: int) -> tuple[float, float, float]:
        of = Counter(self.adjusted[n].values())
        if not (of[1] and of[2] and of[3] and of[4]):
            return 0.5, 1.0, 1.5
        y = of[1] / (of[1] + 2 * of[2])
        d = (1 - 2 * y * of[2] / of[1], 2 - 3 * y * of[3] / of[2], 3 - 4 * y * of[4] / of[3])
        return d if min(d) > 0 else (0.5, 1.0, 1.5)

    def probability(self, history: Sequence[int], token: int) -> float:
        """p(token | history), of which at most the last order - 1 tokens count."""
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        return self._level(history, token)

    def _level(self, history: Gram, token: int) -> float:
        n = len(history) + 1
        lower = 1 / self.vocab_size if n == 1 else self._level(history[1:], token)
        following = {gram[-1]: count for gram, count in self.adjusted[n].items() if gram[:-1] == history}
        total = sum(following.values())
        if total == 0:
            return lower
        d1, d2, d3 = self.discounts[n]
        n1 = sum(1 for count in following.values() if count == 1)
        n2 = sum(1 for count in following.values() if count == 2)
        n3 = sum(1 for count in following.values() if count >= 3)
        count = following.get(token, 0)
        discount = (0.0, d1, d2, d3)[min(count, 3)]
        return (count - discount) / total + (d1 * n1 + d2 * n2 + d3 * n3) / total * lower
