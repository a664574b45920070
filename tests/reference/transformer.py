"""The Transformers as the papers print them: row vectors, loops over positions and heads, float64.

Shapes: T positions, S keys, D model width, H head width, V vocabulary. A matrix maps row vectors: y = x W + b.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
        if self.kind == "none":
            return x
        n = len(x)
        if self.kind == "rms":
            scale = math.sqrt(sum(value**2 for value in x) / n + self.eps)
            return x / scale * self.gain
        mean = sum(x) / n
        variance = sum((value - mean) ** 2 for value in x) / n
        y = (x - mean) / math.sqrt(variance + self.eps) * self.gain
        return y if self.bias is None else y + self.bias


@dataclass
class Attention:
    """Weights of one attention."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    norm: Norm
    norms: "tuple[Norm, Norm] | None" = None
    """Of queries and keys, of each head or of all jointly, by their width."""
    gate: Affine | None = None
    """W_theta of Qiu et al. 2025, equation 5, for each head or for each number that the heads give."""
    score: "Callable[[int, Array, Array, int, int], float] | None" = None
    """Of a head's query and key at two positions; their product, scaled, when None."""


@dataclass
class Network:
    """Weights of one feed-forward network. gate is SwiGLU's W, up its V (Shazeer 2020); others have no gate."""

    up: Affine
    down: Affine
    norm: Norm
    gate: Affine | None = None


@dataclass
class Layer:
    """One layer; `across` attends to a source.

    scales: a and b of a x + b x0, which it reads in place of x, x0 being the input of the first layer (modded-nanogpt,
    `lambdas`; nanochat, `resid_lambdas` and `x0_lambdas`).
    """

    attention: Attention
    network: Network | None
    across: Attention | None = None
    scales: tuple[float, float] = (1.0, 0.0)


@dataclass
class Tower:
    """Layers, and how they are joined. parallel: both sublayers of a layer read its input. residual: what a sublayer
    gives is added to what it reads, or else replaces it; from_layer: it is added to what the layer reads.

    everywhere: layers that see what the window hides, with a turn of their own where that is given.
    scale: what products of queries and keys are multiplied by. addend: of a score, by head and the positions of query
    and key. turn: queries and keys at their position. Both are for attention inside the tower, not to a source.
    """

    layers: list[Layer]
    n_heads: int
    n_kv_heads: int
    activation: str
    place: str
    scale: float
    final_norm: Norm | None = None
    addend: Callable[[int, int, int], float] = lambda head, query, key: 0.0
    turn: Callable[[Array, int], Array] = lambda vector, position: vector
    parallel: bool = False
    residual: bool = True
    from_layer: bool = False
    window: MaySee = lambda query, key: True
    everywhere: tuple[int, ...] = ()
    turn_everywhere: Callable[[Array, int], Array] | None = None

    def read(self, stream: list[Array], may_see: MaySee, source: list[Array] | None = None) -> list[Array]:
        """Hidden states of vectors, which see each other as `may_see` and the window say, and all of the source."""
        embeddings = stream
        for n, layer in enumerate(self.layers):
            a, b = layer.scales
            stream = inputs = [a * x + b * x0 for x, x0 in zip(stream, embeddings, strict=True)]
            stream = self._attend(n, layer.attention, stream, may_see)
            if layer.across is not None:
                assert source is not None
                stream = self._across(layer.across, stream, source)
            if layer.network is not None:
                added_to, read = inputs if self.from_layer else stream, inputs if self.parallel else stream
                stream = self._feed_forward(layer.network, added_to, read)
        return stream if self.final_norm is None else [self.final_norm(x) for x in stream]

    def _attend(self, n: int, weights: Attention, stream: list[Array], may_see: MaySee) -> list[Array]:
        inputs = [weights.norm(x) for x in stream] if self.place == "pre" else stream
        queries, keys = [weights.query(x) for x in inputs], [weights.key(x) for x in inputs]
        if weights.norms is not None:
            queries, keys = (
                [np.concatenate([norm(part) for part in v.reshape(-1, len(norm.gain))]) for v in vectors]
                for norm, vectors in zip(weights.norms, (queries, keys), strict=True)
            )
        turn, sees = self.turn, lambda t, s: may_see(t, s) and self.window(t, s)
        if n in self.everywhere:
            turn, sees = self.turn_everywhere or self.turn, may_see
        mixed = multi_head(
            self._turned(queries, turn),
            self._turned(keys, turn),
            np.array([weights.value(x) for x in inputs]),
            self.n_heads,
            self.n_kv_heads,
            sees,
            self.scale,
            self.addend,
            weights.score,
        )
        if weights.gate is not None:
            for m, x in zip(mixed, inputs, strict=True):
                gates = [1 / (1 + math.exp(-g)) for g in weights.gate(x)]
                for i in range(len(m)):
                    m[i] *= gates[i * len(gates) // len(m)]
        return self._join(stream, [weights.out(m) for m in mixed], weights.norm)

    def _turned(self, vectors: list[Array], turn: Callable[[Array, int], Array]) -> Array:
        """Each head of each vector, turned at its position."""
        width = self.layers[0].attention.query.weight.shape[1] // self.n_heads
        return np.array(
            [
                np.concatenate([turn(v[i : i + width], t) for i in range(0, len(v), width)])
                for t, v in enumerate(vectors)
            ]
        )

    def _across(self, weights: Attention, stream: list[Array], source: list[Array]) -> list[Array]:
        inputs = [weights.norm(x) for x in stream] if self.place == "pre" else stream
        mixed = multi_head(
            np.array([weights.query(x) for x in inputs]),
            np.array([weights.key(x) for x in source]),
            np.array([weights.value(x) for x in source]),
            self.n_heads,
            self.n_kv_heads,
            lambda t, s: True,
            self.scale,
            score=weights.score,
        )
        return self._join(stream, [weights.out(m) for m in mixed], weights.norm)

    def _feed_forward(self, weights: Network, stream: list[Array], read: list[Array]) -> list[Array]:
        inputs = [weights.norm(x) for x in read] if self.place == "pre" else read
        f = ACTIVATIONS[self.activation]
        outputs = []
        for x in inputs:
            if weights.gate is not None:
                inner = np.array([f(a) * b for a, b in zip(weights.gate(x), weights.up(x), strict=True)])
            else:
                inner = np.array([f(a) for a in weights.up(x)])
            outputs.append(weights.down(inner))
        return self._join(stream, outputs, weights.norm)

    def _join(self, stream: list[Array], outputs: list[Array], norm: Norm) -> list[Array]:
        if self.place == "output":
            outputs = [norm(f) for f in outputs]
        sums = [x + f for x, f in zip(stream, outputs, strict=True)] if self.residual else outputs
        return [norm(x) for x in sums] if self.place == "post" else sums


@dataclass
class Head:
    """Hidden states to logits. BERT transforms states first: `dense`, the activation, `norm`."""

    matrix: Array
    bias: Array | None = None
    scale: float = 1.0
    dense: Affine | None = None
    norm: Norm | None = None
    activation: str = "gelu"

    def __call__(self, states: list[Array]) -> Array:
        if self.dense is not None and self.norm is not None:
            f = ACTIVATIONS[self.activation]  # without a gate
            states = [self.norm(np.array([f(a) for a in self.dense(x)])) for x in states]
        scores = np.array([[sum(x * row) * self.scale for row in self.matrix] for x in states])
        return scores if self.bias is None else scores + self.bias


@dataclass
class Model:
    """All weights and choices. A table of positions is learned; without one they are sinusoids, or none at all."""

    embedding: Array
    tower: Tower
    head: Head
    encoder: Tower | None = None
    positions: Array | None = None
    sinusoidal: bool = False
    halves: bool = False
    segments: Array | None = None
    embedding_norm: Norm | None = None
    project: Affine | None = None
    target: "Model | None" = None
    """What embeds the target of an answer, where it is not what embeds the source."""
    embedding_scale: float = 1.0
    ngrams: Mapping[tuple[int, ...], Array] = field(default_factory=dict)
    """Vectors that are added to those of the tokens with which these n-grams end (Huang et al. 2025)."""
    smear: tuple[Affine, float] | None = None
    """A gate's map and a factor: x_t becomes x_t + factor sigmoid(gate(x_t)) x_(t-1) (modded-nanogpt, `smear_gate`)."""
    pooler: Affine | None = None
    next_sentence: Affine | None = None

    def causal(self, tokens: Sequence[int]) -> Array:
        """(T, V): scores of the token after each position (GPT)."""
        return self.prefix(tokens, 0)

    def prefix(self, tokens: Sequence[int], n: int) -> Array:
        """(T, V): the first n tokens see each other, the others see all before them (Dong et al. 2019, figure 1)."""
        states = self.tower.read(self._embed(tokens), lambda t, s: s <= t or s < n)
        return self.head(states)

    def both_sides(self, tokens: Sequence[int], segments: Sequence[int] | None = None) -> tuple[Array, Array | None]:
        """(T, V), and the two scores of the pooled first position where there is such a head (BERT)."""
        states = self.tower.read(self._embed(tokens, segments), lambda t, s: True)
        pair = None
        if self.pooler is not None and self.next_sentence is not None:
            pair = self.next_sentence(np.array([math.tanh(a) for a in self.pooler(states[0])]))
        return self.head(states), pair

    def permuted(self, tokens: Sequence[int], order: Sequence[int], mask: int) -> float:
        """Yang et al. 2019, equation 3: the sum of -log p(token z_i | those not in z, and z_1..z_{i-1}).

        Each by a pass of its own, in which position z_i reads [MASK], seen by none, in place of its token.
        """
        rank = {position: number for number, position in enumerate(order, 1)}
        total = 0.0
        for own in order:

            def sees(t: int, s: int, own: int = own) -> bool:
                last = rank[own] - 1 if t == own else rank.get(t, 0)
                return s != own and rank.get(s, 0) <= last

            row = [mask if t == own else token for t, token in enumerate(tokens)]
            scores = self.head(self.tower.read(self._embed(row), sees))[own]
            total += math.log(sum(math.exp(score) for score in scores)) - float(scores[tokens[own]])
        return total

    def answer(self, source: Sequence[int], tokens: Sequence[int]) -> Array:
        """(T, V): scores of the token after each position of an answer to a source (Vaswani et al. 2017)."""
        assert self.encoder is not None
        states = self.encoder.read(self._embed(source), lambda t, s: True)
        target = (self.target or self)._embed(tokens)
        return self.head(self.tower.read(target, lambda t, s: s <= t, states))

    def _embed(self, tokens: Sequence[int], segments: Sequence[int] | None = None) -> list[Array]:
        stream = []
        for t, token in enumerate(tokens):
            x = self.embedding[token] * self.embedding_scale
            if self.smear is not None and t > 0:
                gate, factor = self.smear
                before = self.embedding[tokens[t - 1]] * self.embedding_scale
                x = x + factor / (1 + math.exp(-gate(x)[0])) * before
            for n in range(2, t + 2):
                x = x + self.ngrams.get(tuple(tokens[t + 1 - n : t + 1]), 0.0)
            if self.positions is not None:
                x = x + self.positions[t]
            if self.sinusoidal:
                wave = sinusoid(t, len(x))
                x = x + (np.concatenate([wave[0::2], wave[1::2]]) if self.halves else wave)
            if self.segments is not None:
                x = x + self.segments[0 if segments is None else segments[t]]
            x = x if self.embedding_norm is None else self.embedding_norm(x)
            stream.append(x if self.project is None else self.project(x))
        return stream


def multi_head(
    queries_TD: Array,
    keys_SD: Array,
    values_SD: Array,
    n_heads: int,
    n_kv_heads: int,
    may_see: MaySee,
    scale: float | None = None,
    addend: Callable[[int, int, int], float] = lambda head, query, key: 0.0,
    score: Callable[[int, Array, Array, int, int], float] | None = None,
) -> Array:
    """Concatenated heads, of the width of the values. Query head n uses head n // (n_heads / n_kv_heads) of keys and
    values.

    scale: of the products; 1 / sqrt(H) when None. addend: of a score, by head, query and key.
    """
    width = values_SD.shape[1] // n_kv_heads
    out = np.zeros((len(queries_TD), n_heads * width))
    weights = attention_weights(queries_TD, keys_SD, n_heads, n_kv_heads, may_see, scale, addend, score)
    for n in range(n_heads):
        own = slice(n * width, (n + 1) * width)
        shared = n // (n_heads // n_kv_heads)
        kv = slice(shared * width, (shared + 1) * width)
        for t in range(len(queries_TD)):
            for s in range(len(keys_SD)):
                out[t, own] += weights[n, t, s] * values_SD[s, kv]
    return out


def attention_weights(
    queries_TD: Array,
    keys_SD: Array,
    n_heads: int,
    n_kv_heads: int,
    may_see: MaySee,
    scale: float | None,
    addend: Callable[[int, int, int], float],
    score: Callable[[int, Array, Array, int, int], float] | None = None,
) -> Array:
    """The weights (heads, T, S) of `multi_head`."""
    width = queries_TD.shape[1] // n_heads
    weights = np.zeros((n_heads, len(queries_TD), len(keys_SD)))
    for n in range(n_heads):
        own = slice(n * width, (n + 1) * width)
        shared = n // (n_heads // n_kv_heads)
        kv = slice(shared * width, (shared + 1) * width)
        for t in range(len(queries_TD)):
            seen = [s for s in range(len(keys_SD)) if may_see(t, s)]
            scores = []
            for s in seen:
                product = float(sum(queries_TD[t, own] * keys_SD[s, kv]))
                product *= 1 / math.sqrt(width) if scale is None else scale
                if score is not None:
                    product = score(n, queries_TD[t, own], keys_SD[s, kv], t, s)
                scores.append(product + addend(n, t, s))
            weights[n, t, seen] = softmax(scores)
    return weights


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


def relu_squared(x: float) -> float:
    """So et al. 2021, section 4."""
    return max(0.0, x) ** 2


def gelu(x: float) -> float:
    """x Phi(x) (Hendrycks and Gimpel 2016)."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    """The approximation in the same paper, which GPT uses."""
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


ACTIVATIONS = {
    "relu": relu,
    "relu-squared": relu_squared,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
    "swiglu": silu,
    "geglu": gelu_tanh,
    "geglu-exact": gelu,
}
"""What each activation does to one number; of gated ones, to the gate."""
