#!/usr/bin/env python3
"""Grades assignments: each function on random inputs, against the plain versions in tests/reference/.

    scripts/grade.py FOLDER [NAME...]

FOLDER: where bpe.py, attention.py, lstm.py, beam.py, nucleus.py and masking.py are, as docs/assignments/ has them to be
filled in. NAME: some of them; all that are there by default. A point for each function that is right on all inputs; of
the others the first input is shown on which it is not. The exit code is 0 when all points are reached.
"""

import copy
import math
import random
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.reference import decoding, masking, recurrent, tokenizers, transformer  # noqa: E402

TRIALS = 20


class Exercise(NamedTuple):
    """One function. inputs: arguments, drawn by a generator. expected: what it has to return for them.

    holds: in place of expected, whether what it returns is right.
    """

    inputs: Callable[[random.Random], tuple[Any, ...]]
    expected: Callable[..., Any] | None = None
    holds: Callable[..., bool] | None = None

    def find_mistake(self, function: Callable[..., Any] | None) -> str | None:
        """What is wrong with a function, or None."""
        if function is None:
            return "is not there"
        draw = random.Random(1)
        for _ in range(TRIALS):
            given = self.inputs(draw)
            call = f"({', '.join(map(shorten, given))})"
            try:
                found = function(*copy.deepcopy(given))
            except NotImplementedError:
                return "is not written yet"
            except Exception as error:
                return f"{call} raises {type(error).__name__}: {error}"
            if self.holds is not None and not self.holds(found, *given):
                return f"{call} gives {shorten(found)}"
            if self.expected is not None and not same(found, wanted := self.expected(*given)):
                return f"{call} gives {shorten(found)}, and should give {shorten(wanted)}"
        return None


def same(found: Any, wanted: Any) -> bool:
    """Equal, numbers up to rounding. Lists, tuples and arrays are the same where their elements are."""
    if isinstance(wanted, str | None):
        return bool(found == wanted)
    if isinstance(wanted, int | float):
        return isinstance(found, int | float | np.number) and math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-9)
    try:
        return len(found) == len(wanted) and all(same(a, b) for a, b in zip(found, wanted, strict=True))
    except TypeError:
        return False


def shorten(value: Any) -> str:
    text = np.array2string(value, precision=3, separator=", ") if isinstance(value, np.ndarray) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def array(draw: random.Random, *shape: int, scale: float = 1.0) -> np.ndarray:
    return np.array([draw.gauss(0, scale) for _ in range(math.prod(shape))]).reshape(shape)


def words(draw: random.Random) -> dict[str, int]:
    return dict(Counter("".join(draw.choices("abc", k=draw.randint(1, 6))) for _ in range(draw.randint(1, 12))))


def pieces(draw: random.Random) -> dict[tuple[str, ...], int]:
    cut = [tuple(draw.choices(["a", "b", "ab", "c"], k=draw.randint(1, 5))) for _ in range(8)]
    return {word: draw.randint(1, 5) for word in cut}


def heads(draw: random.Random) -> tuple[Any, ...]:
    n_heads, t = draw.choice([1, 2, 4]), draw.randint(1, 6)
    d = n_heads * draw.randint(1, 3)
    return (array(draw, t, d), *(array(draw, d, d) for _ in range(4)), n_heads)


def self_attention(x_TD: np.ndarray, w_q: Any, w_k: Any, w_v: Any, w_o: Any, n_heads: int) -> np.ndarray:
    past = lambda t, s: s <= t  # noqa: E731
    return transformer.multi_head(x_TD @ w_q, x_TD @ w_k, x_TD @ w_v, n_heads, n_heads, past) @ w_o


def one_head(draw: random.Random) -> tuple[Any, ...]:
    t, s, k, v = (draw.randint(1, 5) for _ in range(4))
    mask = np.where(np.array([[draw.random() < 0.3 for _ in range(s)] for _ in range(t)]), -np.inf, 0.0)
    mask[:, draw.randrange(s)] = 0.0
    return array(draw, t, k, scale=3), array(draw, s, k, scale=3), array(draw, s, v), mask


def attended(q: Any, k: Any, v: Any, mask: Any) -> np.ndarray:
    return transformer.multi_head(q, k, v, 1, 1, lambda t, s: mask[t, s] == 0)


def cell(draw: random.Random, n: int) -> tuple[Any, ...]:
    d, x = draw.randint(1, 4), draw.randint(1, 4)
    begin = (array(draw, x), array(draw, d), array(draw, d)) if n == 0 else (list(array(draw, n, x)),)
    return (*begin, array(draw, 4 * d, x), array(draw, 4 * d, d), array(draw, 4 * d))


def lstm(w: Any, u: Any, b: Any) -> recurrent.Layer:
    gates = [list(np.split(matrix, 4)) for matrix in (w, u, b)]
    return recurrent.Layer("lstm", "tanh", *gates, [np.zeros(len(b) // 4)] * 4)


def remembers(bias: Any, d: int) -> bool:
    if np.shape(bias) != (4 * d,):
        return False
    layer = lstm(np.zeros((4 * d, 1)), np.zeros((4 * d, d)), np.asarray(bias, float))
    cells = [layer.step(np.ones(1), [np.zeros(d), np.full(d, c)])[1] for c in (0.0, 1.0, -1.0)]
    return bool(np.allclose(cells, [np.zeros(d), np.ones(d), -np.ones(d)], rtol=0, atol=2e-4))


@dataclass(frozen=True)
class Table:
    """A language model of five tokens: the next token depends on the last one and on how many there are."""

    scores: tuple[tuple[tuple[float, ...], ...], ...]

    def __call__(self, ids: Any) -> list[float]:
        return decoding.log_softmax(self.scores[len(ids) % 3][ids[-1] if ids else 0])

    def __repr__(self) -> str:
        return "log_p"


def model(draw: random.Random) -> Table:
    return Table(tuple(tuple(tuple(draw.gauss(0, 1.5) for _ in range(5)) for _ in range(5)) for _ in range(3)))


def beams(log_p: Table, end: int, longest: int, k: int = 1) -> list[tuple[float, list[int]]]:
    return decoding.beam_search(log_p, [], k=k, max_new_tokens=longest, end_ids=[end])


def distribution(draw: random.Random) -> list[float]:
    return decoding.softmax([draw.gauss(0, 2) for _ in range(draw.randint(1, 7))])


def kept(of: Callable[[list[float], Any], list[float]]) -> Callable[[list[float], Any], list[float]]:
    """A filter of scores as one of probabilities."""
    return lambda p, how: decoding.softmax(of([math.log(x) for x in p], how))


def masks(draw: random.Random) -> tuple[Any, ...]:
    n = draw.randint(1, 30)
    numbers = [(draw.random() ** 3, draw.random(), draw.randrange(5, 40)) for _ in range(n)]
    return [draw.randrange(1, 40) for _ in range(n)], numbers, 4, (1, 2, 3)


def predicted(draw: random.Random) -> tuple[Any, ...]:
    n = draw.randint(1, 6)
    log_p = [decoding.log_softmax([draw.gauss(0, 1) for _ in range(4)]) for _ in range(n)]
    return log_p, [draw.choice([-100, -100, draw.randrange(4)]) for _ in range(n)]


ASSIGNMENTS = {
    "bpe": {
        "most_frequent_pair": Exercise(lambda d: (pieces(d),), tokenizers.most_frequent_pair),
        "merged": Exercise(lambda d: (d.choices("ab", k=d.randint(0, 7)), ("a", d.choice("ab"))), tokenizers.merged),
        "train": Exercise(lambda d: (words(d), d.randint(0, 12)), tokenizers.bpe_merges),
        "encode": Exercise(
            lambda d: ("".join(d.choices("abcd", k=6)), tokenizers.bpe_merges(words(d), 8)), tokenizers.bpe_pieces
        ),
    },
    "attention": {
        "softmax": Exercise(lambda d: (array(d, 3, 4, scale=500),), lambda x: np.array([*map(transformer.softmax, x)])),
        "causal_mask": Exercise(lambda d: (d.randint(1, 6),), lambda n: np.where(np.tri(n) > 0, 0.0, -np.inf)),
        "attend": Exercise(one_head, attended),
        "multi_head": Exercise(heads, self_attention),
    },
    "lstm": {
        "step": Exercise(lambda d: cell(d, 0), lambda x, h, c, w, u, b: lstm(w, u, b).step(x, [h, c])),
        "run": Exercise(lambda d: cell(d, d.randint(1, 6)), lambda xs, w, u, b: np.array(lstm(w, u, b).run(xs)[0])),
        "remembering_bias": Exercise(lambda d: (d.randint(1, 5),), holds=remembers),
    },
    "beam": {
        "greedy": Exercise(lambda d: (model(d), 0, d.randint(1, 8)), lambda *given: beams(*given)[0][1]),
        "beam_search": Exercise(lambda d: (model(d), 0, d.randint(1, 7), d.randint(1, 4)), beams),
    },
    "nucleus": {
        "probabilities": Exercise(
            lambda d: ([float(d.randint(-3, 3)) for _ in range(5)], d.choice([0, 0.5, 1, 2])),
            lambda scores, t: decoding.softmax(decoding.temperature(scores, t)),
        ),
        "top_k": Exercise(lambda d: (p := distribution(d), d.randint(1, len(p))), kept(decoding.top_k)),
        "nucleus": Exercise(lambda d: (distribution(d), d.uniform(0.05, 0.999)), kept(decoding.top_p)),
        "draw": Exercise(
            lambda d: (kept(decoding.top_k)(distribution(d), 3), d.uniform(0, 0.999)), decoding.inverse_cdf
        ),
    },
    "masking": {
        "corrupt": Exercise(masks, masking.corrupted),
        "loss": Exercise(predicted, masking.loss),
    },
}


def grade(path: Path) -> dict[str, str | None]:
    """What is wrong with each function of an assignment."""
    exercises = ASSIGNMENTS[path.stem]
    try:
        functions = runpy.run_path(str(path))
    except Exception as error:
        return dict.fromkeys(exercises, f"{path} cannot be imported: {type(error).__name__}: {error}")
    return {name: exercise.find_mistake(functions.get(name)) for name, exercise in exercises.items()}


def main(folder: str, *asked: str) -> int:
    paths = [path for name in asked or ASSIGNMENTS if (path := Path(folder) / f"{name}.py").is_file()]
    if not paths or len(paths) < len(asked):
        raise SystemExit(f"{folder}: no {' or '.join(f'{name}.py' for name in asked or ASSIGNMENTS)} there")
    mistakes = {f"{path.stem}.{name}": mistake for path in paths for name, mistake in grade(path).items()}
    for name, mistake in mistakes.items():
        print(f"ok     {name}" if mistake is None else f"wrong  {name}: {mistake}")
    points = sum(mistake is None for mistake in mistakes.values())
    print(f"{points} of {len(mistakes)} points")
    return 0 if points == len(mistakes) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
