"""The files of families, one for each: rows as text, completed by those of the family that it is like."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from lmtool.interop.families import rules, special
from lmtool.interop.families.family import Family, PublishedHead, Rearrange, joined_widths
from lmtool.interop.families.layouts import (
    AS_ROW,
    SAME,
    TRANSPOSED,
    Joined,
    Layout,
    by_head,
    in_halves,
    in_pairs,
    rescaled,
)
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.recipe.spec.position import SinusoidalPosition
from lmtool.recipe.spec.transformer import Transformer

RULES: Mapping[str, Callable[..., rules.KeyRule]] = {
    "key": rules.SameRule,
    "written": rules.WrittenRule,
    "divisor": rules.DivisorRule,
    "derived": rules.DerivedRule,
    "constant": rules.ConstantRule,
    "section": rules.SectionRule,
    "choice": rules.ChoiceRule,
    "head-dropout": rules.HeadDropoutRule,
    "tied": rules.TiedRule,
    "tensor": rules.HasTensorRule,
    "no-tensor": lambda ours: rules.HasTensorRule(ours, absent=True),
    "rows": rules.LearnedRowsRule,
    "padding-row": rules.PaddingRowRule,
    "rotary": rules.RotaryRule,
    "window": rules.WindowRule,
    "task": rules.TaskRule,
    "labels": rules.LabelsRule,
    "qwen-windows": special.QwenWindowsRule,
    "modern-windows": special.ModernWindowsRule,
    "modern-rotary": special.ModernRotaryRule,
    "t5-activation": special.T5ActivationRule,
    "t5-output": special.T5OutputRule,
    "gguf-rotary": special.GgufRotaryRule,
}
"""Rules by their names in files. A text in place of a rule is a `SameRule`."""


def _halves(dim: int) -> Rearrange:
    """Hidden states of theirs are in halves, where the sinusoids of ours alternate."""

    def rearrange(model: Transformer, layout: Layout) -> Layout:
        is_alternating = isinstance(model.position, SinusoidalPosition) and model.position.layout == "alternating"
        return in_halves(dim, layout) if is_alternating else layout

    return rearrange


def _pairs(model: Transformer, layout: Layout) -> Layout:
    n_kv_heads = model.n_kv_heads or model.n_heads
    return Joined(joined_widths(model, "qkv"), (in_pairs(model.n_heads), in_pairs(n_kv_heads), SAME))


LAYOUTS: Mapping[str, Rearrange] = {
    "transposed": lambda model, layout: TRANSPOSED,
    "by head": lambda model, layout: by_head(model.n_heads),
    "row": lambda model, layout: AS_ROW,
    "plus one": lambda model, layout: rescaled(1.0, 1.0),
    "rotary pairs": _pairs,
    "halves of outputs": _halves(0),
    "halves of inputs": _halves(1),
}


def _sinusoids(model: Transformer) -> Tensor:
    positions = SinusoidalPositions(model.d_model, sines_first=True)
    table: Tensor = positions(torch.zeros(model.context, model.d_model), torch.arange(model.context))
    return table


CONSTANTS: Mapping[str, Callable[[Transformer], Tensor]] = {
    "zeros": lambda model: torch.zeros(model.d_model),
    "zero matrix": lambda model: torch.zeros(model.d_model, model.d_model),
    "sinusoids": _sinusoids,
}


@cache
def read_tree(name: str) -> Mapping[str, Any]:
    """The file of a family, with what it does not say from the family that it is like."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    tree: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    like = tree.pop("like", None)
    return tree if like is None else _merge_trees(read_tree(like), tree)


def _merge_trees(base: Mapping[str, Any], own: Mapping[str, Any], are_rules: bool = False) -> dict[str, Any]:
    """Sections of `own` over those of `base`, in whose place their keys stay; a null takes a key away."""
    merged = dict(base)
    for key, value in own.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and not are_rules:
            merged[key] = _merge_trees(merged.get(key, {}), value, key == "config")
        else:
            merged[key] = value
    return merged


def load_family(name: str) -> Family:
    """The family of this `model_type`."""
    return _family(name, {key: value for key, value in read_tree(name).items() if key != "gguf"})


def load_gguf_family(name: str) -> Family:
    """The same in GGUF files, which hold no heads: what its file has in the section `gguf`, and no other rows."""
    tree = read_tree(name)
    gguf = dict(tree["gguf"])
    same = {key: tree[key] for key in ("shape", "name", "prefix", "modules")}
    fixed = tree.get("fixed", {}) | gguf.pop("fixed")
    return _family(name, {**same, **gguf, "fixed": fixed, "heads": {"causal": tree["heads"]["causal"]}})


def _family(name: str, tree: dict[str, Any]) -> Family:
    heads = {kind: _head(kind, head) for kind, head in tree.pop("heads").items()}
    config = {key: _rule(row) for key, row in tree.pop("config").items()}
    layouts = {pattern: LAYOUTS[layout] for pattern, layout in tree.pop("layouts", {}).items()}
    return Family(model_type=name, heads=heads, config=config, layouts=layouts, **tree)


def _head(kind: str, tree: Mapping[str, Any]) -> PublishedHead:
    return PublishedHead(
        objective=tree.get("objective", kind),
        ending=tree["class"],
        modules=tree.get("modules", {}),
        config={key: _rule(row) for key, row in tree.get("config", {}).items()},
        fixed=tree.get("fixed", {}),
        by_class=tree.get("by_class", False),
        constants={name: CONSTANTS[make] for name, make in tree.get("constants", {}).items()},
    )


def _rule(row: str | Mapping[str, Any]) -> rules.KeyRule:
    """A rule: its name with what it is given, and options; `if` and `only-if` are for some kinds of objectives."""
    if isinstance(row, str):
        return rules.SameRule(row)
    (name, given), *more = row.items()
    options = dict(more)
    only_if, kinds = options.pop("only-if", ""), options.pop("if", "")
    rule = RULES[name](*([] if given is None else [given]), **options)
    return rules.IfObjectiveRule(only_if or kinds, rule, written=not only_if) if only_if or kinds else rule
