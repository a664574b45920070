"""From requests to what the model computes, and from that to answers."""

import asyncio
import base64
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lmtool.data.rowfile import matching_column
from lmtool.decoding.constrained import beginning
from lmtool.decoding.forms import TextForm
from lmtool.decoding.request import Alternative, Choice
from lmtool.decoding.settings import LogitBias, Sample
from lmtool.decoding.text import check_length
from lmtool.errors import CheckpointError, UsageError
from lmtool.inference.chatting import LONGEST_ANSWER, checked, format_of
from lmtool.inference.embedding import TextRow, Vectors, text_row, vectors_of
from lmtool.inference.generator import TextGenerator
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering, Tagging
from lmtool.search.index import Index
from lmtool.serving.errors import BadRequest
from lmtool.serving.protocol import (
    LONGEST_FORM,
    MAX_TEXTS,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    TextBody,
    listed,
)
from lmtool.serving.scheduler import GenerationRequest, Progress, Scheduler
from lmtool.tables.predict import Prediction, TextClassifier, texts_of_a_row
from lmtool.tables.rows import EncodedRow
from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from lmtool.tokenization.tools import CallParser, ToolCall, read_tools

SHORT = 16
"""Default of max_tokens of completions, as in the API."""

SAMPLING = {"seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"}
"""Fields of a body that are settings of sampling, by the same names."""

TOKENS_AT_ONCE = 2048
"""Tokens after which texts that are embedded or classified let a token of those that are generated be computed."""

LONGEST_TEXT = 8192
"""Maximum tokens of a text that is embedded, where the model's context is no limit."""

_FINISH = {"end": "stop", "stop": "stop", "length": "length", "time": "length"}
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
            "embeds": isinstance(spec, Embedding),
            "max_tokens": self.max_tokens,
        }

    def check_model(self, name: str | None) -> None:
        """Raise BadRequest for another model than the one that is served."""
        if name is not None and name != self.name:
            raise BadRequest(404, f"the model served here is {self.name}", param="model", code="model_not_found")

    def completion(self, body: CompletionBody) -> "ClientAnswer":
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
        prompts = [self._prompt(text) for text in inputs]
        decode = self.loaded.prompt_format.tokenizer.decode
        echoed = tuple(text if isinstance(text, str) else decode(text) for text in inputs) if body.echo else None
        most = 1 if echo_only else self._most(body.max_tokens, SHORT)
        n_alternatives, form = body.logprobs or 0, body.form()
        generation = self._generation(body, self.loaded.prompt_format, prompts, most, n_alternatives, form)
        return ClientAnswer(self, body, replace(generation, wants_prompt=wants_prompt), echoed)

    def conversation(self, body: ChatBody) -> "ClientAnswer":
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
        chat, calls = _calling(self.chat, body)
        prompt_format = replace(self.loaded.prompt_format, chat=chat)
        ids = chat.prompt(checked(messages))
        context = self.loaded.model.context
        if context is not None and len(ids) >= context:
            what = f"the messages have {len(ids)} tokens, but the model's context is {context}"
            raise BadRequest(400, what, param="messages", code="context_length_exceeded")
        most = self._most(body.max_completion_tokens or body.max_tokens, LONGEST_ANSWER)
        most = most if context is None else min(most, context - len(ids))
        prompts = [prompt_format.prompt_of_ids(ids)]
        n_alternatives, form = body.top_logprobs or 0, body.form() if calls is None else calls
        return ClientAnswer(self, body, self._generation(body, prompt_format, prompts, most, n_alternatives, form))

    def _check_generates(self) -> None:
        self.generator.check_generates()
        if not self.generator.writes:
            raise UsageError(f"this model has no next token: {self.loaded.model.description}")

    def _prompt(self, text: str | list[int]) -> Prompt:
        prompt_format = self.loaded.prompt_format
        prompt = prompt_format.prompt(text) if isinstance(text, str) else prompt_format.prompt_of_ids(text)
        try:
            return self.scheduler.fitted(prompt)
        except UsageError as error:
            context = self.loaded.model.context
            is_long = context is not None and len(prompt.tokens) + len(prompt.source or ()) > context
            code = "context_length_exceeded" if is_long else None
            raise BadRequest(400, error.what, param="prompt", code=code) from None

    def _most(self, wanted: int | None, default: int) -> int:
        if wanted is not None and wanted > self.max_tokens:
            raise BadRequest(400, f"max_tokens: at most {self.max_tokens} are generated here", param="max_tokens")
        return min(default, self.max_tokens) if wanted is None else wanted

    def _generation(
        self,
        body: TextBody,
        prompt_format: PromptFormat,
        prompts: Sequence[Prompt],
        most: int,
        n_alternatives: int,
        form: TextForm | None,
    ) -> GenerationRequest:
        if len(prompts) * (body.n or 1) > MAX_TEXTS:
            raise BadRequest(400, f"n: at most {MAX_TEXTS} texts of a request", param="n")
        chosen: dict[str, Any] = {"seed": secrets.randbelow(2**32), "temperature": 1.0}
        chosen |= body.model_dump(include=SAMPLING, exclude_none=True)
        chosen |= {"max_new_tokens": most, "logit_bias": self._biases(body.logit_bias or {}), "form": form}
        settings = Sample(**chosen)
        if form is not None:  # its beginning is kept for the scheduler
            check_length(beginning(form, prompt_format.tokenizer), most)
        return GenerationRequest(prompt_format, tuple(prompts), settings, body.n or 1, body.stops, n_alternatives)

    def _biases(self, logit_bias: dict[str, float]) -> LogitBias:
        biases = []
        for name, bias in logit_bias.items():
            if not (name.isascii() and name.isdigit() and int(name[:10]) < self.loaded.model.vocab_size):
                raise BadRequest(400, "logit_bias: name tokens by their ids", param="logit_bias")
            biases.append(((int(name),), bias))
        return tuple(biases)

    def text_rows(self, body: EmbeddingBody) -> list[TextRow]:
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
        vectors = await self._computed(self._embed, rows)
        n_tokens = sum(row.last - row.first for row in rows)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        data = (
            {"object": "embedding", "index": i, "embedding": _encoded(row[0], body.encoding_format)}
            for i, row in enumerate(vectors)
        )
        return await asyncio.to_thread(listed, {"object": "list", "model": self.name, "usage": usage}, "data", data)

    def _embed(self, rows: Sequence[TextRow]) -> list[Vectors]:
        return [one.vectors for one in vectors_of(self.loaded, rows, -1, "own")]

    async def search(self, index: Index, k: int, rows: Sequence[TextRow]) -> bytes:
        """The answer to a search: the k nearest texts of each query."""
        neighbours = index.nearest(np.concatenate(await self._computed(self._embed, rows)), k)
        data = ({"index": i, "hits": [entry._asdict() for entry in entries]} for i, entries in enumerate(neighbours))
        return await asyncio.to_thread(listed, {"object": "list", "model": self.name}, "data", data)

    @cached_property
    def classifier(self) -> TextClassifier:
        """The model as one of classes, numbers, tags or answers. Raises UsageError for a run that is none."""
        return TextClassifier.of(self.loaded)

    def table_rows(self, body: ClassifyBody) -> "list[TextWindows]":
        """The texts of a request for labels as token ids. Raises UsageError for a run that has none."""
        columns, _ = texts_of_a_row(self.loaded)
        inputs = body.input if isinstance(body.input, list) else [body.input]
        encoded = self.classifier.encode([_row(one, columns) for one in inputs])
        return [TextWindows(tuple(windows)) for _, windows in groupby(encoded, key=lambda row: row.number)]

    async def classify(self, body: ClassifyBody, rows: "Sequence[TextWindows]") -> bytes:
        """The answer to a request for labels."""
        answers = await self._computed(self._predict, rows)
        more = {Tagging: ("words",), QuestionAnswering: ("start",)}.get(type(self.loaded.recipe.objective), ())
        names = ("label", "probabilities", *more)
        data = ({"index": i} | {name: getattr(one, name) for name in names} for i, one in enumerate(answers))
        return await asyncio.to_thread(listed, {"object": "list", "model": self.name}, "data", data)

    def _predict(self, rows: Sequence["TextWindows"]) -> list[Prediction]:
        return self.classifier.predict([window for row in rows for window in row.windows])

    async def _computed(
        self, call: Callable[[Sequence[Tokenized]], list[Result]], rows: Sequence[Tokenized]
    ) -> list[Result]:
        """The result for each row, about TOKENS_AT_ONCE at a time."""
        ends = accumulate(len(row.tokens) for row in rows)
        results: list[Result] = []
        for _, group in groupby(zip(ends, rows, strict=True), key=lambda pair: pair[0] // TOKENS_AT_ONCE):
            results += await self.scheduler.compute(partial(call, [row for _, row in group]))
        return results


def _calling(chat: ChatFormat, body: ChatBody) -> tuple[ChatFormat, TextForm | None]:
    """The format of a conversation with the tools of its body, and the form of an answer that has to call one.

    Raises BadRequest, UsageError and NoTools.
    """
    tools, choice = read_tools(body.tools or []), body.tool_choice or "auto"
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
    grammar = calling.grammar(called, several=several)
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


def _encoded(vector: Vectors, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.asarray(vector, dtype=np.float64).tolist()


def _row(texts: str | dict[str, str], columns: tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(texts, str):
        texts = {columns[0]: texts}
    names = [matching_column(name, list(texts)) for name in columns]
    if len(texts) != len(columns) or None in names:
        raise BadRequest(400, f"input: the model reads {', '.join(columns)}"[:300], param="input")
    row = tuple(texts[name] for name in names if name is not None)
    return row if len(row) > 1 else row[0]


class _Token(NamedTuple):
    """Of a text. offset: characters of the text before it. formed: as in `Choice`."""

    token: int
    logprob: float | None
    alternatives: Sequence[Alternative]
    offset: int
    formed: float | None = None


@dataclass
class _Choice:
    """One text of an answer so far, of a stream what is not yet sent.

    length: characters of all of it.
    parser: finds the calls of tools in it. calls: all of them. n_sent: how many a stream has sent.
    """

    parser: CallParser | None
    calls: list[ToolCall] = field(default_factory=list)
    n_sent: int = 0
    text: str = ""
    tokens: list[_Token] = field(default_factory=list)
    finish: str | None = None
    length: int = 0
    begun: bool = False


class ClientAnswer:
    """The answer to a request for text, as its tokens come: events of a stream, or all at the end.

    generation: what is generated for it. wants_usage: a last event of a stream counts the tokens.
    """

    def __init__(
        self,
        service: Service,
        body: CompletionBody | ChatBody,
        generation: GenerationRequest,
        echoed: tuple[str, ...] | None = None,
    ) -> None:
        """echoed: the texts of the prompts, where they are part of it."""
        self.generation, self._echoed = generation, echoed
        self._tokenizer = service.loaded.tokenizer
        self.wants_usage = body.wants_usage
        self._is_chat = isinstance(body, ChatBody)
        self._is_echo = body.max_tokens == 0  # nothing but the prompt is told
        self._wants_logprobs = bool(body.logprobs) if self._is_chat else body.logprobs is not None
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": service.fingerprint,
            "seed": self.generation.settings.seed,
        }
        chat, indexes = generation.prompt_format.chat, range(len(generation.prompts) * generation.n)
        self._choices = [_Choice(chat.parser(f"{self._head['id']} {index}") if chat else None) for index in indexes]
        self._n_calls = 1 if isinstance(body, ChatBody) and body.parallel_tool_calls is False else MAX_TEXTS
        self._n_generated = 0

    def events(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """The events of one more token."""
        choice = self._choices[progress.index]
        is_first = not choice.begun
        self.add(progress)
        calls = [{"index": n, **call.record()} for n, call in enumerate(choice.calls)][choice.n_sent :]
        if not (choice.text or choice.tokens or choice.finish or calls or is_first):
            return
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        delta |= {"content": choice.text, **({"tool_calls": calls} if calls else {})}
        choice.n_sent = len(choice.calls)
        event = self._choice(progress.index, {"delta": delta} if self._is_chat else {"text": choice.text})
        choice.text, choice.tokens = "", []
        yield self._object(".chunk", choices=[event], **({"usage": None} if self.wants_usage else {}))

    def last(self) -> dict[str, Any]:
        """The last event of a stream that counts tokens."""
        return self._object(".chunk", choices=[], usage=self._usage())

    def whole(self) -> bytes:
        """The whole answer."""
        return listed(self._object("", usage=self._usage()), "choices", map(self._whole, range(len(self._choices))))

    def _whole(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": [call.record() for call in choice.calls]}
        return self._choice(index, {"message": message} if self._is_chat else {"text": choice.text})

    def _choice(self, index: int, content: dict[str, Any]) -> dict[str, Any]:
        choice = self._choices[index]
        return {"index": index, **content, "logprobs": self._logprobs(choice.tokens), "finish_reason": choice.finish}

    def _object(self, part: str, **more: Any) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, **more}

    def _usage(self) -> dict[str, int]:
        n_read = sum(len(prompt.tokens) + len(prompt.source or ()) for prompt in self.generation.prompts)
        n_generated = self._n_generated
        return {"prompt_tokens": n_read, "completion_tokens": n_generated, "total_tokens": n_read + n_generated}

    def add(self, progress: Progress) -> None:
        """Take one more token: its text, and what is told of it; with the first one also of those of the prompt."""
        event, choice = progress.event, self._choices[progress.index]
        prompt, echoed = progress.index // self.generation.n, ""
        if not choice.begun:
            echoed = "" if self._echoed is None else self._echoed[prompt]
            if self.generation.wants_prompt:
                choice.tokens = self._of_prompt(self.generation.prompts[prompt].tokens[0], progress.read)
        text = "" if self._is_echo else progress.text
        if choice.parser is not None:
            text, calls = choice.parser.push(text, is_last=progress.completion is not None)
            choice.calls = (choice.calls + calls)[: self._n_calls]
        if self._is_chat and not choice.length and self.generation.settings.form is None:
            text = text.lstrip()
        if not self._is_echo:
            self._n_generated += 1
            if self._wants_logprobs and not (self._is_chat and event.finish == "end"):
                offset = choice.length + len(echoed)
                choice.tokens.append(_Token(event.token, event.logprob, event.alternatives or (), offset, event.formed))
        choice.begun = True
        choice.text += echoed + text
        choice.length += len(echoed) + len(text)
        if progress.completion is not None:
            choice.finish = "length" if self._is_echo else _FINISH[progress.completion.finish_reason]
            if choice.calls and choice.finish == "stop":
                choice.finish = "tool_calls"

    def _of_prompt(self, first: int, read: Sequence[Choice]) -> list[_Token]:
        """The tokens of a prompt; the first one has no probability."""
        decode = self._tokenizer.decode
        tokens, offset = [_Token(first, None, (), 0)], len(decode([first]))
        for one in read:
            tokens.append(_Token(one.token, one.logprob, one.alternatives or (), offset))
            offset += len(decode([one.token]))
        return tokens

    def _logprobs(self, tokens: Sequence[_Token]) -> dict[str, Any] | None:
        """Log-probabilities as the API has them."""
        if not self._wants_logprobs:
            return None
        if self._is_chat:
            return {"content": [self._of_chat(one) for one in tokens], "refusal": None}
        piece = self._tokenizer.piece
        formed = (
            {"formed_logprobs": [one.formed for one in tokens]} if any(one.formed is not None for one in tokens) else {}
        )
        best = [{piece(other.token): other.logprob for other in one.alternatives} or None for one in tokens]
        return {
            "tokens": [piece(one.token) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": best,
            "text_offset": [one.offset for one in tokens],
            **formed,
        }

    def _of_chat(self, one: _Token) -> dict[str, Any]:
        def named(token: int, logprob: float | None) -> dict[str, Any]:
            written = self._tokenizer.decode([token]).encode()
            return {"token": self._tokenizer.piece(token), "logprob": logprob, "bytes": list(written)}

        others = [named(other.token, other.logprob) for other in one.alternatives]
        formed = {} if one.formed is None else {"formed_logprob": one.formed}
        return {**named(one.token, one.logprob), "top_logprobs": others, **formed}
