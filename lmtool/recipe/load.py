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
from lmtool import durable
from lmtool.errors import RecipeError, ResourceError, UsageError
from lmtool.recipe.check import check
from lmtool.recipe.document import Document, KeyPath, Mistake, Origin, dotted, escaped, parse, plain, shown
from lmtool.recipe.dump import leaves
from lmtool.recipe.grammar import chosen, did_you_mean, either, keys, kind_of, nearest, owners, parts, value_at
from lmtool.recipe.spec.base import Spec, Strings
from lmtool.recipe.spec.recipe import Recipe

LARGEST_FILE = 1_000_000
"""Bytes; a recipe has some fifty lines, so a larger file is not one."""

_RELATIVE = re.compile(r"\+[0-9.].*")


@dataclass(frozen=True)
class Setting:
    """One value from the command line: `key` is dotted, `flag` is as typed.

    adds: to the number that is there. mistake: why it sets nothing.
    """

    key: str
    value: object
    flag: str
    adds: bool = False
    mistake: str = ""


@dataclass(frozen=True)
class Resolved:
    """A recipe with all its values, and their origins.

    name: the recipe's name, for naming runs.
    origins: for each dotted key "default", "FILE:LINE", or the argument of the command line.
    inferred: a line for each choice that follows from the data.
    """

    recipe: Recipe
    name: str
    origins: Mapping[str, str]
    inferred: tuple[str, ...] = ()


def bundled(name: str) -> Path:
    """A folder of what comes with lmtool: inside an installed package, or in the checkout."""
    package = Path(lmtool.__file__).parent
    installed = package / "_bundled" / name
    return installed if installed.is_dir() else package.parent / name


def shipped() -> dict[str, Path]:
    """The files of the recipes that come with lmtool, by name."""
    return {file.stem: file for file in sorted(bundled("recipes").glob("*.yaml"))}


def near(name: str | Path) -> list[str]:
    """The shipped recipes with names like this one, or like that of this file."""
    return get_close_matches(Path(name).stem, shipped(), n=2)


def find(name: str | Path) -> Path:
    """The file of a recipe, given the name of a shipped one or a path.

    Raises: UsageError, with the nearest names, when there is none.
    """
    known = shipped()
    if str(name) in known:
        return known[str(name)]
    path = Path(name)
    try:
        if path.is_file():
            return path
        if path.is_dir():
            what = f"{shown(str(name))} is a folder, not a recipe"
            raise UsageError(what, fix="give a YAML file or a shipped recipe")
        beside = {file.stem: file for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")}
    except OSError:  # a folder that is missing or not readable, or a name too long for a file
        beside = {}
    alike = near(path)
    files = [escaped(str(beside[file]), 200) for file in get_close_matches(path.stem, beside, n=2)]
    fix = f"did you mean {either(alike + files)}?" if alike or files else "give one of these, or a YAML file"
    raise UsageError(f"there is no recipe {shown(str(name))}", where=f"shipped recipes: {', '.join(known)}", fix=fix)


Assignments = Sequence[str | Setting]
"""`KEY=VALUE` texts, or settings that `settings_of` made of them."""


def settings_of(overrides: Assignments, flags: Sequence[Setting] = ()) -> list[Setting]:
    """The settings of `KEY=VALUE` texts, of which a mapping sets each of its keys alone; then the flags."""
    parsed = (_parsed(one) if isinstance(one, str) else [one] for one in overrides)
    return [*chain.from_iterable(parsed), *flags]


def check_settings(settings: Sequence[Setting]) -> None:
    """Raise RecipeError for settings that are wrong whatever recipe they are laid over, such as unknown keys."""
    if mistakes := [f"{one.flag}: {one.mistake}" for one in settings if one.mistake]:
        raise RecipeError(mistakes)


def load(name: str | Path, settings: Assignments = (), *, chosen: Sequence[Setting] = ()) -> Resolved:
    """Read a recipe and apply settings, the later over the earlier.

    name: a shipped recipe or a path. settings: in texts VALUE is YAML; `KEY=+N` adds to a number.
    chosen: values that follow from the data, in place of the recipe's.
    Raises: UsageError when there is no such recipe; RecipeError with one line for each mistake in it.
    """
    file, source, document = _opened(name)
    _find_beside(document.value, file.parent)
    return _laid_over(document, source, file.stem, settings_of(settings), chosen)


def written(name: str | Path, path: KeyPath) -> object:
    """What the file of a recipe has there; None for nothing. Raises as `load` does."""
    return value_at(_opened(name)[2].value, path)


def load_of_run(path: Path) -> Recipe:
    """The recipe.yaml of a run, as it was written. Raises as `load` does."""
    _, source, document = _opened(path)
    return _laid_over(document, source, path.stem, ()).recipe


def _opened(name: str | Path) -> tuple[Path, str, Document]:
    """The file of a recipe, what errors call it, and its content, a mapping."""
    file = find(name)
    source = file.name if str(name) in shipped() else escaped(str(name), 200)
    document = copy.deepcopy(_parse_file(_read(file, source), source))
    if document.mistakes and document.value is None:
        raise RecipeError([str(mistake) for mistake in document.mistakes])
    if not isinstance(document.value, dict):
        # Its content is not quoted: the name may lead to any file that the user can read.
        what = "is empty" if document.value is None else f"holds {_KINDS[type(document.value)]}"
        raise RecipeError([f"{source}: {what}; a recipe is a mapping of keys such as model and training"])
    return file, source, document


@lru_cache(maxsize=8)
def _parse_file(text: str, source: str) -> Document:
    """A command resolves a recipe before and after it knows its data; the document is not to be changed."""
    return parse(text, source)


def _find_beside(tree: dict[str, Any], folder: Path) -> None:
    """Let the tokenizer that lies beside a recipe, as in a run, be found from elsewhere."""
    tokenizer = tree.get("tokenizer")
    path = tokenizer.get("path") if isinstance(tokenizer, dict) else None
    if isinstance(tokenizer, dict) and isinstance(path, str) and not os.path.exists(path):
        beside = os.path.join(folder, path)
        tokenizer["path"] = beside if os.path.exists(beside) else path


def lay_over(recipe: Recipe, source: str, name: str, settings: Sequence[Setting]) -> Resolved:
    """`load` for a recipe that is already parsed. source: its name in messages. name: the recipe's."""
    origins = {path: Origin(source, -1) for path, _ in leaves(recipe)}
    return _laid_over(Document(recipe.model_dump(mode="json"), origins), source, name, settings)


def _laid_over(
    document: Document, source: str, name: str, settings: Sequence[Setting], chosen: Sequence[Setting] = ()
) -> Resolved:
    layers = _Layers(document.value, document.origins, source)
    layers.write(chosen)
    for setting in settings:
        layers.apply(setting)
    _fill_kinds(layers.tree, Recipe)
    recipe, mistakes = check(layers.tree, layers.nearest_origin, Recipe)
    mistakes += document.mistakes + layers.mistakes
    mistakes.sort(key=lambda mistake: (mistake.origin.source != source, mistake.origin))
    if recipe is None or mistakes:
        raise RecipeError(list(dict.fromkeys(str(mistake) for mistake in mistakes)))
    origins = {dotted(path): str(layers.origin(path) or "default") for path, _ in leaves(recipe)}
    return Resolved(recipe, name, origins)


_KINDS: Mapping[type, str] = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
"""What the whole of a file may be instead of a mapping."""


def _read(file: Path, source: str) -> str:
    try:
        return durable.read(file, LARGEST_FILE).decode("utf-8-sig")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise RecipeError([f"{source}: {error.strerror}; a recipe is a short YAML file"]) from error
        raise ResourceError(f"cannot read the recipe: {error.strerror}", where=source) from error
    except UnicodeDecodeError as error:
        raise RecipeError([f"{source}: byte {error.start} is not UTF-8; a recipe is YAML text"]) from error


_BUDGETS = ("epochs", "min_steps", "tokens", "minutes")

GIVES_WAY: Mapping[KeyPath, tuple[KeyPath, ...]] = {
    **{
        ("training", key): tuple(("training", other) for other in _BUDGETS if other != key)
        for key in ("steps", "epochs", "tokens", "minutes")
    },
    ("evaluation", "every"): (("evaluation", "epochs"),),
}
"""Keys of a recipe that would overrule a key set on the command line, and are dropped unless they are set there too."""


class _Layers:
    """The nested mapping of a recipe while overrides are applied, and the origins of its values."""

    def __init__(self, tree: dict[str, Any], origins: dict[KeyPath, Origin], source: str) -> None:
        self.tree = tree
        self.mistakes: list[Mistake] = []
        self._written = origins
        self._set: dict[KeyPath, Origin] = {}
        self._source = source

    def origin(self, path: KeyPath) -> Origin | None:
        """Origin of the value at `path`, alone or inside a value from the command line; None for a default."""
        outer = next((self._set[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._set), None)
        return outer or self._written.get(path)

    def nearest_origin(self, path: KeyPath) -> Origin:
        """Where to fix a mistake at `path`: the value, a key set below it, the kind that requires it, or its parent."""
        below = next((origin for key, origin in self._set.items() if key[: len(path)] == path), None)
        if below and not self.origin(path):
            return below
        for n in range(len(path), 0, -1):
            origin = self.origin(path[:n]) or self._set.get((*path[: n - 1], "kind"))
            if origin:
                return origin
        return Origin(self._source, 1)

    def write(self, settings: Sequence[Setting]) -> None:
        """Write values as if the recipe had them."""
        for setting in settings:
            self.set(tuple(setting.key.split(".")), setting.value, Origin(setting.flag))
        self._written |= self._set
        self._set.clear()

    def apply(self, setting: Setting) -> None:
        """Apply a setting of the command line, or note its mistake."""
        path, value, origin = tuple(setting.key.split(".")), setting.value, Origin(setting.flag)
        mistake = setting.mistake
        if setting.adds:
            before = value_at(self.tree, path)
            if isinstance(before, bool) or not isinstance(before, int | float):
                mistake = f"{setting.key}: +{value} adds to a number, and this is {shown(before)}"
            else:
                assert isinstance(value, int | float)
                value += before
        if mistake:
            self.mistakes.append(Mistake(origin, mistake))
        else:
            self.set(path, value, origin)

    def set(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Set a value at `path`. Changing the kind of a part drops keys of the recipe that the new kind lacks."""
        part: Any = self.tree
        for step in path[:-1]:
            if part.get(step) is None:
                part[step] = {}
            part = part[step]
            if not isinstance(part, dict):
                return  # a plain value here is reported as a mistake of its own
        if value == {} and isinstance(part.get(path[-1]), dict) and any(map(parts, _fields(path))):
            return  # it has no key to set
        if path[-1] == "kind":
            spec = next((owner for owner in owners(path) if kind_of(owner) == value), None)
            for key in [key for key in part if spec and key not in spec.model_fields]:
                sibling = (*path[:-1], key)
                if owners(sibling) and not any(other[: len(path)] == sibling for other in self._set):
                    del part[key]
        part[path[-1]] = value
        if value is not None:
            for other in GIVES_WAY.get(path, ()):
                if other not in self._set:
                    self._written.pop(other, None)
                    self.tree.get(str(other[0]), {}).pop(other[-1], None)
        for origins in (self._written, self._set):
            for other in [other for other in origins if other[: len(path)] == path]:
                del origins[other]
        self._set[path] = origin


def _parsed(argument: str) -> Iterator[Setting]:
    """The settings of a `KEY=VALUE` text."""
    flag = f"-s {escaped(argument)}"
    key, equals, text = argument.partition("=")
    if key.endswith(" "):  # `KEY = TEXT`, whose spaces are around the sign
        text = text.strip()
    key = key.strip()
    path: KeyPath = tuple(key.split("."))
    if not equals or not key:
        yield Setting("", None, flag, mistake="write KEY=VALUE, such as training.steps=500")
    elif not _fields(path):
        yield Setting(key, None, flag, mistake=f"unknown key{_nearest_key(path)}")
    elif _holds_text(path) and not (text.strip() == "null" and _holds_null(path)):
        yield Setting(key, _text_value(text), flag)
    elif _RELATIVE.fullmatch(text.strip()) and isinstance(addend := plain(text.strip()), int | float):
        yield Setting(key, addend, flag, adds=True)
    elif mistakes := (document := parse(text, flag)).mistakes:
        yield from (Setting(key, None, flag, mistake=mistake.what) for mistake in mistakes)
    else:
        yield from _of_keys(path, document.value, flag)


def _of_keys(path: KeyPath, value: object, flag: str) -> Iterator[Setting]:
    """The settings of a value, of which a part of the recipe sets each key that it has, its kind first."""
    fields = _fields(path)
    if not fields:
        yield Setting(dotted(path), None, flag, mistake=f"{dotted(path)}: unknown key{_nearest_key(path)}")
    elif isinstance(value, dict) and value and any(map(parts, fields)):
        for key in sorted(value, key=lambda key: key != "kind"):
            yield from _of_keys((*path, *key.split(".")), value[key], flag)
    else:
        yield Setting(dotted(path), value, flag)


def _fields(path: KeyPath) -> list[FieldInfo]:
    """The fields at a path, of every kind along it; none for an unknown key."""
    return [owner.model_fields[str(path[-1])] for owner in owners(path)]


def _holds_text(path: KeyPath) -> bool:
    """Whether the value at `path` is a text or a list of texts, which need no quotes on the command line."""
    return _holds_null(path) or any(field.annotation in (str, tuple[str, ...]) for field in _fields(path))


def _holds_null(path: KeyPath) -> bool:
    """Whether the value at `path` is a text, a list of texts, or null."""
    return any(field.annotation in (str | None, Strings | None) for field in _fields(path))


def _text_value(text: str) -> object:
    """A list or a quoted text if `text` is one in YAML, else `text` verbatim: `ROMEO:` is not a mapping here."""
    if text.startswith(("[", '"', "'")):
        document = parse(text, "")
        if not document.mistakes and isinstance(document.value, str | list):
            return document.value
    return text


def _nearest_key(path: KeyPath) -> str:
    """The end of a message on an unknown dotted key: `steps` alone and `training.stpes` both mean training.steps."""
    known = list(dict.fromkeys(keys(Recipe)))
    alike = [key for key in known if key.split(".")[-1] == path[-1]]
    guess = nearest(dotted(path), alike or known)
    return did_you_mean(guess) if guess else did_you_mean(*alike[:3])


def _fill_kinds(tree: object, spec: type[Spec]) -> None:
    """Write the default kind into each part that gives none."""
    if not isinstance(tree, dict):
        return
    for name, field in spec.model_fields.items():
        part = chosen(field, tree.get(name)) if parts(field) else None
        if part is None or not isinstance(tree.get(name), dict):
            continue
        if len(parts(field)) > 1:
            tree[name].setdefault("kind", kind_of(part))
        _fill_kinds(tree[name], part)
