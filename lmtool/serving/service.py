"""From requests to what the model computes, and from that to answers."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.data.rowfile import find_matching_column
from lmtool.errors import CheckpointError, UsageError
from lmtool.generation.chat import LONGEST_ANSWER, checked, format_of
from lmtool.generation.constrained import begin_form
from lmtool.generation.forms import TextForm
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import LogitBias, SamplingParams
from lmtool.generation.request import requests_for
from lmtool.inference.embedding import TextRow, Vectors, text_row, vectors_of
from lmtool.model import NGramModel
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering, Tagging
from lmtool.search.index import Index
from lmtool.serving.answer import ClientAnswer
from lmtool.serving.errors import BadRequest
from lmtool.serving.protocol import (
    LONGEST_FORM,
    MAX_TEXTS,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    encode_with_list,
)
from lmtool.serving.scheduler import Scheduler
from lmtool.tasks.predict import TablePredictor, texts_of_a_row
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.task import Prediction
from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from lmtool.tokenization.tools import validate_tools

SHORT = 16
"""Default of max_tokens of completions, as in the API."""

SAMPLING = {
    *("seed", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
}
"""Fields of a body that are settings of sampling, by the same names."""

TOKENS_AT_ONCE = 2048
"""Tokens after which texts that are embedded or classified let a token of those that are generated be computed."""

LONGEST_TEXT = 8192
"""Maximum tokens of a text that is embedded, where the model's context is no limit."""

Tokenized = TypeVar("Tokenized", TextRow, "TextWindows")
Result = TypeVar("Result")


class Service:
    """What one run answers. name: that of the model. max_tokens: maximum new tokens of a text."""

    def __init__(self, generator: TextGenerator, scheduler: Scheduler, max_tokens: int) -> None:
        self.generator, self.scheduler, self.max_tokens = generator, scheduler, max_tokens
        self.loaded = generator.loaded
        self.name = self.loaded.run_path.name
        self.fingerprint = self.loaded.checkpoint_hash[:16]

    @cached_property
    def chat(self) -> ChatFormat | None:
        """How the model reads conversations; None if it holds none."""
        try:
            return format_of(self.loaded) if self.generator.writes else None
        except (UsageError, CheckpointError):
            return None

    def describe(self) -> dict[str, Any]:
        """The model as an object of /v1/models, with what it can do."""
        model, spec = self.loaded.model, self.loaded.recipe.objective
        return {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "lmtool",
            "context": model.context,
            "description": model.description,
            "completions": self.generator.writes,
            "chat": None if self.chat is None else self.chat.name,
            "classifies": isinstance(spec, HeadSpec),
            "embeds": None if isinstance(model, NGramModel) else "own" if isinstance(spec, Embedding) else "mean",
            "max_tokens": self.max_tokens,
        }

    def check_model(self, name: str | None) -> None:
        """Raise BadRequest for another model than the one that is served."""
        if name is not None and name != self.name:
            raise BadRequest(404, f"the model served here is {self.name}", param="model", code="model_not_found")

    def prepare_completion(self, body: CompletionBody) -> ClientAnswer:
        """The answer to come, of completions. Raises BadRequest, and UsageError for a prompt that cannot be read."""
        self._check_generates()
        is_one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
        inputs = cast(list[str | list[int]], [body.prompt] if is_one else body.prompt)
        if body.best_of not in (None, body.n or 1):
            raise BadRequest(400, "best_of: take it as large as n", param="best_of")
        echo_only = body.max_tokens == 0
        if echo_only and not body.echo:
            raise BadRequest(400, "max_tokens: ask for at least 1 token, or for echo", param="max_tokens")
        wants_prompt = bool(body.echo) and body.logprobs is not None
        if wants_prompt and self.loaded.model.reads == "source":
            raise BadRequest(400, "logprobs: this model has none of the tokens of its source", param="logprobs")
        prompts = [self._fit_prompt(text) for text in inputs]
        decode = self.loaded.prompt_format.tokenizer.decode
        echoed = tuple(text if isinstance(text, str) else decode(text) for text in inputs) if body.echo else None
        most = 1 if echo_only else self._max_new_tokens(body.max_tokens, SHORT)
        tells = {"n_alternatives": body.logprobs or 0, "wants_prompt": wants_prompt}
        return self._make_answer(body, self.loaded.prompt_format, prompts, most, body.form(), echoed, **tells)

    def prepare_chat(self, body: ChatBody) -> ClientAnswer:
        """The answer to come, of messages. Raises BadRequest and, for messages that cannot be read, LmtoolError."""
        self._check_generates()
        if self.chat is None:
            format_of(self.loaded)
            raise BadRequest(400, "this model holds no conversations")
        if body.top_logprobs is not None and not body.logprobs:
            raise BadRequest(400, "top_logprobs: ask for logprobs as well", param="top_logprobs")
        messages = [one.message for one in body.messages]
        if messages[-1]["role"] == "assistant":
            raise BadRequest(400, "messages: end with a message of the user", param="messages")
        chat, calls = _resolve_tools(self.chat, body)
        prompt_format = replace(self.loaded.prompt_format, chat=chat)
        ids = chat.encode_prompt(checked(messages))
        context = self.loaded.model.context
        if context is not None and len(ids) >= context:
            what = f"the messages have {len(ids)} tokens, but the model's context is {context}"
            raise BadRequest(400, what, param="messages", code="context_length_exceeded")
        most = self._max_new_tokens(body.max_completion_tokens or body.max_tokens, LONGEST_ANSWER)
        most = most if context is None else min(most, context - len(ids))
        prompts = [prompt_format.make_prompt_from_ids(ids)]
        form = body.form() if calls is None else calls
        return self._make_answer(body, prompt_format, prompts, most, form, n_alternatives=body.top_logprobs or 0)

    def _check_generates(self) -> None:
        self.generator.check_generates()
        if not self.generator.writes:
            raise UsageError(f"this model does not predict the next token: {self.loaded.model.description}")

    def _fit_prompt(self, text: str | list[int]) -> Prompt:
        prompt_format = self.loaded.prompt_format
        prompt = prompt_format.make_prompt(text) if isinstance(text, str) else prompt_format.make_prompt_from_ids(text)
        try:
            return self.scheduler.check_prompt(prompt)
        except UsageError as error:
            context = self.loaded.model.context
            is_long = context is not None and len(prompt.tokens) + len(prompt.source or ()) > context
            code = "context_length_exceeded" if is_long else None
            raise BadRequest(400, error.what, param="prompt", code=code) from None

    def _max_new_tokens(self, wanted: int | None, default: int) -> int:
        if wanted is not None and wanted > self.max_tokens:
            raise BadRequest(400, f"max_tokens: at most {self.max_tokens} are generated here", param="max_tokens")
        return min(default, self.max_tokens) if wanted is None else wanted

    def _make_answer(
        self,
        body: CompletionBody | ChatBody,
        prompt_format: PromptFormat,
        prompts: Sequence[Prompt],
        most: int,
        form: TextForm | None,
        echoed: tuple[str, ...] | None = None,
        **fields: Any,
    ) -> ClientAnswer:
        """The answer to come. most: new tokens. fields: of the requests."""
        n = body.n or 1
        if len(prompts) * n > MAX_TEXTS:
            raise BadRequest(400, f"n: at most {MAX_TEXTS} texts of a request", param="n")
        chosen: dict[str, Any] = {"seed": secrets.randbelow(2**32), "temperature": 1.0}
        chosen |= body.model_dump(include=SAMPLING, exclude_none=True)
        chosen |= {"max_new_tokens": most, "logit_bias": self._biases(body.logit_bias or {}), "form": form}
        if form is not None:  # its beginning is kept for the scheduler
            begin_form(form, prompt_format.tokenizer, most)
        fields |= {"params": SamplingParams(**chosen), "prompt_format": prompt_format, "stop": body.stops}
        requests = tuple(requests_for(prompts, n, **fields))
        return ClientAnswer(self.name, self.fingerprint, body, requests, n, echoed)

    def _biases(self, logit_bias: dict[str, float]) -> LogitBias:
        biases = []
        for name, bias in logit_bias.items():
            if not (name.isascii() and name.isdigit() and int(name[:10]) < self.loaded.model.vocab_size):
                raise BadRequest(400, "logit_bias: name tokens by their ids", param="logit_bias")
            biases.append(((int(name),), bias))
        return tuple(biases)

    def tokenize_texts(self, body: EmbeddingBody) -> list[TextRow]:
        """Texts to embed as token ids. Raises BadRequest, and UsageError for texts without any."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        rows = [text_row(self.loaded, i, text) for i, text in enumerate(texts)]
        longest = max(rows, key=lambda row: len(row.tokens))
        if self.loaded.model.context is None and len(longest.tokens) > LONGEST_TEXT:
            what = f"text {longest.number + 1} has {len(longest.tokens)} tokens, but at most {LONGEST_TEXT} are read"
            raise BadRequest(400, f"input: {what}", param="input", code="context_length_exceeded")
        return rows

    async def embeddings(self, body: EmbeddingBody, rows: Sequence[TextRow]) -> bytes:
        """The answer to a request for embeddings."""
        vectors = await self._compute_in_groups(self._embed, rows)
        n_tokens = sum(row.last - row.first for row in rows)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        data = (
            {"object": "embedding", "index": i, "embedding": _encode_vector(row[0], body.encoding_format)}
            for i, row in enumerate(vectors)
        )
        head = {"object": "list", "model": self.name, "usage": usage}
        return await asyncio.to_thread(encode_with_list, head, "data", data)

    def _embed(self, rows: Sequence[TextRow]) -> list[Vectors]:
        return [one.vectors for one in vectors_of(self.loaded, rows, -1, "own")]

    async def search(self, index: Index, k: int, rows: Sequence[TextRow]) -> bytes:
        """The answer to a search: the k nearest texts of each query."""
        neighbours = index.nearest(np.concatenate(await self._compute_in_groups(self._embed, rows)), k)
        data = ({"index": i, "hits": [entry._asdict() for entry in entries]} for i, entries in enumerate(neighbours))
        return await asyncio.to_thread(encode_with_list, {"object": "list", "model": self.name}, "data", data)

    @cached_property
    def classifier(self) -> TablePredictor:
        """The model as one of classes, numbers, tags or answers. Raises UsageError for a run that is none."""
        return TablePredictor.of(self.loaded)

    def tokenize_rows(self, body: ClassifyBody) -> "list[TextWindows]":
        """The texts of a request for labels as token ids. Raises UsageError for a run that has none."""
        columns, _ = texts_of_a_row(self.loaded)
        inputs = body.input if isinstance(body.input, list) else [body.input]
        encoded = self.classifier.encode([_texts_of_row(one, columns) for one in inputs])
        return [TextWindows(tuple(windows)) for _, windows in groupby(encoded, key=lambda row: row.number)]

    async def classify(self, body: ClassifyBody, rows: "Sequence[TextWindows]") -> bytes:
        """The answer to a request for labels."""
        answers = await self._compute_in_groups(self._predict, rows)
        more = {Tagging: ("words",), QuestionAnswering: ("start",)}.get(type(self.loaded.recipe.objective), ())
        names = ("label", "probabilities", *more)
        data = ({"index": i} | {name: getattr(one, name) for name in names} for i, one in enumerate(answers))
        return await asyncio.to_thread(encode_with_list, {"object": "list", "model": self.name}, "data", data)

    def _predict(self, rows: Sequence["TextWindows"]) -> list[Prediction]:
        return self.classifier.predict([window for row in rows for window in row.windows])

    async def _compute_in_groups(
        self, call: Callable[[Sequence[Tokenized]], list[Result]], rows: Sequence[Tokenized]
    ) -> list[Result]:
        """The result for each row, about TOKENS_AT_ONCE at a time."""
        ends = accumulate(len(row.tokens) for row in rows)
        results: list[Result] = []
        for _, group in groupby(zip(ends, rows, strict=True), key=lambda pair: pair[0] // TOKENS_AT_ONCE):
            results += await self.scheduler.compute(partial(call, [row for _, row in group]))
        return results


def _resolve_tools(chat: ChatFormat, body: ChatBody) -> tuple[ChatFormat, TextForm | None]:
    """The format of a conversation with the tools of its body, and the form of an answer that has to call one.

    Raises BadRequest, UsageError and ToolsUnsupportedError.
    """
    tools, choice = validate_tools(body.tools or []), body.tool_choice or "auto"
    if choice == "none" or (choice == "auto" and not tools):
        return chat, None
    name = None if isinstance(choice, str) else choice.function.name
    called = [tool for tool in tools if choice == "required" or tool["function"]["name"] == name]
    if not (called or choice == "auto"):
        raise BadRequest(400, "tool_choice: there is no such tool", param="tool_choice")
    if body.model_copy(update={"guided_complete": None}).form() is not None:
        raise BadRequest(400, "tools: contradict a form of the answer; ask for one of them", param="tools")
    if choice == "auto":
        if any(tool["function"].get("strict") for tool in tools):
            raise BadRequest(400, "tools: strict is only for tool_choice required, or a function", param="tools")
        return chat.with_tools(tools), None
    if body.stops:
        raise BadRequest(400, "stop: contradicts tool_choice, whose calls end by themselves", param="stop")
    several = choice == "required" and body.parallel_tool_calls is not False
    calling = chat.with_tools(tools)
    grammar = calling.build_grammar(called, several=several)
    if len(grammar) > LONGEST_FORM:
        what = f"tools: calls of these are forced by a grammar of more than {LONGEST_FORM} characters; offer fewer"
        raise BadRequest(400, what, param="tools")
    for tool in called:
        try:
            TextForm.of(json_schema=tool["function"].get("parameters") or {})
        except UsageError as error:
            raise BadRequest(400, f"tools: {tool['function']['name']}: {error.what}", param="tools") from None
    return calling, TextForm("grammar", grammar, bool(body.guided_complete))


class TextWindows(NamedTuple):
    """A text as the rows in which it is read: one, or several of a long context."""

    windows: tuple[EncodedRow, ...]

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Those of all rows."""
        return np.concatenate([row.tokens for row in self.windows])


def _encode_vector(vector: Vectors, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.asarray(vector, dtype=np.float64).tolist()


def _texts_of_row(texts: str | dict[str, str], columns: tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(texts, str):
        texts = {columns[0]: texts}
    names = [find_matching_column(name, list(texts)) for name in columns]
    if len(texts) != len(columns) or None in names:
        raise BadRequest(400, f"input: the model reads {', '.join(columns)}"[:300], param="input")
    row = tuple(texts[name] for name in names if name is not None)
    return row if len(row) > 1 else row[0]
