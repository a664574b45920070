"""Classifiers of the lectures with loops: averaging, softmax and sigmoid outputs, gradients in closed form."""

from collections.abc import Sequence

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


def log_count_ratios(texts: Sequence[set[int]], is_in: Sequence[bool], n_features: int) -> list[float]:
    """log((p / ||p||_1) / (q / ||q||_1)) of sets of features, p and q smoothed by 1 (Wang and Manning 2012).

    What no text has is no feature: it is 0, and in no norm.
    """
    seen = set().union(*texts)
    p = {f: 1 + sum(f in text for text, inside in zip(texts, is_in, strict=True) if inside) for f in seen}
    q = {f: 1 + sum(f in text for text, inside in zip(texts, is_in, strict=True) if not inside) for f in seen}
    norm = sum(p.values()) / sum(q.values())
    return [float(np.log(p[f] / q[f] / norm)) if f in seen else 0.0 for f in range(n_features)]


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


def softmax_gradient(weight: Array, x: Array, label: int) -> tuple[float, Array]:
    """-log p_label for p = softmax(W x), and its gradient: row k is p_k x, less x for the label."""
    scores = np.array([row @ x for row in weight])
    p = np.exp(scores - scores.max())
    p /= p.sum()
    gradient = np.array([p[k] * x for k in range(len(weight))])
    gradient[label] += -x
    return float(-np.log(p[label])), gradient


def sigmoid_gradient(weight: Array, x: Array, label: int) -> tuple[float, Array]:
    """-log p for p = s(w x) of label 1, 1 - p of label 0; its gradient -x + p x, and p x."""
    p = 1 / (1 + np.exp(-(weight @ x)))
    return (float(-np.log(p)), -x + p * x) if label else (float(-np.log(1 - p)), p * x)


def scalar_mix(layers: Sequence[Array], scalars: Sequence[float], gamma: float) -> Array:
    """ELMo_k = gamma sum_j s_j h_kj with s = softmax(scalars), for each position k."""
    powers = [np.exp(scalar) for scalar in scalars]
    found = np.zeros_like(layers[0])
    for k in range(len(found)):
        for power, h in zip(powers, layers, strict=True):
            found[k] += gamma * power / sum(powers) * h[k]
    return found
