"""YAML 1.2, its line numbers, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.recipe.document import Origin, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 0.001), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-12", -12), ("+12", 12), ("010", 10)),
        *(("0o17", 15), ("0x1F", 31), ("-.inf", -math.inf), (".INF", math.inf), ("true", True), ("FALSE", False)),
        *(("null", None), ("~", None), ("", None), ("'1e-3'", "1e-3"), ('"true"', "true"), ("!!str 12", "12")),
        *((text, text) for text in ("on", "yes", "No", "tRue", "1_000", "1:30", "2020-01-01", "1e", "0b1", "9" * 5000)),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    document = parse_yaml(text, "f")
    assert document.mistakes == []
    assert document.value == value
    assert type(document.value) is type(value)
    assert math.isnan(parse_yaml(".nan", "f").value)


def test_every_key_and_item_has_its_line() -> None:
    document = parse_yaml("a:\n  b: 1\n  # comment\n  c:\n  - x\n  - {d: 2}\n", "f.yaml")
    assert document.value == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    assert {path: origin.line for path, origin in document.origins.items()} == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
        ("a", "c", 1, "d"): 6,
    }
    assert str(document.origins[("a", "b")]) == "f.yaml:2"


def test_a_duplicate_key_names_both_lines_and_the_rest_is_still_read() -> None:
    document = parse_yaml("a:\n  b: 1\n  c: 2\n  b: 3\nd: 4\n", "f")
    assert [str(mistake) for mistake in document.mistakes] == ["f:4: a.b: written twice, first in line 2"]
    assert document.value == {"a": {"b": 1, "c": 2}, "d": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: c: 2\n", "f:2:5: not YAML: a ':' where none can be"),
        ("a: 1\nb\nc: 2\n", "f:2:1: not YAML: this key has no ':'"),
        ("a:\n\tb: 1\n", "f:2:1: not YAML: a tab"),
        ("a:\n  b: 1\n c: 1\n", "f:3:2: not YAML: the indentation"),
        ("a: [1, 2\n", "f:1:4: not YAML: a list that ["),
        ("a: {b: 2\n", "f:1:4: not YAML: a mapping that {"),
        ("a: 'b\n", "f:1:4: not YAML: a quote"),
        ("a: 1\n---\nb: 2\n", "f:2:1: not YAML: a second document"),
        ("a: &x 1\nb: *x\n", "f:2:4: not YAML: an alias"),
        ("a: 1\nb: x\x07y\n", "f:2:5: not YAML: the character U+0007"),
        ("a: !!python/name:os.system 1\n", "f:1: a: the tag !!python/name:os.system is not read"),
        ("a: !!float 1\n", "f:1: a: the tag !!float is not read"),
        ("? [1]\n: 2\n", "f:1: a key must be a string"),
        ("[" * 100_000, "f: not a recipe: nested too deeply"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    (mistake,) = parse_yaml(text, "f").mistakes
    assert str(mistake).startswith(message)


def test_a_command_line_value_has_no_line_but_keys_in_it_do() -> None:
    assert parse_yaml("{a: 1}", "-s x").origins[("a",)] == Origin("-s x", 1)


@given(st.text())
def test_no_text_makes_the_parser_raise(text: str) -> None:
    parse_yaml(text, "f")
