"""Metrics as their papers define them, in loops: slow and plain."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

Names = Sequence[Hashable]
Numbers = Sequence[float]


def precision_recall_f1(true: Names, predicted: Names, name: Hashable) -> tuple[float, float, float]:
    """Of one class; nothing by nothing is 0."""
    right = sum(t == name and p == name for t, p in zip(true, predicted, strict=True))
    called = sum(p == name for p in predicted)
    there = sum(t == name for t in true)
    precision = right / called if called else 0.0
    recall = right / there if there else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return precision, recall, f1


def macro_f1(true: Names, predicted: Names) -> float:
    """The mean of the F1 of every class that occurs."""
    names = set(true) | set(predicted)
    return sum(precision_recall_f1(true, predicted, name)[2] for name in names) / len(names)


def matthews(true: Names, predicted: Names) -> float:
    """Gorodkin (2004): Pearson's correlation of the one-hot classes of all rows, 0 where it is undefined."""
    n, names = len(true), set(true) | set(predicted)

    def covariance(x: Names, y: Names) -> float:
        total = 0.0
        for name in names:
            mean_x, mean_y = x.count(name) / n, y.count(name) / n
            total += sum(((a == name) - mean_x) * ((b == name) - mean_y) for a, b in zip(x, y, strict=True))
        return total

    variances = covariance(true, true) * covariance(predicted, predicted)
    return covariance(true, predicted) / math.sqrt(variances) if variances > 1e-9 else 0.0


def pearson(x: Numbers, y: Numbers) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def spearman(x: Numbers, y: Numbers) -> float:
    def rank(values: Numbers) -> list[float]:
        return [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]

    return pearson(rank(x), rank(y))


def n_grams(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Papineni et al. (2002), sections 2.1 to 2.3, words parted by spaces, all four precisions above 0."""
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    logs = []
    for n in range(1, 5):
        matched = total = 0
        for hypothesis, reference in pairs:
            found, wanted = n_grams(hypothesis, n), n_grams(reference, n)
            matched += sum(min(count, wanted[gram]) for gram, count in found.items())
            total += sum(found.values())
        logs.append(math.log(matched / total))
    c, r = (sum(map(len, texts)) for texts in zip(*pairs, strict=True))
    brevity = 1.0 if c > r else math.exp(1 - r / c)
    return 100 * brevity * math.exp(sum(logs) / 4)


def chrf(hypotheses: Sequence[str], references: Sequence[str], order: int = 6, beta: int = 2) -> float:
    """Popović (2015): characters without spaces, counts summed over the text, precision and recall averaged over n."""
    pairs = [("".join(h.split()), "".join(r.split())) for h, r in zip(hypotheses, references, strict=True)]
    precisions, recalls = [], []
    for n in range(1, order + 1):
        matched = found = wanted = 0
        for hypothesis, reference in pairs:
            a, b = n_grams(hypothesis, n), n_grams(reference, n)
            matched += sum(min(count, b[gram]) for gram, count in a.items())
            found, wanted = found + sum(a.values()), wanted + sum(b.values())
        precisions.append(matched / found)
        recalls.append(matched / wanted)
    precision, recall = sum(precisions) / order, sum(recalls) / order
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
