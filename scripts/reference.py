#!/usr/bin/env python3
"""Writes what docs/ has from the program: commands, exit codes, keys of recipes, recipes with their drawings, Python.

    scripts/reference.py

Each part stands between two comments, <!-- generated: NAME --> and <!-- end: NAME -->, and pictures of recipes are
docs/pictures/recipe-*.svg. tests/test_reference.py compares all of it with the program.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from lmtool import _MODULES_BY_NAME, errors
from lmtool.api import TrainedModel
from lmtool.cli import app
from lmtool.generation.params import CommandLineOption
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES, tables
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report import drawing
from lmtool.report.charts import to_standalone_svg

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("cli.md", "recipe.md", "python.md", "serve.md")
PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
PICTURE = re.compile(r'<svg class="picture(?! narrow).*?</svg>', re.DOTALL)
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
"""Those of a key. Beyond 1e15 are those that all numbers have."""
PAPER = re.compile(r" ?\(((?:[^()]*?[A-Z][^()]* )?\d{4}[^()]*|[^()]*\b(?:19|20)\d\d)\)")


def main() -> None:
    for name in PAGES:
        page = DOCS / name
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    for old in (DOCS / "pictures").glob("recipe-*.svg"):
        old.unlink()
    for picture, file in picture_files().items():
        (DOCS / "pictures" / file).write_text(picture, encoding="utf-8")


def filled(page: str) -> str:
    """The page with its generated parts made anew. KeyError for a name that is not in MADE."""
    return PART.sub(lambda found: found[1] + "\n" + "\n".join(MADE[found[2]]()).strip() + "\n\n" + found[3], page)


def cell(text: Any) -> str:
    """A text as the cell of a table."""
    return " ".join(re.sub(r"([|<\[*_])", r"\\\1", str(text)).split())


def commands(command: Any = None, path: str = "lmtool") -> Iterator[str]:
    """A heading for each command, what it does, its arguments and options as `--help` groups them, and examples."""
    command = command or typer.main.get_command(app)
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")
    if hasattr(command, "commands"):
        return
    context = command.context_class(command, info_name=path)
    yield from (f"### {path}", "", (command.help or "").replace("<", "&lt;"), "")
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if parameter.name != "help":
            usual = "Options" if parameter.opts[0][0] == "-" else "Arguments"
            panel = getattr(parameter, "rich_help_panel", None) or usual
            panels.setdefault(panel, []).append(option(parameter, context))
    for panel, rows in panels.items():
        yield from (f"| {panel} | |", "|---|---|", *rows, "")
    examples = re.findall(r"^`(.*)`", command.epilog or "", flags=re.MULTILINE)
    yield from ("```sh", *examples, "```", "")


def option(parameter: Any, context: Any) -> str:
    """A row of a table: names and what stands for the value, help with the default where it does not tell it itself."""
    names, told = f"`{getattr(parameter, 'display_name_raw', '')}`", ""
    if parameter.param_type_name == "option":
        value = (parameter.display_type_rich(ctx=context) or "").strip("<>")
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if "|" in value and value.islower():
            told = f" One of {cell(value.replace('|', ', '))}."
        else:
            names += f" {cell(value)}"
    default = parameter.default
    if getattr(parameter, "show_default", False) and not callable(default) and default not in (None, False, (), [], ""):
        told += f" [default: {cell(getattr(default, 'value', default))}]"
    return f"| {names} | {cell(parameter.help or '')}{told} |"


def exit_codes() -> Iterator[str]:
    """The codes of `lmtool/errors.py`, and the words for programs."""
    yield from ("| exit code | error | what it means |", "|---|---|---|", "| 0 | | success |")
    kinds = [errors.LmtoolError, *errors.LmtoolError.__subclasses__()]
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        what = "Something unexpected; `--debug` shows where." if kind is errors.LmtoolError else (kind.__doc__ or "")
        yield f"| {kind.exit_code} | `{kind.__name__}` | {' '.join(what.split())} |"
    words = [word for union in get_args(errors.Code) for word in get_args(union) or [union]]
    yield from ("", "Words of `code` in the records of errors: " + ", ".join(f"`{word}`" for word in words) + ".", "")


def keys() -> Iterator[str]:
    """A table of the keys of each part of a recipe, and of each of its kinds."""
    schema = Recipe.model_json_schema()
    kinds, told = schema["$defs"], set[str]()
    plain = {key: value for key, value in schema["properties"].items() if not refers(value)}
    yield from ("### Keys of the recipe itself", "", *table(plain, schema, ""))
    for key, value in schema["properties"].items():
        if refers(value):
            yield from (f"### `{key}`", "", value.get("description", ""), "")
            yield from parts(key, value, kinds, told)


def parts(path: str, value: dict, kinds: dict, told: set[str]) -> Iterator[str]:
    """The kinds that a key may have, and then the parts below it, each once."""
    for name in refers(value):
        if name in told:
            continue
        told.add(name)
        properties = kinds[name].get("properties", {})
        kind = properties.get("kind", {}).get("const")
        yield from (f"#### `{path}`{f' of kind `{kind}`' if kind else ''}", "", kinds[name].get("description", ""), "")
        own = {key: one for key, one in properties.items() if one.get("const") is None}
        yield from table(own, kinds[name], path + ".") if own else ("No further keys.", "")
        for key, below in own.items():
            yield from parts(f"{path}.{key}", below, kinds, told)


def refers(value: dict) -> list[str]:
    """The names of the parts that a schema names."""
    branches = [value, *value.get("oneOf", []), *value.get("anyOf", []), value.get("items")]
    branches.append(value.get("additionalProperties"))
    return [one["$ref"].rpartition("/")[2] for one in branches if isinstance(one, dict) and "$ref" in one]


def table(properties: dict, schema: dict, path: str) -> Iterator[str]:
    rows = [("key", "type", "default", "meaning", "paper")]
    for key, value in properties.items():
        default = "*needed*" if key in schema.get("required", []) else code(value.get("default"))
        said = value.get("description", "")
        papers = "; ".join(PAPER.findall(said))
        rows.append((f"`{path}{key}`", words(value), default, cell(PAPER.sub("", said)), cell(papers)))
    columns = 5 if any(row[4] for row in rows[1:]) else 4
    lines = ["| " + " | ".join(row[:columns]) + " |" for row in rows]
    yield from ('<div class="keys" markdown>', "", lines[0], "|---" * columns + "|", *lines[1:], "", "</div>", "")


def code(value: Any) -> str:
    """A default, as YAML has it; of a part its kind."""
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case dict():
            return f"`{value['kind']}`" if "kind" in value else "see below"
        case [] | "":
            return "empty"
    return f"`{value}`"


def words(value: dict) -> str:
    """The type of a key and the values that it takes."""
    if refers(value):
        kinds = value.get("discriminator", {}).get("mapping", {})
        return "one of " + ", ".join(f"`{kind}`" for kind in kinds) if kinds else "keys of its own"
    if "anyOf" in value:
        return " or ".join(words(branch) for branch in value["anyOf"])
    if "enum" in value or "const" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    match value.get("type"):
        case "array":
            return f"list of {words(value['items'])}" if isinstance(value.get("items"), dict) else "list"
        case "integer" | "number" as kind:
            limits = [f"{said} {value[limit]:g}" for limit, said in LIMITS.items() if value.get(limit, 1e15) < 1e15]
            return " ".join(["whole number" if kind == "integer" else "number", " and ".join(limits)]).strip()
    return {"string": "text", "boolean": "`true`, `false`", "null": "none"}.get(value.get("type", ""), "mapping")


def recipes() -> Iterator[str]:
    """A heading for each recipe, what it is, its parts, and its pictures."""
    for name in shipped_recipes():
        drawn = draw_recipe(name)
        yield from (f"### {name}", "", f"{load(name).recipe.description}. *{drawn.title.partition(': ')[2]}*", "")
        tree = [str(line) for line in drawing.format_model_lines(drawn, 100)]
        end = next((i for i, line in enumerate(tree) if line.startswith("FLOPs are")), len(tree) - 1)
        yield from ("<details markdown><summary>Drawing</summary>", "", "```text", *tree[2 : end + 1], "```", "")
        for picture in draw_pictures(name):
            title = re.search(r'aria-label="([^"]*)"', picture)[1]
            yield f"![{title}](pictures/{picture_files()[picture]})"
        yield from ("", "</details>", "")


@cache
def draw_recipe(name: str) -> Any:
    return drawing.draw_model(load(name).recipe, name)


@cache
def draw_pictures(name: str) -> list[str]:
    """The pictures on the page of a recipe."""
    return [to_standalone_svg(picture) for picture in PICTURE.findall(drawing.render_model_page(draw_recipe(name)))]


@cache
def picture_files() -> dict[str, str]:
    """The file of each picture, named after the first recipe that has it."""
    files: dict[str, str] = {}
    for name in shipped_recipes():
        for number, picture in enumerate(draw_pictures(name)):
            files.setdefault(picture, f"recipe-{name}-{number}.svg")
    return files


def python() -> Iterator[str]:
    """The public names with their signatures and what they are, settings as tables."""
    yield from described(TrainedModel, "lmtool.api.TrainedModel")
    for name, module in _MODULES_BY_NAME.items():
        yield from described(getattr(import_module(module), name), f"lmtool.{name}")


def described(thing: Any, name: str) -> Iterator[str]:
    """A heading, the signature, what it says of itself, and its fields or methods."""
    yield from (f"### {name}", "")
    if inspect.isclass(thing):
        names = [field.name for field in fields(thing)] if is_dataclass(thing) else []
        yield from (*listed(inspect.getdoc(thing) or "", names), "")
        yield from (*table_of_fields(thing), "") if names else ()
        for method, value in inspect.getmembers(thing):
            is_method = inspect.isroutine(value) or isinstance(value, property | cached_property)
            function = getattr(value, "fget", None) or getattr(value, "func", None) or value
            # what scikit-learn hands down to the estimators is on its own pages
            ours = (getattr(function, "__module__", None) or "").startswith("lmtool")
            if is_method and ours and not method.startswith("_") and inspect.getdoc(value):
                yield from (f"#### {method}", "", *of_function(value))
    else:
        yield from of_function(thing)


def of_function(thing: Any) -> Iterator[str]:
    """The signature of a function or method as it is in the source, and its docstring; of a property its type.

    A block named py: those named python are run by tests.
    """
    function = getattr(thing, "fget", None) or getattr(thing, "func", None) or thing
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    returned = ast.unparse(node.returns) if node.returns else ""
    line = f"{node.name}: {returned}"
    if function is thing:
        parts, returned = parameters(node.args), f" -> {returned}" if returned else ""
        line = f"{node.name}({', '.join(parts)}){returned}"
        if len(line) > 100:
            line = f"{node.name}(\n{''.join(f'    {part},' + chr(10) for part in parts)}){returned}"
    names = [one.arg for one in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg) if one]
    yield from ("```py", line, "```", "", *listed(inspect.getdoc(function) or "", names), "")


def parameters(arguments: ast.arguments) -> list[str]:
    """The parameters of a function as they are in the source, without the instance or class."""
    defaults = dict(zip(reversed(arguments.args), reversed(arguments.defaults), strict=False))
    defaults |= dict(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))

    def shown(parameter: ast.arg) -> str:
        """With its default, spaced as PEP 8 has it: `a=1`, `a: int = 1`."""
        default, equals = defaults.get(parameter), " = " if parameter.annotation else "="
        return ast.unparse(parameter) + (f"{equals}{ast.unparse(default)}" if default else "")

    found = [shown(parameter) for parameter in arguments.args if parameter.arg not in ("self", "cls")]
    if arguments.vararg or arguments.kwonlyargs:
        found.append(f"*{ast.unparse(arguments.vararg)}" if arguments.vararg else "*")
    found += map(shown, arguments.kwonlyargs)
    return [*found, *([f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else [])]


def listed(docstring: str, names: list[str]) -> list[str]:
    """A docstring as Markdown: what it says of a parameter or field is an item of a list."""
    one = "|".join(map(re.escape, names)) or "(?!)"
    about = re.compile(rf"(?:^|(?<=[.;] ))((?:{one})(?:, (?:{one}))*)(?=: )")
    lines: list[str] = []
    for paragraph in docstring.split("\n\n"):
        text = about.sub(lambda found: f"\n- `{found[1].replace(', ', '`, `')}`", " ".join(paragraph.split()))
        for sentence in filter(None, map(str.strip, text.split("\n"))):
            lines += [] if sentence.startswith("- ") and lines and lines[-1].startswith("- ") else [""]
            lines.append(sentence.replace("<", "&lt;"))
    return lines[1:]


def table_of_fields(kind: Any) -> Iterator[str]:
    """The fields of a dataclass, with the help of settings."""
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field in fields(kind):
        helps = [part.text for part in get_args(field.type) if isinstance(part, CommandLineOption)]
        said = helps[0] if helps else said_of(kind, field.name)
        default = "*needed*" if field.default is MISSING else f"`{field.default!r}`"
        yield f"| `{field.name}` | {cell(type_name(field.type))} | {default} | {cell(said)} |"


def said_of(kind: Any, name: str) -> str:
    """What the docstring of a dataclass, or of one that it inherits from, says of a field."""
    for one in kind.__mro__:
        names = [field.name for field in fields(one)] if is_dataclass(one) else []
        for line in listed(inspect.cleandoc(one.__dict__.get("__doc__") or ""), names):
            about, _, said = line.partition(": ")
            if f"`{name}`" in about and about.startswith("- "):
                return said
    return ""


def type_name(kind: Any) -> str:
    """A type as a reader knows it."""
    match get_origin(kind):
        case origin if origin is Annotated:
            return type_name(get_args(kind)[0])
        case origin if origin in (Union, UnionType):
            return " or ".join(map(type_name, get_args(kind)))
        case origin if origin is Literal:
            return ", ".join(map(repr, get_args(kind)))
        case None:
            return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
    return str(kind)


def families() -> Iterator[str]:
    """A table of the families of published models, by their files."""
    yield "| `model_type` | family | what all its models have in a recipe | classes | GGUF |"
    yield "|---|---|---|---|---|"
    stored = {family.model_type: family.architecture for family in GGUF_FAMILIES.values()}
    for family in sorted(FAMILIES.values(), key=lambda family: family.shape):
        text = Path(tables.__file__).with_name(f"{family.model_type}.yaml").read_text(encoding="utf-8")
        about = re.sub("^# ?", "", re.match(r"(#.*\n)*", text)[0], flags=re.MULTILINE)
        fixed = {"shape": family.shape, **family.fixed}
        values = ", ".join(f"`{key}: {str(value).lower()}`" for key, value in fixed.items())
        classes = ", ".join(f"{family.class_prefix}{head.class_suffix}" for head in family.heads.values())
        yield f"| {family.model_type} | {cell(about)} | {values} | {classes} | {stored.get(family.model_type, '')} |"


PARTS = (commands, exit_codes, keys, recipes, python, families)
MADE: dict[str, Callable[[], Iterator[str]]] = {part.__name__.replace("_", " "): part for part in PARTS}


if __name__ == "__main__":
    main()
