"""Validates a nested mapping as a Recipe, and says what is wrong with it in plain sentences, all mistakes at once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from lmtool.recipe.document import Mistake, Origin, Path, dotted, escaped, plain, shown
from lmtool.recipe.grammar import choices, did_you_mean, either, kind_of, nearest, owners, parts, suggestion
from lmtool.recipe.spec import Recipe, Spec

Locate = Callable[[Path], Origin]
"""Where the value at a path was written, or the nearest thing to it."""


class _Place(NamedTuple):
    """What a pydantic error is about: a path of the recipe, the spec that holds it, and its field if there is one."""

    path: Path
    spec: type[Spec]
    field: FieldInfo | None


def check(tree: dict[str, Any], locate: Locate) -> tuple[Recipe | None, list[Mistake]]:
    """The recipe that `tree` holds, or None and every mistake in it."""
    try:
        return Recipe.model_validate(tree), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    unknown = [_place(error["loc"]) for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        # Unknown keys keep pydantic from the checks of several fields: look once more without them.
        try:
            Recipe.model_validate(_without(tree, (), {place.path for place in unknown}))
        except ValidationError as invalid:
            errors += [error for error in invalid.errors(include_url=False) if error["type"] == "value_error"]
    meant = {(*place.path[:-1], nearest(str(place.path[-1]), place.spec.model_fields)) for place in unknown}
    mistakes: dict[tuple[Path, str], Mistake] = {}
    for error in errors:
        place = _place(error["loc"])
        if error["type"] == "missing" and place.path in meant:
            continue
        for path, what in _explain(error, place, tree):
            text = f"{dotted(path)}: {what}" if path else what
            mistakes.setdefault((path, text), Mistake(locate(path), text))
    return None, list(mistakes.values())


def _place(loc: Path) -> _Place:
    """Follow a pydantic location through the specs; it also names the kind in a union, and branches of plain values."""
    spec: type[Spec] = Recipe
    place = _Place((), spec, None)
    steps = iter(loc)
    for step in steps:
        field = spec.model_fields.get(str(step))
        place = _Place((*place.path, step), spec, field)
        options = parts(field) if field else {}
        if not options:
            break
        kind = next(steps, None) if len(options) > 1 else next(iter(options))
        if kind is None:
            break
        spec = options[str(kind)]
    return place


def _explain(error: ErrorDetails, place: _Place, tree: Any) -> list[tuple[Path, str]]:
    """The path and the sentence for each mistake that one pydantic error stands for."""
    path, spec, field = place
    if error["type"] == "value_error":
        # Lines of several-field checks start with the key they are about.
        lines = [line.partition(" ") for line in str(error["ctx"]["error"]).splitlines()]
        return [((*path, *key.split(".")), escaped(what, 200)) for key, _, what in lines]
    if field is None:
        return [(path, _unknown(path, spec))]
    options = parts(field)
    if error["type"] == "missing":
        return [(path, f"missing; {_needed(path, spec, options)}")]
    value = tree
    for step in path:
        value = value[step]
    if not options:
        return [(path, _wrong_value(value, spec, str(path[-1]), error["type"]))]
    kinds = list(options) if len(options) > 1 else _kinds_of_one(next(iter(options.values())))
    if not isinstance(value, Mapping):
        example = f"{{kind: {value}}}" if value in kinds else "its keys below it, or leave it out"
        return [(path, f"{shown(value)} is not a mapping; write {example}")]
    kind = value.get("kind")
    if kind is None:
        return [((*path, "kind"), f"missing; {either(kinds)}")]
    guess = nearest(kind, kinds) if isinstance(kind, str) else None
    return [((*path, "kind"), f"{shown(kind)} is not {either(kinds)}{did_you_mean(guess)}")]


def _kinds_of_one(spec: type[Spec]) -> list[str]:
    """The kinds of a part that is one spec, where the kind is an ordinary choice or nothing."""
    return choices(spec, "kind") if "kind" in spec.model_fields else []


def _needed(path: Path, spec: type[Spec], options: Mapping[str, type[Spec]]) -> str:
    required = [name for part in options.values() for name, field in part.model_fields.items() if field.is_required()]
    return f"it needs {', '.join(required)}" if options else either(choices(spec, str(path[-1])))


def _unknown(path: Path, spec: type[Spec]) -> str:
    others = [kind_of(owner) for owner in owners(path)]
    if others:
        have = "has" if len(others) == 1 else "have"
        return f"unknown key for kind {kind_of(spec)}; {' and '.join(others)} {have} it"
    return f"unknown key{suggestion(path, spec)}"


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


def _without(tree: Any, path: Path, unwanted: set[Path]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _without(value, (*path, key), unwanted) for key, value in tree.items() if (*path, key) not in unwanted}
