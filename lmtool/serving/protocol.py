"""Request bodies of the OpenAI API, as far as they apply to a single language model.

Fields that do not change an answer are accepted and ignored, as is any that is null. All others are errors.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, create_model, field_validator, model_validator

from lmtool.errors import UsageError
from lmtool.generation.forms import TextForm
from lmtool.generation.params import SamplingFilters, SamplingParams
from lmtool.serving.errors import BadRequest

MAX_TEXTS = 64
"""Maximum texts of a request: its prompts times n, or its inputs."""

MAX_VALUES = 1 << 18
"""Maximum values of a body, nested ones included: no other thread runs while they are parsed."""

_VALUE_PATTERN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
"""Matches strings, brackets and commas, of which a body has at least as many as values."""

MAX_MISTAKES = 1000
MAX_STOPS = 16
MAX_ALTERNATIVES = 20

MAX_CHOICES = 1024
MAX_FORM_CHARACTERS = 1 << 16

GivenText = Annotated[str, Field(max_length=1 << 20)]
GivenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1 << 17, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
GuidedChoice = Annotated[str, Field(min_length=1, max_length=1000)]
FormSource = Annotated[str, Field(max_length=MAX_FORM_CHARACTERS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LIST_LIMITS = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
"""Limits of the length of a list of texts."""


class RequestObject(BaseModel, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True):
    """An object of a request. A null field is ignored, whatever its name."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None or name in cls.model_fields}


class RequestBody(RequestObject):
    """Fields of all requests. model: name of the served model. The other fields are ignored."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None


class StreamOptions(RequestObject):
    """Options of a stream. include_usage: whether a last event counts the tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


def _make_sampling_filter_type(name: str, annotation: Any) -> Any:
    """Returns the type of a sampling filter in a body: null, or a value in the range of `SamplingFilters`."""

    def check_range(value: Any) -> Any:
        try:
            SamplingParams("sample", **({} if value is None else {name: value}))
        except UsageError as error:
            raise ValueError(error.fix) from None
        return value

    return Annotated[get_args(annotation)[0] | None, Field(allow_inf_nan=False), AfterValidator(check_range)]


if TYPE_CHECKING:
    FilterBody = RequestBody
else:
    FilterBody = create_model(
        "FilterBody",
        __base__=RequestBody,
        **{field.name: (_make_sampling_filter_type(field.name, field.type), None) for field in fields(SamplingFilters)},
    )


class GenerationBody(FilterBody):
    """Fields of all requests for text; besides these, all sampling filters.

    repetition_penalty: as the option of `lmtool generate`; an extension of the API, like most of the filters.
    guided_choice, guided_regex, guided_json, guided_grammar: the form of texts, by vLLM's names; guided_json is a
        schema, or its text. guided_complete: as `TextForm.complete`.
    """

    repetition_penalty: float | None = Field(default=None, ge=0.1, le=10)
    n: int | None = Field(default=None, ge=1, le=MAX_TEXTS)
    seed: int | None = Field(default=None, ge=0, le=(1 << 63) - 1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None

    guided_choice: Annotated[list[GuidedChoice], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)] | None = (
        None
    )
    guided_regex: FormSource | None = None
    guided_json: FormSource | dict[str, Any] | None = None
    guided_grammar: FormSource | None = None
    guided_complete: bool | None = None

    def guided_form(self) -> TextForm | None:
        """Returns the form of the text. Raises BadRequest for several forms, and for one that cannot be enforced."""
        guided = {"choices": "choice", "regex": "regex", "json_schema": "json", "grammar": "grammar"}
        sources = {source: getattr(self, f"guided_{name}") for source, name in guided.items()}
        names = {source: f"guided_{name}" for source, name in guided.items()}
        if (schema := self._response_schema()) is not None:
            if sources["json_schema"] is not None:
                raise BadRequest(400, "guided_json: contradicts response_format", param="guided_json")
            sources["json_schema"], names["json_schema"] = schema, "response_format"
        named = next((names[source] for source, value in sources.items() if value is not None), "guided_complete")
        schema = sources["json_schema"]
        if schema is not None and len(schema if isinstance(schema, str) else json.dumps(schema)) > MAX_FORM_CHARACTERS:
            raise BadRequest(400, f"{named}: a schema has at most {MAX_FORM_CHARACTERS} characters", param=named)
        try:
            form = TextForm.from_sources(**sources, complete=bool(self.guided_complete))
        except UsageError as error:
            raise BadRequest(400, f"{named}: {error.what}", param=named) from None
        if form is not None and self.stop_strings:
            raise BadRequest(400, f"stop: contradicts {named}, which ends by itself", param="stop")
        return form

    def _response_schema(self) -> dict[str, Any] | None:
        """Returns the schema of a response format, if there is one."""
        return None

    @property
    def has_form(self) -> bool:
        """Whether the text has a form, which may take long to prepare."""
        return any(getattr(self, f"guided_{name}") is not None for name in ("choice", "regex", "json", "grammar"))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage_event(self) -> bool:
        """Whether the last event of a stream counts the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """POST /v1/completions. max_tokens: may be 0 with `echo`, to get the probabilities of a prompt."""

    prompt: GivenText | GivenIds | Annotated[list[GivenText], LIST_LIMITS] | Annotated[list[GivenIds], LIST_LIMITS] = ""
    max_tokens: int | None = Field(default=None, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Literal[""] | None = None


class TextContent(RequestObject):
    """A part of a message's content."""

    type: Literal["text"]
    text: GivenText


class MessageBody(RequestObject):
    """A message of a conversation. content: may be null if there are tool_calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: GivenText | Annotated[list[TextContent], Field(min_length=1, max_length=256, fail_fast=True)] | None = None
    tool_calls: Annotated[list[dict[str, Any]], LIST_LIMITS] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def template_message(self) -> dict[str, Any]:
        """The message in the format of chat templates."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content
        calls = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id}
        return {"role": "system" if self.role == "developer" else self.role, "content": content, **calls}


class NamedFunction(RequestObject):
    """A function by its name."""

    name: str


class ToolChoice(RequestObject):
    """The function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(RequestObject):
    """A schema that answers follow. strict: ignored, because they always do."""

    name: Annotated[str, Field(max_length=256)]
    description: str | None = None
    # `schema` is a method of pydantic's models
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestObject):
    """The format of answers: text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions.

    modalities, verbosity: only their defaults are accepted. prediction: ignored.
    """

    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = Field(default=None, min_length=1, max_length=1)
    verbosity: Literal["medium"] | None = None
    prediction: dict[str, Any] | None = None

    @property
    def has_form(self) -> bool:
        """As for other requests. The syntax of tool calls is a form, too."""
        return super().has_form or self.response_format is not None or bool(self.tools)

    def _response_schema(self) -> dict[str, Any] | None:
        form = self.response_format
        if form is None:
            return None
        if (form.json_schema is None) == (form.type == "json_schema"):
            what = "response_format: json_schema goes with the type json_schema"
            raise BadRequest(400, what, param="response_format")
        if form.json_schema is not None:
            return form.json_schema.schema_
        return {"type": "object"} if form.type == "json_object" else None


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings."""

    input: GivenText | Annotated[list[GivenText], LIST_LIMITS]
    encoding_format: Literal["float", "base64"] | None = None


class SearchBody(EmbeddingBody):
    """POST /search. input: queries. k: texts to find for each."""

    k: int = Field(default=10, ge=1, le=1000)


class ClassifyBody(RequestBody):
    """POST /classify. input: a text, or the texts of several columns by name; or a list of either."""

    input: (
        GivenText
        | dict[str, GivenText]
        | Annotated[list[GivenText], LIST_LIMITS]
        | Annotated[list[dict[str, GivenText]], LIST_LIMITS]
    )

    @field_validator("input")
    @classmethod
    def _check_column_count(cls, value: Any) -> Any:
        if any(isinstance(one, dict) and len(one) > 64 for one in ([value] if isinstance(value, dict) else value)):
            raise ValueError("at most 64 columns")
        return value


def parse_body(body_type: type[BaseModel], raw: bytes) -> Any:
    """Parses a request from JSON. Raises BadRequest, which names the first invalid field."""
    if len(raw) > MAX_VALUES and any(n > MAX_VALUES for n, _ in enumerate(_VALUE_PATTERN.finditer(raw), 1)):
        raise BadRequest(413, f"the body has more than {MAX_VALUES} values")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest(400, "the body is not JSON") from None
    try:
        return body_type.model_validate(value, strict=True)
    except ValidationError as error:
        if error.error_count() > MAX_MISTAKES:
            raise BadRequest(400, f"the body has {error.error_count()} mistakes") from None
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)
        # for a value of several possible types, "empty" says more than the type mismatches
        first = next((mistake for mistake in mistakes if "too_short" in mistake["type"]), mistakes[0])
        param = str(first["loc"][0]) if first["loc"] else None
        words = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        what = _ERROR_TEXTS.get(first["type"], words)
        message = f"{param}: {what}" if param else what
        raise BadRequest(400, message[:500], param=param) from None


_ERROR_TEXTS = {
    "missing": "this field is required",
    "extra_forbidden": "this field is not offered here",
    "too_short": "it is empty",
    "string_too_short": "it is empty",
}
"""Messages for error types of pydantic."""


def encode_json_list(head: dict[str, Any], name: str, items: Iterable[Any]) -> bytes:
    """Encodes an object with one more field, a list, as JSON. Other threads can run between its items."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return f'{encode(head)[:-1]},"{name}":[{",".join(map(encode, items))}]}}'.encode()
