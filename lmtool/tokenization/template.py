"""Runs Jinja templates of other people's files: in a sandbox that counts the cost of every operation before it is done.

Templates have the blocks, filters and functions that Transformers gives to chat templates, so equal messages give equal
text. The sandbox is closed: kinds of nodes, types of values, methods, filters and tests that are not listed here are
refused, and what is listed takes its cost in the worst case from a budget first (`_Environment`, `_bounded_filter`,
`_bounded_test`). So no single operation runs long, and between two of them the clock is looked at. See decision 051.
"""

import json
import operator
import re
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from operator import length_hint
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

LARGEST_SOURCE = 1 << 16
"""Characters of a template; the longest of 110 published ones has 20 thousand. Compiling is not timed."""

WORK = 20_000_000
"""Units of cost of one rendering. A unit is a character or an item that is read or written: it takes at most about half
a microsecond, and about 25 bytes that may stay in memory."""

SECONDS = 10.0
"""Processor time that one rendering may take."""

MAX_RANGE = 10_000
"""Longest range that a template may loop over."""

MAX_BITS = 128
"""Largest whole number that a template may compute with."""

MAX_DEPTH = 200
"""Deepest nesting of a value that is compared, hashed or written: Python does so recursively, in C."""

MAX_DECIMALS = 100
"""Most decimals to round to: Python computes ten to this power."""

_CALL, _LOOKUP, _TURN, _DICT, _NEW = 16, 4, 4, 10, 4
"""Units of a call, of a lookup of a name, of a turn of a loop, of a dict, and of a new object."""

_GLANCING = frozenset(("abs", "count", "d", "default", "first", "items", "last", "length", "reverse", "round"))
_PICKING = frozenset(("map", "reject", "rejectattr", "select", "selectattr"))
_ORDERING = frozenset(("dictsort", "groupby", "max", "min", "sort", "unique"))
_WRITING = frozenset(
    (
        *("capitalize", "float", "indent", "int", "join", "list", "lower", "replace", "safe", "string", "title"),
        *("tojson", "trim", "upper"),
    )
)
"""Filters by what they read: little of the value, each item by itself, all of it in order, or all of it once."""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt},
    **{"gteq": operator.ge, "in": lambda one, all_: one in all_, "notin": lambda one, all_: one not in all_},
}
"""The operators by Jinja's names."""

_COMPARING_TESTS = {
    **{"==": "eq", "eq": "eq", "equalto": "eq", "!=": "ne", "ne": "ne", "in": "in"},
    **{"<": "lt", "lt": "lt", "lessthan": "lt", "<=": "lteq", "le": "lteq"},
    **{">": "gt", "gt": "gt", "greaterthan": "gt", ">=": "gteq", "ge": "gteq"},
}
"""Tests that are operators."""

_TYPE_TESTS = frozenset(
    (
        *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
        *("sameas", "sequence", "string", "true", "undefined"),
    )
)
_NUMBER_TESTS = frozenset(("divisibleby", "even", "odd"))
_TEXT_TESTS = frozenset(("lower", "upper"))

_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (
        str,
        frozenset(
            (
                *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"),
                *("isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower"),
                *("lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition"),
                *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
            )
        ),
    ),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    ((list, tuple), frozenset(("copy", "count", "grouper", "index", "list"))),
)
"""Attributes of values that are data; `grouper` and `list` are of what `groupby` gives."""

_OFTEN = 1 << 12
"""Units between two looks at the clock."""

_EMPTY: dict[Any, Any] = {}
_NESTING = frozenset((dict, list, tuple, range, type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())))
_ATOMS = frozenset((bool, float, type(None), datetime))

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class Refusal(TemplateError):
    """The template itself refuses its input, by `raise_exception`."""


class SandboxedTemplate:
    """A compiled template. Raises what Jinja raises, SecurityError for what is refused, and MemoryError."""

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        """now: the time that the template may ask for."""
        if len(source) > LARGEST_SOURCE:
            raise SecurityError(f"it has {len(source):,} characters, more than {LARGEST_SOURCE:,}")
        environment = _Environment(now)
        self.marks_generation = bool(_GENERATION.search(source))
        with _budget():
            tree = _Bounds().visit(environment.parse(source))
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
        self._left, self._unchecked = WORK, WORK - _OFTEN
        self._until = time.thread_time() + SECONDS

    def take(self, amount: int) -> None:
        self._left -= amount
        if self._left < max(0, self._unchecked):
            self._unchecked = self._left - _OFTEN
            self.check()

    def check(self, amount: int = 0) -> None:
        """Raise SecurityError when it has no such amount left, or when time is up."""
        if self._left < amount:
            raise SecurityError(f"it handles more than {WORK:,} characters and items")
        if time.thread_time() > self._until:
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


def _measure(value: object, *, is_data: bool = True) -> tuple[int, int]:
    """Characters and items of a value with all inside it, however often it is there, and how deep it is nested.

    is_data: refuse objects that are no data, such as namespaces, which would become text; otherwise they count as one.
    Raises SecurityError, before it has taken long, when the budget does not have as many units.
    """
    budget = _CURRENT.get()
    n, deepest, checked = 0, 0, _OFTEN
    inside: list[Iterator[Any]] = [iter((value,))]
    while inside:
        for one in inside[-1]:
            n += 1
            if n > checked:
                budget.check(n)
                checked = n + _OFTEN
            kind = type(one)
            if kind is str:
                n += len(one)
            elif kind is int:
                n += one.bit_length() // 8
            elif kind in _ATOMS:
                pass
            elif kind in _NESTING or isinstance(one, tuple):
                inside.append(iter(one) if kind is not dict else chain(one, one.values()))
                break
            elif isinstance(one, str):
                n += len(one)
            elif is_data and not isinstance(one, Undefined):
                raise SecurityError(f"it reads a {kind.__name__}, which is no text, number or list")
        else:
            inside.pop()
        deepest = max(deepest, len(inside) - 1)
        if deepest > MAX_DEPTH:
            raise SecurityError(f"it nests values more than {MAX_DEPTH} deep")
    return n, deepest


def _size(value: object, *, is_data: bool = True) -> int:
    return _measure(value, is_data=is_data)[0]


def _text_size(value: object) -> int:
    """Units of a value that becomes text; what is no text is written with quotes and escapes."""
    return len(value) + 1 if isinstance(value, str) else 4 * _size(value)


def _settled(value: Any) -> Any:
    """An iterator or a view as a list, so that it can be measured; anything else as it is."""
    if not isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
        return value
    items = []
    for one in value:
        _take(_NEW)
        items.append(one)
    return items


def _kept(result: Any, paid: int) -> Any:
    """A new value, after its memory has been taken from the budget. paid: units that it has cost already.

    An iterator has its items computed now: nothing is computed later, where it would not be counted.
    """
    match result:
        case str():
            _take(max(0, len(result) - paid))
        case list():
            _take(_NEW * len(result))
        case dict():
            _take(_DICT + _NEW * len(result))
        case Iterator():
            return iter(_settled(result))
    return result


def _search_cost(n: int, m: int) -> int:
    """Of anything that a method of text does: at worst it compares each of n characters with each of m of arguments."""
    return n + m + n * m // 32


def _replacement_cost(n: int, given: Sequence[Any]) -> int:
    """Of `replace`, whose second argument may stand at every place where the first is found."""
    old, new = (len(str(one)) for one in given[:2]) if len(given) > 1 else (1, 0)
    return (n // max(1, old) + 1) * new


def _keys_cost(keys: Sequence[Any]) -> int:
    """Of hashing. Keys that are not text can be chosen so that each meets all others in the table."""
    others = [key for key in keys if not isinstance(key, str)]
    return len(keys) + _size(others, is_data=False) + len(others) ** 2 // 8


def _compare(name: str, left: Any, right: Any) -> Any:
    """The result of an operator."""
    if name in ("in", "notin"):
        right = _settled(right)
        match right:
            case str():
                cost = _search_cost(len(right), _size(left)) // 8
            case dict():
                cost = _size(left, is_data=False)
            case _:
                cost = _size(left, is_data=False) + _size(right, is_data=False)
    elif isinstance(left, str) and isinstance(right, str):
        cost = min(len(left), len(right)) // 8
    else:
        cost = _size(left, is_data=False) + _size(right, is_data=False)
    _take(1 + cost)
    return _COMPARISONS[name](left, right)


def _check_number(value: Any) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError("it computes with huge numbers")


class _Bounds(NodeTransformer):
    """Makes all that a template does call the environment, which takes its cost; refuses other kinds of nodes."""

    _FREE = (
        *(nodes.Template, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.With, nodes.FilterBlock, nodes.Continue),
        *(nodes.Break, nodes.Scope, nodes.Name, nodes.NSRef, nodes.TemplateData, nodes.CondExpr, nodes.And, nodes.Or),
        *(nodes.Not, nodes.Neg, nodes.Pos, nodes.Keyword, nodes.Pair, nodes.Operand, nodes.Slice),
        *(nodes.ContextReference, nodes.ExtensionAttribute),
    )
    """What does little, or only what its parts do."""

    _COUNTED = (
        *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Add, nodes.Sub, nodes.Mul),
        *(nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
    )
    """What Jinja itself compiles to calls of the environment."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        own = (*self._FREE, *self._COUNTED)
        if not isinstance(node, own) and self.get_visitor(node) is None:
            raise SecurityError(f"it has a {type(node).__name__}, which templates here may not")
        return super().generic_visit(node, *args, **kwargs)

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        written = sum(len(data.data) for data in node.nodes if isinstance(data, nodes.TemplateData))
        return [_step(written), node] if written else [node]

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call("looped", node.iter)
        node.body.insert(0, _step(_TURN))
        return node

    def visit_Macro(self, node: nodes.Macro) -> list[nodes.Node]:
        self.generic_visit(node)
        node.body.insert(0, _step(_CALL))
        return [_step(_CALL), node]

    def visit_CallBlock(self, node: nodes.CallBlock) -> list[nodes.Node]:
        self.generic_visit(node)
        node.body.insert(0, _step(_CALL))
        return [_step(_CALL), node]

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step(_CALL))
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        node.dyn_args, node.dyn_kwargs = (one and _call("spread", one) for one in (node.dyn_args, node.dyn_kwargs))
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        _check_number(node.value)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concatenated", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _call("compared", node.expr, *(part for one in node.ops for part in (nodes.Const(one.op), one.expr)))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        limits = (node.arg.start, node.arg.stop, node.arg.step)
        return _call("sliced", node.node, *(one or nodes.Const(None) for one in limits))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _call("mapped", *(part for pair in node.items for part in (pair.key, pair.value)))


def _call(name: str, *arguments: Any) -> nodes.Call:
    """A call of a method of `_Environment`."""
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _step(cost: int) -> nodes.Node:
    return nodes.ExprStmt(_call("step", nodes.Const(cost)))


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
        written = caller()
        _take(len(written))
        return f"{before}{written}{after}"


class _Environment(ImmutableSandboxedEnvironment):
    """Everything that templates do: each method takes the cost before it does it.

    Nothing is computed while a template is compiled: it would be written as often as the template likes.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, LoopControlExtension],
            finalize=_written,
            optimized=False,
        )
        self.filters["tojson"] = _to_json
        named = _GLANCING | _PICKING | _ORDERING | _WRITING
        self.filters = {name: _bounded_filter(name, self.filters[name]) for name in named}
        tests: dict[str, Any] = self.tests
        self.tests = {
            **{name: tests[name] for name in _TYPE_TESTS},
            **{name: _bounded_test(tests[name], _check_operands) for name in _NUMBER_TESTS},
            **{name: _bounded_test(tests[name], lambda text: _take(_text_size(text))) for name in _TEXT_TESTS},
            **{name: _comparing_test(of) for name, of in _COMPARING_TESTS.items()},
        }

        def strftime_now(form: str) -> str:
            _take(256 * len(form))  # Python asks for no more
            return now().strftime(form)

        self.globals = {
            "range": _range,
            "dict": _dict,
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": strftime_now,
        }

    def step(self, cost: int) -> None:
        _take(cost)

    def concatenated(self, *values: object) -> str:
        _take(sum(map(_text_size, values)))
        return "".join(map(str, values))

    def compared(self, left: Any, *rest: Any) -> Any:
        """rest: an operator and a value, once or several times, as in `a < b < c`."""
        result: Any = True
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            result = _compare(name, left, right)
            if not result:
                break
            left = right
        return result

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        _take(_NEW + length_hint(value))
        return value[start:stop:step]

    def made(self, value: list[Any] | tuple[Any, ...]) -> object:
        _take(_NEW + len(value))
        return value

    def mapped(self, *keys_and_values: Any) -> dict[Any, Any]:
        keys = keys_and_values[::2]
        _take(_DICT + _NEW * len(keys) + _keys_cost(keys))
        return dict(zip(keys, keys_and_values[1::2], strict=True))

    def spread(self, value: Any) -> Any:
        _take(_CALL * length_hint(value))  # each function on the way copies it
        return value

    def looped(self, value: Any) -> Any:
        _take(_TURN + length_hint(value))
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        _take(_LOOKUP if isinstance(argument, str | int) else _LOOKUP + _size(argument, is_data=False))
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _take(_LOOKUP)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Namespace):
            return super().is_safe_attribute(obj, attr, value)
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """No formatting: it takes any width."""

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if owner is self:
            return obj(*args)
        own = [value for name, value in kwargs.items() if not name.startswith("_")]  # but Jinja's
        match owner:
            case str():
                args = tuple(map(_settled, args))
                given = [*args, *own]
                cost = _search_cost(len(owner), _size(given))
                if obj.__name__ == "replace":
                    cost += _replacement_cost(len(owner), given)
                if obj.__name__ == "join":
                    cost += len(owner) * sum(length_hint(one) for one in given)
            case list() | tuple():
                cost = _size(owner, is_data=False) + _size((args, own), is_data=False)
            case dict() | LoopContext():
                cost = _size((args, own), is_data=False)
            case _ if isinstance(obj, Macro | BlockReference | LoopContext | Undefined) or isinstance(owner, Extension):
                cost = len(args) + len(own)
            case _ if any(obj is one for one in self.globals.values()):
                cost = 0
            case _:
                raise SecurityError(f"it calls a {type(obj).__name__}")
        _take(_CALL + cost)
        return _kept(super().call(context, obj, *args, **kwargs), cost)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match left, right:
            case (int() | float(), int() | float()):
                _check_number(left)
                _check_number(right)
                if operator == "**" and not (abs(left) < MAX_BITS and abs(right) < MAX_BITS):
                    raise SecurityError("it computes with huge numbers")
                cost = _NEW
            case (Undefined(), _) | (_, Undefined()):
                cost = 0  # it is an error
            case (str(), str()) | (list(), list()) | (tuple(), tuple()) if operator == "+":
                cost = _NEW + len(left) + len(right)
            case ((str() | list() | tuple()), int()) | (int(), (str() | list() | tuple())) if operator == "*":
                times, repeated = (left, right) if isinstance(left, int) else (right, left)
                cost = _NEW + len(repeated) * max(1, times)
            case _:
                raise TypeError(f"it computes {type(left).__name__} {operator} {type(right).__name__}")
        _take(cost)
        result = super().call_binop(context, operator, left, right)
        return _kept(result, cost) if isinstance(result, str) else result


@pass_context  # so that Jinja cannot write constants without it
def _written(_: Context, value: object) -> object:
    _take(_text_size(value))
    return value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes its cost before it runs, and that of its result."""
    passes = getattr(function, "jinja_pass_arg", None)

    def run(*args: Any, **kwargs: Any) -> Any:
        at = 0 if passes is None else 1  # where the value is, behind what Jinja passes
        value, given = args[at], [*args[at + 1 :], *kwargs.values()]
        cost = 0
        if name in _ORDERING or name in _WRITING:
            value = _settled(value)
            cost = _reading_cost(name, value, given)
        if name in ("abs", "round"):
            _check_number(value)
            if any(isinstance(one, int) and abs(one) > MAX_DECIMALS for one in given):
                raise SecurityError("it rounds to a huge number of decimals")
        _take(_CALL + cost)
        result = function(*args[:at], value, *args[at + 1 :], **kwargs)
        if name == "int":
            _check_number(result)
        return _kept(result, cost)

    if passes is not None:
        run.jinja_pass_arg = passes  # type: ignore[attr-defined]  # as Jinja's own decorators do
    return run


def _reading_cost(name: str, value: Any, given: Sequence[Any]) -> int:
    """Of a filter that reads all of a value, at worst."""
    size, depth = _measure(value)
    m = _size(given)
    n = size if isinstance(value, str) else 4 * size
    length = length_hint(value)
    widths = [len(one) if isinstance(one, str) else one for one in given if isinstance(one, str | int)]
    match name:
        case "join":
            return n + length * m
        case "list":
            return _NEW * length
        case "replace":
            return _search_cost(n, m) + _replacement_cost(n, given)
        case "title":
            return 8 * n  # it keeps each word with two objects
        case "trim":
            return _search_cost(n, m)
        case "indent":
            return n * (4 + max(map(abs, widths), default=4))
        case "tojson":
            return n + size * (m + depth * max(map(abs, widths), default=0))
        case "unique":
            others = length if given else sum(not isinstance(one, str) for one in value or ())
            return 2 * n + m + others**2 // 8
        case _ if name in _ORDERING:
            return n * (1 + length.bit_length()) + m
    return 2 * n + m


def _comparing_test(name: str) -> Callable[[Any, Any], Any]:
    return lambda left, right: _compare(name, left, right)


def _bounded_test(function: Callable[..., bool], check: Callable[..., None]) -> Callable[..., bool]:
    def run(*args: Any) -> bool:
        check(*args)
        return function(*args)

    return run


def _check_operands(*numbers: Any) -> None:
    """Raise SecurityError unless these are numbers: texts would be formatted, to any width."""
    for one in numbers:
        _check_number(one)
        if not isinstance(one, int | float | Undefined):
            raise SecurityError(f"it divides a {type(one).__name__}")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    pairs = [pair for one in args for pair in _settled(one.items() if isinstance(one, dict) else one)]
    _take(_DICT + _NEW * (len(pairs) + len(kwargs)) + _keys_cost([key for key, _ in pairs]))
    return dict(pairs, **kwargs)


class _Namespace(Namespace):
    """A namespace whose names do not hide what Jinja keeps in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = _dict(*args[1:], **kwargs)
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
    _take(_text_size(message))
    raise Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As JSON, without Jinja's escaping for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
