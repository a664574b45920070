"""The settings of a sweep: parses values of keys and combines them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from lmtool.errors import UsageError
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.recipe.spec.words import Averaging
from lmtool.storage.checksum import sha256

MAX_SWEEP_RUNS = 1000

GridPoint = Mapping[str, str]
"""A value, as text, for each key that varies."""

Axes = Mapping[str, Sequence[str]]
"""The values of each key that varies."""

_RANGE = re.compile(r"([0-9.e+-]+?)\.\.([0-9.e+-]+)(?:/([0-9]{1,9}))?")


def parse_fixed_and_swept_settings(assignments: Sequence[str]) -> tuple[list[str], Axes]:
    """Parses `KEY=VALUE,VALUE` and `KEY=RANGE`; returns texts that have one value, and the values of other keys.

    Values are those of a YAML list: a list among them is in brackets, a text with a comma in quotes. Raises UsageError
    for a range without values.
    """
    fixed, axes = [], dict[str, list[str]]()
    for text in assignments:
        key, _, rest = text.partition("=")
        listed = parse_yaml(f"[{rest}]", "").value
        values = [value for one in listed for value in _expand_range(one, text)] if isinstance(listed, list) else []
        if len(values) > 1:
            axes[key.strip()] = list(dict.fromkeys(values))
        else:
            fixed.append(text)
    return fixed, axes


def list_grid_points(axes: Axes) -> list[GridPoint]:
    """Returns every combination; the first key changes last. Raises UsageError for more than MAX_SWEEP_RUNS."""
    _check_run_count(math.prod(map(len, axes.values())))
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def list_one_at_a_time_points(axes: Axes, seeds: Sequence[str]) -> list[GridPoint]:
    """Returns the point of the first values of all keys, and points that differ from it in one key, with every seed.

    seeds: may be empty, for points without a seed. Raises UsageError for more than MAX_SWEEP_RUNS.
    """
    base = {key: values[0] for key, values in axes.items()}
    points = [base, *({**base, key: value} for key, values in axes.items() for value in values[1:])]
    _check_run_count(len(points) * max(1, len(seeds)))
    return [{"seed": seed, **point} for seed in seeds for point in points] if seeds else [*points]


def _check_run_count(n: int) -> None:
    if n > MAX_SWEEP_RUNS:
        raise UsageError(f"these are {n:,} runs, and a sweep has at most {MAX_SWEEP_RUNS:,}", fix="name fewer values")


def name_grid_point(point: GridPoint) -> str:
    """Returns the name of a run, such as `lr=1e-3,n_layers=2`, or "default" for a point without keys."""
    ends = [key.rpartition(".")[2] for key in point]
    short_keys = [end if ends.count(end) == 1 else key for end, key in zip(ends, point, strict=True)]
    text = ",".join(f"{key}={value}" for key, value in zip(short_keys, point.values(), strict=True)) or "default"
    name = re.sub(r"[^A-Za-z0-9.,=+_-]+", "-", text)[:150]
    return name if name == text else f"{name}-{sha256(text.encode())[:6]}"


def default_axes(recipe: Recipe, is_finetuning: bool) -> Axes:
    """Returns the values to search if the user names none: learning rates, and values of a regularizing key.

    That key is the epochs of fine-tuning, the weight decay of a linear model, or the dropout of other models. For a
    head that is fitted returns penalties alone.
    """
    if isinstance(recipe.optimizer, Lbfgs):
        return {"optimizer.l2": ["null", "10.0", "1.0", "0.1", "0.01"]}
    axes = {"optimizer.lr": [f"{recipe.optimizer.lr * factor:.5g}" for factor in (1, 1 / 3, 3)]}
    model = dict(recipe.model)
    key = "model.word_dropout" if isinstance(recipe.model, Averaging) else "model.dropout"
    others = [model.get(key.rpartition(".")[2]), 0.0, 0.1, 0.3]
    if is_finetuning and (epochs := recipe.training.epochs) is not None:
        key, others = "training.epochs", [epochs, epochs / 2, 2 * epochs]
    elif model.get("one_hot"):
        key, others = "optimizer.weight_decay", [dict(recipe.optimizer).get("weight_decay"), 0.0, 1e-4, 1e-2]
    if others[0] is not None:
        axes[key] = [f"{value:.5g}" for value in dict.fromkeys(others)][:3]
    return axes


def _expand_range(value: object, assignment: str) -> Iterator[str]:
    """Yields the values of an item: integers of `2..6`, numbers of `1e-4..1e-2/5` by a factor, or the item itself."""
    if not isinstance(value, str) or (match := _RANGE.fullmatch(value)) is None:
        yield (value if isinstance(value, str) and parse_yaml(value, "").value == value else json.dumps(value))
        return
    low, high = (parse_yaml(end, "").value for end in match.groups()[:2])
    n = int(match[3]) if match[3] else high - low + 1 if isinstance(low, int) and isinstance(high, int) else 0
    are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not are_numbers or not low < high or not 2 <= n <= 1000 or (match[3] and low <= 0):
        fix = "2..6 is 2,3,4,5,6; 1e-4..1e-2/3 is 1e-4,1e-3,1e-2: three values by a factor, above 0"
        raise UsageError("this range has no values, or more than 1,000", where=f"-s {assignment}", fix=fix)
    for i in range(n):
        number = low * (high / low) ** (i / (n - 1)) if match[3] else low + i
        yield f"{number:.3g}" if match[3] and not isinstance(low, int) else str(round(number))
