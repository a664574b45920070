"""Validates a nested mapping as a Recipe, and reports all mistakes at once in plain sentences."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from lmtool.recipe.document import KeyPath, Mistake, Origin, dotted, escaped, plain, shown
from lmtool.recipe.grammar import choices, did_you_mean, either, kind_of, nearest, owners, parts, suggestion
from lmtool.recipe.spec.base import Spec, unfit

SUGGESTED = 20
"""Unknown keys for which the nearest known one is looked for, which takes longest; more are no slips of the pen."""

Locate = Callable[[KeyPath], Origin]
"""Origin of the value at a path, or of its nearest ancestor."""


class _Location(NamedTuple):
    """Location of a pydantic error: a path from the root, its spec, and its field if any."""

    path: KeyPath
    spec: type[Spec]
    field: FieldInfo | None
    root: type[Spec]


AnySpec = TypeVar("AnySpec", bound=Spec)


def check(tree: dict[str, Any], locate: Locate, root: type[AnySpec]) -> tuple[AnySpec | None, list[Mistake]]:
    """The recipe, or what else `root` is of, that `tree` holds; or None and every mistake in it."""
    if mistakes := [Mistake(locate(path), f"{dotted(path)}: {what}") for path, what in unfit(tree)]:
        return None, mistakes
    try:
        return root.model_validate(tree), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    unknown = [_locate(error["loc"], root) for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        # Unknown keys keep pydantic from running multi-field validators: validate again without them.
        try:
            root.model_validate(_without(tree, (), {location.path for location in unknown}))
        except ValidationError as invalid:
            errors += [error for error in invalid.errors(include_url=False) if error["type"] == "value_error"]
    slips = unknown[:SUGGESTED]
    meant = {(*location.path[:-1], nearest(str(location.path[-1]), location.spec.model_fields)) for location in slips}
    guessed = {location.path for location in slips}
    mistakes_by_text: dict[tuple[KeyPath, str], Mistake] = {}
    for error in errors:
        location = _locate(error["loc"], root)
        if error["type"] == "missing" and location.path in meant:
            continue
        told: Iterable[tuple[KeyPath, str, Origin]]
        if error["type"] == "value_error":
            told = _misfits(str(error["ctx"]["error"]), location.path, tree, locate)
        else:
            is_one_of_many = error["type"] == "extra_forbidden" and location.path not in guessed
            path, what = (location.path, "unknown key") if is_one_of_many else _explain(error["type"], location, tree)
            told = [(path, what, locate(path))]
        for path, what, origin in told:
            text = f"{dotted(path)}: {what}" if path else what
            mistakes_by_text.setdefault((path, text), Mistake(origin, text))
    return None, list(mistakes_by_text.values())


def _locate(loc: KeyPath, root: type[Spec]) -> _Location:
    """Resolve a pydantic location in the specs; it also contains the kind in a union, and branches of plain values."""
    spec = root
    location = _Location((), spec, None, root)
    steps = iter(loc)
    for step in steps:
        field = spec.model_fields.get(str(step))
        location = _Location((*location.path, step), spec, field, root)
        options = parts(field) if field else {}
        if not options:
            break
        kind = next(steps, None) if len(options) > 1 else next(iter(options))
        if kind is None:
            break
        spec = options[str(kind)]
    return location


def _misfits(text: str, part: KeyPath, tree: Any, locate: Locate) -> Iterator[tuple[KeyPath, str, Origin]]:
    """Path, sentence and origin of each line of a multi-field validator's error, which starts with the key concerned.

    Of the keys that a line names, one from the command line is blamed before one in the file.
    """
    value = reduce(getitem, part, tree)
    for line in text.splitlines():
        key, _, what = line.partition(" ")
        named = [tuple(word.split(".")) for word in line.split() if word.split(".")[0] in value]
        origins = [locate((*part, *steps)) for steps in named or [()]]
        yield (*part, *key.split(".")), escaped(what, 200), min(origins, key=lambda origin: origin.line != 0)


def _explain(error: str, location: _Location, tree: Any) -> tuple[KeyPath, str]:
    """The path and the sentence for a pydantic error of the type `error`."""
    path, spec, field, root = location
    if field is None:
        return path, _unknown(path, spec, root)
    options = parts(field)
    if error == "missing":
        return path, f"missing; {_needed(path, spec, options)}"
    value: Any = reduce(getitem, path, tree)
    if not options:
        return path, _wrong_value(value, spec, str(path[-1]), error)
    kinds = list(options) if len(options) > 1 else _kinds_of_one(next(iter(options.values())))
    if not isinstance(value, Mapping):
        example = f"{{kind: {value}}}" if value in kinds else "its keys below it, or leave it out"
        return path, f"{shown(value)} is not a mapping; write {example}"
    kind = value.get("kind")
    if kind is None:
        return (*path, "kind"), f"missing; {either(kinds)}"
    guess = nearest(kind, kinds) if isinstance(kind, str) else None
    return (*path, "kind"), f"{shown(kind)} is not {either(kinds)}{did_you_mean(guess)}"


def _kinds_of_one(spec: type[Spec]) -> list[str]:
    """The kinds of a field of one spec, where the kind is a plain choice or absent."""
    return choices(spec, "kind") if "kind" in spec.model_fields else []


def _needed(path: KeyPath, spec: type[Spec], options: Mapping[str, type[Spec]]) -> str:
    required = [name for part in options.values() for name, field in part.model_fields.items() if field.is_required()]
    return f"it needs {', '.join(required)}" if options else either(choices(spec, str(path[-1])))


def _unknown(path: KeyPath, spec: type[Spec], root: type[Spec]) -> str:
    others = [kind_of(owner) for owner in owners(path, root)]
    if others:
        have = "has" if len(others) == 1 else "have"
        return f"unknown key for kind {kind_of(spec)}; {' and '.join(others)} {have} it"
    return f"unknown key{suggestion(path, spec, root)}"


def _wrong_value(value: object, spec: type[Spec], name: str, error: str) -> str:
    if error == "finite_number":
        return f"{shown(value)} is not a finite number"
    expected = choices(spec, name)
    what = f"{shown(value)} is not {either(expected)}"
    if any("whole number" in words for words in expected) and isinstance(value, str | float):
        number = plain(str(value).replace("_", "").replace(",", ""))
        if isinstance(number, int) or (isinstance(number, float) and number.is_integer()):
            return f"{what}; write {shown(int(number))}"
    return what + did_you_mean(nearest(value, expected) if isinstance(value, str) else None)


def _without(tree: Any, path: KeyPath, unwanted: set[KeyPath]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _without(value, (*path, key), unwanted) for key, value in tree.items() if (*path, key) not in unwanted}
