"""Validates a nested mapping as a Recipe, and reports all mistakes at once in plain sentences."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from lmtool.recipe.document import (
    KeyPath,
    Mistake,
    Origin,
    dotted_key,
    format_value_for_message,
    parse_plain_scalar,
    shorten,
)
from lmtool.recipe.grammar import (
    describe_values,
    did_you_mean,
    find_nearest,
    format_key_suggestion,
    join_with_or,
    spec_kind,
    specs_by_kind,
    specs_with_key,
)
from lmtool.recipe.spec.base import Spec, find_surrogates_and_too_large_numbers

MAX_KEY_SUGGESTIONS = 20
"""Limit of the unknown keys that are compared with known keys, which is slow."""

OriginFinder = Callable[[KeyPath], Origin]
"""Returns the origin of the value at a path, or of its nearest ancestor."""


class _ErrorLocationInSpec(NamedTuple):
    """Location of a pydantic error: a path from the root, its spec, and its field if any."""

    path: KeyPath
    spec: type[Spec]
    field: FieldInfo | None
    root: type[Spec]


AnySpec = TypeVar("AnySpec", bound=Spec)


def validate(tree: dict[str, Any], locate: OriginFinder, root: type[AnySpec]) -> tuple[AnySpec | None, list[Mistake]]:
    """Validates `tree` as a `root`; returns the spec, or None and all mistakes."""
    if mistakes := [
        Mistake(locate(path), f"{dotted_key(path)}: {what}")
        for path, what in find_surrogates_and_too_large_numbers(tree)
    ]:
        return None, mistakes
    try:
        return root.model_validate(tree), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    unknown = [_locate_error(error["loc"], root) for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        # Unknown keys keep pydantic from running multi-field validators: validate again without them.
        try:
            root.model_validate(_remove_paths(tree, (), {location.path for location in unknown}))
        except ValidationError as invalid:
            errors += [error for error in invalid.errors(include_url=False) if error["type"] == "value_error"]
    slips = unknown[:MAX_KEY_SUGGESTIONS]
    meant = {
        (*location.path[:-1], find_nearest(str(location.path[-1]), location.spec.model_fields)) for location in slips
    }
    guessed = {location.path for location in slips}
    mistakes_by_text: dict[tuple[KeyPath, str], Mistake] = {}
    for error in errors:
        location = _locate_error(error["loc"], root)
        if error["type"] == "missing" and location.path in meant:
            continue
        told: Iterable[tuple[KeyPath, str, Origin]]
        if error["type"] == "value_error":
            told = _split_multi_line_error(str(error["ctx"]["error"]), location.path, tree, locate)
        else:
            is_one_of_many = error["type"] == "extra_forbidden" and location.path not in guessed
            path, what = (
                (location.path, "unknown key") if is_one_of_many else _explain_error(error["type"], location, tree)
            )
            told = [(path, what, locate(path))]
        for path, what, origin in told:
            text = f"{dotted_key(path)}: {what}" if path else what
            mistakes_by_text.setdefault((path, text), Mistake(origin, text))
    return None, list(mistakes_by_text.values())


def _locate_error(loc: KeyPath, root: type[Spec]) -> _ErrorLocationInSpec:
    """Converts a pydantic location, which also has the kind in a union and branches of plain values."""
    spec = root
    location = _ErrorLocationInSpec((), spec, None, root)
    steps = iter(loc)
    for step in steps:
        field = spec.model_fields.get(str(step))
        location = _ErrorLocationInSpec((*location.path, step), spec, field, root)
        options = specs_by_kind(field) if field else {}
        if not options:
            break
        kind = next(steps, None) if len(options) > 1 else next(iter(options))
        if kind is None:
            break
        spec = options[str(kind)]
    return location


def _split_multi_line_error(
    text: str, part: KeyPath, tree: Any, locate: OriginFinder
) -> Iterator[tuple[KeyPath, str, Origin]]:
    """Yields path, sentence and origin of each line of a multi-field validator's error, which starts with its key.

    The origin is a key of the line that the command line has set, else one in the file.
    """
    value = reduce(getitem, part, tree)
    for line in text.splitlines():
        key, _, what = line.partition(" ")
        named = [tuple(word.split(".")) for word in line.split() if word.split(".")[0] in value]
        origins = [locate((*part, *steps)) for steps in named or [()]]
        yield (*part, *key.split(".")), shorten(what, 200), min(origins, key=lambda origin: origin.line != 0)


def _explain_error(error_type: str, location: _ErrorLocationInSpec, tree: Any) -> tuple[KeyPath, str]:
    """Returns the path and the sentence for a pydantic error of the type `error_type`."""
    path, spec, field, root = location
    if field is None:
        others = [spec_kind(owner) for owner in specs_with_key(path, root)]
        if not others:
            return path, f"unknown key{format_key_suggestion(path, spec, root)}"
        have = "has" if len(others) == 1 else "have"
        return path, f"unknown key for kind {spec_kind(spec)}; {' and '.join(others)} {have} it"
    options = specs_by_kind(field)
    if error_type == "missing":
        required = [name for part in options.values() for name, f in part.model_fields.items() if f.is_required()]
        needed = f"it needs {', '.join(required)}" if options else join_with_or(describe_values(spec, str(path[-1])))
        return path, f"missing; {needed}"
    value: Any = reduce(getitem, path, tree)
    if not options:
        return path, _explain_wrong_value(value, spec, str(path[-1]), error_type)
    kinds, only = list(options), next(iter(options.values()))
    if len(options) == 1:  # its kind is a plain choice, or absent
        kinds = describe_values(only, "kind") if "kind" in only.model_fields else []
    if not isinstance(value, Mapping):
        example = f"{{kind: {value}}}" if value in kinds else "its keys below it, or leave it out"
        return path, f"{format_value_for_message(value)} is not a mapping; write {example}"
    kind = value.get("kind")
    if kind is None:
        return (*path, "kind"), f"missing; {join_with_or(kinds)}"
    guess = find_nearest(kind, kinds) if isinstance(kind, str) else None
    return (*path, "kind"), f"{format_value_for_message(kind)} is not {join_with_or(kinds)}{did_you_mean(guess)}"


def _explain_wrong_value(value: object, spec: type[Spec], name: str, error_type: str) -> str:
    if error_type == "finite_number":
        return f"{format_value_for_message(value)} is not a finite number"
    expected = describe_values(spec, name)
    what = f"{format_value_for_message(value)} is not {join_with_or(expected)}"
    if any("whole number" in words for words in expected) and isinstance(value, str | float):
        number = parse_plain_scalar(str(value).replace("_", "").replace(",", ""))
        if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
            return f"{what}; write {format_value_for_message(int(number))}"
    return what + did_you_mean(find_nearest(value, expected) if isinstance(value, str) else None)


def _remove_paths(tree: Any, path: KeyPath, unwanted: set[KeyPath]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        key: _remove_paths(value, (*path, key), unwanted) for key, value in tree.items() if (*path, key) not in unwanted
    }
