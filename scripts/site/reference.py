"""What the reference has from the program: commands, exit codes, keys of recipes, recipes with their drawings."""

import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import typer

from lmtool import _HOMES, errors
from lmtool.cli import app
from lmtool.recipe.load import load, shipped
from lmtool.recipe.spec.recipe import Recipe
from lmtool.report import drawing
from lmtool.report.charts import standalone

MARKER = re.compile(r"<!-- generated: ([a-z ]+) -->")
PICTURE = re.compile(r'<svg class="picture(?! narrow).*?</svg>', re.DOTALL)
PAPER = re.compile(r" ?\(((?:[^()]*?[A-Z][^()]* )?\d{4}[^()]*|[^()]*\b(?:19|20)\d\d)\)")


def filled(markdown: str) -> str:
    """The page with what its markers name. KeyError for a name that is not in MADE."""
    return MARKER.sub(lambda found: "\n" + "\n".join(MADE[found[1]]()), markdown)


def cell(text: Any) -> str:
    """A text as the cell of a table."""
    return " ".join(re.sub(r"([|<\[*_])", r"\\\1", str(text)).split())


# ---- commands


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
            panel = getattr(parameter, "rich_help_panel", None) or (
                "Options" if parameter.opts[0][0] == "-" else "Arguments"
            )
            panels.setdefault(panel, []).append(option(parameter, context))
    for panel, rows in panels.items():
        yield from (f"| {panel} | |", "|---|---|", *rows, "")
    examples = re.findall(r"^`(.*)`", command.epilog or "", flags=re.MULTILINE)
    yield from ("```sh", *examples, "```", "")


def option(parameter: Any, context: Any) -> str:
    """A row of a table: names and what stands for the value, help with the default."""
    names = f"`{getattr(parameter, 'display_name_raw', '')}`"
    if parameter.param_type_name == "option":
        value = (parameter.display_type_rich(ctx=context) or "").strip("<>")
        choices = value.replace("|", ", ")
        is_choice = choices != value and value.islower()
        told = f" One of {cell(choices)}." if is_choice else ""
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        names += "" if is_choice else f" {cell(value)}"
        return f"| {names} | {cell(parameter.help or '')}{told}{default(parameter)} |"
    return f"| {names} | {cell(parameter.help or '')}{default(parameter)} |"


def default(parameter: Any) -> str:
    """The default, where the help does not tell it in words."""
    value = parameter.default
    if not getattr(parameter, "show_default", False) or callable(value) or value in (None, False, (), [], ""):
        return ""
    return f" [default: {cell(getattr(value, 'value', value))}]"


# ---- exit codes


def exit_codes() -> Iterator[str]:
    """The codes of `lmtool/errors.py`, and the words for programs."""
    yield from ("| exit code | error | what it means |", "|---|---|---|", "| 0 | | success |")
    kinds = [errors.LmtoolError, *errors.LmtoolError.__subclasses__()]
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        what = "Something unexpected; `--debug` shows where." if kind is errors.LmtoolError else (kind.__doc__ or "")
        yield f"| {kind.exit_code} | `{kind.__name__}` | {' '.join(what.split())} |"
    words = [word for union in get_args(errors.Code) for word in get_args(union) or [union]]
    yield from ("", "Words of `code` in the records of errors: " + ", ".join(f"`{word}`" for word in words) + ".", "")


# ---- keys of recipes


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
        kind = kinds[name].get("properties", {}).get("kind", {}).get("const")
        if name in told:
            continue
        told.add(name)
        yield from (f"#### `{path}`{f' of kind `{kind}`' if kind else ''}", "", kinds[name].get("description", ""), "")
        own = {key: one for key, one in kinds[name].get("properties", {}).items() if one.get("const") is None}
        yield from table(own, kinds[name], path + ".") if own else ("No further keys.", "")
        for key, below in own.items():
            yield from parts(f"{path}.{key}", below, kinds, told)


def refers(value: Any) -> list[str]:
    """The names of the parts that a schema names."""
    branches = [value, *value.get("oneOf", []), *value.get("anyOf", [])]
    branches += [value["items"]] if isinstance(value.get("items"), dict) else []
    branches += [value["additionalProperties"]] if isinstance(value.get("additionalProperties"), dict) else []
    return [branch["$ref"].rpartition("/")[2] for branch in branches if "$ref" in branch]


def table(properties: dict, schema: dict, path: str) -> Iterator[str]:
    rows = []
    for key, value in properties.items():
        default = "*needed*" if key in schema.get("required", []) else code(value.get("default"))
        said = value.get("description", "")
        papers = "; ".join(PAPER.findall(said))
        rows.append((f"`{path}{key}`", words(value), default, cell(PAPER.sub("", said)), cell(papers)))
    columns = 5 if any(row[4] for row in rows) else 4
    yield from ('<div class="keys" markdown>', "")
    yield "| " + " | ".join(("key", "type", "default", "meaning", "paper")[:columns]) + " |"
    yield "|---" * columns + "|"
    for row in rows:
        yield "| " + " | ".join(row[:columns]) + " |"
    yield from ("", "</div>", "")


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
            return " ".join(["whole number" if kind == "integer" else "number", " and ".join(limits(value))]).strip()
    return {"string": "text", "boolean": "`true`, `false`", "null": "none"}.get(value.get("type", ""), "mapping")


def limits(value: dict) -> Iterator[str]:
    """The limits of a number, but those that all numbers have."""
    names = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    for limit, said in names.items():
        if limit in value and value[limit] < 1e15:
            yield f"{said} {value[limit]:g}"


# ---- recipes and their drawings


def recipes() -> Iterator[str]:
    """A heading for each recipe, what it is, its parts, and the pictures that `drawings` has made of it."""
    for name in shipped():
        recipe = load(name).recipe
        drawn = drawing.draw(recipe, name)
        yield from (f"### {name}", "", f"{recipe.description}. *{drawn.title.partition(': ')[2]}*", "")
        lines = drawing.as_lines(drawn, 100)
        tree = [str(line) for line in lines]
        end = next((i for i, line in enumerate(tree) if line.startswith("FLOPs are")), len(tree) - 1)
        yield from ("<details markdown><summary>Drawing</summary>", "", "```text", *tree[2 : end + 1], "```", "")
        for number, (title, _) in enumerate(pictures(drawn)):
            yield f"![{title}](drawings/{name}-{number}.svg){{ loading=lazy }}"
        yield from ("", "</details>", "")


def pictures(drawn: drawing.Drawing) -> list[tuple[str, str]]:
    """What each picture of a drawing shows, and the picture."""
    found = PICTURE.findall(drawing.as_page(drawn))
    return [(re.search(r'aria-label="([^"]*)"', one)[1], one) for one in found]


def drawings() -> dict[str, str]:
    """The pictures of all recipes, by file."""
    made = {}
    for name in shipped():
        for number, (_, picture) in enumerate(pictures(drawing.draw(load(name).recipe, name))):
            made[f"drawings/{name}-{number}.svg"] = standalone(picture)
    return made


# ---- Python


def python() -> Iterator[str]:
    """The public names, for mkdocstrings."""
    yield from ("::: lmtool.api.TrainedModel", "    options: {inherited_members: true}", "")
    for name, module in _HOMES.items():
        yield from (f"::: {module}.{name}", "")


MADE: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "exit codes": exit_codes,
    "keys": keys,
    "recipes": recipes,
    "python": python,
}
