"""Positions, scores and windows of attention as the papers print them: loops over positions, float64.

Shapes: T positions, H head width.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotated(vector: Array, position: int, frequencies: Sequence[float]) -> Array:
    """Su et al. 2021, equation 34, with component i paired with i + H/2, as in Llama. Frequencies: of each pair."""
    half = len(vector) // 2
    out = np.zeros_like(vector)
    for i in range(half):
        angle = position * frequencies[i]
        out[i] = vector[i] * math.cos(angle) - vector[i + half] * math.sin(angle)
        out[i + half] = vector[i] * math.sin(angle) + vector[i + half] * math.cos(angle)
    return out


def scaled_frequencies(frequencies: Sequence[float], scaling: Mapping[str, Any]) -> tuple[list[float], float]:
    """Those of a longer context, and what queries and keys are multiplied by. In the words of the papers' code.

    linear: Chen et al. 2023, equation 4. llama3: by wavelengths. yarn: Peng et al. 2024, equations 17 to 22.
    """
    kind, s = scaling.get("kind", "none"), scaling.get("factor", 1.0)
    if kind == "none":
        return list(frequencies), 1.0
    if kind == "linear":
        return [f / s for f in frequencies], 1.0
    length = scaling["original_context"]
    out = []
    if kind == "llama3":
        low, high = scaling["low_frequency"], scaling["high_frequency"]
        for f in frequencies:
            wavelength = 2 * math.pi / f
            if wavelength < length / high:
                out.append(f)
            elif wavelength > length / low:
                out.append(f / s)
            else:
                smooth = (length / wavelength - low) / (high - low)
                out.append((1 - smooth) * f / s + smooth * f)
        return out, 1.0
    n = 2 * len(frequencies)
    base = frequencies[1] ** (-n / 2)

    def dimension(turns: float) -> float:
        """The pair whose wavelength fits so many times into the original context."""
        return n * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling["fast_turns"])), 0)
    high = min(math.ceil(dimension(scaling["slow_turns"])), n - 1)
    for i, f in enumerate(frequencies):
        ramp = min(max((i - low) / (high - low if high > low else 0.001), 0.0), 1.0)
        out.append(ramp * f / s + (1 - ramp) * f)
    return out, scaling["attention_factor"] or 0.1 * math.log(s) + 1


def alibi_slope(head: int, n_heads: int) -> float:
    """Press et al. 2022: a geometric sequence from 2^(-8/n); their code interleaves the next one when n is no power."""

    def of_power(n: int) -> list[float]:
        ratio = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [ratio ** (i + 1) for i in range(n)]

    power = 1
    while power * 2 <= n_heads:
        power *= 2
    slopes = of_power(power)
    if power < n_heads:
        slopes += of_power(2 * power)[0::2][: n_heads - power]
    return slopes[head]


def relative_bucket(away: int, buckets: int, max_distance: int, both_sides: bool) -> int:
    """Raffel et al. 2020: exact buckets for near keys, logarithmic ones up to max_distance. away: key - query."""
    bucket = 0
    if both_sides:
        buckets //= 2
        bucket = buckets if away > 0 else 0
        distance = abs(away)
    else:
        distance = max(0, -away)
    exact = buckets // 2
    if distance < exact:
        return bucket + distance
    grown = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact))
    return bucket + min(grown, buckets - 1)


def disentangled(q: Array, k: Array, i: int, j: int, r_k: Array, r_q: Array) -> float:
    """He et al. 2021, equations 2 to 4: contents with contents, content of i with the place of j, place of i with the
    content of j. r_k, r_q: of each of 2 k relative positions."""

    def delta(a: int, b: int) -> int:
        half = len(r_k) // 2
        if a - b <= -half:
            return 0
        return 2 * half - 1 if a - b >= half else a - b + half

    total = sum(q[h] * k[h] + q[h] * r_k[delta(i, j)][h] + k[h] * r_q[delta(j, i)][h] for h in range(len(q)))
    return float(total) / math.sqrt(3 * len(q))


def score(kind: str, q: Array, k: Array, weights: Sequence[Array]) -> float:
    """One score of a query and a key; weights in the order of the formula."""
    match kind:
        case "dot":
            return float(sum(q[i] * k[i] for i in range(len(q))))
        case "scaled-dot":
            return float(sum(q[i] * k[i] for i in range(len(q)))) / math.sqrt(len(q))
        case "bilinear":
            (w,) = weights
            return float(sum(q[i] * w[i, j] * k[j] for i in range(len(q)) for j in range(len(k))))
        case "reduced-rank":
            u, v = weights
            left = [sum(q[i] * u[i, r] for i in range(len(q))) for r in range(u.shape[1])]
            right = [sum(k[i] * v[i, r] for i in range(len(k))) for r in range(v.shape[1])]
            return float(sum(a * b for a, b in zip(left, right, strict=True)))
        case "additive":
            w, u, out = weights
            total = 0.0
            for r in range(w.shape[1]):
                inner = sum(q[i] * w[i, r] for i in range(len(q))) + sum(k[i] * u[i, r] for i in range(len(k)))
                total += out[r, 0] * math.tanh(inner)
            return float(total)
    raise ValueError(kind)


def in_window(query: int, key: int, size: int, dilation: int, n_global: int) -> bool:
    """Beltagy et al. 2020: near in steps of the dilation, or one of the two is global."""
    if query < n_global or key < n_global:
        return True
    away = abs(query - key)
    return away % dilation == 0 and away // dilation < size
