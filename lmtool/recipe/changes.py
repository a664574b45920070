"""How the recipe of a run differs from that of a checkpoint, and which keys may differ."""

from collections.abc import Iterable

from lmtool.recipe.document import KeyPath, dotted
from lmtool.recipe.dump import leaves
from lmtool.recipe.spec.recipe import Recipe

CHANGEABLE = (
    "description.",
    "data.train.",
    "data.valid.",
    "training.steps.",
    "training.micro_batch.",
    "training.micro_tokens.",
    "training.device.",
    "training.precision.",
    "training.recompute.",
    "training.shard.",
    "training.compile.",
    "evaluation.",
    "checkpoint.",
    "logging.",
)
"""Keys that may change when a run is resumed: they do not change the steps already done.

Files may have moved, since their content is compared.
"""


def changes(before: Recipe, after: Recipe) -> dict[str, str]:
    """The differences between two recipes, by dotted key: `KEY OLD -> NEW`."""
    values = [{dotted(path): _value(recipe, path) for path in leaves(recipe)} for recipe in (before, after)]
    keys = dict.fromkeys([*values[0], *values[1]])
    if after.training.epochs is None:
        # steps take their place when a run is trained longer
        for key in ("training.epochs", "training.min_steps"):
            keys.pop(key)
    return {
        key: f"{key} {values[0].get(key)} -> {values[1].get(key)}"
        for key in keys
        if values[0].get(key) != values[1].get(key)
    }


def unchangeable(keys: Iterable[str]) -> list[str]:
    """Those of the keys that no run may change."""
    return [key for key in keys if not f"{key}.".startswith(CHANGEABLE)]


def _value(recipe: Recipe, path: KeyPath) -> object:
    value: object = recipe
    for name in path:
        value = getattr(value, str(name))
    return value
