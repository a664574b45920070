"""What of a run's recipe may change when it is resumed, and what a change resets; how two recipes differ."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lmtool.recipe.document import KeyPath, dotted
from lmtool.recipe.dump import leaves
from lmtool.recipe.grammar import value_at
from lmtool.recipe.spec.recipe import Recipe

Reset = Literal["best", "scores"]
"""Best: the best step so far, its value and patience: validations before and after do not compare. Scores: those of the
best checkpoint of a finished run.
"""


class Rule(NamedTuple):
    """Whether a key may change, what that resets, and a note: what follows, or where it may not, what to do instead."""

    may_change: bool
    note: str = ""
    resets: tuple[Reset, ...] = ()


_NEW = Rule(False, "start a new run")
_WEIGHTS = Rule(False, "start a new run from these weights: lmtool pretrain or finetune, --from RUN")
_LENGTH = Rule(False, "train longer: -s training.steps=+N")
_MOVED = Rule(True, "the files may have moved; their content must be the same")
_ROUNDING = Rule(True, "results differ by rounding")
_NEXT = Rule(True, "from the next validation on")
_SAVED = Rule(True, "from the next checkpoint on")

RESUMING: Mapping[str, Rule] = {
    "description": Rule(True),
    "seed": _WEIGHTS,
    "model": _NEW,
    "objective": _WEIGHTS,
    "tokenizer": _NEW,
    "data.train": _MOVED,
    "data.mixture": _WEIGHTS,
    "data.valid": _MOVED,
    "data.column": _WEIGHTS,
    "data.source_column": _WEIGHTS,
    "data.target_column": _WEIGHTS,
    "data.input_column": _WEIGHTS,
    "data.messages_column": _WEIGHTS,
    "data.text_columns": _WEIGHTS,
    "data.label_column": _WEIGHTS,
    "data.test": _MOVED,
    "data.tasks": _WEIGHTS,
    "data.task_tests": _MOVED,
    "data.encoding": _WEIGHTS,
    "data.delimiter": _WEIGHTS,
    "data.skip_bad_rows": _WEIGHTS,
    "data.documents": _WEIGHTS,
    "data.split": _WEIGHTS,
    "data.valid_fraction": _WEIGHTS,
    "data.isolate_documents": _WEIGHTS,
    "data.stream": _WEIGHTS,
    "training.steps": Rule(True, "the schedule stretches to the new end, and epochs no longer count"),
    "training.epochs": _LENGTH,
    "training.min_steps": _LENGTH,
    "training.tokens": _LENGTH,
    "training.minutes": _LENGTH,
    "training.batch_size": _WEIGHTS,
    "training.micro_batch": Rule(True, "results differ by rounding; where memory had run out, it is tried again"),
    "training.device": _ROUNDING,
    "training.precision": _ROUNDING,
    "training.clip_norm": _WEIGHTS,
    "training.micro_tokens": _ROUNDING,
    "training.carry_state": _WEIGHTS,
    "training.recompute": Rule(True),
    "training.shard": _ROUNDING,
    "training.compile": _ROUNDING,
    "tuning": _WEIGHTS,
    "distillation": _WEIGHTS,
    "optimizer": _WEIGHTS,
    "schedule": _WEIGHTS,
    "evaluation.every": _NEXT,
    "evaluation.epochs": _NEXT,
    "evaluation.tokens": Rule(True, _NEXT.note, ("best", "scores")),
    "evaluation.metric": Rule(True, _NEXT.note, ("best", "scores")),
    "evaluation.baseline": Rule(True, "at the end"),
    "evaluation.gradient_norms": _NEXT,
    "evaluation.num_beams": Rule(True, "at the end", ("scores",)),
    "evaluation.patience": Rule(True, "validations since the best one count"),
    "evaluation.prompts": _NEXT,
    "evaluation.sample_tokens": _NEXT,
    "checkpoint.every": _SAVED,
    "checkpoint.keep_last": _SAVED,
    "checkpoint.keep_optimizer": Rule(True, "at the end"),
    "checkpoint.background": _SAVED,
    "logging": Rule(True),
}
"""Of each key, or of all keys of a part, in the order of the recipe.

What determines the steps that are done may not change, and what is to come must follow from one recipe: so neither may
what determines the weights. How long, where and how fast a run goes on may, and what is measured, shown and kept of it.
"""


def rule_of(key: str) -> Rule:
    """The rule of a dotted key."""
    return RESUMING.get(key) or RESUMING[key.partition(".")[0]]


def changes(before: Recipe, after: Recipe) -> dict[str, str]:
    """The differences between two recipes, by dotted key: `KEY OLD -> NEW`."""
    values = [{dotted(path): _value(recipe, path) for path in leaves(recipe)} for recipe in (before, after)]
    keys = dict.fromkeys([*values[0], *values[1]])
    if after.training.epochs is None is after.training.min_steps:
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
    return [key for key in keys if not rule_of(key).may_change]


def yardstick(recipe: Mapping[str, object]) -> dict[str, Any]:
    """What validations are compared by, with those of which the best one is chosen: keys of a recipe's JSON values."""
    return {key: value_at(recipe, tuple(key.split("."))) for key, rule in RESUMING.items() if "best" in rule.resets}


def _value(recipe: Recipe, path: KeyPath) -> object:
    value: object = recipe
    for name in path:
        value = getattr(value, str(name))
    return value
