"""Runs untrusted Jinja templates in a sandbox that charges every operation to a budget before it runs.

Templates have the blocks, filters and functions that Transformers gives to chat templates, so equal messages give equal
text. The sandbox refuses kinds of nodes, types of values, methods, filters and tests that are not listed here, and
charges the others with their worst-case cost first (`_BudgetedEnvironment`, `_wrap_filter_with_charges`,
`_wrap_test`). So no single operation runs long, and between two of them the clock is looked at. See
`docs/decisions/published-models.md`.
"""

import json
import operator
import re
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial
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

MAX_SOURCE_CHARACTERS = 1 << 16
"""Limit of a template, whose compilation is not timed; the longest of 110 published ones has 20 thousand."""

MAX_WORK_UNITS = 20_000_000
"""Budget of one rendering. A unit is a character or an item that is read or written, which takes at most about half a
microsecond and 25 bytes."""

MAX_SECONDS = 10.0
"""Processor time that one rendering may take."""

MAX_RANGE_LENGTH = 10_000
"""Limit of a range in a template."""

MAX_INTEGER_BITS = 128
"""Limit of the integers that a template computes with."""

MAX_DEPTH = 200
"""Limit of the nesting of a value, which Python compares, hashes and writes recursively in C."""

MAX_DECIMALS = 100
"""Limit of the decimals to round to, because Python computes ten to this power."""

_CALL_UNITS, _LOOKUP_UNITS, _ITERATION_UNITS, _DICT_UNITS, _OBJECT_UNITS = 16, 4, 4, 10, 4
"""Cost of a call, of a lookup of a name, of an iteration of a loop, of a dict, and of a new object."""

_CHEAP_FILTERS = frozenset(("abs", "count", "d", "default", "first", "items", "last", "length", "reverse", "round"))
_ITEM_FILTERS = frozenset(("map", "reject", "rejectattr", "select", "selectattr"))
_ORDERING_FILTERS = frozenset(("dictsort", "groupby", "max", "min", "sort", "unique"))
_LINEAR_FILTERS = frozenset(
    (
        *("capitalize", "float", "indent", "int", "join", "list", "lower", "replace", "safe", "string", "title"),
        *("tojson", "trim", "upper"),
    )
)
"""Filters that read little of the value, each item by itself, all of it to order it, or all of it once."""

_COMPARISON_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt},
    **{"gteq": operator.ge, "in": lambda one, all_: one in all_, "notin": lambda one, all_: one not in all_},
}
"""Operators by their names in Jinja."""

_OPERATOR_TESTS = {
    **{"==": "eq", "eq": "eq", "equalto": "eq", "!=": "ne", "ne": "ne", "in": "in"},
    **{"<": "lt", "lt": "lt", "lessthan": "lt", "<=": "lteq", "le": "lteq"},
    **{">": "gt", "gt": "gt", "greaterthan": "gt", ">=": "gteq", "ge": "gteq"},
}
"""Operators by the names of Jinja tests."""

_TYPE_TESTS = frozenset(
    (
        *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
        *("sameas", "sequence", "string", "true", "undefined"),
    )
)
_NUMBER_TESTS = frozenset(("divisibleby", "even", "odd"))
_TEXT_TESTS = frozenset(("lower", "upper"))

_ALLOWED_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
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
"""Attributes of data that templates may use; results of `groupby` have `grouper` and `list`."""

_CHECK_INTERVAL_UNITS = 1 << 12
"""Units that are charged between two checks of the time."""

_EMPTY: dict[Any, Any] = {}
_CONTAINERS = frozenset((dict, list, tuple, range, type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())))
_SCALARS = frozenset((bool, float, type(None), datetime))

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class TemplateRefusal(TemplateError):
    """Raised when the template refuses its input by `raise_exception`."""


class SandboxedTemplate:
    """A compiled template. Raises the errors of Jinja, SecurityError for refused operations, and MemoryError."""

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        """now: returns the time for `strftime_now`."""
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise SecurityError(f"it has {len(source):,} characters, more than {MAX_SOURCE_CHARACTERS:,}")
        environment = _BudgetedEnvironment(now)
        self.marks_generation = bool(_GENERATION.search(source))
        with _use_new_budget():
            tree = _JinjaCostInstrumenter().visit(environment.parse(source))
            self._template = environment.from_string(tree)

    def render(self, **variables: Any) -> str:
        """Renders the template with these variables.

        marks: a pair of texts that surround the text of {% generation %} blocks; none by default.
        """
        with _use_new_budget():
            return self._template.render(**variables)


class _RenderingBudget:
    """The remaining units and time of one rendering."""

    def __init__(self) -> None:
        self._left, self._unchecked = MAX_WORK_UNITS, MAX_WORK_UNITS - _CHECK_INTERVAL_UNITS
        self._until = time.thread_time() + MAX_SECONDS

    def charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < max(0, self._unchecked):
            self._unchecked = self._left - _CHECK_INTERVAL_UNITS
            self.raise_if_exceeded()

    def raise_if_exceeded(self, amount: int = 0) -> None:
        """Raises SecurityError when fewer than `amount` units are left, or when time is up."""
        if self._left < amount:
            raise SecurityError(f"it handles more than {MAX_WORK_UNITS:,} characters and items")
        if time.thread_time() > self._until:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")


_CURRENT: ContextVar[_RenderingBudget] = ContextVar("budget")


@contextmanager
def _use_new_budget() -> Iterator[None]:
    token = _CURRENT.set(_RenderingBudget())
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _charge(amount: int) -> None:
    _CURRENT.get().charge(amount)


def _measure_size_and_depth(value: object, *, refuse_objects: bool = True) -> tuple[int, int]:
    """Counts the characters and items inside a value, each as often as it occurs; also returns the depth of nesting.

    refuse_objects: refuses objects that are no data, such as namespaces, which would become text; else they count as
    one item.
    Raises SecurityError as soon as the count exceeds the budget.
    """
    budget = _CURRENT.get()
    n, deepest, checked = 0, 0, _CHECK_INTERVAL_UNITS
    inside: list[Iterator[Any]] = [iter((value,))]
    while inside:
        for one in inside[-1]:
            n += 1
            if n > checked:
                budget.raise_if_exceeded(n)
                checked = n + _CHECK_INTERVAL_UNITS
            kind = type(one)
            if kind is str:
                n += len(one)
            elif kind is int:
                n += one.bit_length() // 8
            elif kind in _SCALARS:
                pass
            elif kind in _CONTAINERS or isinstance(one, tuple):
                inside.append(iter(one) if kind is not dict else chain(one, one.values()))
                break
            elif isinstance(one, str):
                n += len(one)
            elif refuse_objects and not isinstance(one, Undefined):
                raise SecurityError(f"it reads a {kind.__name__}, which is no text, number or list")
        else:
            inside.pop()
        deepest = max(deepest, len(inside) - 1)
        if deepest > MAX_DEPTH:
            raise SecurityError(f"it nests values more than {MAX_DEPTH} deep")
    return n, deepest


def _units(value: object, *, refuse_objects: bool = True) -> int:
    return _measure_size_and_depth(value, refuse_objects=refuse_objects)[0]


def _text_units(value: object) -> int:
    """Counts the units of a value that becomes text, with quotes and escapes unless it is text."""
    return len(value) + 1 if isinstance(value, str) else 4 * _units(value)


def _charge_and_materialize_iterator(value: Any) -> Any:
    """Converts an iterator or a view to a list, so that it can be measured; returns other values unchanged."""
    if not isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
        return value
    items = []
    for one in value:
        _charge(_OBJECT_UNITS)
        items.append(one)
    return items


def _charge_and_materialize_result(result: Any, paid_units: int) -> Any:
    """Charges the memory of a new value and returns it. paid_units: units that are charged for it already.

    Computes the items of an iterator now, because later computations would not be charged.
    """
    match result:
        case str():
            _charge(max(0, len(result) - paid_units))
        case list():
            _charge(_OBJECT_UNITS * len(result))
        case dict():
            _charge(_DICT_UNITS + _OBJECT_UNITS * len(result))
        case Iterator():
            return iter(_charge_and_materialize_iterator(result))
    return result


def _search_cost(n: int, m: int) -> int:
    """Returns the cost of a method of text, which may compare each of n characters with each of m in its arguments."""
    return n + m + n * m // 32


def _replacement_cost(n: int, given: Sequence[Any]) -> int:
    """Returns the cost of `replace`, which may insert its second argument wherever the first can be found."""
    old, new = (len(str(one)) for one in given[:2]) if len(given) > 1 else (1, 0)
    return (n // max(1, old) + 1) * new


def _hashing_cost(keys: Sequence[Any]) -> int:
    """Returns the cost of hashing. Keys that are no text may be chosen so that all of them collide."""
    others = [key for key in keys if not isinstance(key, str)]
    return len(keys) + _units(others, refuse_objects=False) + len(others) ** 2 // 8


def _charge_and_compare(operator_name: str, left: Any, right: Any) -> Any:
    """Charges and runs an operator."""
    if operator_name in ("in", "notin"):
        right = _charge_and_materialize_iterator(right)
        match right:
            case str():
                cost = _search_cost(len(right), _units(left)) // 8
            case dict():
                cost = _units(left, refuse_objects=False)
            case _:
                cost = _units(left, refuse_objects=False) + _units(right, refuse_objects=False)
    elif isinstance(left, str) and isinstance(right, str):
        cost = min(len(left), len(right)) // 8
    else:
        cost = _units(left, refuse_objects=False) + _units(right, refuse_objects=False)
    _charge(1 + cost)
    return _COMPARISON_OPERATORS[operator_name](left, right)


def _check_integer(value: Any) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise SecurityError("it computes with huge numbers")


class _JinjaCostInstrumenter(NodeTransformer):
    """Makes all operations of a template call the environment, which charges them; refuses other kinds of nodes."""

    _FREE = (
        *(nodes.Template, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.With, nodes.FilterBlock, nodes.Continue),
        *(nodes.Break, nodes.Scope, nodes.Name, nodes.NSRef, nodes.TemplateData, nodes.CondExpr, nodes.And, nodes.Or),
        *(nodes.Not, nodes.Neg, nodes.Pos, nodes.Keyword, nodes.Pair, nodes.Operand, nodes.Slice),
        *(nodes.ContextReference, nodes.ExtensionAttribute),
    )
    """Nodes that cost little, or only what their parts cost."""

    _COUNTED = (
        *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Add, nodes.Sub, nodes.Mul),
        *(nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
    )
    """Nodes that Jinja itself compiles to calls of the environment."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        own = (*self._FREE, *self._COUNTED)
        if not isinstance(node, own) and self.get_visitor(node) is None:
            raise SecurityError(f"it has a {type(node).__name__}, which templates here may not")
        return super().generic_visit(node, *args, **kwargs)

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        written = sum(len(data.data) for data in node.nodes if isinstance(data, nodes.TemplateData))
        return [_charge_statement(written), node] if written else [node]

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _charge_by_length(node.iter, _ITERATION_UNITS, 1)
        node.body.insert(0, _charge_statement(_ITERATION_UNITS))
        return node

    def visit_Block(self, node: nodes.Block | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge_statement(_CALL_UNITS))
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> list[nodes.Node]:
        return [_charge_statement(_CALL_UNITS), self.visit_Block(node)]

    visit_CallBlock = visit_Macro

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        # each function on the way copies what is spread
        spread = (one and _charge_by_length(one, 0, _CALL_UNITS) for one in (node.dyn_args, node.dyn_kwargs))
        node.dyn_args, node.dyn_kwargs = spread
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        _check_integer(node.value)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _env_call("concatenate", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _env_call(
            "compare_chain", node.expr, *(part for one in node.ops for part in (nodes.Const(one.op), one.expr))
        )

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        limits = (node.arg.start, node.arg.stop, node.arg.step)
        return _env_call("slice_value", node.node, *(one or nodes.Const(None) for one in limits))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _charge_by_length(node, _OBJECT_UNITS, 1)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _charge_by_length(node, _OBJECT_UNITS, 1) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _env_call("make_dict", *(part for pair in node.items for part in (pair.key, pair.value)))


def _env_call(name: str, *arguments: Any) -> nodes.Call:
    """Returns a node that calls a method of `_BudgetedEnvironment`."""
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _charge_by_length(value: nodes.Node, base_cost: int, item_cost: int) -> nodes.Call:
    """Returns a node that charges for a value and for each of its items before the value is used."""
    return _env_call("charge_by_length", value, nodes.Const(base_cost), nodes.Const(item_cost))


def _charge_statement(cost: int) -> nodes.Node:
    return nodes.ExprStmt(_env_call("charge", nodes.Const(cost)))


class _MarkedGenerationBlock(Extension):
    """The block {% generation %}...{% endgeneration %}, whose text is wrapped in marks if the context has them."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = nodes.ContextReference()
        return nodes.CallBlock(self.call_method("wrap_in_marks", [marks]), [], [], body).set_lineno(line)

    def wrap_in_marks(self, context: Context, caller: Macro) -> str:
        before, after = context.get("marks") or ("", "")
        written = caller()
        _charge(len(written))
        return f"{before}{written}{after}"


class _BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """Runs the operations of templates; each method charges the cost first.

    Computes nothing while a template is compiled, because Jinja would write constants without charging them.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_MarkedGenerationBlock, LoopControlExtension],
            finalize=_charge_output,
            optimized=False,
        )
        self.filters["tojson"] = _to_json
        named = _CHEAP_FILTERS | _ITEM_FILTERS | _ORDERING_FILTERS | _LINEAR_FILTERS
        self.filters = {name: _wrap_filter_with_charges(name, self.filters[name]) for name in named}
        tests: dict[str, Any] = self.tests
        operators: dict[str, Any] = {name: partial(_charge_and_compare, of) for name, of in _OPERATOR_TESTS.items()}
        self.tests = {
            **{name: tests[name] for name in _TYPE_TESTS},
            **{name: _wrap_test(tests[name], _check_are_numbers) for name in _NUMBER_TESTS},
            **{name: _wrap_test(tests[name], lambda text: _charge(_text_units(text))) for name in _TEXT_TESTS},
            **operators,
        }

        def strftime_now(form: str) -> str:
            _charge(256 * len(form))  # Python asks for no more
            return now().strftime(form)

        self.globals = {
            "range": _make_bounded_range,
            "dict": _make_dict,
            "namespace": _NamespaceWithoutPrivateNames,
            "raise_exception": _raise_refusal,
            "strftime_now": strftime_now,
        }

    def charge(self, cost: int) -> None:
        _charge(cost)

    def concatenate(self, *values: object) -> str:
        _charge(sum(map(_text_units, values)))
        return "".join(map(str, values))

    def compare_chain(self, left: Any, *rest: Any) -> Any:
        """rest: an operator and a value, once or several times, as in `a < b < c`."""
        result: Any = True
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            result = _charge_and_compare(name, left, right)
            if not result:
                break
            left = right
        return result

    def slice_value(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        _charge(_OBJECT_UNITS + length_hint(value))
        return value[start:stop:step]

    def charge_by_length(self, value: Any, base_cost: int, item_cost: int) -> Any:
        _charge(base_cost + item_cost * length_hint(value))
        return value

    def make_dict(self, *keys_and_values: Any) -> dict[Any, Any]:
        keys = keys_and_values[::2]
        _charge(_DICT_UNITS + _OBJECT_UNITS * len(keys) + _hashing_cost(keys))
        return dict(zip(keys, keys_and_values[1::2], strict=True))

    def getitem(self, obj: Any, argument: Any) -> Any:
        _charge(
            _LOOKUP_UNITS if isinstance(argument, str | int) else _LOOKUP_UNITS + _units(argument, refuse_objects=False)
        )
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _charge(_LOOKUP_UNITS)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, LoopContext | Namespace):
            return super().is_safe_attribute(obj, attr, value)
        return any(isinstance(obj, kind) and attr in names for kind, names in _ALLOWED_METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """Disables formatting, which takes any width."""

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if owner is self:
            return obj(*args)
        own = [value for name, value in kwargs.items() if not name.startswith("_")]  # without those of Jinja
        match owner:
            case str():
                args = tuple(map(_charge_and_materialize_iterator, args))
                given = [*args, *own]
                cost = _search_cost(len(owner), _units(given))
                if obj.__name__ == "replace":
                    cost += _replacement_cost(len(owner), given)
                if obj.__name__ == "join":
                    cost += len(owner) * sum(length_hint(one) for one in given)
            case list() | tuple():
                cost = _units(owner, refuse_objects=False) + _units((args, own), refuse_objects=False)
            case dict() | LoopContext():
                cost = _units((args, own), refuse_objects=False)
            case _ if isinstance(obj, Macro | BlockReference | LoopContext | Undefined) or isinstance(owner, Extension):
                cost = len(args) + len(own)
            case _ if any(obj is one for one in self.globals.values()):
                cost = 0
            case _:
                raise SecurityError(f"it calls a {type(obj).__name__}")
        _charge(_CALL_UNITS + cost)
        return _charge_and_materialize_result(super().call(context, obj, *args, **kwargs), cost)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match left, right:
            case (int() | float(), int() | float()):
                _check_integer(left)
                _check_integer(right)
                if operator == "**" and not (abs(left) < MAX_INTEGER_BITS and abs(right) < MAX_INTEGER_BITS):
                    raise SecurityError("it computes with huge numbers")
                cost = _OBJECT_UNITS
            case (Undefined(), _) | (_, Undefined()):
                cost = 0  # it is an error
            case (str(), str()) | (list(), list()) | (tuple(), tuple()) if operator == "+":
                cost = _OBJECT_UNITS + len(left) + len(right)
            case ((str() | list() | tuple()), int()) | (int(), (str() | list() | tuple())) if operator == "*":
                times, repeated = (left, right) if isinstance(left, int) else (right, left)
                cost = _OBJECT_UNITS + len(repeated) * max(1, times)
            case _:
                raise TypeError(f"it computes {type(left).__name__} {operator} {type(right).__name__}")
        _charge(cost)
        result = super().call_binop(context, operator, left, right)
        return _charge_and_materialize_result(result, cost) if isinstance(result, str) else result


@pass_context  # so that Jinja cannot write constants without it
def _charge_output(_: Context, value: object) -> object:
    _charge(_text_units(value))
    return value


def _wrap_filter_with_charges(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter so that it charges its cost before it runs, and then the cost of its result."""
    passes = getattr(function, "jinja_pass_arg", None)

    def run(*args: Any, **kwargs: Any) -> Any:
        at = 0 if passes is None else 1  # where the value is, behind what Jinja passes
        value, given = args[at], [*args[at + 1 :], *kwargs.values()]
        cost = 0
        if name in _ORDERING_FILTERS or name in _LINEAR_FILTERS:
            value = _charge_and_materialize_iterator(value)
            cost = _filter_cost(name, value, given)
        if name in ("abs", "round"):
            _check_integer(value)
            if any(isinstance(one, int) and abs(one) > MAX_DECIMALS for one in given):
                raise SecurityError("it rounds to a huge number of decimals")
        _charge(_CALL_UNITS + cost)
        result = function(*args[:at], value, *args[at + 1 :], **kwargs)
        if name == "int":
            _check_integer(result)
        return _charge_and_materialize_result(result, cost)

    if passes is not None:
        run.jinja_pass_arg = passes  # type: ignore[attr-defined]  # as Jinja's own decorators do
    return run


def _filter_cost(name: str, value: Any, arguments: Sequence[Any]) -> int:
    """Returns the worst-case cost of a filter that reads all of a value."""
    size, depth = _measure_size_and_depth(value)
    m = _units(arguments)
    n = size if isinstance(value, str) else 4 * size
    length = length_hint(value)
    widths = [len(one) if isinstance(one, str) else one for one in arguments if isinstance(one, str | int)]
    match name:
        case "join":
            return n + length * m
        case "list":
            return _OBJECT_UNITS * length
        case "replace":
            return _search_cost(n, m) + _replacement_cost(n, arguments)
        case "title":
            return 8 * n  # it keeps each word with two objects
        case "trim":
            return _search_cost(n, m)
        case "indent":
            return n * (4 + max(map(abs, widths), default=4))
        case "tojson":
            return n + size * (m + depth * max(map(abs, widths), default=0))
        case "unique":
            others = length if arguments else sum(not isinstance(one, str) for one in value or ())
            return 2 * n + m + others**2 // 8
        case _ if name in _ORDERING_FILTERS:
            return n * (1 + length.bit_length()) + m
    return 2 * n + m


def _wrap_test(function: Callable[..., bool], check: Callable[..., None]) -> Callable[..., bool]:
    def run(*args: Any) -> bool:
        check(*args)
        return function(*args)

    return run


def _check_are_numbers(*numbers: Any) -> None:
    """Raises SecurityError unless these are numbers, because texts would be formatted to any width."""
    for one in numbers:
        _check_integer(one)
        if not isinstance(one, int | float | Undefined):
            raise SecurityError(f"it divides a {type(one).__name__}")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    pairs = [
        pair for one in args for pair in _charge_and_materialize_iterator(one.items() if isinstance(one, dict) else one)
    ]
    _charge(_DICT_UNITS + _OBJECT_UNITS * (len(pairs) + len(kwargs)) + _hashing_cost([key for key, _ in pairs]))
    return dict(pairs, **kwargs)


class _NamespaceWithoutPrivateNames(Namespace):
    """A namespace whose names cannot hide the attributes of Jinja."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = _make_dict(*args[1:], **kwargs)
        for name in values:
            _check_namespace_key(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_namespace_key(name)
        super().__setitem__(name, value)


def _check_namespace_key(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("it hides a name of a namespace")


def _make_bounded_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE_LENGTH:
        raise SecurityError(f"it loops over a range of {len(numbers):,}")
    return numbers


def _raise_refusal(message: object) -> None:
    _charge(_text_units(message))
    raise TemplateRefusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Formats JSON without the escaping for web pages that Jinja adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
