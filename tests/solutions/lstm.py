import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(x_X, h_D, c_D, w, u, b):
    enter, forget, candidate, output = np.split(w @ x_X + u @ h_D + b, 4)
    c_D = sigmoid(forget) * c_D + sigmoid(enter) * np.tanh(candidate)
    return sigmoid(output) * np.tanh(c_D), c_D


def run(xs_TX, w, u, b):
    h = c = np.zeros(len(b) // 4)
    states = []
    for x in xs_TX:
        h, c = step(x, h, c, w, u, b)
        states.append(h)
    return np.stack(states)


def remembering_bias(d):
    return np.repeat([-20.0, 20.0, 0.0, 0.0], d)
