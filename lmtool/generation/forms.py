"""Forms that constrain a generated text: choices, a regular expression, a JSON schema, or a grammar."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, get_args

from lmtool.errors import UsageError
from lmtool.printable import printable

MAX_SCHEMA_DEPTH = 200
"""Maximum nesting of a JSON schema."""

FormKind = Literal["choices", "regex", "json-schema", "grammar"]

_JSON_STYLE: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Generated JSON is on one line, as Python's `json.dumps` writes it."""

_ANNOTATIONS = {
    *("$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "discriminator"),
}
"""Keywords of JSON Schema that restrict nothing."""

_KEYWORDS = _ANNOTATIONS | {
    *("$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "required"),
    *("patternProperties", "additionalProperties", "minProperties", "maxProperties", "items", "prefixItems"),
    *("additionalItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Accepted keywords of JSON Schema. llguidance refuses restrictions that it does not enforce."""


@dataclass(frozen=True)
class TextForm:
    """A constraint on a text.

    kind: "choices" (source is a JSON list of texts), "regex" (for the whole text; the syntax of Rust's crate `regex`),
        "json-schema" (source is the schema, as JSON) or "grammar" (Lark's syntax, as llguidance reads it).
    complete: closes the form before the text reaches its maximum length.
    file: file of the source, for error messages; "" for none.

    Raises UsageError for an invalid source, and for a schema that cannot be enforced.
    """

    kind: FormKind
    source: str
    complete: bool = False
    file: str = field(default="", compare=False)

    @classmethod
    def from_sources(cls, *, complete: bool = False, file: str = "", **sources: Any) -> "TextForm | None":
        """Makes a form of one of choices (texts), regex, json_schema (a value, or its JSON) and grammar.

        Returns None if all are None. Raises UsageError for several, and as `TextForm` does.
        """
        given = {name: value for name, value in sources.items() if value is not None}
        if len(given) > 1:
            raise UsageError(f"a text can have only one form, not {' and '.join(given)}", fix="give one of them")
        for name, value in given.items():
            source = value if isinstance(value, str) and name != "choices" else json.dumps(value, ensure_ascii=False)
            return cls(cast(FormKind, name.replace("_", "-")), source, complete, file)
        if complete:
            raise UsageError("there is no form to complete", fix="give choices, regex, json-schema or grammar")
        return None

    of = from_sources
    """The name of `from_sources` in version 0.1."""

    def __post_init__(self) -> None:
        from llguidance import LLMatcher

        from lmtool.tokenization.tokenizer import replace_surrogates

        if self.kind not in get_args(FormKind):
            raise UsageError(f"{self.kind} is not a kind of form", fix=f"take {', '.join(get_args(FormKind))}")
        if self.source != replace_surrogates(self.source):
            raise self.make_error("it is no Unicode text")
        if mistake := LLMatcher.validate_grammar(self.grammar):
            raise self.make_error(mistake)

    @cached_property
    def grammar(self) -> str:
        """The grammar in the format of llguidance."""
        from llguidance import LLMatcher

        from lmtool.storage.records import is_nested_deeper

        match self.kind:
            case "regex":
                return LLMatcher.grammar_from_regex(self.source)
            case "grammar":
                return LLMatcher.grammar_from_lark(self.source)
        try:
            value = json.loads(self.source)
        except (ValueError, RecursionError) as error:
            raise self.make_error(f"it is not JSON: {error}") from None
        if self.kind == "choices":
            if not (isinstance(value, list) and value and all(isinstance(one, str) and one for one in value)):
                raise self.make_error("choices are one text or more, none of them empty")
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, value)))
        value = {} if value is True else value
        if not isinstance(value, dict):
            raise self.make_error("it is not a JSON object, which alone describes values")
        if is_nested_deeper(value, MAX_SCHEMA_DEPTH):
            raise self.make_error(f"values lie in others, more than {MAX_SCHEMA_DEPTH} deep")
        for path, keyword in _iterate_schema_keywords(value):
            if keyword not in _KEYWORDS and (keyword == "x-guidance" or not keyword.startswith("x-")):
                raise self.make_error(f"{path or 'the schema'} has {keyword!r}, which is not enforced")
        return LLMatcher.grammar_from_json_schema(value, overrides=cast(Any, _JSON_STYLE | {"lenient": False}))

    def make_error(self, why: str = "no token of this model continues it") -> UsageError:
        """Makes an error about this form. why: a message of llguidance or other code; one line of it is kept."""
        if why.startswith("NoExtension"):
            why = "no text continues it"
        lines = [line.strip() for line in why.splitlines() if line.strip()]
        why = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
        titles = {"choices": "the choices", "regex": "the regular expression", "json-schema": "the JSON schema"}
        file = f"{printable(self.file)}: " if self.file else ""
        what = f"{file}{titles.get(self.kind, 'the grammar')} cannot be used: {printable(why)[:160]}"
        return UsageError(what, where=printable(self.source)[:80], fix="omit or replace that part")


def _iterate_schema_keywords(schema: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (path, keyword) of all keywords of a schema and of its subschemas."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield path, keyword
        here = f"{path}.{keyword}".lstrip(".")
        if keyword in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            for name, inner in value.items():
                yield from _iterate_schema_keywords(inner, f"{here}.{name}")
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            for i, inner in enumerate(value):
                yield from _iterate_schema_keywords(inner, f"{here}.{i}")
        elif keyword in ("items", "additionalProperties", "additionalItems"):
            yield from _iterate_schema_keywords(value, here)
