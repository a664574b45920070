"""Derives the grammar of recipes from the tree of specs: parts, kinds, defaults, and descriptions of values."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from lmtool.printable import format_count
from lmtool.recipe.document import KeyPath
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.recipe import Recipe

_LIMITS = {"exclusiveMinimum": "above", "minimum": "of at least", "exclusiveMaximum": "below", "maximum": "at most"}


def specs_by_kind(field: FieldInfo) -> dict[str, type[Spec]]:
    """Returns the specs allowed at a field by kind; none if the field holds a plain value."""
    types = get_args(field.annotation) or (field.annotation,)
    return {spec_kind(part): part for part in types if isinstance(part, type) and issubclass(part, Spec)}


@cache
def spec_kind(spec: type[Spec]) -> str:
    """Returns the discriminator of a spec in its union; "" for a spec without kinds."""
    names = get_args(spec.model_fields["kind"].annotation) if "kind" in spec.model_fields else ()
    return str(names[0]) if len(names) == 1 else ""


def choose_spec_or_default(field: FieldInfo, value: object) -> type[Spec] | None:
    """Returns the spec of the kind in `value`, else of the default kind; None if there is neither."""
    options = specs_by_kind(field)
    if len(options) == 1:
        return next(iter(options.values()))
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind is None:
        return type(field.default) if isinstance(field.default, Spec) else None
    return options.get(kind) if isinstance(kind, str) else None


def specs_with_key(path: KeyPath, root: type[Spec] = Recipe) -> list[type[Spec]]:
    """Returns every spec that may have a value at `path`, over all kinds along the path."""
    specs = [root]
    for step in path[:-1]:
        fields = [spec.model_fields[str(step)] for spec in specs if step in spec.model_fields]
        specs = [part for field in fields for part in specs_by_kind(field).values()]
    return [spec for spec in specs if path[-1] in spec.model_fields]


def iterate_dotted_keys(spec: type[Spec], prefix: str = "") -> Iterator[str]:
    """Yields all dotted keys below a spec, of every kind."""
    for name, field in spec.model_fields.items():
        yield prefix + name
        for part in specs_by_kind(field).values():
            yield from iterate_dotted_keys(part, f"{prefix}{name}.")


def get_value_or_default(tree: Any, path: KeyPath) -> Any:
    """Returns the value at `path` in a nested mapping, or its default; None if there is neither."""
    spec: type[Spec] | None = Recipe
    for step in path:
        field = spec.model_fields.get(str(step)) if spec else None
        if field is None:
            return None
        written = isinstance(tree, Mapping) and step in tree
        if specs_by_kind(field):
            tree = tree[step] if written else None
            spec = choose_spec_or_default(field, tree)
        else:
            tree = tree[step] if written else None if field.is_required() else field.default
            spec = None
    return tree


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """Returns the closest match of `word` in `words`, if any."""
    folded = {w.lower().replace("-", "_"): w for w in words}
    matches = get_close_matches(word.lower().replace("-", "_"), folded, n=1)
    return folded[matches[0]] if matches else None


def did_you_mean(*words: str | None) -> str:
    """Returns the end of a message that suggests `words`; "" if there are none."""
    known = [word for word in words if word]
    return f"; did you mean {join_with_or(known)}?" if known else ""


MAX_SHOWN_KEYS = 20
"""Limit of the keys in a message."""


def format_key_suggestion(path: KeyPath, spec: type[Spec], root: type[Spec]) -> str:
    """Returns the end of a message that suggests a key for the unknown last key of `path` in `spec`."""
    fields = list(spec.model_fields)
    guess = find_nearest(str(path[-1]), fields)
    if guess:
        return did_you_mean(guess)
    elsewhere = dict.fromkeys(key for key in iterate_dotted_keys(root) if key.split(".")[-1] == path[-1])
    if elsewhere:
        return did_you_mean(*list(elsewhere)[:3])
    others = f" and {format_count(len(fields) - MAX_SHOWN_KEYS, 'other')}" if len(fields) > MAX_SHOWN_KEYS else ""
    return f"; known here: {', '.join(fields[:MAX_SHOWN_KEYS])}{others}"


def join_with_or(words: list[str]) -> str:
    """Joins words as "a, b or c"."""
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def describe_values(spec: type[Spec], name: str) -> list[str]:
    """Returns the valid values of a field in words, such as ["a whole number above 0", "auto"]."""
    return _describe_valid_values(_schema_properties(spec)[name])


@cache
def _schema_properties(spec: type[Spec]) -> dict[str, Any]:
    properties: dict[str, Any] = spec.model_json_schema()["properties"]
    return properties


def _describe_valid_values(schema: dict[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return [words for branch in schema["anyOf"] for words in _describe_valid_values(branch)]
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    kind = schema["type"]
    if kind in ("integer", "number"):
        return [f"{'a whole number' if kind == 'integer' else 'a number'} {_describe_limits(schema)}".rstrip()]
    if kind == "array":
        items = schema["items"]
        names = {"integer": "whole numbers", "number": "numbers", "string": "texts"}
        return [
            f"a list of {join_with_or(items.get('enum', [names[items['type']]]))} {_describe_limits(items)}".rstrip()
        ]
    if kind == "object":
        values = _describe_valid_values(schema["additionalProperties"])[0].replace("a number", "numbers")
        return [f"a mapping of texts to {values}"]
    return {"boolean": ["true", "false"], "null": ["null"], "string": ["text"]}[kind]


def _describe_limits(schema: dict[str, Any]) -> str:
    return " and ".join(f"{words} {schema[key]}" for key, words in _LIMITS.items() if key in schema)
