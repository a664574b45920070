"""The decoder-only Transformer as the papers print it: row vectors, loops over positions and heads, float64.

Shapes: T positions, S keys, D model width, H head width, V vocabulary. A matrix maps row vectors: y = x W + b.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MaySee = Callable[[int, int], bool]


@dataclass
class Affine:
    """y = x W + b, or x W."""

    weight: Array
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        y = np.array([sum(x[i] * self.weight[i, j] for i in range(len(x))) for j in range(self.weight.shape[1])])
        return y if self.bias is None else y + self.bias


@dataclass
class Norm:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of one vector."""

    kind: str
    gain: Array
    bias: Array | None
    eps: float

    def __call__(self, x: Array) -> Array:
        n = len(x)
        if self.kind == "rms":
            scale = math.sqrt(sum(value**2 for value in x) / n + self.eps)
            return x / scale * self.gain
        mean = sum(x) / n
        variance = sum((value - mean) ** 2 for value in x) / n
        y = (x - mean) / math.sqrt(variance + self.eps) * self.gain
        return y if self.bias is None else y + self.bias


@dataclass
class Layer:
    """Weights of one layer. gate is SwiGLU's W, up its V (Shazeer 2020); other activations have no gate."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    attention_norm: Norm
    up: Affine
    down: Affine
    ffn_norm: Norm
    gate: Affine | None = None


@dataclass
class Decoder:
    """All weights and choices. A table of positions is learned; without one they are sinusoids, or none at all."""

    embedding: Array
    layers: list[Layer]
    head: Array
    n_heads: int
    n_kv_heads: int
    activation: str
    place: str
    positions: Array | None = None
    sinusoidal: bool = False
    final_norm: Norm | None = None
    head_bias: Array | None = None
    embedding_scale: float = 1.0

    def logits(self, tokens: Sequence[int]) -> Array:
        """(T, V): scores of the token after each position."""
        stream = [self._embed(token, t) for t, token in enumerate(tokens)]
        for layer in self.layers:
            stream = self._attend(layer, stream)
            stream = self._feed_forward(layer, stream)
        if self.final_norm is not None:
            stream = [self.final_norm(x) for x in stream]
        scores = np.array([[sum(x * row) for row in self.head] for x in stream])
        return scores if self.head_bias is None else scores + self.head_bias

    def _embed(self, token: int, t: int) -> Array:
        x = self.embedding[token] * self.embedding_scale
        if self.positions is not None:
            x = x + self.positions[t]
        if self.sinusoidal:
            x = x + sinusoid(t, len(x))
        return x

    def _attend(self, layer: Layer, stream: list[Array]) -> list[Array]:
        inputs = [layer.attention_norm(x) for x in stream] if self.place == "pre" else stream
        queries = np.array([layer.query(x) for x in inputs])
        keys = np.array([layer.key(x) for x in inputs])
        values = np.array([layer.value(x) for x in inputs])
        mixed = multi_head(queries, keys, values, self.n_heads, self.n_kv_heads, lambda t, s: s <= t)
        return self._join(stream, [layer.out(m) for m in mixed], layer.attention_norm)

    def _feed_forward(self, layer: Layer, stream: list[Array]) -> list[Array]:
        inputs = [layer.ffn_norm(x) for x in stream] if self.place == "pre" else stream
        outputs = []
        for x in inputs:
            if layer.gate is not None:
                inner = np.array([silu(a) * b for a, b in zip(layer.gate(x), layer.up(x), strict=True)])
            else:
                inner = np.array([ACTIVATIONS[self.activation](a) for a in layer.up(x)])
            outputs.append(layer.down(inner))
        return self._join(stream, outputs, layer.ffn_norm)

    def _join(self, stream: list[Array], outputs: list[Array], norm: Norm) -> list[Array]:
        sums = [x + f for x, f in zip(stream, outputs, strict=True)]
        return sums if self.place == "pre" else [norm(x) for x in sums]


def multi_head(
    queries_TD: Array, keys_SD: Array, values_SD: Array, n_heads: int, n_kv_heads: int, may_see: MaySee
) -> Array:
    """Concatenated heads. Query head n uses head n // (n_heads / n_kv_heads) of keys and values."""
    width = queries_TD.shape[1] // n_heads
    out = np.zeros_like(queries_TD)
    for n in range(n_heads):
        own = slice(n * width, (n + 1) * width)
        shared = n // (n_heads // n_kv_heads)
        kv = slice(shared * width, (shared + 1) * width)
        for t in range(len(queries_TD)):
            seen = [s for s in range(len(keys_SD)) if may_see(t, s)]
            scores = [float(sum(queries_TD[t, own] * keys_SD[s, kv])) / math.sqrt(width) for s in seen]
            for s, weight in zip(seen, softmax(scores), strict=True):
                out[t, own] += weight * values_SD[s, kv]
    return out


def may_see(
    query: int,
    key: int,
    *,
    causal: bool = False,
    window: int | None = None,
    prefix: int = 0,
    keep: Sequence[bool] | None = None,
    documents: Sequence[int] | None = None,
) -> bool:
    """Whether position `query` of one row attends to position `key`."""
    if causal and key > query and key >= prefix:
        return False
    if window is not None and abs(query - key) >= window:
        return False
    if documents is not None and documents[query] != documents[key]:
        return False
    return keep is None or keep[key]


def softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def sinusoid(position: int, width: int) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)) (Vaswani et al. 2017)."""
    wave = np.zeros(width)
    for i in range(width // 2):
        angle = position / 10000 ** (2 * i / width)
        wave[2 * i] = math.sin(angle)
        wave[2 * i + 1] = math.cos(angle)
    return wave


def relu(x: float) -> float:
    return max(0.0, x)


def gelu(x: float) -> float:
    """x Phi(x) (Hendrycks and Gimpel 2016)."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    """The approximation in the same paper, which GPT uses."""
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu-tanh": gelu_tanh}
