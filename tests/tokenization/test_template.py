"""Templates of strangers: what they may do is what Jinja does; what is harmful or endless ends in an error."""

import time
import tracemalloc
from datetime import datetime

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmtool.tokenization import template as template_module
from lmtool.tokenization.template import SandboxedTemplate, TemplateRefusal

MESSAGES = [{"role": "user", "content": " Hi <b>\n"}, {"role": "assistant", "content": "Ho & é"}]

SOURCES = [
    "{{ messages[0].content | trim }}{{ messages | length }}{{ messages[-1]['role'] | upper | capitalize }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{{ m.content.strip().split(' ')[0] }}"
    "{% else %}none{% endfor %}",
    "{% set ns = namespace(n=1, seen=false) %}{% for m in messages %}{% set ns.n = ns.n * 2 + loop.index0 %}"
    "{% endfor %}{{ ns.n ~ '-' ~ ns.seen }}",
    "{% macro turn(m, end='.') %}[{{ m.role }}: {{ m.content | trim }}{{ end }}]{% endmacro %}"
    "{% for m in messages %}{{ turn(m) + turn(m, end='!') }}{% endfor %}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list }}",
    "{% set text %}{{ messages[0].content }}{% endset %}{{ text | replace('H', 'J') | title }}{{ 'a' in text }}",
    "{{ none }}{{ undefined_name }}{{ 1.5 + 2 }}{{ -7 // 2 }}{{ 2 ** 5 }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ 7 % 4 }}",
    "  {% if true %}\n   x\n  {% endif %}\n{% for i in range(3) -%} {{ i }} {%- endfor %}\n",
    "{{ dict(a=1).items() | list }}{{ messages[0].get('tool_calls') is none }}{{ messages[0].keys() | list }}",
    "{{ messages[1].content is string }}{{ messages is iterable }}{{ x is defined }}{{ x | default('d') }}",
    "{{ {'b': 1, 'a': [1, 2]} | dictsort }}{{ ['x', 'x'] | unique | list }}{{ [3, 1] | sort | first }}",
    "{{ messages[0].content.startswith(' ') and messages[0].content.endswith('x') or 'z'.upper() }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 1 < 2 }}{{ 1 == 1.0 != 2 }}{{ 'i' in messages[0].content }}{{ 3 not in [1, 2] }}",
    "{{ 'role' in messages[0] }}{{ messages[0] in messages }}{{ messages[0] == messages[1] }}",
    "{% set d = {'a': [1, (2, 3)], 4: none, true: 1.5} %}{{ d }}{{ d.a[1:][0] }}{{ d[4] is none }}{{ d == {'a': 1} }}",
    "{% for group in messages | groupby('role') %}{{ group.grouper }}{{ group.list | length }}{% endfor %}",
    "{% macro m(a) %}<{{ caller(a) }}{{ varargs }}{{ kwargs }}>{% endmacro %}"
    "{% call(x) m(*[1, 2], **{'b': 3}) %}{{ x }}{% endcall %}{% filter upper %}a{{ 1 }}b{% endfilter %}",
    "{% block a %}x{% endblock %}{{ self.a() }}{% with y = 2 %}{{ y is odd }}{{ 9 is divisibleby 3 }}{% endwith %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(x is number) }}{% endfor %}",
    "{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}{{ [3, 4] | select('gt', 3) | first }}",
    "{{ ['b', 'A'] | sort }}{{ ['b', 'A'] | max }}{{ [1, 1.0, true, 'a', 'A'] | unique | list }}{{ 2.345 | round(2) }}",
    "{{ ('<' | safe) + '<' }}{{ '&' ~ ('&' | safe) }}{{ 'a b'.split() }}{{ 'abcabc'.rfind('b') }}",
    "{{ 'a\nb' | indent(3) }}{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ (messages | first).role }}",
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_template_writes_what_jinja_writes(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert SandboxedTemplate(source).render(messages=MESSAGES) == plain.from_string(source).render(messages=MESSAGES)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ {'é': '<b>', 'a': [1]} | tojson }}", '{"é": "<b>", "a": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ strftime_now('%Y') }}", "1999"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    ],
)
def test_a_template_has_what_transformers_adds_to_jinja(source: str, written: str) -> None:
    assert SandboxedTemplate(source, lambda: datetime(1999, 1, 1)).render() == written
    with pytest.raises(TemplateRefusal, match="no"):
        SandboxedTemplate("{{ raise_exception('no') }}").render()


def test_marks_stand_around_what_generation_blocks_write() -> None:
    source = "{% for i in range(2) %}a{% generation %}{{ i }}b{% endgeneration %}{% endfor %}c"
    assert SandboxedTemplate(source).marks_generation
    assert SandboxedTemplate(source).render(marks=("(", ")")) == "a(0b)a(1b)c"
    assert SandboxedTemplate(source).render() == "a0ba1bc"
    assert not SandboxedTemplate("generation").marks_generation


def grows(step: str) -> str:
    return "{% set ns = namespace(x='ab', l=['a'], n=3) %}{% for i in range(5000) %}" + step + "{% endfor %}{{ ns.x }}"


def doubled(use: str, literal: str = "[{0}, {0}]", times: int = 60) -> str:
    """Two equal values of 2^times items each, which are few objects, and a use of them."""
    steps = "".join(f"{{% set ns.{name} = {literal.format(f'ns.{name}')} %}}" for name in "ab")
    return (
        f"{{% set ns = namespace(a=(1,), b=(1,)) %}}{{% for i in range({times}) %}}{steps}{{% endfor %}}{{{{ {use} }}}}"
    )


PAIR = "({0}, {0})"
QUADRATIC = ("count", "find", "index", "partition", "rfind", "rindex", "rpartition", "rsplit", "split", "strip")
NUMBERS = ", ".join(str(n * (2**61 - 1)) for n in range(2500))
"""Python's hash of each is zero."""

DOUBLED = [
    *(doubled(f"ns.a {operator} ns.b") for operator in ("==", "!=", "<", "in", "not in")),
    *(doubled(f"ns.a {operator} ns.b", PAIR) for operator in ("==", "in")),
    *(doubled(use) for use in ("ns.a in [ns.b]", "[ns.a].index(ns.b)", "[ns.a].count(ns.b)", "[ns.a, ns.b] | sort")),
    *(doubled(use) for use in ("[ns.a] | select('eq', ns.b) | list | length", "ns.a is eq ns.b", "ns.a is lower")),
    *(doubled(use) for use in ("[ns.a, ns.b] | max | length", "''.join([ns.a | string])", "('' | safe).join([ns.a])")),
    *(doubled(use) for use in ("ns.a | safe", "ns.a | trim", "ns.a ~ ''", "ns.a | tojson", "raise_exception(ns.a)")),
    doubled("1") + "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
    *(doubled(use, PAIR) for use in ("{ns.a: 1} | length", "ns.a in {}", "{}[ns.a]", "{}.get(ns.a)")),
    *(doubled(use, PAIR) for use in ("dict([[ns.a, 1]]) | length", "[ns.a] | unique | list | length")),
    *(doubled(use, "({0},)", 5000) for use in ("{ns.a: 1}", "ns.a in {}", "[ns.a] | unique | list")),
]
HARMFUL = [
    *("{% set x = 'a' * 400000 %}{{ x." + name + "('b' + 'a' * 100000) }}" for name in QUADRATIC),
    "{% set x = 'a' * 400000 %}{{ ('b' + 'a' * 100000) in x }}",
    "{% set x = 'a' * 400000 %}{{ x | replace('b' + 'a' * 100000, '') }}",
    "{% set x = 'a' * 400000 %}{{ x | trim('b' * 100000 ~ 'a') }}",
    "{% for i in range(1000) %}{% set x = [" + NUMBERS + "] | unique | list %}{% endfor %}",
    "{% for i in range(1000) %}{% set x = {" + NUMBERS.replace(",", ": 1,") + ": 1} %}{% endfor %}",
    "{{ '%1000000000d' is odd }}",
    "{{ ['%1000000000d'] | select('divisibleby', 3) | list }}",
    "{{ 1.5 | round(1000000000, 'ceil') }}",
    "{{ 15 | round(-1000000000) }}",
    "{{ {'a': [1]} | tojson(indent='x' * 900000) }}",
    "{{ {'a': [1]} | tojson(separators=['x' * 900000, 'y']) }}",
    "{{ ('a\n' * 100000) | indent('x' * 100000) }}",
    "{{ 0x" + "f" * 50_000 + " | abs }}",
    "{{ strftime_now('%Y' * 100000) }}",
    "{% set ns = namespace(x='a' * 100000) %}{{ [" + "ns, " * 10_000 + "] | join(attribute='x') }}",
    "{% include 'a.txt' ignore missing %}",
    "{% autoescape true %}{% endautoescape %}",
    "{{ range.__call__ }}{{ range(3).index(1) }}",
    "{{ 'a' * 10 ** 12 }}",
    "{{ ['a'] * 10 ** 12 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 'a' | center(10 ** 12) }}",
    "{{ 'a'.ljust(10 ** 12) }}",
    "{{ 'a'.zfill(10 ** 12) }}",
    "{{ '%1000000000d' % 3 }}",
    "{{ '{:1000000000d}'.format(3) }}",
    "{{ '\t'.expandtabs(10 ** 12) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000) | replace('', 'b' * 100000) }}",
    "{{ ('a' * 1000000).join(range(10000) | map('string') | list) }}",
    "{{ range(10000) | map('string') | join('x' * 1000000) }}",
    "{{ {'a': [1]} | tojson(indent=10 ** 12) }}",
    "{{ 'a\nb' | indent(10 ** 12) }}",
    "{% for i in range(10 ** 12) %}{% endfor %}",
    "{{ lipsum(1000000) }}",
    grows("{% set ns.x = ns.x ~ ns.x %}"),
    grows("{% set ns.x = ns.x + ns.x %}"),
    grows("{% set ns.x = [ns.x, ns.x] | join %}"),
    grows("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    grows("{% set ns.n = ns.n * ns.n %}"),
    grows("{% set ns.l = ns.l + ns.l %}"),
    grows("{% set ns.l = [ns.l, ns.l] %}{% set ns.x = ns.l | string %}"),
    grows("{% for j in range(5000) %}{% for k in range(5000) %}{% endfor %}{% endfor %}"),
    grows("x" * 100_000),
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{{ ns }}",
    "{{ [range] }}",
    "{% include 'a.txt' %}",
    "{% extends 'a.txt' %}",
    "{% import 'os' as os %}",
    "{{ open('a.txt') }}",
    "x" * (template_module.MAX_SOURCE_CHARACTERS + 1),
    "(" * 5000 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
]


@pytest.mark.parametrize(
    ("source", "n_units"), [*((one, 1_000_000) for one in HARMFUL), *((one, 50_000) for one in DOUBLED)]
)
def test_harm_is_refused_at_once(source: str, n_units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_WORK_UNITS", n_units)
    began = time.process_time()
    with pytest.raises((TemplateError, TypeError, RecursionError, SyntaxError, ValueError)):
        SandboxedTemplate(source).render(messages=[dict(one) for one in MESSAGES])
    assert time.process_time() - began < 5


LONG = "x" * 1000
REPEATED = {
    "a block": "{% block a %}" + LONG + "{% endblock %}" + "{{ self.a() }}" * 40,
    "blocks in blocks": "{% block a %}" + LONG + "{% endblock %}"
    "{% block b %}{{ self.a() }}{{ self.a() }}{{ self.a() }}{{ self.a() }}{% endblock %}"
    "{% block c %}{{ self.b() }}{{ self.b() }}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "the body of a call": "{% macro m() %}{% for i in range(40) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call m() %}" + LONG + "{% endcall %}",
    "the body of a call, kept": "{% macro m() %}{% for i in range(40) %}{% set x = caller() %}{% endfor %}"
    "{% endmacro %}"
    "{% call m() %}" + LONG + "{% endcall %}",
    "a macro": "{% macro m() %}" + LONG + "{% endmacro %}" + "{{ m() }}" * 40,
    "a loop": "{% for i in range(40) %}" + LONG + "{% endfor %}",
    "a set block": "{% for i in range(40) %}{% set x %}" + LONG + "{% endset %}{% endfor %}",
    "a constant": "{% for i in range(40) %}{{ '" + LONG + "' }}{% endfor %}",
    "a filter of a constant": "{% for i in range(40) %}{{ 'x' | replace('x', '" + LONG + "') }}{% endfor %}",
    "a filter block": "{% for i in range(40) %}{% filter upper %}" + LONG + "{% endfilter %}{% endfor %}",
    "generation blocks": "{% for i in range(40) %}{% generation %}" + LONG + "{% endgeneration %}{% endfor %}",
}


@pytest.mark.parametrize("source", REPEATED.values(), ids=REPEATED)
def test_repeated_text_is_counted_each_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SandboxedTemplate(source).render()) >= 0
    monkeypatch.setattr(template_module, "MAX_WORK_UNITS", 16_000)
    with pytest.raises(SecurityError, match="handles more"):
        SandboxedTemplate(source).render()


GREEDY = {
    "slices": "{% set a = 'a' * 90000 %}{{ [" + "a[1:], " * 2000 + "] | length }}",
    "slices of lists": "{% set a = ['a'] * 10000 %}{{ [" + "a[1:], " * 2000 + "] | length }}",
    "lists": "{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x, " + "1," * 5000 + "] %}"
    "{% endfor %}",
    "dicts": "{% set ns = namespace() %}{% for i in range(10000) %}{% for j in range(10000) %}"
    "{% set ns.x = {'a': ns.x, 'b': {}} %}{% endfor %}{% endfor %}",
    "namespaces": "{% set ns = namespace() %}{% for i in range(10000) %}{% for j in range(10000) %}"
    "{% set ns.x = namespace(x=ns.x) %}{% endfor %}{% endfor %}",
    "methods": "{% set ns = namespace() %}{% for i in range(10000) %}{% set ns.x = [ns.x, "
    + "'a'.upper, " * 5000
    + "] %}"
    "{% endfor %}",
    "pieces": "{% set ns = namespace() %}{% for i in range(10000) %}"
    "{% set ns.x = [ns.x, ('\u0101 ' * 20000).split(' ')] %}{% endfor %}",
    "characters": "{% set a = '\u0101' * 90000 %}{{ a | list | length }}",
    "words": "{% set a = '\u0101-' * 40000 %}{{ a | title | length }}",
    "arguments": "{% set a = ['a'] * 90000 %}{% macro f() %}{{ f(*a) }}{% endmacro %}{{ f() }}",
    "pairs": "{% set a = ['a'] * 10000 %}{{ dict([" + "a, " * 100 + "]) }}",
}


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_memory_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_WORK_UNITS", 100_000)
    template = SandboxedTemplate(source)
    tracemalloc.start()
    try:
        with pytest.raises((SecurityError, ValueError)):
            template.render()
        assert tracemalloc.get_traced_memory()[1] < 100 * template_module.MAX_WORK_UNITS
    finally:
        tracemalloc.stop()


def test_a_long_conversation_is_within_the_bounds() -> None:
    """Of five million characters in a thousand messages, by a template that handles each a few times."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": "a" * 5000} for n in range(1000)]
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}-{% endif %}"
        "{% if loop.first or messages[loop.index0 - 1].role != m.role %}{{ m['role'] + ': ' }}{% endif %}"
        "{{ m.content ~ '\n' }}{% if loop.index == messages | length and messages[-1] is mapping %}.{% endif %}"
        "{% endfor %}"
    )
    assert len(SandboxedTemplate(source).render(messages=messages)) > 5_000_000


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_SECONDS", 0.05)
    with pytest.raises(SecurityError, match="seconds"):
        SandboxedTemplate(grows("{% for j in range(5000) %}{% endfor %}")).render()


def test_each_rendering_has_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_WORK_UNITS", 1000)
    template = SandboxedTemplate("{{ messages[0].content }}")
    for _ in range(100):
        assert template.render(messages=[{"content": "a" * 100}]) == "a" * 100
