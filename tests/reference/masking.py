"""BERT's masks (Devlin et al. 2019, section 3.1 and appendix A.1), with the random numbers as arguments."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tests.reference.losses import log_softmax
from tests.reference.transformer import Norm, gelu

Vector = Sequence[float]


def corrupted(
    ids: Sequence[int], numbers: Sequence[tuple[float, float, int]], mask: int, special: Collection[int]
) -> tuple[list[int], list[int]]:
    """What is read, and what is to be predicted: -100 where nothing is."""
    read, targets = list(ids), [-100] * len(ids)
    for i, (choice, fate, other) in enumerate(numbers):
        if ids[i] in special or not choice < 0.15:
            continue
        targets[i] = ids[i]
        if fate < 0.8:
            read[i] = mask
        elif fate < 0.9:
            read[i] = other
    return read, targets


def loss(log_p_TV: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    chosen = [-log_p_TV[i][target] for i, target in enumerate(targets) if target != -100]
    return sum(chosen) / len(chosen) if chosen else 0.0


def words(text: str, places: Sequence[tuple[int, int]], special: Sequence[bool]) -> list[list[int]]:
    """The tokens of each word (whole-word masking, Cui et al. 2019): those that lie in one run of letters and digits.

    A token without any is a word by itself; a special one is none. places: characters of each token, start and stop.
    """
    found: dict[object, list[int]] = {}
    for t, (start, stop) in enumerate(places):
        inside = [i for i in range(start, stop) if text[i].isalnum()]
        begin = inside[0] if inside else None
        while begin and text[begin - 1].isalnum():
            begin -= 1
        if not special[t]:
            found.setdefault(("mark", t) if begin is None else begin, []).append(t)
    return list(found.values())


def _dense(x: Vector, matrix: Sequence[Vector], bias: Vector) -> list[float]:
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(matrix, bias, strict=True)]


def span_boundary_loss(
    states: Sequence[Vector], targets: Sequence[int], of: Mapping[str, Sequence[Vector]], output: Sequence[Vector]
) -> float:
    """Joshi et al. 2020, section 3.2: y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}), and -log softmax(output y_i)[x_i], summed.

    Of a row, whose targets are -100 outside of spans; spans that touch are one. of: places, and matrix, bias, gain and
    shift of both layers.
    """
    total = 0.0
    for i, target in enumerate(targets):
        if target == -100:
            continue
        start, end = i, i
        while targets[start - 1] != -100:
            start -= 1
        while targets[end + 1] != -100:
            end += 1
        x: Vector = [*states[start - 1], *states[end + 1], *of["places"][i - start]]
        for layer in ("inner", "outer"):
            x = _dense(x, of[f"{layer}.matrix"], of[f"{layer}.bias"][0])
            gain, shift = (np.array(of[f"{layer}.{part}"][0]) for part in ("gain", "shift"))
            x = Norm("layer", gain, shift, 1e-5)(np.array([gelu(v) for v in x])).tolist()
        scores = _dense(x, [row[:-1] for row in output], [row[-1] for row in output])
        total -= log_softmax(scores)[target]
    return total
