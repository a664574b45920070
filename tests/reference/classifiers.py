"""Classifiers of the lectures with loops: averaging, softmax and sigmoid outputs, gradients in closed form."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def features(text: Sequence[int], vocab_size: int, pairs: int) -> list[int]:
    """Words, then the rows of their pairs behind those of words."""
    found = list(text)
    for i in range(len(text) - 1):
        if pairs:
            found.append(vocab_size + ((text[i] * 1_000_003) ^ text[i + 1]) % pairs)
    return found


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
