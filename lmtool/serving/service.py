"""Turns request bodies into model computations, and their results into responses."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.data.rowfile import find_matching_column
from lmtool.errors import CheckpointError, UsageError
from lmtool.evaluation.embedding import EncodedText, Vectors, embed_encoded_texts, encode_text
from lmtool.generation.chat import MAX_ANSWER_TOKENS, choose_chat_or_plain_format, validate_messages
from lmtool.generation.constrained import check_form_and_create_state
from lmtool.generation.forms import TextForm
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingFilters, SamplingParams
from lmtool.generation.request import build_requests
from lmtool.model import NGramModel
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering, Tagging
from lmtool.serving.errors import BadRequest
from lmtool.serving.protocol import (
    MAX_FORM_CHARACTERS,
    MAX_TEXTS,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    SearchBody,
    encode_json_list,
)
from lmtool.serving.response_builder import ResponseBuilder
from lmtool.serving.scheduler import Scheduler
from lmtool.tasks.predict import LabelPredictor, get_text_columns
from lmtool.tasks.rows import EncodedRow
from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from lmtool.tokenization.tools import validate_tools

DEFAULT_COMPLETION_TOKENS = 16
"""Default max_tokens of completions, as in the API."""

SAMPLING_FIELDS = {
    *(field.name for field in fields(SamplingFilters)),
    *("seed", "repetition_penalty", "frequency_penalty", "presence_penalty"),
}
"""Fields of a body that are settings of sampling, by the same names."""

GROUP_TOKENS = 2048
"""Tokens of texts that are embedded or classified at once, between two steps of generation."""

MAX_EMBEDDED_TOKENS = 8192
"""Maximum tokens of an embedded text if the model's context is unlimited."""

Tokenized = TypeVar("Tokenized", EncodedText, "TextWindows")
Result = TypeVar("Result")


class SearchableTexts(Protocol):
    """Texts that are searched by their vectors, such as an `Index`."""

    def find_nearest(self, query_QD: Vectors, k: int) -> Iterable[Sequence[NamedTuple]]:
        """Returns the k texts nearest to each query, the nearest first, as records."""


class ModelService:
    """Computes responses with one run.

    name: name of the model. max_tokens: maximum new tokens of a text. index: texts to search.
    """

    def __init__(
        self, generator: TextGenerator, scheduler: Scheduler, max_tokens: int, index: SearchableTexts | None = None
    ) -> None:
        self.generator, self.scheduler, self.max_tokens, self.index = generator, scheduler, max_tokens, index
        self.loaded = generator.loaded
        self.name = self.loaded.run_path.name
        self.fingerprint = self.loaded.checkpoint_hash[:16]

    @cached_property
    def chat_format(self) -> ChatFormat | None:
        """The chat format of the model; None if it holds no conversations."""
        try:
            return choose_chat_or_plain_format(self.loaded) if self.generator.writes else None
        except (UsageError, CheckpointError):
            return None

    def make_models_entry(self) -> dict[str, Any]:
        """Returns the model as an object of /v1/models, with its capabilities."""
        model, spec = self.loaded.model, self.loaded.recipe.objective
        return {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "lmtool",
            "context": model.context,
            "description": model.description,
            "completions": self.generator.writes,
            "chat": None if self.chat_format is None else self.chat_format.name,
            "classifies": isinstance(spec, HeadSpec),
            "embeds": None if isinstance(model, NGramModel) else "own" if isinstance(spec, Embedding) else "mean",
            "max_tokens": self.max_tokens,
        }

    def check_model(self, name: str | None) -> None:
        """Raises BadRequest for a model that is not served."""
        if name is not None and name != self.name:
            raise BadRequest(404, f"the model served here is {self.name}", param="model", code="model_not_found")

    def prepare_completion(self, body: CompletionBody) -> ResponseBuilder:
        """Prepares the response to a completion request. Raises BadRequest, and UsageError for an unreadable prompt."""
        self._check_generates()
        is_one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
        inputs = cast(list[str | list[int]], [body.prompt] if is_one else body.prompt)
        if body.best_of not in (None, body.n or 1):
            raise BadRequest(400, "best_of: take it as large as n", param="best_of")
        echo_only = body.max_tokens == 0
        if echo_only and not body.echo:
            raise BadRequest(400, "max_tokens: ask for at least 1 token, or for echo", param="max_tokens")
        prompt_logprobs = bool(body.echo) and body.logprobs is not None
        if prompt_logprobs and self.loaded.model.reads == "source":
            raise BadRequest(400, "logprobs: this model has none of the tokens of its source", param="logprobs")
        prompts = [self._make_checked_prompt(text) for text in inputs]
        decode = self.loaded.prompt_format.tokenizer.decode
        echoed = tuple(text if isinstance(text, str) else decode(text) for text in inputs) if body.echo else None
        max_tokens = 1 if echo_only else self._resolve_max_tokens(body.max_tokens, DEFAULT_COMPLETION_TOKENS)
        fields: dict[str, Any] = {"n_alternatives": body.logprobs or 0, "prompt_logprobs": prompt_logprobs}
        return self._build_requests_and_response_builder(
            body, self.loaded.prompt_format, prompts, max_tokens, echoed=echoed, **fields
        )

    def prepare_chat(self, body: ChatBody) -> ResponseBuilder:
        """Prepares the response to a chat request. Raises BadRequest, and LmtoolError for unreadable messages."""
        self._check_generates()
        if self.chat_format is None:
            choose_chat_or_plain_format(self.loaded)
            raise BadRequest(400, "this model holds no conversations")
        if body.top_logprobs is not None and not body.logprobs:
            raise BadRequest(400, "top_logprobs: ask for logprobs as well", param="top_logprobs")
        messages = [one.template_message for one in body.messages]
        if messages[-1]["role"] == "assistant":
            raise BadRequest(400, "messages: end with a message of the user", param="messages")
        chat, calls = _resolve_tools(self.chat_format, body)
        prompt_format = replace(self.loaded.prompt_format, chat=chat)
        ids = chat.encode_prompt(validate_messages(messages))
        context = self.loaded.model.context
        if context is not None and len(ids) >= context:
            what = f"the messages have {len(ids)} tokens, but the model's context is {context}"
            raise BadRequest(400, what, param="messages", code="context_length_exceeded")
        max_tokens = self._resolve_max_tokens(body.max_completion_tokens or body.max_tokens, MAX_ANSWER_TOKENS)
        max_tokens = max_tokens if context is None else min(max_tokens, context - len(ids))
        prompts = [prompt_format.make_prompt_from_ids(ids)]
        n = body.top_logprobs or 0
        return self._build_requests_and_response_builder(
            body, prompt_format, prompts, max_tokens, calls, n_alternatives=n
        )

    def _check_generates(self) -> None:
        self.generator.check_generates()
        if not self.generator.writes:
            raise UsageError(f"this model does not predict the next token: {self.loaded.model.description}")

    def _make_checked_prompt(self, text: str | list[int]) -> Prompt:
        prompt_format = self.loaded.prompt_format
        prompt = prompt_format.make_prompt(text) if isinstance(text, str) else prompt_format.make_prompt_from_ids(text)
        try:
            return self.scheduler.fit_prompt(prompt)
        except UsageError as error:
            context = self.loaded.model.context
            is_long = context is not None and len(prompt.tokens) + len(prompt.source or ()) > context
            code = "context_length_exceeded" if is_long else None
            raise BadRequest(400, error.what, param="prompt", code=code) from None

    def _resolve_max_tokens(self, requested: int | None, default: int) -> int:
        if requested is not None and requested > self.max_tokens:
            raise BadRequest(400, f"max_tokens: at most {self.max_tokens} are generated here", param="max_tokens")
        return min(default, self.max_tokens) if requested is None else requested

    def _build_requests_and_response_builder(
        self,
        body: CompletionBody | ChatBody,
        prompt_format: PromptFormat,
        prompts: Sequence[Prompt],
        max_tokens: int,
        form: TextForm | None = None,
        echoed: tuple[str, ...] | None = None,
        **fields: Any,
    ) -> ResponseBuilder:
        """Builds the requests, and the builder of their response. form: by default the body's. fields: of requests."""
        form, n = form or body.guided_form(), body.n or 1
        if len(prompts) * n > MAX_TEXTS:
            raise BadRequest(400, f"n: at most {MAX_TEXTS} texts of a request", param="n")
        chosen: dict[str, Any] = {"seed": secrets.randbelow(2**32), "temperature": 1.0}
        chosen |= body.model_dump(include=SAMPLING_FIELDS, exclude_none=True)
        biases = []
        for name, bias in (body.logit_bias or {}).items():
            if not (name.isascii() and name.isdigit() and int(name[:10]) < self.loaded.model.vocab_size):
                raise BadRequest(400, "logit_bias: name tokens by their ids", param="logit_bias")
            biases.append(((int(name),), bias))
        chosen |= {"max_new_tokens": max_tokens, "logit_bias": tuple(biases), "form": form}
        if form is not None:  # caches its start for the scheduler
            check_form_and_create_state(form, prompt_format.tokenizer, max_tokens)
        fields |= {"params": SamplingParams(**chosen), "prompt_format": prompt_format, "stop": body.stop_strings}
        requests = tuple(build_requests(prompts, n, **fields))
        return ResponseBuilder(self.name, self.fingerprint, body, requests, n, echoed)

    def tokenize_texts(self, body: EmbeddingBody) -> list[EncodedText]:
        """Tokenizes texts to embed. Raises BadRequest, and UsageError for a text without tokens."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        rows = [encode_text(self.loaded, i, text) for i, text in enumerate(texts)]
        longest = max(rows, key=lambda row: len(row.tokens))
        if self.loaded.model.context is None and len(longest.tokens) > MAX_EMBEDDED_TOKENS:
            what = f"text {longest.number + 1} has {len(longest.tokens)} tokens, more than {MAX_EMBEDDED_TOKENS}"
            raise BadRequest(400, f"input: {what}", param="input", code="context_length_exceeded")
        return rows

    async def respond_with_embeddings(self, body: EmbeddingBody, rows: Sequence[EncodedText]) -> bytes:
        """Returns the response to a request for embeddings."""
        vectors = await self._compute_between_steps(self._embed_rows, rows)
        n_tokens = sum(row.last - row.first for row in rows)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}

        def encode(vector_D: Vectors) -> Any:
            if body.encoding_format == "base64":
                return base64.b64encode(vector_D.astype("<f4").tobytes()).decode()
            return np.asarray(vector_D, dtype=np.float64).tolist()

        data = (
            {"object": "embedding", "index": i, "embedding": encode(vector_1D[0])}
            for i, vector_1D in enumerate(vectors)
        )
        head = {"object": "list", "model": self.name, "usage": usage}
        return await asyncio.to_thread(encode_json_list, head, "data", data)

    def _embed_rows(self, rows: Sequence[EncodedText]) -> list[Vectors]:
        return [one.vectors for one in embed_encoded_texts(self.loaded, rows, -1, "own")]

    async def respond_with_neighbours(self, body: SearchBody, rows: Sequence[EncodedText]) -> bytes:
        """Returns the response to a search: the k nearest texts of each query."""
        assert self.index is not None
        neighbours = self.index.find_nearest(
            np.concatenate(await self._compute_between_steps(self._embed_rows, rows)), body.k
        )
        data = ({"index": i, "hits": [entry._asdict() for entry in entries]} for i, entries in enumerate(neighbours))
        return await asyncio.to_thread(encode_json_list, {"object": "list", "model": self.name}, "data", data)

    @cached_property
    def classifier(self) -> LabelPredictor:
        """The model as a predictor of labels. Raises UsageError for a run that predicts none."""
        return LabelPredictor.from_model(self.loaded)

    def tokenize_rows(self, body: ClassifyBody) -> "list[TextWindows]":
        """Tokenizes the texts of a request for labels.

        Raises UsageError for a run that predicts none, BadRequest for other columns than the model reads.
        """
        columns, classifier = get_text_columns(self.loaded), self.classifier
        rows: list[str | tuple[str, ...]] = []
        for given in body.input if isinstance(body.input, list) else [body.input]:
            texts = {columns[0]: given} if isinstance(given, str) else given
            names = [find_matching_column(name, list(texts)) for name in columns]
            if len(texts) != len(columns) or None in names:
                raise BadRequest(400, f"input: the model reads {', '.join(columns)}"[:300], param="input")
            row = tuple(texts[name] for name in names if name is not None)
            rows.append(row if len(row) > 1 else row[0])
        encoded = classifier.encode(rows)
        return [TextWindows(tuple(windows)) for _, windows in groupby(encoded, key=lambda row: row.number)]

    async def respond_with_labels(self, body: ClassifyBody, rows: "Sequence[TextWindows]") -> bytes:
        """Returns the response to a request for labels."""
        predict = self.classifier.predict
        answers = await self._compute_between_steps(
            lambda some: predict([window for row in some for window in row.windows]), rows
        )
        more = {Tagging: ("words",), QuestionAnswering: ("start",)}.get(type(self.loaded.recipe.objective), ())
        names = ("label", "probabilities", *more)
        data = ({"index": i} | {name: getattr(one, name) for name in names} for i, one in enumerate(answers))
        return await asyncio.to_thread(encode_json_list, {"object": "list", "model": self.name}, "data", data)

    async def _compute_between_steps(
        self, call: Callable[[Sequence[Tokenized]], list[Result]], rows: Sequence[Tokenized]
    ) -> list[Result]:
        """Computes results for rows, about GROUP_TOKENS at a time between steps of generation."""
        ends = accumulate(len(row.tokens) for row in rows)
        results: list[Result] = []
        for _, group in groupby(zip(ends, rows, strict=True), key=lambda pair: pair[0] // GROUP_TOKENS):
            results += await self.scheduler.run_between_steps(partial(call, [row for _, row in group]))
        return results


def _resolve_tools(chat: ChatFormat, body: ChatBody) -> tuple[ChatFormat, TextForm | None]:
    """Returns the chat format with the tools of the body, and the form of an answer that must call one, if it must.

    Raises BadRequest, UsageError and ToolsUnsupportedError.
    """
    tools, choice = validate_tools(body.tools or []), body.tool_choice or "auto"
    if choice == "none" or (choice == "auto" and not tools):
        return chat, None
    name = None if isinstance(choice, str) else choice.function.name
    called = [tool for tool in tools if choice == "required" or tool["function"]["name"] == name]
    if not (called or choice == "auto"):
        raise BadRequest(400, "tool_choice: there is no such tool", param="tool_choice")
    if body.model_copy(update={"guided_complete": None}).guided_form() is not None:
        raise BadRequest(400, "tools: contradict a form of the answer; ask for one of them", param="tools")
    if choice == "auto":
        if any(tool["function"].get("strict") for tool in tools):
            raise BadRequest(400, "tools: strict is only for tool_choice required, or a function", param="tools")
        return chat.with_tools(tools), None
    if body.stop_strings:
        raise BadRequest(400, "stop: contradicts tool_choice, whose calls end by themselves", param="stop")
    several = choice == "required" and body.parallel_tool_calls is not False
    calling = chat.with_tools(tools)
    grammar = calling.build_lark_grammar(called, several=several)
    if len(grammar) > MAX_FORM_CHARACTERS:
        what = (
            f"tools: calls of these are forced by a grammar of more than {MAX_FORM_CHARACTERS} characters; offer fewer"
        )
        raise BadRequest(400, what, param="tools")
    for tool in called:
        try:
            TextForm.from_sources(json_schema=tool["function"].get("parameters") or {})
        except UsageError as error:
            raise BadRequest(400, f"tools: {tool['function']['name']}: {error.what}", param="tools") from None
    return calling, TextForm("grammar", grammar, bool(body.guided_complete))


class TextWindows(NamedTuple):
    """The rows of one text: one, or several windows of a long context."""

    windows: tuple[EncodedRow, ...]

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The tokens of all rows."""
        return np.concatenate([row.tokens for row in self.windows])
