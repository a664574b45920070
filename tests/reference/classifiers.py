"""Features of texts for linear classifiers, averages of word vectors, and gradients in closed form, with loops."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def features(text: Sequence[int], vocab_size: int, longest: int, buckets: int) -> list[int]:
    """Tokens, then the rows of their sequences, shorter ones first, behind those of tokens."""
    found = list(text)
    for n in range(2, longest + 1):
        for i in range(len(text) - n + 1):
            number = text[i]
            for token in text[i + 1 : i + n]:
                number = ((number * 1_000_003) ^ token) % 2_147_483_647
            found.append(vocab_size + number % buckets)
    return found


def words_and_ngrams(text: str, longest: int) -> tuple[Counter[str], Counter[str]]:
    """How often a text has each word and pair of words, and each n-gram with only letters between its ends."""
    found = re.findall(r"\w+", text)
    words = Counter(found) + Counter(map(" ".join, pairwise(found)))
    ngrams = [text[i : i + n] for n in range(1, longest + 1) for i in range(len(text) - n + 1)]
    return words, Counter(one for one in ngrams if re.fullmatch(r"\w*", one[1:-1]))


def log_count_ratios(texts: Sequence[set[int]], is_in: Sequence[bool], n_features: int) -> list[float]:
    """log((observed + 1) / (expected + 1)) of sets of features, expected were features and class independent."""
    inside = [text for text, is_one in zip(texts, is_in, strict=True) if is_one]
    share = sum(map(len, inside)) / sum(map(len, texts))
    ratios = []
    for f in range(n_features):
        observed, anywhere = sum(f in text for text in inside), sum(f in text for text in texts)
        ratios.append(float(np.log((observed + 1) / (share * anywhere + 1))))
    return ratios


def tf_idf(texts: Sequence[Sequence[int]], counted: Sequence[Sequence[int]], n_features: int) -> Array:
    """Rows of (1 + log tf) (1 + log((1 + n) / (1 + df))) of length 1, df over the n texts `counted`; unseen are 0."""
    df = [sum(f in text for text in counted) for f in range(n_features)]
    rows = np.zeros((len(texts), n_features))
    for i, text in enumerate(texts):
        for f in set(text):
            if df[f]:
                rows[i, f] = (1 + np.log(text.count(f))) * (1 + np.log((1 + len(counted)) / (1 + df[f])))
        rows[i] /= np.linalg.norm(rows[i]) or 1.0
    return rows


def average(text: Sequence[int], vectors: Array) -> Array:
    total = np.zeros(vectors.shape[1])
    for word in text:
        total += vectors[word]
    return total / max(1, len(text))


def deep_average(text: Sequence[int], vectors: Array, layers: Sequence[tuple[Array, Array]], activation: str) -> Array:
    h = average(text, vectors)
    for weight, bias in layers:
        z = weight @ h + bias
        h = np.maximum(0, z) if activation == "relu" else np.tanh(z)
    return h


def linear_gradient(weight: Array, x: Array, y: Array, is_softmax: bool) -> Array:
    """Of -log p of the labels y by the weights W: row k is (p_k - y_k) x, for p = softmax(W x) or the sigmoid of each,
    of which the loss is the mean."""
    scores = [float(row @ x) for row in weight]
    if is_softmax:
        p = [math.exp(score) / sum(math.exp(other) for other in scores) for score in scores]
        return np.array([(p[k] - y[k]) * x for k in range(len(weight))])
    p = [1 / (1 + math.exp(-score)) for score in scores]
    return np.array([(p[k] - y[k]) * x / len(weight) for k in range(len(weight))])
