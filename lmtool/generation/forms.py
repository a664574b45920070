"""Forms that a generated text must have: one of some choices, a match of a regular expression, JSON, or a grammar."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, get_args

from lmtool.errors import UsageError
from lmtool.printable import plain

DEEPEST = 200
"""Values within others in a schema."""

FormKind = Literal["choices", "regex", "json-schema", "grammar"]

_JSON_STYLE: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written: on one line, as Python's `json.dumps` does."""

_ANNOTATIONS = {
    *("$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "discriminator"),
}
"""Keywords that restrict nothing."""

_KEYWORDS = _ANNOTATIONS | {
    *("$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "required"),
    *("patternProperties", "additionalProperties", "minProperties", "maxProperties", "items", "prefixItems"),
    *("additionalItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that may stand in a schema; of those that restrict, llguidance refuses what it does not enforce."""


@dataclass(frozen=True)
class TextForm:
    """What a text must be.

    kind: "choices" (source is a JSON list of texts), "regex" (which the whole text matches; the syntax of Rust's crate
        `regex`), "json-schema" (source is the schema, as JSON) or "grammar" (Lark's syntax, as llguidance reads it).
    complete: a text that would reach its maximum length is closed before.
    file: that the source was read from, which errors name first; "" for none.

    Raises UsageError for a source that is not valid, and for what a schema has that cannot be enforced.
    """

    kind: FormKind
    source: str
    complete: bool = False
    file: str = field(default="", compare=False)

    @classmethod
    def of(cls, *, complete: bool = False, file: str = "", **sources: Any) -> "TextForm | None":
        """The form that is given by one of choices (texts), regex, json_schema (a value, or its JSON) and grammar.

        None where all are None. Raises UsageError for several, and as `TextForm` does.
        """
        stated = {name: value for name, value in sources.items() if value is not None}
        if len(stated) > 1:
            raise UsageError(f"a text can have only one form, not {' and '.join(stated)}", fix="give one of them")
        for name, value in stated.items():
            source = value if isinstance(value, str) and name != "choices" else json.dumps(value, ensure_ascii=False)
            return cls(cast(FormKind, name.replace("_", "-")), source, complete, file)
        if complete:
            raise UsageError("there is no form to complete", fix="give choices, regex, json-schema or grammar")
        return None

    def __post_init__(self) -> None:
        from llguidance import LLMatcher

        from lmtool.tokenization.tokenizer import replace_surrogates

        if self.kind not in get_args(FormKind):
            raise UsageError(f"{self.kind} is not a kind of form", fix=f"take {', '.join(get_args(FormKind))}")
        if self.source != replace_surrogates(self.source):
            raise self.wrong("it is no Unicode text")
        if mistake := LLMatcher.validate_grammar(self.grammar):
            raise self.wrong(mistake)

    @cached_property
    def grammar(self) -> str:
        """The grammar that llguidance reads."""
        from llguidance import LLMatcher

        from lmtool.records import is_deep

        match self.kind:
            case "regex":
                return LLMatcher.grammar_from_regex(self.source)
            case "grammar":
                return LLMatcher.grammar_from_lark(self.source)
        try:
            value = json.loads(self.source)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"it is not JSON: {error}") from None
        if self.kind == "choices":
            if not (isinstance(value, list) and value and all(isinstance(one, str) and one for one in value)):
                raise self.wrong("choices are one text or more, none of them empty")
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, value)))
        value = {} if value is True else value
        if not isinstance(value, dict):
            raise self.wrong("it is not a JSON object, which alone describes values")
        if is_deep(value, DEEPEST):
            raise self.wrong(f"values lie in others, more than {DEEPEST} deep")
        for path, keyword in _keywords(value):
            if keyword not in _KEYWORDS and (keyword == "x-guidance" or not keyword.startswith("x-")):
                raise self.wrong(f"{path or 'the schema'} has {keyword!r}, which is not enforced")
        return LLMatcher.grammar_from_json_schema(value, overrides=cast(Any, _JSON_STYLE | {"lenient": False}))

    def wrong(self, why: str = "no token of this model goes on with it") -> UsageError:
        """The error of this form. why: in the words of llguidance or others, of which one line is kept."""
        if why.startswith("NoExtension"):
            why = "no text goes on with it"
        lines = [line.strip() for line in why.splitlines() if line.strip()]
        why = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
        named = {"choices": "the choices", "regex": "the regular expression", "json-schema": "the JSON schema"}
        file = f"{plain(self.file)}: " if self.file else ""
        what = f"{file}{named.get(self.kind, 'the grammar')} cannot be used: {plain(why)[:160]}"
        return UsageError(what, where=plain(self.source)[:80], fix="omit or replace that part")


def _keywords(schema: object, path: str = "") -> Iterator[tuple[str, str]]:
    """The keywords of a schema and of those in it, with their path."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield path, keyword
        here = f"{path}.{keyword}".lstrip(".")
        if keyword in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            for name, inner in value.items():
                yield from _keywords(inner, f"{here}.{name}")
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            for i, inner in enumerate(value):
                yield from _keywords(inner, f"{here}.{i}")
        elif keyword in ("items", "additionalProperties", "additionalItems"):
            yield from _keywords(value, here)
