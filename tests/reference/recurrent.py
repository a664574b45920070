"""Recurrent networks as the papers write them: one row, one step, one state at a time, in numpy.

Vectors are 1-D arrays; W x is a matrix times a vector. Gates are named by what they do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Score = Callable[[Vector, Vector], float]
"""How well a query fits a state in memory."""


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


NONLINEARITIES: dict[str, Callable[[Vector], Vector]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.where(x > 0, x, 0),
    "sigmoid": sigmoid,
}


@dataclass
class Layer:
    """One recurrent layer: for each gate, a matrix for the input, one for the past state, and their biases."""

    kind: str
    nonlinearity: str
    for_input: list[Matrix]
    for_past: list[Matrix]
    input_bias: list[Vector]
    past_bias: list[Vector]

    @property
    def width(self) -> int:
        return len(self.for_past[0])

    def zeros(self) -> list[Vector]:
        return [np.zeros(self.width) for _ in range(2 if self.kind == "lstm" else 1)]

    def step(self, x: Vector, state: list[Vector]) -> list[Vector]:
        h = state[0]
        from_input = [w @ x + b for w, b in zip(self.for_input, self.input_bias, strict=True)]
        from_past = [u @ h + b for u, b in zip(self.for_past, self.past_bias, strict=True)]
        if self.kind == "rnn":
            return [NONLINEARITIES[self.nonlinearity](from_input[0] + from_past[0])]
        if self.kind == "gru":
            reset = sigmoid(from_input[0] + from_past[0])
            update = sigmoid(from_input[1] + from_past[1])
            candidate = np.tanh(from_input[2] + reset * from_past[2])
            return [(1 - update) * candidate + update * h]
        enter, forget, output = (sigmoid(from_input[i] + from_past[i]) for i in (0, 1, 3))
        cell = forget * state[1] + enter * np.tanh(from_input[2] + from_past[2])
        return [output * np.tanh(cell), cell]

    def run(self, xs: Sequence[Vector], state: list[Vector] | None = None) -> tuple[list[Vector], list[Vector]]:
        """The states h after each input, and the whole last state."""
        state = self.zeros() if state is None else state
        found = []
        for x in xs:
            state = self.step(x, state)
            found.append(state[0])
        return found, state


def run_layers(
    layers: Sequence[Layer],
    xs: Sequence[Vector],
    states: Sequence[list[Vector]] | None = None,
    residual: bool = False,
) -> tuple[list[list[Vector]], list[list[Vector]]]:
    """The states h of every layer at every step, and the last states. residual: from the second layer on x + h."""
    every, lasts = [], []
    for i, layer in enumerate(layers):
        hs, last = layer.run(xs, None if states is None else states[i])
        xs = [x + h for x, h in zip(xs, hs, strict=True)] if residual and i else hs
        every.append(list(xs))
        lasts.append(last)
    return every, lasts


def weigh(scores: Sequence[float], select: str, k: int) -> list[float]:
    """The weight of each state of a memory that is not empty."""
    n = len(scores)
    best = sorted(range(n), key=lambda i: -scores[i])
    match select:
        case "sum":
            return [1.0] * n
        case "mean":
            return [1 / n] * n
        case "hard":
            return [1.0 if i == best[0] else 0.0 for i in range(n)]
        case "multi-hot":
            chosen = best[:k]
            return [1 / len(chosen) if i in chosen else 0.0 for i in range(n)]
    shares = [np.exp(score) for score in scores]
    return [share / sum(shares) for share in shares]


def recall(query: Vector, memory: Sequence[Vector], score: Score, select: str, k: int) -> tuple[Vector, list[float]]:
    """The context of a query, which is zero when the memory is empty, and the weights."""
    if not memory:
        return np.zeros_like(query), []
    weights = weigh([score(query, state) for state in memory], select, k)
    context = np.zeros_like(memory[0])
    for weight, state in zip(weights, memory, strict=True):
        context = context + weight * state
    return context, weights


def remembering(
    layers: Sequence[Layer], xs: Sequence[Vector], score: Score, select: str, k: int, present: bool = False
) -> tuple[list[Vector], list[list[float]]]:
    """[h_t; c_t] at each step, where c_t comes from M_t = {h_1, ..., h_{t-1}}, or from {h_1, ..., h_t} with the present
    state; and the weights."""
    states = run_layers(layers, xs)[0][-1]
    found, aligned = [], []
    for t, h in enumerate(states):
        context, weights = recall(h, states[: t + 1] if present else states[:t], score, select, k)
        found.append(np.concatenate([h, context]))
        aligned.append(weights)
    return found, aligned


def read_both_ways(
    forth: Sequence[Layer], back: Sequence[Layer], xs: Sequence[Vector]
) -> tuple[list[Vector], list[list[Vector]]]:
    """Of an encoder: the states of its last layer, both directions joined; and the joined last states of each layer."""
    lasts = []
    for one, other in zip(forth, back, strict=True):
        there, there_last = one.run(xs)
        again, again_last = other.run(list(xs)[::-1])
        xs = [np.concatenate(pair) for pair in zip(there, again[::-1], strict=True)]
        lasts.append([np.concatenate(pair) for pair in zip(there_last, again_last, strict=True)])
    return list(xs), lasts


def luong(
    layers: Sequence[Layer],
    xs: Sequence[Vector],
    first: Sequence[list[Vector]],
    memory: Sequence[Vector],
    score: Score,
) -> tuple[list[Vector], list[list[float]]]:
    """[h_t; c_t] of a decoder whose contexts do not enter its updates (Luong et al. 2015, figure 2)."""
    found, aligned = [], []
    for h in run_layers(layers, xs, first)[0][-1]:
        context, weights = recall(h, memory, score, "soft", 0)
        found.append(np.concatenate([h, context]))
        aligned.append(weights)
    return found, aligned


def bahdanau(
    layers: Sequence[Layer],
    xs: Sequence[Vector],
    first: Sequence[list[Vector]],
    memory: Sequence[Vector],
    score: Score,
) -> tuple[list[Vector], list[list[float]]]:
    """s_t = f(s_{t-1}, y_{t-1}, c_t), c_t by the score of s_{t-1} (Bahdanau et al. 2015, section 3.1).

    The first layer has a matrix for [y; c]; the layers above read its states.
    """
    state, states, aligned = first[0], [], []
    for x in xs:
        context, weights = recall(state[0], memory, score, "soft", 0)
        state = layers[0].step(np.concatenate([x, context]), state)
        states.append(state[0])
        aligned.append(weights)
    if len(layers) == 1:
        return states, aligned
    return run_layers(layers[1:], states, first[1:])[0][-1], aligned


def scalar_mix(layers: Sequence[Matrix], scalars: Sequence[float], gamma: float) -> Matrix:
    """gamma sum_j softmax(s)_j h_j (Peters et al. 2018, equation 1)."""
    total = sum(np.exp(s) for s in scalars)
    mixed = np.zeros_like(layers[0])
    for s, h in zip(scalars, layers, strict=True):
        mixed = mixed + np.exp(s) / total * h
    return gamma * mixed
