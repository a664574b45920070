"""Runs Jinja templates of other people's files: in a sandbox, with bounds on loops, time and memory.

They have the blocks, filters and functions that Transformers gives to chat templates, so equal messages give equal
text. What only a program would need (methods of objects, formatting to a width, other files) is refused.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

LARGEST_SOURCE = 1 << 18
"""Characters of a template; published ones have at most some tens of thousands."""

WORK = 20_000_000
"""Characters and items that a template may handle in one rendering."""

SECONDS = 10.0
"""Time that one rendering may take."""

MAX_RANGE = 10_000
"""Longest range that a template may loop over."""

MAX_BITS = 128
"""Largest whole number that a template may compute with."""

_FILTERS = frozenset(
    (
        *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "indent", "int"),
        *("items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"),
        *("reverse", "round", "safe", "select", "selectattr", "sort", "string", "title", "tojson", "trim", "unique"),
        *("upper",),
    )
)
_TEXT_METHODS = frozenset(
    (
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
        *("isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
        *("splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    )
)
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class Refusal(TemplateError):
    """The template itself refuses its input, by `raise_exception`."""


class SandboxedTemplate:
    """A compiled template. Raises what Jinja raises, SecurityError for what is refused, and MemoryError.

    variables: the names that it takes.
    """

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now, *, trims_lines: bool = True) -> None:
        """now: the time that the template may ask for. trims_lines: blocks take their lines along, as in chats."""
        if len(source) > LARGEST_SOURCE:
            raise SecurityError(f"it has {len(source):,} characters, more than {LARGEST_SOURCE:,}")
        environment = _Environment(now, trims_lines)
        self.marks_generation = bool(_GENERATION.search(source))
        with _budget():
            parsed = environment.parse(source)
            self.variables = find_undeclared_variables(parsed) - environment.globals.keys()
            tree = _Bounds().visit(parsed)
            self._template = environment.from_string(tree)

    def render(self, **variables: Any) -> str:
        """The text for these variables.

        marks: a pair of texts to put around what the template's {% generation %} blocks write; none by default.
        """
        with _budget():
            return self._template.render(**variables)


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._left = WORK
        self._until = time.monotonic() + SECONDS

    def take(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise SecurityError(f"it handles more than {WORK:,} characters and items")
        if time.monotonic() > self._until:
            raise SecurityError(f"it takes more than {SECONDS:g} seconds")


_CURRENT: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def _budget() -> Iterator[None]:
    token = _CURRENT.set(_Budget())
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _take(amount: int) -> None:
    _CURRENT.get().take(amount)


def _size(value: object, *, shown: bool = False) -> int:
    """Characters and items of a value, with all inside it. shown: it becomes text, so objects are refused."""
    n, rest = 0, [value]
    while rest:
        one = rest.pop()
        n += 1
        match one:
            case str():
                n += len(one)
            case int():
                n += one.bit_length() // 8
            case dict():
                rest += [*one.keys(), *one.values()]
            case list() | tuple():
                rest += one
            case None | float() | Undefined() | datetime():
                pass
            case _ if shown:
                raise SecurityError(f"it writes a {type(one).__name__}, which is no text")
        if n > WORK:
            break
    return n


def _product(owner: str, method: str, args: Sequence[Any]) -> int:
    """Characters that `replace` or `join` may write, before they do."""
    if method == "replace" and len(args) > 1:
        return (len(owner) + 1) * (len(str(args[1])) + 1)
    return len(owner) * len(args[0]) if method == "join" and args and isinstance(args[0], list | tuple) else 0


class _Bounds(NodeTransformer):
    """Makes each turn of a loop, each call of a macro and each concatenation take from the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step(node))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step(node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("concatenated"), node.nodes, [], None, None)


def _step(node: nodes.Node) -> nodes.Node:
    written = 1 + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    return nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(written)], [], None, None))


class _Generation(Extension):
    """{% generation %}...{% endgeneration %}: what the assistant writes, between the marks if there are any."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = nodes.ContextReference()
        return nodes.CallBlock(self.call_method("marked", [marks]), [], [], body).set_lineno(line)

    def marked(self, context: Context, caller: Macro) -> str:
        before, after = context.get("marks") or ("", "")
        return f"{before}{caller()}{after}"


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, now: Callable[[], datetime], trims_lines: bool) -> None:
        super().__init__(
            trim_blocks=trims_lines,
            lstrip_blocks=trims_lines,
            keep_trailing_newline=not trims_lines,
            extensions=[_Generation, LoopControlExtension],
            finalize=self._written,
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: _bounded(name, self.filters[name]) for name in _FILTERS}
        self.globals = {
            "range": _range,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": lambda form: now().strftime(form),
        }

    @staticmethod
    def _written(value: object) -> object:
        _take(_size(value, shown=True))
        return value

    def step(self, written: int) -> None:
        _take(written)

    def concatenated(self, *values: object) -> str:
        _take(_size(values, shown=True))
        return "".join(map(str, values))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        return not isinstance(obj, bytes | int | float) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No formatting: it takes any width."""

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _take(len(owner) + _product(owner, obj.__name__, args))
        _take(_size((args, tuple(kwargs.values()))))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = _size(left), _size(right)
        if any(isinstance(one, int) and one.bit_length() > MAX_BITS for one in (left, right)) or (
            operator == "**" and not (abs(left) < MAX_BITS and abs(right) < MAX_BITS)
        ):
            raise SecurityError("it computes with huge numbers")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats text by %")
        if operator == "*" and not all(isinstance(one, int | float) for one in (left, right)):
            times = next((one for one in (left, right) if isinstance(one, int)), 0)
            _take(sum(sizes) * max(1, times))
        _take(sum(sizes))
        return super().call_binop(context, operator, left, right)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose inputs and output are taken from the budget."""
    passes = getattr(function, "jinja_pass_arg", None)

    def run(*args: Any, **kwargs: Any) -> Any:
        at = 0 if passes is None else 1  # where the value is, behind what Jinja passes
        value, rest = args[at], args[at + 1 :]
        shown = name in ("string", "tojson", "join", "indent", "replace")
        if name == "join":
            value = list(value)
            _take(len(value) * _size((rest, tuple(kwargs.values()))))
        if name == "replace":
            _take(_product(str(value), "replace", rest))
        if name in ("indent", "tojson"):
            widths = [one for one in (*rest, *kwargs.values()) if isinstance(one, int)]
            _take(_size(value, shown=True) * max([1, *widths]))
        _take(_size(value, shown=shown) + _size((rest, tuple(kwargs.values()))))
        return function(*args[:at], value, *rest, **kwargs)

    if passes is not None:
        run.jinja_pass_arg = passes  # type: ignore[attr-defined]  # as Jinja's own decorators do
    return run


class _Namespace(Namespace):
    """A namespace whose names do not hide what Jinja keeps in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("it hides a name of a namespace")


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"it loops over a range of {len(numbers):,}")
    return numbers


def _refuse(message: object) -> None:
    raise Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As JSON, without Jinja's escaping for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
