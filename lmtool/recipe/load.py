"""Finds a recipe by name or path, applies the command line's overrides, and returns the Recipe or all its mistakes.

Precedence: defaults, then the recipe, then `-s KEY=VALUE` in order, then flags.
"""

import copy
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

import lmtool
from lmtool.errors import RecipeError, ResourceError, UsageError
from lmtool.recipe.check import validate
from lmtool.recipe.document import (
    KeyPath,
    Mistake,
    Origin,
    ParsedYaml,
    dotted_key,
    format_value_for_message,
    parse_plain_scalar,
    parse_yaml,
    shorten,
)
from lmtool.recipe.dump import iterate_values
from lmtool.recipe.grammar import (
    choose_spec_or_default,
    did_you_mean,
    find_nearest,
    get_value_or_default,
    iterate_dotted_keys,
    join_with_or,
    spec_kind,
    specs_by_kind,
    specs_with_key,
)
from lmtool.recipe.spec.base import Spec, Strings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.storage import durable

MAX_RECIPE_BYTES = 1_000_000
"""A recipe has some fifty lines, so a larger file is not one."""

_RELATIVE = re.compile(r"\+[0-9.].*")


@dataclass(frozen=True)
class Setting:
    """A value from the command line: `key` is dotted, `flag` is as typed.

    adds: whether it is added to the number in the recipe. mistake: why it sets nothing.
    """

    key: str
    value: object
    flag: str
    adds: bool = False
    mistake: str = ""


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe with all its values, and their origins.

    name: of the recipe, for the names of runs.
    origins: for each dotted key "default", "FILE:LINE", or the argument of the command line.
    inferred: a line for each choice that follows from the data.
    """

    recipe: Recipe
    name: str
    origins: Mapping[str, str]
    inferred: tuple[str, ...] = ()


def find_bundled_folder(name: str) -> Path:
    """Returns a folder that comes with lmtool, in the installed package or in the checkout."""
    package = Path(lmtool.__file__).parent
    installed = package / "_bundled" / name
    return installed if installed.is_dir() else package.parent / name


def shipped_recipes() -> dict[str, Path]:
    """Returns the files of the recipes that come with lmtool, by name."""
    return {file.stem: file for file in sorted(find_bundled_folder("recipes").glob("*.yaml"))}


def find_similar_recipes(name: str | Path) -> list[str]:
    """Returns the shipped recipes whose names are similar to this name or file name."""
    return get_close_matches(Path(name).stem, shipped_recipes(), n=2)


def find_recipe(name: str | Path) -> Path:
    """Finds the file of a recipe by the name of a shipped one or a path. Raises UsageError with similar names."""
    known = shipped_recipes()
    if str(name) in known:
        return known[str(name)]
    path = Path(name)
    try:
        if path.is_file():
            return path
        if path.is_dir():
            what = f"{format_value_for_message(str(name))} is a folder, not a recipe"
            raise UsageError(what, fix="give a YAML file or a shipped recipe")
        beside = {file.stem: file for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")}
    except OSError:  # a folder that is missing or not readable, or a name too long for a file
        beside = {}
    alike = find_similar_recipes(path)
    files = [shorten(str(beside[file]), 200) for file in get_close_matches(path.stem, beside, n=2)]
    fix = f"did you mean {join_with_or(alike + files)}?" if alike or files else "give one of these, or a YAML file"
    raise UsageError(
        f"there is no recipe {format_value_for_message(str(name))}",
        where=f"shipped recipes: {', '.join(known)}",
        fix=fix,
    )


Assignments = Sequence[str | Setting]
"""`KEY=VALUE` texts, or the settings that `parse_settings` returns."""


def parse_settings(overrides: Assignments, flags: Sequence[Setting] = ()) -> list[Setting]:
    """Parses `KEY=VALUE` texts, of which a mapping sets each of its keys; appends `flags`."""
    parsed = (_parse_settings_collecting_mistakes(one) if isinstance(one, str) else [one] for one in overrides)
    return [*chain.from_iterable(parsed), *flags]


def check_settings(settings: Sequence[Setting]) -> None:
    """Raises RecipeError for settings that are wrong for every recipe, such as unknown keys."""
    if mistakes := [f"{one.flag}: {one.mistake}" for one in settings if one.mistake]:
        raise RecipeError(mistakes)


def load(name: str | Path, settings: Assignments = (), *, inferred: Sequence[Setting] = ()) -> ResolvedRecipe:
    """Loads a recipe and applies settings in order.

    name: a shipped recipe or a path. settings: in texts VALUE is YAML; `KEY=+N` adds to a number.
    inferred: values inferred from the data, which replace those of the recipe.
    Raises UsageError when there is no such recipe; RecipeError with one line for each mistake in it.
    """
    file, source, document = _read_recipe_file(name)
    tokenizer = document.value.get("tokenizer")
    path = tokenizer.get("path") if isinstance(tokenizer, dict) else None
    if isinstance(tokenizer, dict) and isinstance(path, str) and not os.path.exists(path):
        # a path that is relative to the recipe's folder, as in a run, is valid from elsewhere
        beside = os.path.join(file.parent, path)
        tokenizer["path"] = beside if os.path.exists(beside) else path
    return _resolve_document(document, source, file.stem, parse_settings(settings), inferred)


def read_recipe_value(name: str | Path, path: KeyPath) -> object:
    """Returns the value at a path in the file of a recipe, or None. Raises as `load` does."""
    return get_value_or_default(_read_recipe_file(name)[2].value, path)


def load_run_recipe(path: Path) -> Recipe:
    """Loads the recipe.yaml of a run. Raises as `load` does."""
    _, source, document = _read_recipe_file(path)
    return _resolve_document(document, source, path.stem, ()).recipe


def _read_recipe_file(name: str | Path) -> tuple[Path, str, ParsedYaml]:
    """Returns the file of a recipe, its name in messages, and its content, a mapping."""
    file = find_recipe(name)
    source = file.name if str(name) in shipped_recipes() else shorten(str(name), 200)
    try:
        text = durable.read_file(file, MAX_RECIPE_BYTES).decode("utf-8-sig")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise RecipeError([f"{source}: {error.strerror}; a recipe is a short YAML file"]) from error
        raise ResourceError(f"cannot read the recipe: {error.strerror}", where=source) from error
    except UnicodeDecodeError as error:
        raise RecipeError([f"{source}: byte {error.start} is not UTF-8; a recipe is YAML text"]) from error
    document = copy.deepcopy(_parse_file(text, source))
    if document.mistakes and document.value is None:
        raise RecipeError([str(mistake) for mistake in document.mistakes])
    if not isinstance(document.value, dict):
        # Does not quote the content, because the name may be that of any file.
        what = "is empty" if document.value is None else f"holds {_TYPE_NAMES[type(document.value)]}"
        raise RecipeError([f"{source}: {what}; a recipe is a mapping of keys such as model and training"])
    return file, source, document


@lru_cache(maxsize=8)
def _parse_file(text: str, source: str) -> ParsedYaml:
    """Caches the document, because a command resolves a recipe before and after it knows its data."""
    return parse_yaml(text, source)


def apply_settings(recipe: Recipe, source: str, name: str, settings: Sequence[Setting]) -> ResolvedRecipe:
    """Applies settings to a recipe. source: its name in messages. name: its name in runs."""
    origins = {path: Origin(source, -1) for path, _ in iterate_values(recipe)}
    return _resolve_document(ParsedYaml(recipe.model_dump(mode="json"), origins), source, name, settings)


def _resolve_document(
    document: ParsedYaml, source: str, name: str, settings: Sequence[Setting], inferred: Sequence[Setting] = ()
) -> ResolvedRecipe:
    editor = _RecipeEditor(document.value, document.origins, source)
    editor.apply_as_if_in_recipe(inferred)
    for setting in settings:
        editor.apply_setting_or_record_mistake(setting)
    _fill_default_kinds(editor.tree, Recipe)
    recipe, mistakes = validate(editor.tree, editor.nearest_origin, Recipe)
    mistakes += document.mistakes + editor.mistakes
    mistakes.sort(key=lambda mistake: (mistake.origin.source != source, mistake.origin))
    if recipe is None or mistakes:
        raise RecipeError(list(dict.fromkeys(str(mistake) for mistake in mistakes)))
    origins = {dotted_key(path): str(editor.origin(path) or "default") for path, _ in iterate_values(recipe)}
    return ResolvedRecipe(recipe, name, origins)


_TYPE_NAMES: Mapping[type, str] = {
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}
"""Names of file contents that are no mapping."""


_BUDGETS = ("epochs", "min_steps", "tokens", "minutes")

OVERRULED_KEYS: Mapping[KeyPath, tuple[KeyPath, ...]] = {
    **{
        ("training", key): tuple(("training", other) for other in _BUDGETS if other != key)
        for key in ("steps", "epochs", "tokens", "minutes")
    },
    ("evaluation", "every"): (("evaluation", "epochs"),),
}
"""Keys of a recipe that a key set on the command line overrules, unless they are set there too."""


class _RecipeEditor:
    """Applies settings to the nested mapping of a recipe, and keeps the origins of its values."""

    def __init__(self, tree: dict[str, Any], origins: dict[KeyPath, Origin], source: str) -> None:
        self.tree = tree
        self.mistakes: list[Mistake] = []
        self._written = origins
        self._overrides: dict[KeyPath, Origin] = {}
        self._source = source

    def origin(self, path: KeyPath) -> Origin | None:
        """Returns the origin of the value at `path`, or of a command-line value around it; None for a default."""
        outer = next((self._overrides[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._overrides), None)
        return outer or self._written.get(path)

    def nearest_origin(self, path: KeyPath) -> Origin:
        """Returns the origin of the value to fix for a mistake at `path`, or of a key below, its kind or its parent."""
        below = next((origin for key, origin in self._overrides.items() if key[: len(path)] == path), None)
        if below and not self.origin(path):
            return below
        for n in range(len(path), 0, -1):
            origin = self.origin(path[:n]) or self._overrides.get((*path[: n - 1], "kind"))
            if origin:
                return origin
        return Origin(self._source, 1)

    def apply_as_if_in_recipe(self, settings: Sequence[Setting]) -> None:
        """Sets values as if the recipe had them."""
        for setting in settings:
            self.set_value_and_drop_conflicts(tuple(setting.key.split(".")), setting.value, Origin(setting.flag))
        self._written |= self._overrides
        self._overrides.clear()

    def apply_setting_or_record_mistake(self, setting: Setting) -> None:
        """Applies a setting of the command line, or records its mistake."""
        path, value, origin = tuple(setting.key.split(".")), setting.value, Origin(setting.flag)
        mistake = setting.mistake
        if setting.adds:
            before = get_value_or_default(self.tree, path)
            if isinstance(before, bool) or not isinstance(before, int | float):
                mistake = f"{setting.key}: +{value} adds to a number, and this is {format_value_for_message(before)}"
            else:
                assert isinstance(value, int | float)
                value += before
        if mistake:
            self.mistakes.append(Mistake(origin, mistake))
        else:
            self.set_value_and_drop_conflicts(path, value, origin)

    def set_value_and_drop_conflicts(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Sets a value at `path`. A change of the kind of a part drops keys that the new kind does not have."""
        part: Any = self.tree
        for step in path[:-1]:
            if part.get(step) is None:
                part[step] = {}
            part = part[step]
            if not isinstance(part, dict):
                return  # the plain value here is a mistake of its own
        if value == {} and isinstance(part.get(path[-1]), dict) and any(map(specs_by_kind, _find_fields(path))):
            return  # it has no key to set
        if path[-1] == "kind":
            spec = next((owner for owner in specs_with_key(path) if spec_kind(owner) == value), None)
            for key in [key for key in part if spec and key not in spec.model_fields]:
                sibling = (*path[:-1], key)
                if specs_with_key(sibling) and not any(other[: len(path)] == sibling for other in self._overrides):
                    del part[key]
        part[path[-1]] = value
        if value is not None:
            for other in OVERRULED_KEYS.get(path, ()):
                if other not in self._overrides:
                    self._written.pop(other, None)
                    self.tree.get(str(other[0]), {}).pop(other[-1], None)
        for origins in (self._written, self._overrides):
            for other in [other for other in origins if other[: len(path)] == path]:
                del origins[other]
        self._overrides[path] = origin


def _parse_settings_collecting_mistakes(argument: str) -> Iterator[Setting]:
    """Yields the settings of a `KEY=VALUE` text."""
    flag = f"-s {shorten(argument)}"
    key, equals, text = argument.partition("=")
    if key.endswith(" "):  # `KEY = TEXT`, whose spaces are around the sign
        text = text.strip()
    key = key.strip()
    path: KeyPath = tuple(key.split("."))
    types = [field.annotation for field in _find_fields(path)]
    accepts_null = any(one in (str | None, Strings | None) for one in types)
    needs_no_quotes = accepts_null or any(one in (str, tuple[str, ...]) for one in types)
    if not equals or not key:
        yield Setting("", None, flag, mistake="write KEY=VALUE, such as training.steps=500")
    elif not types:
        yield Setting(key, None, flag, mistake=f"unknown key{_format_suggestion_for_unknown_key(path)}")
    elif needs_no_quotes and not (accepts_null and text.strip() == "null"):
        # only a list or quoted text is YAML here: `ROMEO:` is not a mapping
        document = parse_yaml(text, "") if text.startswith(("[", '"', "'")) else ParsedYaml()
        is_yaml = not document.mistakes and isinstance(document.value, str | list)
        yield Setting(key, document.value if is_yaml else text, flag)
    elif _RELATIVE.fullmatch(text.strip()) and isinstance(addend := parse_plain_scalar(text.strip()), int | float):
        yield Setting(key, addend, flag, adds=True)
    elif mistakes := (document := parse_yaml(text, flag)).mistakes:
        yield from (Setting(key, None, flag, mistake=mistake.what) for mistake in mistakes)
    else:
        yield from _split_setting(path, document.value, flag)


def _split_setting(path: KeyPath, value: object, flag: str) -> Iterator[Setting]:
    """Yields the settings of a value; a part of the recipe sets each of its keys, its kind first."""
    fields = _find_fields(path)
    if not fields:
        mistake = f"{dotted_key(path)}: unknown key{_format_suggestion_for_unknown_key(path)}"
        yield Setting(dotted_key(path), None, flag, mistake=mistake)
    elif isinstance(value, dict) and value and any(map(specs_by_kind, fields)):
        for key in sorted(value, key=lambda key: key != "kind"):
            yield from _split_setting((*path, *key.split(".")), value[key], flag)
    else:
        yield Setting(dotted_key(path), value, flag)


def _find_fields(path: KeyPath) -> list[FieldInfo]:
    """Returns the fields at a path, of every kind along it; none for an unknown key."""
    return [owner.model_fields[str(path[-1])] for owner in specs_with_key(path)]


def _format_suggestion_for_unknown_key(path: KeyPath) -> str:
    """Suggests a key for an unknown one: `steps` and `training.stpes` both mean training.steps."""
    known = list(dict.fromkeys(iterate_dotted_keys(Recipe)))
    alike = [key for key in known if key.split(".")[-1] == path[-1]]
    guess = find_nearest(dotted_key(path), alike or known)
    return did_you_mean(guess) if guess else did_you_mean(*alike[:3])


def _fill_default_kinds(tree: object, spec: type[Spec]) -> None:
    """Sets the default kind of each part without a kind."""
    if not isinstance(tree, dict):
        return
    for name, field in spec.model_fields.items():
        part = choose_spec_or_default(field, tree.get(name)) if specs_by_kind(field) else None
        if part is None or not isinstance(tree.get(name), dict):
            continue
        if len(specs_by_kind(field)) > 1:
            tree[name].setdefault("kind", spec_kind(part))
        _fill_default_kinds(tree[name], part)
