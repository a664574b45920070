"""What of a run's recipe may change when it is resumed, and what a change resets; how two recipes differ."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lmtool.recipe.document import dotted
from lmtool.recipe.dump import leaves
from lmtool.recipe.grammar import keys, value_at
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


_LENGTH = Rule(False, "train longer: -s training.steps=+N")
_WEIGHTS = Rule(False, "start a new run from these weights: lmtool pretrain or finetune, --from RUN")
_ROUNDING = Rule(True, "results differ by rounding")
_MEMORY = Rule(True, "results differ by rounding; where memory had run out, it is tried again")
_STRETCHED = Rule(True, "the schedule stretches to the new end, and epochs no longer count")
_NEXT = Rule(True, "from the next validation on")
_AT_END = Rule(True, "at the end")

_RULES = (
    (Rule(True), "description training.recompute logging"),
    (Rule(False, "start a new run"), "model tokenizer"),
    (_WEIGHTS, "seed objective tuning distillation optimizer schedule"),
    (Rule(True, "the files may have moved; their content must be the same"), "data.train data.valid data.test"),
    (Rule(True, "the files may have moved; their content must be the same"), "data.task_tests"),
    (_WEIGHTS, "data.mixture data.column data.source_column data.target_column data.input_column data.messages_column"),
    (_WEIGHTS, "data.text_columns data.label_column data.tasks data.encoding data.delimiter data.skip_bad_rows"),
    (_WEIGHTS, "data.merge_labels data.documents data.split data.valid_fraction data.isolate_documents data.stream"),
    (_STRETCHED, "training.steps"),
    (_LENGTH, "training.epochs training.min_steps training.tokens training.minutes"),
    (_WEIGHTS, "training.batch_size training.clip_norm training.carry_state"),
    (_MEMORY, "training.micro_batch"),
    (_ROUNDING, "training.device training.precision training.micro_tokens training.shard training.compile"),
    (_NEXT, "evaluation.every evaluation.epochs evaluation.gradient_norms evaluation.prompts evaluation.sample_tokens"),
    (Rule(True, _NEXT.note, ("best", "scores")), "evaluation.tokens evaluation.metric"),
    (_AT_END, "evaluation.baseline checkpoint.keep_optimizer"),
    (Rule(True, _AT_END.note, ("scores",)), "evaluation.num_beams"),
    (Rule(True, "validations since the best one count"), "evaluation.patience"),
    (Rule(True, "from the next checkpoint on"), "checkpoint.every checkpoint.keep_last checkpoint.background"),
)
_OF_KEYS = {key: rule for rule, listed in _RULES for key in listed.split()}

RESUMING: Mapping[str, Rule] = {key: _OF_KEYS[key] for key in keys(Recipe) if key in _OF_KEYS}
"""Of each key, or of all keys of a part, in the order of the recipe.

What determines the steps that are done may not change, and what is to come must follow from one recipe: so neither may
what determines the weights. How long, where and how fast a run goes on may, and what is measured, shown and kept of it.
"""


def rule_of(key: str) -> Rule:
    """The rule of a dotted key."""
    return RESUMING.get(key) or RESUMING[key.partition(".")[0]]


def changes(before: Recipe, after: Recipe) -> dict[str, str]:
    """The differences between two recipes, by dotted key: `KEY OLD -> NEW`."""
    old, new = ({dotted(path): value for path, value in leaves(recipe)} for recipe in (before, after))
    differing = [key for key in old | new if old.get(key) != new.get(key)]
    if after.training.epochs is None is after.training.min_steps:
        # steps take their place when a run is trained longer
        differing = [key for key in differing if key not in ("training.epochs", "training.min_steps")]
    return {key: f"{key} {old.get(key)} -> {new.get(key)}" for key in differing}


def unchangeable(changed: Iterable[str]) -> list[str]:
    """Those of the keys that no run may change."""
    return [key for key in changed if not rule_of(key).may_change]


def yardstick(recipe: Mapping[str, object]) -> dict[str, Any]:
    """What validations are compared by, with those of which the best one is chosen: keys of a recipe's JSON values."""
    return {key: value_at(recipe, tuple(key.split("."))) for key, rule in RESUMING.items() if "best" in rule.resets}
