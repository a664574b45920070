"""What clients send and read: the interface of the OpenAI API, as far as a language model of one machine has it.

Fields that a client may send although nothing here depends on them are named and ignored; all others are refused.
"""

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from lmtool.serving.errors import BadRequest

MAX_TEXTS = 64
"""Texts of one request: its prompts times n, or its inputs."""

MAX_VALUES = 1 << 18
"""Values of a body, all that stand in others included: no other thread runs while these are made."""

_VALUES = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
"""What a body has at least as many of as values: strings, brackets and commas."""

MAX_MISTAKES = 1000
MAX_STOPS = 16
MAX_ALTERNATIVES = 20

GivenText = Annotated[str, Field(max_length=1 << 20)]
GivenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1 << 17, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
FEW = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
"""How many texts a list may have."""

Zero = Annotated[float, Field(ge=0, le=0)]
"""A number that only its default is offered of."""


class Body(BaseModel, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True):
    """A request. model: nothing but the one that is served."""

    model: str | None = None
    user: str | None = None


class StreamOptions(BaseModel, extra="forbid"):
    """include_usage: a last event counts the tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextBody(Body):
    """What all requests for text have in common.

    top_k, min_p, repetition_penalty: as the options of `lmtool generate`; the API does not have them.
    """

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1, le=1 << 31)
    min_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.1, le=10)
    n: int | None = Field(default=None, ge=1, le=MAX_TEXTS)
    seed: int | None = Field(default=None, ge=0, le=(1 << 63) - 1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether the last event of a stream counts the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(TextBody):
    """POST /v1/completions. max_tokens: 0 with `echo` alone, to read the probabilities of a prompt."""

    prompt: GivenText | GivenIds | Annotated[list[GivenText], FEW] | Annotated[list[GivenIds], FEW] = ""
    max_tokens: int | None = Field(default=None, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Literal[""] | None = None


class TextContent(BaseModel, extra="forbid", hide_input_in_errors=True):
    """A part of a message's content."""

    type: Literal["text"]
    text: GivenText


class MessageBody(BaseModel, extra="forbid", hide_input_in_errors=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: GivenText | Annotated[list[TextContent], Field(min_length=1, max_length=256, fail_fast=True)]
    name: str | None = None

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(BaseModel, extra="forbid"):
    """The format of answers: text."""

    type: Literal["text"]


class ChatBody(TextBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    response_format: TextFormat | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = None


class EmbeddingBody(Body):
    """POST /v1/embeddings."""

    input: GivenText | Annotated[list[GivenText], FEW]
    encoding_format: Literal["float", "base64"] | None = None


class SearchBody(EmbeddingBody):
    """POST /search. input: queries. k: texts for each."""

    k: int = Field(default=10, ge=1, le=1000)


class ClassifyBody(Body):
    """POST /classify. input: a text, or for runs that read several columns, these by name; or a list of either."""

    input: (
        GivenText | dict[str, GivenText] | Annotated[list[GivenText], FEW] | Annotated[list[dict[str, GivenText]], FEW]
    )

    @field_validator("input")
    @classmethod
    def _few_columns(cls, value: Any) -> Any:
        if any(isinstance(one, dict) and len(one) > 64 for one in ([value] if isinstance(value, dict) else value)):
            raise ValueError("at most 64 columns")
        return value


def parse(kind: type[BaseModel], raw: bytes) -> Any:
    """A request of this kind from JSON. Raises BadRequest, which names the first field at fault."""
    if len(raw) > MAX_VALUES and any(n > MAX_VALUES for n, _ in enumerate(_VALUES.finditer(raw), 1)):
        raise BadRequest(413, f"the body has more than {MAX_VALUES} values")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest(400, "the body is not JSON") from None
    try:
        return kind.model_validate(value, strict=True)
    except ValidationError as error:
        if error.error_count() > MAX_MISTAKES:
            raise BadRequest(400, f"the body has {error.error_count()} mistakes") from None
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        what = "this field is not offered here" if first["type"] == "extra_forbidden" else first["msg"]
        message = f"{param}: {what}" if param else what
        raise BadRequest(400, message[:500], param=param) from None


def listed(head: dict[str, Any], name: str, items: Iterable[Any]) -> bytes:
    """An object with a further field, a list, as JSON. Other threads run between items, each of which may be long."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return f'{encode(head)[:-1]},"{name}":[{",".join(map(encode, items))}]}}'.encode()
