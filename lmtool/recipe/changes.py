"""Rules for changes of the recipe of a resumed run, and the difference of two recipes."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lmtool.recipe.document import dotted_key
from lmtool.recipe.dump import iterate_values
from lmtool.recipe.grammar import get_value_or_default, iterate_dotted_keys
from lmtool.recipe.spec.recipe import Recipe

Reset = Literal["best", "scores"]
"""best: the best step so far, its value and patience, because validations before and after are not comparable. scores:
those of the best checkpoint of a finished run."""


class ResumeChangeRule(NamedTuple):
    """Whether a key may change, what a change resets, and a note on its effect, or on what to do instead."""

    may_change: bool
    note: str = ""
    resets: tuple[Reset, ...] = ()


_LENGTH = ResumeChangeRule(False, "train longer: -s training.steps=+N")
_WEIGHTS = ResumeChangeRule(False, "start a new run from these weights: lmtool pretrain or finetune, --from RUN")
_ROUNDING = ResumeChangeRule(True, "results differ by rounding")
_MEMORY = ResumeChangeRule(True, "results differ by rounding; where memory had run out, it is tried again")
_STRETCHED = ResumeChangeRule(True, "the schedule stretches to the new end, and epochs no longer count")
_NEXT = ResumeChangeRule(True, "from the next validation on")
_AT_END = ResumeChangeRule(True, "at the end")

_RULES = (
    (ResumeChangeRule(True), "description training.recompute logging"),
    (ResumeChangeRule(False, "start a new run"), "model tokenizer"),
    (_WEIGHTS, "seed objective tuning distillation optimizer schedule"),
    (
        ResumeChangeRule(True, "the files may have moved; their content must be the same"),
        "data.train data.valid data.test",
    ),
    (ResumeChangeRule(True, "the files may have moved; their content must be the same"), "data.task_tests"),
    (_WEIGHTS, "data.mixture data.column data.source_column data.target_column data.input_column data.messages_column"),
    (_WEIGHTS, "data.text_columns data.label_column data.tasks data.encoding data.delimiter data.skip_bad_rows"),
    (
        _WEIGHTS,
        "data.merge_labels data.documents data.split data.valid_fraction data.isolate_documents data.stream",
    ),
    (_STRETCHED, "training.steps"),
    (_LENGTH, "training.epochs training.min_steps training.tokens training.minutes"),
    (_WEIGHTS, "training.batch_size training.clip_norm training.carry_state"),
    (_MEMORY, "training.micro_batch"),
    (_ROUNDING, "training.device training.precision training.micro_tokens training.shard training.compile"),
    (_NEXT, "evaluation.every evaluation.epochs evaluation.gradient_norms evaluation.prompts evaluation.sample_tokens"),
    (ResumeChangeRule(True, _NEXT.note, ("best", "scores")), "evaluation.tokens evaluation.metric"),
    (_AT_END, "evaluation.baseline checkpoint.keep_optimizer"),
    (ResumeChangeRule(True, _AT_END.note, ("scores",)), "evaluation.num_beams evaluation.interpolate"),
    (ResumeChangeRule(True, "validations since the best one count"), "evaluation.patience"),
    (
        ResumeChangeRule(True, "from the next checkpoint on"),
        "checkpoint.every checkpoint.keep_last checkpoint.background",
    ),
)
_OF_KEYS = {key: rule for rule, listed in _RULES for key in listed.split()}

CHANGE_RULES: Mapping[str, ResumeChangeRule] = {
    key: _OF_KEYS[key] for key in iterate_dotted_keys(Recipe) if key in _OF_KEYS
}
"""The rule of each key, or of all keys of a part, in the order of the recipe.

Keys that determine the weights may not change, so that all steps follow from one recipe. Keys that determine how long,
where and how fast a run goes on, and what is measured, shown and kept, may.
"""


def find_change_rule(key: str) -> ResumeChangeRule:
    """Returns the rule of a dotted key."""
    return CHANGE_RULES.get(key) or CHANGE_RULES[key.partition(".")[0]]


def diff_recipes(before: Recipe, after: Recipe) -> dict[str, str]:
    """Returns the differences between two recipes by dotted key: `KEY OLD -> NEW`."""
    old, new = ({dotted_key(path): value for path, value in iterate_values(recipe)} for recipe in (before, after))
    differing = [key for key in old | new if old.get(key) != new.get(key)]
    if after.training.epochs is None is after.training.min_steps:
        # a run that is trained longer has steps instead
        differing = [key for key in differing if key not in ("training.epochs", "training.min_steps")]
    return {key: f"{key} {old.get(key)} -> {new.get(key)}" for key in differing}


def find_unchangeable_keys(changed: Iterable[str]) -> list[str]:
    """Returns the changed keys that may not change."""
    return [key for key in changed if not find_change_rule(key).may_change]


def checkpoint_selection_values(recipe: Mapping[str, object]) -> dict[str, Any]:
    """Returns the values of a recipe by which the best validation is selected, by dotted key."""
    return {
        key: get_value_or_default(recipe, tuple(key.split(".")))
        for key, rule in CHANGE_RULES.items()
        if "best" in rule.resets
    }
