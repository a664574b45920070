"""Conversations with a decoder: messages in, answers out, the history within the context."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lmtool.durable import refusing, write_new
from lmtool.errors import UsageError
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import AnyParams, SamplingParams
from lmtool.generation.prefixes import PrefixCache
from lmtool.generation.request import Completion, Request, Token
from lmtool.generation.strategy import RequestState
from lmtool.inference.load import LoadedModel
from lmtool.model.language_model import evaluating
from lmtool.printable import plain
from lmtool.tokenization.chat import MESSAGE_ROLES, ChatFormat, Message, add_tool_calls
from lmtool.tokenization.prompt_format import check_utf8
from lmtool.tokenization.tools import ToolCall, ToolCallParser

LONGEST_ANSWER = 1024
"""Maximum tokens of an answer by default."""

KEPT_BYTES = 1 << 30
"""Of keys and values of what a conversation has read, at most, so that it is not read again."""


@dataclass
class Turn:
    """A message of a conversation. cut: it is an answer that was stopped before its end."""

    role: str
    content: str
    cut: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def message(self) -> Message:
        return add_tool_calls(Message(role=self.role, content=self.content), vars(self), 0)


class Reply(Iterator[str]):
    """An answer in pieces of text, as they are generated, without white space at its beginning.

    What was generated when the iteration ends early, by an exception too, stays in the conversation as a cut answer. An
    answer without text does not stay, nor do the messages that it answers.

    n_left: how many more messages left the context for it. completion: None until the answer is complete.
    """

    def __init__(
        self, tokens: Iterator[Token], questions: Sequence[Turn], conversation: "Conversation", n_left: int
    ) -> None:
        """conversation: to which the messages that are answered and the answer are added."""
        self.n_left = n_left
        self.completion: Completion | None = None
        self._tokens, self._questions, self._turns = tokens, questions, conversation.turns
        self._parser = conversation.parser()
        self._answer = Turn("assistant", "", cut=True)

    @property
    def text(self) -> str:
        """The text so far, without calls of tools."""
        return self._answer.content

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools so far."""
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

    params: of all answers.
    turns: all messages but the system message, and the answers.
    n_left: how many of them, the first ones, have left the context.
    is_plain: the model has no chat template, and was not trained on conversations here.
    """

    def __init__(self, generator: TextGenerator, params: AnyParams | None = None, *, stop: Sequence[str] = ()) -> None:
        """params: of all answers; by default sampling, with at most LONGEST_ANSWER tokens. stop: as in `Request`.

        Raises UsageError when the model is no decoder, when it was trained on pairs of texts in another format than a
        conversation has, and when the strategy is neither greedy nor sampling; CheckpointError when its chat template
        cannot be read.
        """
        params = SamplingParams(max_new_tokens=LONGEST_ANSWER) if params is None else params
        if not isinstance(params, SamplingParams) or params.strategy == "beam":
            raise UsageError(f"{params.strategy} is not for conversations", fix="choose greedy or sample")
        self.params, self._stop = params, tuple(stop)
        self._generator = generator
        self._chat = format_of(generator.loaded)
        self._prompt_format = replace(generator.loaded.prompt_format, chat=self._chat)
        self._engine = Engine(generator.loaded.model, prefixes=PrefixCache(KEPT_BYTES))
        self._n_answers: Counter[tuple[int, ...]] = Counter()  # by prompt
        self._system = ""
        self.is_plain = self._chat.name == "plain" and not generator.loaded.prompt_format.answers
        self.turns: list[Turn] = []
        self.n_left = 0

    @property
    def system(self) -> str:
        """The system message, which never leaves the context; empty for none.

        Setting it raises MessagesRefusedError when the chat template takes none, and UsageError when it is not UTF-8.
        """
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        if text:
            self._chat.check_messages(
                checked([Message(role="system", content=text), Message(role="user", content="?")])
            )
        self._system = text

    @property
    def tools(self) -> tuple[dict[str, Any], ...] | None:
        """The functions that the model may call; see `validate_tools`. Setting them raises ToolsUnsupportedError."""
        return self._chat.tools

    @tools.setter
    def tools(self, tools: Sequence[dict[str, Any]]) -> None:
        self._chat = self._chat.with_tools(tools)
        self._prompt_format = replace(self._prompt_format, chat=self._chat)

    def parser(self) -> ToolCallParser | None:
        """Of the calls in the next answer; None without tools."""
        return self._chat.make_call_parser(str(len(self.turns)))

    def reset(self) -> None:
        """Forget all messages but the system message."""
        self.turns, self.n_left = [], 0

    def answer(self, messages: Sequence[Message]) -> Reply:
        """Answer more messages, usually one of the user; a system message in front replaces that of the conversation.

        The oldest turns leave the context until the answer has room for `max_new_tokens` or half of the context,
        whichever is less. The answer is that of `generate` for the same ids: the same messages have the same answer,
        and when asked again, the next sample. What the model has read already it does not read again, which may change
        sums in their last bits.

        Raises UsageError when there are no messages, no text, or more than the context; and MessagesRefusedError
        and CheckpointError as `ChatFormat.encode_prompt` does.
        """
        messages = checked(messages)
        if messages[0]["role"] == "system":
            self.system = messages[0]["content"]
            messages = messages[1:]
        if not messages or messages[-1]["role"] == "assistant":
            raise UsageError("there is no message to answer", fix="end with a message of the user")
        questions = [Turn(**message) for message in messages]
        ids, first, limit = self._fitted([*self.turns, *questions])
        key = tuple(ids)
        least = min(self.params.min_new_tokens, limit)
        request = Request(
            prompt=self._engine.runner.fit_prompt(self._prompt_format.make_answer_prompt(ids), "refuse", ""),
            params=replace(self.params, max_new_tokens=limit, min_new_tokens=least),
            draw=self._n_answers[key],
            prompt_format=self._prompt_format,
            stop=self._stop,
        )
        state = self._engine.prepare(request)
        self._n_answers[key] += 1
        n_left, self.n_left = first - self.n_left, first
        return Reply(self._generated(state), questions, self, n_left)

    def _generated(self, state: RequestState) -> Iterator[Token]:
        """The tokens of an answer, which is cancelled where nobody reads on."""
        self._engine.add(state)
        try:
            with evaluating(self._generator.loaded.model):
                while not self._engine.idle:
                    with self._generator.computing():
                        tokens = self._engine.step()
                    yield from tokens
        finally:
            self._engine.cancel(state.id)

    @property
    def unanswered(self) -> tuple[ToolCall, ...]:
        """The calls of the last answer that have no result yet."""
        n_results = next((n for n, turn in enumerate(reversed(self.turns)) if turn.role != "tool"), 0)
        return self.turns[-1 - n_results].tool_calls[n_results:] if self.turns else ()

    def add(self, message: Message) -> None:
        """Take a message that is not to be answered yet, such as one of several results. Raises UsageError."""
        self.turns += [Turn(**one) for one in checked([message])]

    def _fitted(self, turns: Sequence[Turn]) -> tuple[list[int], int, int]:
        """The prompt of some turns, the index of the first one in it, and the maximum tokens of the answer."""
        first, context, wanted = self.n_left, self._generator.loaded.model.context, self.params.max_new_tokens
        while True:
            ids = self._chat.encode_prompt([*self._opening(), *(turn.message for turn in turns[first:])])
            if context is None or len(ids) + min(wanted, context // 2) <= context:
                break
            following = next((i for i in range(first + 1, len(turns)) if turns[i].role == "user"), None)
            if following is None:
                if len(ids) < context:
                    break
                what = f"the prompt has {len(ids)} tokens, but the model's context is {context}"
                raise UsageError(what, fix="shorten the message, or the system message")
            first = following
        return ids, first, wanted if context is None else min(wanted, context - len(ids))

    def save(self, path: Path) -> None:
        """Write all messages to a new file, as one line of JSON that `lmtool finetune` reads.

        Answers that were cut have `"cut": true`. Raises UsageError when there are none, or the file exists, and
        ResourceError when it cannot be written.
        """
        if not self.turns:
            raise UsageError("there is nothing to save yet", fix="save after an answer")
        messages: list[dict[str, Any]] = [dict(message) for message in self._opening()]
        for turn in self.turns:
            calls = {"tool_calls": [call.to_openai() for call in turn.tool_calls]} if turn.tool_calls else {}
            messages.append({**turn.message, **calls, **({"cut": True} if turn.cut else {})})
        row = {"messages": messages, **({"tools": self.tools} if self.tools else {})}
        line = json.dumps(row, ensure_ascii=False) + "\n"
        where = plain(str(path))
        if os.path.lexists(path):
            raise UsageError("the file exists", where=where, fix="save to a new file")
        try:
            with refusing("the conversation cannot be saved", where, "name a new file elsewhere"):
                write_new(path, line.encode())
        except ValueError:
            raise UsageError("this is not a file name", where=where, fix="leave out the NUL character") from None

    def _opening(self) -> list[Message]:
        return [Message(role="system", content=self._system)] if self._system else []


def format_of(loaded: LoadedModel) -> ChatFormat:
    """How a decoder reads conversations. Raises UsageError and CheckpointError as `Conversation` does."""
    prompt_format, where = loaded.prompt_format, plain(str(loaded.run_path))
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
    return ChatFormat.from_tokenizer(loaded.tokenizer, lambda: today)


def checked(messages: Sequence[Message] | Sequence[dict[str, Any]]) -> list[Message]:
    """The messages, as role and content alone, and calls of tools. Raises UsageError."""
    plain_messages = []
    for number, message in enumerate(messages, 1):
        role, content = message.get("role"), message.get("content")
        if content is None and message.get("tool_calls"):
            content = ""
        if role not in MESSAGE_ROLES or not isinstance(content, str):
            what = f"message {number} has no role or no content"
            raise UsageError(what, fix=f"write text by one of {', '.join(MESSAGE_ROLES)}")
        plain_messages.append(
            add_tool_calls(Message(role=role, content=check_utf8(content, "message")), message, number)
        )
    if not plain_messages:
        raise UsageError("there is no message to answer", fix="end with a message of the user")
    return plain_messages
