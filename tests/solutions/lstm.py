import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def step(x_X: Array, h_D: Array, c_D: Array, w: Array, u: Array, b: Array) -> tuple[Array, Array]:
    enter, forget, candidate, output = np.split(w @ x_X + u @ h_D + b, 4)
    c_D = sigmoid(forget) * c_D + sigmoid(enter) * np.tanh(candidate)
    return sigmoid(output) * np.tanh(c_D), c_D


def run(xs_TX: Array, w: Array, u: Array, b: Array) -> Array:
    h = c = np.zeros(len(b) // 4)
    states = []
    for x in xs_TX:
        h, c = step(x, h, c, w, u, b)
        states.append(h)
    return np.stack(states)


def remembering_bias(d: int) -> Array:
    return np.repeat([-20.0, 20.0, 0.0, 0.0], d)
