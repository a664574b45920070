"""The files of families: rows as text, completed by those of the family that each is like."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from lmtool.interop.families import layouts, rules, special_rules
from lmtool.interop.families.family import Family, LayoutFactory, PublishedHead, get_fused_part_widths
from lmtool.model.layers.positions import SinusoidalPositions
from lmtool.recipe.spec.position import SinusoidalPosition
from lmtool.recipe.spec.transformer import Transformer

RULES: Mapping[str, Callable[..., rules.KeyRule]] = {
    "key": rules.CopiedValueRule,
    "written": rules.WriteOnlyRule,
    "derived": rules.DerivedDefaultSizeRule,
    "constant": rules.ConstantRule,
    "section": rules.CheckedConfigSectionRule,
    "choice": rules.MappedValueRule,
    "head-dropout": rules.HeadDropoutRule,
    "tied": rules.TiedEmbeddingsRule,
    "tensor": rules.HasTensorRule,
    "rows": rules.PositionTableRule,
    "padding-row": rules.PaddingIdPositionOffsetRule,
    "rotary": rules.RotaryRule,
    "window": rules.WindowRule,
    "task": rules.ProblemTypeAndLabelsRule,
    "labels": rules.LabelsRule,
    "qwen-windows": special_rules.QwenWindowsRule,
    "modern-windows": special_rules.ModernBertWindowsRule,
    "modern-rotary": special_rules.ModernBertRotaryRule,
    "t5-activation": special_rules.T5ActivationRule,
    "t5-output": special_rules.T5OutputTyingAndScaleRule,
    "gguf-rotary": special_rules.GgufRopeConfigRule,
}
"""Rules by their names in files. A text in place of a rule is a `CopiedValueRule`."""


def _make_even_entries_first_layout_factory(dim: int) -> LayoutFactory:
    """Makes layouts with the even entries of a dimension of hidden states first, where lmtool's sinusoids alternate."""

    def rearrange(model: Transformer, layout: layouts.ParameterLayout) -> layouts.ParameterLayout:
        is_alternating = isinstance(model.position, SinusoidalPosition) and model.position.layout == "alternating"
        return layouts.make_even_entries_first_layout(dim, layout) if is_alternating else layout

    return rearrange


def _make_rotary_qkv_layout(model: Transformer, layout: layouts.ParameterLayout) -> layouts.ParameterLayout:
    pairs = (
        layouts.make_rotary_pairs_layout(model.n_heads),
        layouts.make_rotary_pairs_layout(model.n_kv_heads or model.n_heads),
    )
    return layouts.make_concatenated_layout(get_fused_part_widths(model, "qkv"), (*pairs, layouts.SAME))


LAYOUTS: Mapping[str, LayoutFactory] = {
    "transposed": lambda model, layout: layouts.TRANSPOSED,
    "by head": lambda model, layout: layouts.make_head_interleaved_qkv_layout(model.n_heads),
    "row": lambda model, layout: layouts.AS_ROW,
    "plus one": lambda model, layout: layouts.make_rescaled_layout(1.0, 1.0),
    "rotary pairs": _make_rotary_qkv_layout,
    "halves of outputs": _make_even_entries_first_layout_factory(0),
    "halves of inputs": _make_even_entries_first_layout_factory(1),
}
"""Layouts by their names in files."""


def _sinusoid_table(model: Transformer) -> Tensor:
    positions = SinusoidalPositions(model.d_model, sines_first=True)
    table: Tensor = positions(torch.zeros(model.context, model.d_model), torch.arange(model.context))
    return table


CONSTANTS: Mapping[str, Callable[[Transformer], Tensor]] = {
    "zeros": lambda model: torch.zeros(model.d_model),
    "zero matrix": lambda model: torch.zeros(model.d_model, model.d_model),
    "sinusoids": _sinusoid_table,
}
"""Makers of constant tensors by their names in files."""


@cache
def read_family_with_inheritance(model_type: str) -> Mapping[str, Any]:
    """Reads the file of a family, and what it does not say from the family that it is like."""
    text = Path(__file__).with_name(f"{model_type}.yaml").read_text(encoding="utf-8")
    tree: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    like = tree.pop("like", None)
    return tree if like is None else _merge_trees_dropping_nulls(read_family_with_inheritance(like), tree)


def _merge_trees_dropping_nulls(
    base: Mapping[str, Any], overrides: Mapping[str, Any], replaces_dicts: bool = False
) -> dict[str, Any]:
    """Merges the sections of `overrides` into those of `base`, where their keys stay in place; a null removes a key."""
    merged = dict(base)
    for key, value in overrides.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and not replaces_dicts:
            merged[key] = _merge_trees_dropping_nulls(merged.get(key, {}), value, key == "config")
        else:
            merged[key] = value
    return merged


def load_family(model_type: str) -> Family:
    """Loads the family of this `model_type` of Transformers."""
    return _build_family(
        model_type, {key: rows for key, rows in read_family_with_inheritance(model_type).items() if key != "gguf"}
    )


def load_gguf_family(model_type: str) -> Family:
    """Loads the same family of GGUF files, which hold no heads: the section `gguf` of its file, and no other rows."""
    tree = read_family_with_inheritance(model_type)
    shared = {key: tree[key] for key in ("shape", "class_prefix", "prefix", "modules")}
    fixed = tree.get("fixed", {}) | tree["gguf"]["fixed"]
    return _build_family(
        model_type, {**shared, **tree["gguf"], "fixed": fixed, "heads": {"causal": tree["heads"]["causal"]}}
    )


def _build_family(model_type: str, tree: dict[str, Any]) -> Family:
    heads = {kind: _build_head(kind, head) for kind, head in tree.pop("heads").items()}
    config = {key: _build_rule(row) for key, row in tree.pop("config").items()}
    factories = {pattern: LAYOUTS[name] for pattern, name in tree.pop("layouts", {}).items()}
    return Family(model_type=model_type, heads=heads, config=config, layouts=factories, **tree)


def _build_head(kind: str, tree: Mapping[str, Any]) -> PublishedHead:
    return PublishedHead(
        objective=tree.get("objective", kind),
        class_suffix=tree["class"],
        modules=tree.get("modules", {}),
        config={key: _build_rule(row) for key, row in tree.get("config", {}).items()},
        fixed=tree.get("fixed", {}),
        by_class=tree.get("by_class", False),
        constants={name: CONSTANTS[maker] for name, maker in tree.get("constants", {}).items()},
    )


def _build_rule(row: str | Mapping[str, Any]) -> rules.KeyRule:
    """Builds the rule that a row names, with its argument and options.

    `if` and `only-if` list the objectives for which it is read; with `only-if` it is written for no others either.
    """
    if isinstance(row, str):
        return rules.CopiedValueRule(row)
    (name, argument), *more = row.items()
    options = dict(more)
    only_if, kinds = options.pop("only-if", ""), options.pop("if", "")
    rule = RULES[name](*([] if argument is None else [argument]), **options)
    if not (only_if or kinds):
        return rule
    return rules.IfObjectiveRule(only_if or kinds, rule, always_written=not only_if)
