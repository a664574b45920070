"""The settings of a sweep: values of keys, as they are typed, and each combination of them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from lmtool.checksum import sha256
from lmtool.errors import UsageError
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.recipe.spec.words import Averaging

MOST_RUNS = 1000

GridPoint = Mapping[str, str]
"""A value, as it is typed, for each key that varies."""

Axes = Mapping[str, Sequence[str]]
"""The values of each key that varies."""

_RANGE = re.compile(r"([0-9.e+-]+?)\.\.([0-9.e+-]+)(?:/([0-9]{1,9}))?")


def read(typed: Sequence[str]) -> tuple[list[str], Axes]:
    """The `KEY=VALUE` texts of one value, and the keys of several, from `KEY=VALUE,VALUE` and `KEY=RANGE`.

    Values are those of a YAML list, so that a list among them is in brackets and a text with a comma in quotes. Raises
    UsageError for a range without values.
    """
    fixed, axes = [], dict[str, list[str]]()
    for text in typed:
        key, _, rest = text.partition("=")
        listed = parse_yaml(f"[{rest}]", "").value
        values = [value for one in listed for value in _values(one, text)] if isinstance(listed, list) else []
        if len(values) > 1:
            axes[key.strip()] = list(dict.fromkeys(values))
        else:
            fixed.append(text)
    return fixed, axes


def choices_of(axes: Axes) -> list[GridPoint]:
    """Every combination; the first key changes last. Raises UsageError for more than MOST_RUNS."""
    if (n := math.prod(map(len, axes.values()))) > MOST_RUNS:
        raise UsageError(f"these are {n:,} runs, and a sweep has at most {MOST_RUNS:,}", fix="name fewer values")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def name_of(choice: GridPoint) -> str:
    """The name of a run: `lr=1e-3,n_layers=2`; "default" where nothing varies."""
    ends = [key.rpartition(".")[2] for key in choice]
    shown = [end if ends.count(end) == 1 else key for end, key in zip(ends, choice, strict=True)]
    text = ",".join(f"{end}={value}" for end, value in zip(shown, choice.values(), strict=True)) or "default"
    name = re.sub(r"[^A-Za-z0-9.,=+_-]+", "-", text)[:150]
    return name if name == text else f"{name}-{sha256(text.encode())[:6]}"


def usual_axes(recipe: Recipe, is_tuning: bool) -> Axes:
    """What is searched where no values are named: learning rates, and what most decides how much is learnt by heart.

    Those are the epochs in which a run is fine-tuned, the weight decay of a linear model, the dropout of any other; of
    a head that is fitted the penalty.
    """
    if isinstance(recipe.optimizer, Lbfgs):
        return {"optimizer.l2": ["null", "10.0", "1.0", "0.1", "0.01"]}
    axes = {"optimizer.lr": [f"{recipe.optimizer.lr * factor:.5g}" for factor in (1, 1 / 3, 3)]}
    model = dict(recipe.model)
    key = "model.word_dropout" if isinstance(recipe.model, Averaging) else "model.dropout"
    others = [model.get(key.rpartition(".")[2]), 0.0, 0.1, 0.3]
    if is_tuning and (epochs := recipe.training.epochs) is not None:
        key, others = "training.epochs", [epochs, epochs / 2, 2 * epochs]
    elif model.get("one_hot"):
        key, others = "optimizer.weight_decay", [dict(recipe.optimizer).get("weight_decay"), 0.0, 1e-4, 1e-2]
    if others[0] is not None:
        axes[key] = [f"{value:.5g}" for value in dict.fromkeys(others)][:3]
    return axes


def _values(value: object, text: str) -> Iterator[str]:
    """The values that one of a list stands for: whole numbers of `2..6`, numbers of `1e-4..1e-2/5` by a factor."""
    if not isinstance(value, str) or (match := _RANGE.fullmatch(value)) is None:
        yield value if isinstance(value, str) and parse_yaml(value, "").value == value else json.dumps(value)
        return
    low, high = (parse_yaml(end, "").value for end in match.groups()[:2])
    n = int(match[3]) if match[3] else high - low + 1 if isinstance(low, int) and isinstance(high, int) else 0
    are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not are_numbers or not low < high or not 2 <= n <= 1000 or (match[3] and low <= 0):
        fix = "2..6 is 2,3,4,5,6; 1e-4..1e-2/3 is 1e-4,1e-3,1e-2: three values by a factor, above 0"
        raise UsageError("this range has no values, or more than 1,000", where=f"-s {text}", fix=fix)
    for i in range(n):
        number = low * (high / low) ** (i / (n - 1)) if match[3] else low + i
        yield f"{number:.3g}" if match[3] and not isinstance(low, int) else str(round(number))
