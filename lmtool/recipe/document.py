"""Parses YAML 1.2 for recipes: core-schema numbers and booleans, unique keys, and the line of every key."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from lmtool import printable

KeyPath = tuple[str | int, ...]
"""Path of a value: keys, and indices into lists."""

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_PLAIN_SCALARS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}

_PLAIN = "plain"  # stand-in for the tag of an untagged plain scalar
_TEXT = "tag:yaml.org,2002:str"
_LIST = "tag:yaml.org,2002:seq"
_MAPPING = "tag:yaml.org,2002:map"

# Prefixes of PyYAML's messages, and the messages that replace them.
_IN_OTHER_WORDS = {
    "mapping values are not allowed": "a ':' where none can be; quote the text that holds it",
    "could not find expected ':'": "this key has no ':'",
    "found character '\\t'": "a tab; indent with spaces",
    "found character": "a character that cannot start a value; quote the text",
    "expected <block end>": "the indentation does not fit the lines above",
    "expected ',' or ']'": "a list that [ opened is not closed",
    "expected ',' or '}'": "a mapping that { opened is not closed",
    "found unexpected end of stream": "a quote is not closed",
    "but found another document": "a second document; a recipe is one",
}
# For these, report PyYAML's second mark: where the key, bracket or quote begins.
_UNCLOSED = ("could not find expected ':'", "expected ',' or", "found unexpected end of stream")

_BEYOND_UNICODE = re.compile(r"\\U(?!000|0010)[0-9a-fA-F]{8}")


@dataclass(frozen=True, order=True)
class Origin:
    """Where a value is from: the file and line, -1 if unknown, or the argument of the command line, with line 0."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.source, *(str(number) for number in (self.line, self.column) if number > 0)])


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake and its location."""

    origin: Origin
    what: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.what}"


@dataclass
class ParsedYaml:
    """The value of a YAML text, the origin of each key and list item, and its syntax errors."""

    value: Any = None
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def shorten(text: str, limit: int = 60) -> str:
    """Escapes control characters of a text, and shortens it to `limit` characters."""
    return printable.printable(text if len(text) <= limit else text[: limit - 3] + "...")


def format_value_for_message(value: object) -> str:
    """Formats a value as YAML for messages, escaped and shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"'{shorten(value)}'"
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    return shorten(repr(value))


def parse_plain_scalar(text: str) -> str | int | float | bool | None:
    """Parses a plain scalar of YAML 1.2 (core schema): `1e-3` is a number; `on`, `1_000` and `1:30` are text."""
    if text in _PLAIN_SCALARS:
        return _PLAIN_SCALARS[text]
    try:
        for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
            if pattern.fullmatch(text):
                return int(text if base == 10 else text[2:], base)
    except ValueError:  # more digits than Python parses
        return text
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float("-inf" if text.startswith("-") else "inf")
    return text


class _Yaml12Loader(yaml.SafeLoader):
    """PyYAML's parser without the YAML 1.1 resolution of scalars, and without aliases."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT
        return _LIST if kind is yaml.SequenceNode else _MAPPING

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # untyped in types-PyYAML
            raise yaml.MarkedYAMLError(problem="an alias; write the value itself", problem_mark=mark)
        return super().compose_node(parent, index)


def parse_yaml(text: str, source: str) -> ParsedYaml:
    """Parses one YAML document.

    source: the name in origins: a file, or a command-line argument, which has no lines.
    Text that is not YAML gives one mistake with line and column. A duplicate key gives a mistake and keeps its first
    value, so that the rest can still be checked.
    """
    document = ParsedYaml()
    try:
        root = yaml.compose(text, Loader=_Yaml12Loader)
        if root is not None:
            document.value = _construct_value_collecting_mistakes(root, (), document, source)
    except yaml.MarkedYAMLError as error:
        unclosed = (error.problem or "").startswith(_UNCLOSED)
        mark = error.context_mark if unclosed else error.problem_mark
        problem = error.problem or "cannot be read"
        words = next((words for start, words in _IN_OTHER_WORDS.items() if problem.startswith(start)), problem)
        origin = Origin(source, mark.line + 1, mark.column + 1) if mark else Origin(source)
        document.mistakes.append(Mistake(origin, f"not YAML: {shorten(words, 200)}"))
    except yaml.reader.ReaderError as error:
        what = f"not YAML: the character U+{ord(text[error.position]):04X}, which YAML does not allow"
        document.mistakes.append(Mistake(_find_origin(error.position, text, source), what))
    except ValueError:  # of chr()
        escape = _BEYOND_UNICODE.search(text)
        where = Origin(source) if escape is None else _find_origin(escape.start(), text, source)
        document.mistakes.append(Mistake(where, "not YAML: this escape names no character"))
    except RecursionError:
        document.mistakes.append(Mistake(Origin(source), "not a recipe: nested too deeply"))
    return document


def _find_origin(position: int, text: str, source: str) -> Origin:
    before = text[:position]
    return Origin(source, before.count("\n") + 1, position - before.rfind("\n"))


def _construct_value_collecting_mistakes(node: yaml.Node, path: KeyPath, document: ParsedYaml, source: str) -> Any:
    """Returns the Python value of a node; also fills `document.origins` and `document.mistakes`."""

    def origin(at: yaml.Node) -> Origin:
        return Origin(source, at.start_mark.line + 1)

    if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                document.mistakes.append(Mistake(origin(key_node), "a key must be a string, not a list or mapping"))
                continue
            key = key_node.value
            here = (*path, key)
            if key in mapping:
                what = f"{dotted_key(here)}: written twice, first in line {document.origins[here].line}"
                document.mistakes.append(Mistake(origin(key_node), what))
                continue
            document.origins[here] = origin(key_node)
            mapping[key] = _construct_value_collecting_mistakes(value_node, here, document, source)
        return mapping
    if isinstance(node, yaml.SequenceNode) and node.tag == _LIST:
        items = []
        for number, item in enumerate(node.value):
            document.origins[(*path, number)] = origin(item)
            items.append(_construct_value_collecting_mistakes(item, (*path, number), document, source))
        return items
    if isinstance(node, yaml.ScalarNode) and node.tag in (_PLAIN, _TEXT):
        return parse_plain_scalar(node.value) if node.tag == _PLAIN else node.value
    what = f"the tag {shorten(str(node.tag).replace('tag:yaml.org,2002:', '!!'))} is not read; leave it out"
    document.mistakes.append(Mistake(origin(node), f"{dotted_key(path)}: {what}" if path else what))
    return None


def flatten_mapping(tree: object, path: KeyPath = ()) -> dict[str, Any]:
    """Returns the values of nested mappings by dotted key."""
    if not isinstance(tree, dict):
        return {dotted_key(path): tree}
    return {key: leaf for name, value in tree.items() for key, leaf in flatten_mapping(value, (*path, name)).items()}


def dotted_key(path: KeyPath) -> str:
    """Joins a path to a dotted key, such as training.steps."""
    whole = ".".join(map(str, path))
    if len(whole) <= 60 and whole.isprintable():
        return whole  # fast path of nearly all keys
    return ".".join(shorten(str(step)) for step in path)
