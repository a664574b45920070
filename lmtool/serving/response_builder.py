"""Builds the response to a client from the generated tokens."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmtool.generation.request import Alternative, Request, Token
from lmtool.serving.protocol import MAX_TEXTS, ChatBody, CompletionBody, encode_json_list
from lmtool.tokenization.tools import ToolCall, ToolCallParser

_FINISH_REASONS = {"end": "stop", "stop": "stop", "length": "length", "time": "length"}
"""Finish reasons of the API by ours."""


class _TokenIdAndLogprobs(NamedTuple):
    """A token of a list of log-probabilities. offset: characters before it. constrained: as in `Token`."""

    token: int
    logprob: float | None
    alternatives: Sequence[Alternative]
    offset: int
    constrained: float | None = None


@dataclass
class _Choice:
    """One text of a response so far; of a stream, the part that is not sent yet.

    length: characters of the whole text.
    parser: finds tool calls in the text. calls: those found. n_sent: how many of them a stream has sent.
    begun: whether its first token has come.
    """

    parser: ToolCallParser | None
    calls: list[ToolCall] = field(default_factory=list)
    n_sent: int = 0
    text: str = ""
    tokens: list[_TokenIdAndLogprobs] = field(default_factory=list)
    finish: str | None = None
    length: int = 0
    begun: bool = False


class ResponseBuilder:
    """Builds the response to a request for text: events of a stream, or the whole at the end.

    requests: `n` generation requests of each prompt. include_usage_event: whether the last event of a stream counts
    the tokens.
    """

    def __init__(
        self,
        model: str,
        fingerprint: str,
        body: CompletionBody | ChatBody,
        requests: Sequence[Request],
        n: int,
        echoed: tuple[str, ...] | None = None,
    ) -> None:
        """model, fingerprint: of the run. echoed: texts of the prompts, if the response includes them."""
        self.requests, self._n, self._echoed = requests, n, echoed
        prompt_format = requests[0].prompt_format
        assert prompt_format is not None
        self._tokenizer = prompt_format.tokenizer
        self.include_usage_event = body.include_usage_event
        self._is_chat = isinstance(body, ChatBody)
        self._is_echo = body.max_tokens == 0  # only the prompt is returned
        self._wants_logprobs = bool(body.logprobs) if self._is_chat else body.logprobs is not None
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
            "seed": requests[0].params.seed,
        }
        chat, indexes = prompt_format.chat, range(len(requests))
        self._choices = [
            _Choice(chat.make_tool_call_parser(f"{self._head['id']} {index}") if chat else None) for index in indexes
        ]
        self._n_calls = 1 if isinstance(body, ChatBody) and body.parallel_tool_calls is False else MAX_TEXTS
        self._n_generated = 0

    def add_token_and_make_event(self, token: Token) -> dict[str, Any] | None:
        """Adds a token. Returns the event to send, if there is anything new to show."""
        choice = self._choices[token.request]
        is_first = not choice.begun
        self.add_token(token)
        calls = [{"index": n, **call.to_openai()} for n, call in enumerate(choice.calls)][choice.n_sent :]
        if not (choice.text or choice.tokens or choice.finish or calls or is_first):
            return None
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        delta |= {"content": choice.text, **({"tool_calls": calls} if calls else {})}
        choice.n_sent = len(choice.calls)
        event = self._make_choice(token.request, {"delta": delta} if self._is_chat else {"text": choice.text})
        choice.text, choice.tokens = "", []
        return self._build_envelope(".chunk", choices=[event], **({"usage": None} if self.include_usage_event else {}))

    def usage_event(self) -> dict[str, Any]:
        """Returns the last event of a stream, which counts tokens."""
        return self._build_envelope(".chunk", choices=[], usage=self._count_usage())

    def to_json(self) -> bytes:
        """Returns the whole response."""
        choices = map(self._build_choice, range(len(self._choices)))
        return encode_json_list(self._build_envelope("", usage=self._count_usage()), "choices", choices)

    def _build_choice(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": [call.to_openai() for call in choice.calls]}
        return self._make_choice(index, {"message": message} if self._is_chat else {"text": choice.text})

    def _make_choice(self, index: int, content: dict[str, Any]) -> dict[str, Any]:
        choice = self._choices[index]
        return {
            "index": index,
            **content,
            "logprobs": self._format_logprobs(choice.tokens),
            "finish_reason": choice.finish,
        }

    def _build_envelope(self, part: str, **more: Any) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, **more}

    def _count_usage(self) -> dict[str, int]:
        n_read = sum(
            len(prompt.tokens) + len(prompt.source or ())
            for prompt in (one.prompt for one in self.requests[:: self._n])
        )
        n_generated = self._n_generated
        return {"prompt_tokens": n_read, "completion_tokens": n_generated, "total_tokens": n_read + n_generated}

    def add_token(self, token: Token) -> None:
        """Adds a token: its text and log-probability, and with the first token those of the prompt."""
        choice, request, echoed = self._choices[token.request], self.requests[token.request], ""
        if not choice.begun:
            echoed = "" if self._echoed is None else self._echoed[token.request // self._n]
            if request.prompt_logprobs:
                # the first token of a prompt has no log-probability
                decode, first_id = self._tokenizer.decode, request.prompt.tokens[0]
                choice.tokens, offset = [_TokenIdAndLogprobs(first_id, None, (), 0)], len(decode([first_id]))
                for one in token.prompt:
                    choice.tokens.append(_TokenIdAndLogprobs(one.id, one.logprob, one.alternatives or (), offset))
                    offset += len(decode([one.id]))
        text = "" if self._is_echo else token.text
        if choice.parser is not None:
            text, calls = choice.parser.push(text, is_last=token.completion is not None)
            choice.calls = (choice.calls + calls)[: self._n_calls]
        if self._is_chat and not choice.length and request.params.form is None:
            text = text.lstrip()
        if not self._is_echo:
            self._n_generated += 1
            if self._wants_logprobs and not (self._is_chat and token.finish_reason == "end"):
                offset = choice.length + len(echoed)
                alternatives = token.alternatives or ()
                choice.tokens.append(
                    _TokenIdAndLogprobs(token.id, token.logprob, alternatives, offset, token.constrained)
                )
        choice.begun = True
        choice.text += echoed + text
        choice.length += len(echoed) + len(text)
        if token.completion is not None:
            choice.finish = "length" if self._is_echo else _FINISH_REASONS[token.completion.finish_reason]
            if choice.calls and choice.finish == "stop":
                choice.finish = "tool_calls"

    def _format_logprobs(self, tokens: Sequence[_TokenIdAndLogprobs]) -> dict[str, Any] | None:
        """Returns log-probabilities in the format of the API."""
        if not self._wants_logprobs:
            return None
        if self._is_chat:
            return {"content": [self._format_chat_logprob(one) for one in tokens], "refusal": None}
        piece = self._tokenizer.display_token
        values = [one.constrained for one in tokens]
        constrained = {"constrained_logprobs": values} if any(p is not None for p in values) else {}
        best = [{piece(other.id): other.logprob for other in one.alternatives} or None for one in tokens]
        return {
            "tokens": [piece(one.token) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": best,
            "text_offset": [one.offset for one in tokens],
            **constrained,
        }

    def _format_chat_logprob(self, one: _TokenIdAndLogprobs) -> dict[str, Any]:
        def named(token: int, logprob: float | None) -> dict[str, Any]:
            written = self._tokenizer.decode([token]).encode()
            return {"token": self._tokenizer.display_token(token), "logprob": logprob, "bytes": list(written)}

        others = [named(other.id, other.logprob) for other in one.alternatives]
        constrained = {} if one.constrained is None else {"constrained_logprob": one.constrained}
        return {**named(one.token, one.logprob), "top_logprobs": others, **constrained}
