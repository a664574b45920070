"""Conversations with a decoder, whose history is kept within the context."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lmtool.errors import UsageError
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import AnyParams, SamplingParams
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Completion, Request, Token
from lmtool.printable import printable
from lmtool.runs.load import LoadedModel
from lmtool.storage.durable import convert_os_errors, write_and_sync_new_file
from lmtool.tokenization.chat import MESSAGE_ROLES, ChatFormat, Message, add_tool_fields_
from lmtool.tokenization.prompt_format import check_utf8
from lmtool.tokenization.tools import ToolCall, ToolCallParser

MAX_ANSWER_TOKENS = 1024
"""Maximum tokens of an answer by default."""

CHAT_CACHE_BYTES = 1 << 30
"""Maximum bytes of the prefix cache of a conversation."""


@dataclass
class Turn:
    """A message of a conversation. cut: whether it is an answer that was stopped before its end."""

    role: str
    content: str
    cut: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def message(self) -> Message:
        return add_tool_fields_(Message(role=self.role, content=self.content), vars(self), 0)


class Reply(Iterator[str]):
    """An answer in pieces of text, as they are generated, without white space at its beginning.

    If the iteration ends early, even by an exception, the text so far stays in the conversation as a cut answer. An
    answer without text does not stay, nor do the messages that it answers.

    n_left: how many more messages left the context for it. completion: None until the answer is complete.
    """

    def __init__(
        self,
        tokens: Iterator[Token],
        questions: Sequence[Turn],
        turns: list[Turn],
        parser: ToolCallParser | None,
        n_left: int,
    ) -> None:
        """questions: the answered messages, which are added with the answer to the `turns` of the conversation."""
        self.n_left = n_left
        self.completion: Completion | None = None
        self._tokens, self._questions, self._turns, self._parser = tokens, questions, turns, parser
        self._answer = Turn("assistant", "", cut=True)

    @property
    def text(self) -> str:
        """The text so far, without tool calls."""
        return self._answer.content

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls so far."""
        return self._answer.tool_calls

    def __next__(self) -> str:
        token = next(self._tokens)
        is_empty = not (self.text or self.calls)
        text, calls = token.text, list[ToolCall]()
        if self._parser is not None:
            text, calls = self._parser.push(text, is_last=token.completion is not None)
        text = text if self.text else text.lstrip()
        self._answer.content += text
        self._answer.tool_calls += tuple(calls)
        if is_empty and (text or calls):
            self._turns += [*self._questions, self._answer]
        if token.completion is not None:
            self.completion = token.completion
            self._answer.cut = token.completion.finish_reason in ("length", "time")
        return text


class Conversation:
    """A conversation with a model, by its own chat template or a plain format.

    params: decoding parameters of all answers.
    turns: all messages and answers except the system message.
    n_left: how many of the first turns have left the context.
    is_plain: whether the model has no chat template and was not trained on conversations.
    """

    def __init__(self, generator: TextGenerator, params: AnyParams | None = None, *, stop: Sequence[str] = ()) -> None:
        """params: by default sampling with at most MAX_ANSWER_TOKENS tokens. stop: as in `Request`.

        Raises UsageError for a model that is no decoder or was trained on pairs of texts in another format, and for a
        strategy other than greedy and sampling; CheckpointError if the chat template cannot be read.
        """
        params = SamplingParams(max_new_tokens=MAX_ANSWER_TOKENS) if params is None else params
        if not isinstance(params, SamplingParams) or params.strategy == "beam":
            raise UsageError(f"{params.strategy} is not for conversations", fix="choose greedy or sample")
        self.params, self._stop = params, tuple(stop)
        self._generator = generator
        self._chat = choose_chat_or_plain_format(generator.loaded)
        self._prompt_format = replace(generator.loaded.prompt_format, chat=self._chat)
        self._engine = Engine(generator.loaded.model, prefixes=PrefixCache(CHAT_CACHE_BYTES))
        self._n_answers: Counter[tuple[int, ...]] = Counter()  # by prompt
        self._system = ""
        self.is_plain = self._chat.name == "plain" and not generator.loaded.prompt_format.answers
        self.turns: list[Turn] = []
        self.n_left = 0

    @property
    def system(self) -> str:
        """The system message, which never leaves the context; empty for none.

        Setting it raises MessagesRefusedError if the chat template accepts none, and UsageError for invalid UTF-8.
        """
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        if text:
            self._chat.check_messages(
                validate_messages([Message(role="system", content=text), Message(role="user", content="?")])
            )
        self._system = text

    @property
    def tools(self) -> tuple[dict[str, Any], ...] | None:
        """The functions that the model may call, see `validate_tools`. Setting them raises ToolsUnsupportedError."""
        return self._chat.tools

    @tools.setter
    def tools(self, tools: Sequence[dict[str, Any]]) -> None:
        self._chat = self._chat.with_tools(tools)
        self._prompt_format = replace(self._prompt_format, chat=self._chat)

    def reset(self) -> None:
        """Removes all messages except the system message."""
        self.turns, self.n_left = [], 0

    def stream_reply(self, messages: Sequence[Message]) -> Reply:
        """Answers more messages, usually one of the user; a first system message replaces that of the conversation.

        The oldest turns leave the context until the answer has room for `max_new_tokens` or half of the context,
        whichever is less. The answer is that of `generate` for the same ids: the same messages get the same answer, and
        the next sample when they are repeated. Prefixes are cached, which may change sums in their last bits.

        Raises UsageError for no messages, messages without text, and messages longer than the context;
        MessagesRefusedError
        and CheckpointError as `ChatFormat.encode_prompt` does.
        """
        messages = validate_messages(messages)
        if messages[0]["role"] == "system":
            self.system = messages[0]["content"]
            messages = messages[1:]
        if not messages or messages[-1]["role"] == "assistant":
            raise UsageError("there is no message to answer", fix="end with a message of the user")
        questions = [Turn(**message) for message in messages]
        ids, first = self._encode_turns_that_fit_context([*self.turns, *questions])
        limit, context = self.params.max_new_tokens, self._generator.loaded.model.context
        if context is not None:
            limit = min(limit, context - len(ids))
        key = tuple(ids)
        least = min(self.params.min_new_tokens, limit)
        request = Request(
            prompt=self._engine.runner.fit_prompt(self._prompt_format.make_answer_prompt(ids), "refuse", ""),
            params=replace(self.params, max_new_tokens=limit, min_new_tokens=least),
            draw=self._n_answers[key],
            prompt_format=self._prompt_format,
            stop=self._stop,
        )
        state = self._engine.create_request_state(request)
        self._n_answers[key] += 1
        n_left, self.n_left = first - self.n_left, first
        tokens = self._engine.run(iter([state]), self._generator.step_context)
        parser = self._chat.make_tool_call_parser(str(len(self.turns)))
        return Reply(tokens, questions, self.turns, parser, n_left)

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the last answer that have no result yet."""
        n_results = next((n for n, turn in enumerate(reversed(self.turns)) if turn.role != "tool"), 0)
        return self.turns[-1 - n_results].tool_calls[n_results:] if self.turns else ()

    def add(self, message: Message) -> None:
        """Adds a message without answering it, such as one of several tool results. Raises UsageError."""
        self.turns += [Turn(**one) for one in validate_messages([message])]

    def _encode_turns_that_fit_context(self, turns: Sequence[Turn]) -> tuple[list[int], int]:
        """Encodes the last turns that fit the context. Returns the ids, and the index of the first of these turns."""
        first, context, max_tokens = self.n_left, self._generator.loaded.model.context, self.params.max_new_tokens
        while True:
            ids = self._chat.encode_prompt([*self._system_messages(), *(turn.message for turn in turns[first:])])
            if context is None or len(ids) + min(max_tokens, context // 2) <= context:
                return ids, first
            following = next((i for i in range(first + 1, len(turns)) if turns[i].role == "user"), None)
            if following is not None:
                first = following
            elif len(ids) < context:
                return ids, first
            else:
                what = f"the prompt has {len(ids)} tokens, but the model's context is {context}"
                raise UsageError(what, fix="shorten the message, or the system message")

    def save_to_new_file(self, path: Path) -> None:
        """Writes all messages to a new file, as one line of JSON that `lmtool finetune` reads.

        Cut answers have `"cut": true`. Raises UsageError if there are no messages or the file exists, and ResourceError
        if it cannot be written.
        """
        if not self.turns:
            raise UsageError("there is nothing to save yet", fix="save after an answer")
        messages: list[dict[str, Any]] = [dict(message) for message in self._system_messages()]
        for turn in self.turns:
            calls = {"tool_calls": [call.to_openai() for call in turn.tool_calls]} if turn.tool_calls else {}
            messages.append({**turn.message, **calls, **({"cut": True} if turn.cut else {})})
        row = {"messages": messages, **({"tools": self.tools} if self.tools else {})}
        line = json.dumps(row, ensure_ascii=False) + "\n"
        where = printable(str(path))
        if os.path.lexists(path):
            raise UsageError("the file exists", where=where, fix="save to a new file")
        try:
            with convert_os_errors("the conversation cannot be saved", where, "name a new file elsewhere"):
                write_and_sync_new_file(path, line.encode())
        except ValueError:
            raise UsageError("this is not a file name", where=where, fix="leave out the NUL character") from None

    def _system_messages(self) -> list[Message]:
        return [Message(role="system", content=self._system)] if self._system else []


def choose_chat_or_plain_format(loaded: LoadedModel) -> ChatFormat:
    """Returns the format of a model's conversations. Raises UsageError and CheckpointError as `Conversation` does."""
    prompt_format, where = loaded.prompt_format, printable(str(loaded.run_path))
    if prompt_format.reads != "past":
        answers = prompt_format.reads == "source"
        what = f"only decoders hold conversations, and this model is not one: {loaded.model.description}"
        fix = "answer single texts with lmtool generate" if answers else "name the run of a decoder"
        raise UsageError(what, where=where, fix=fix)
    if prompt_format.chat is not None:
        return prompt_format.chat
    if prompt_format.answers and loaded.tokenizer.published is not None:
        what = "the model was fine-tuned on pairs of texts, and has no chat template for conversations"
        fix = "answer single texts with lmtool generate, or fine-tune it on a column of messages"
        raise UsageError(what, where=where, fix=fix)
    today = datetime.now()
    return ChatFormat.from_tokenizer_or_plain(loaded.tokenizer, lambda: today)


def validate_messages(messages: Sequence[Message] | Sequence[dict[str, Any]]) -> list[Message]:
    """Returns messages with only role, content and tool calls. Raises UsageError for invalid ones."""
    plain_messages = []
    for number, message in enumerate(messages, 1):
        role, content = message.get("role"), message.get("content")
        if content is None and message.get("tool_calls"):
            content = ""
        if role not in MESSAGE_ROLES or not isinstance(content, str):
            what = f"message {number} has no role or no content"
            raise UsageError(what, fix=f"write text by one of {', '.join(MESSAGE_ROLES)}")
        plain_messages.append(
            add_tool_fields_(Message(role=role, content=check_utf8(content, "message")), message, number)
        )
    if not plain_messages:
        raise UsageError("there is no message to answer", fix="end with a message of the user")
    return plain_messages
