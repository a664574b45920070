"""Templates of strangers: what they may do is what Jinja does; what is harmful or endless ends in an error."""

import time
from datetime import datetime

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmtool.tokenization import template as rooms
from lmtool.tokenization.template import Refusal, SandboxedTemplate

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
    "{{ 'a\nb' | indent(3) }}{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ (messages | first).role }}",
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_template_writes_what_jinja_writes(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert SandboxedTemplate(source).render(messages=MESSAGES) == plain.from_string(source).render(messages=MESSAGES)


def test_what_transformers_adds_to_jinja() -> None:
    assert SandboxedTemplate("{{ {'é': '<b>', 'a': [1]} | tojson }}").render() == '{"é": "<b>", "a": [1]}'
    assert (
        SandboxedTemplate("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}").render()
        == '{\n "a": 2,\n "b": 1\n}'
    )
    assert SandboxedTemplate("{{ strftime_now('%Y') }}", lambda: datetime(1999, 1, 1)).render() == "1999"
    assert (
        SandboxedTemplate("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").render()
        == "01"
    )
    with pytest.raises(Refusal, match="no"):
        SandboxedTemplate("{{ raise_exception('no') }}").render()


def test_marks_stand_around_what_generation_blocks_write() -> None:
    source = "{% for i in range(2) %}a{% generation %}{{ i }}b{% endgeneration %}{% endfor %}c"
    assert SandboxedTemplate(source).marks_generation
    assert SandboxedTemplate(source).render(marks=("(", ")")) == "a(0b)a(1b)c"
    assert SandboxedTemplate(source).render() == "a0ba1bc"
    assert not SandboxedTemplate("generation").marks_generation


def grows(step: str) -> str:
    return "{% set ns = namespace(x='ab', l=['a'], n=3) %}{% for i in range(5000) %}" + step + "{% endfor %}{{ ns.x }}"


HARMFUL = [
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
    "x" * (rooms.LARGEST_SOURCE + 1),
    "(" * 5000 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", HARMFUL, ids=range(len(HARMFUL)))
def test_harm_is_refused_at_once(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WORK", 1_000_000)
    began = time.process_time()
    with pytest.raises((TemplateError, TypeError, RecursionError, SyntaxError)):
        SandboxedTemplate(source).render(messages=[dict(one) for one in MESSAGES])
    assert time.process_time() - began < 5


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "SECONDS", 0.05)
    with pytest.raises(SecurityError, match="seconds"):
        SandboxedTemplate(grows("{% for j in range(5000) %}{% endfor %}")).render()


def test_each_rendering_has_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WORK", 1000)
    template = SandboxedTemplate("{{ messages[0].content }}")
    for _ in range(100):
        assert template.render(messages=[{"content": "a" * 100}]) == "a" * 100
