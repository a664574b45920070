"""Writes a Recipe as YAML, laid out like a paper's table of hyperparameters, which loads as the same recipe."""

import json
import re
from collections.abc import Iterator, Mapping

from lmtool.recipe.document import KeyPath, dotted_key
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.recipe import Recipe

_BARE = re.compile(r"[A-Za-z][\w./+-]*( [\w./+-]+)*", re.ASCII)
# Booleans in YAML 1.1.
_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_ESCAPES = str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n"})


def dump_yaml(recipe: Recipe, origins: Mapping[str, str] | None = None) -> str:
    """Returns the recipe as YAML text with every value. origins: of each dotted key, added as comments."""
    lines = list(_format_lines_with_keys(recipe, ()))
    if origins is None:
        return "".join(f"{text}\n" for text, _ in lines)
    width = max(len(text) for text, key in lines if len(text) <= 40)
    return "".join(f"{text:{width}}  # {origins[key]}\n" if key else f"{text}\n" for text, key in lines)


def iterate_values(spec: Spec, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yields every plain value with its path, in the order of the specs, the kind of each part first."""
    for name, value in _kind_first_fields(spec):
        yield from iterate_values(value, (*path, name)) if isinstance(value, Spec) else [((*path, name), value)]


def _kind_first_fields(spec: Spec) -> list[tuple[str, object]]:
    """Returns names and values in the order of the spec, its kind first."""
    return sorted(spec, key=lambda field: field[0] != "kind")


def _format_lines_with_keys(spec: Spec, path: KeyPath) -> Iterator[tuple[str, str]]:
    """Yields lines of text, each with its dotted key, or "" for a line that opens a part."""
    indent = "  " * len(path)
    for name, value in _kind_first_fields(spec):
        if isinstance(value, Spec):
            yield f"{indent}{name}:", ""
            yield from _format_lines_with_keys(value, (*path, name))
        else:
            yield f"{indent}{name}: {_format_value(value)}", dotted_key((*path, name))


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_format_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_format_value(key)}: {_format_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, str):
        if _BARE.fullmatch(value) and value.lower() not in _AMBIGUOUS:
            return value
        escaped = value.translate(_ESCAPES)
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped) + '"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    # 1e-05 is text in YAML 1.1; 1.0e-05 is a number in both versions.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def recipe_json_schema() -> str:
    """Returns the JSON Schema of recipes, for completion and documentation in editors."""
    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
