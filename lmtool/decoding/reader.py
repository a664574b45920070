"""What a model reads before it writes, and the reading: prompts, windows that fit the context, prefill and steps.

Shapes: B rows, T positions of a window, S positions of a source, D model width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.decoding.settings import Overflow
from lmtool.errors import UsageError
from lmtool.model.language_model import DecodeState, LanguageModel


@dataclass(frozen=True)
class Prompt:
    """What a request starts from.

    tokens: ids that the model reads from left to right, at least one; what is written continues them.
    source: ids that it sees from all sides; None for models that read only the past.
    joined: the tokens continue the source, as of a text cut in two; else they begin an answer to it.
    """

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None = None
    joined: bool = False

    @property
    def text(self) -> tuple[int, ...]:
        """The ids that what is written belongs to."""
        return (*(self.source or ()), *self.tokens) if self.joined else self.tokens

    def end(self, n: int) -> "Prompt":
        """The last n ids; of an answer to a source all of the source and the last n."""
        if not self.joined:
            return replace(self, tokens=self.tokens[-n:])
        *source, last = self.text[-n:]
        return replace(self, tokens=(last,), source=tuple(source))


class Reader:
    """A model and the ways in which decoding has it read: whole windows, or one more token of each row."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.device = next(chain(model.parameters(), model.buffers())).device

    @cached_property
    @torch.inference_mode()
    def _source_counts(self) -> bool:
        """Whether a source takes up the context together with the tokens, as in a prefix LM."""
        if self._model.reads != "source":
            return False
        one_11 = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self._model.start(Batch(one_11, source_BS=one_11)).length > 0

    def room(self, window: Prompt) -> int | None:
        """Most positions that `tokens` may take, or all of `text` where it is joined; None for no limit."""
        if self._model.context is None or window.joined or not self._source_counts:
            return self._model.context
        return self._model.context - len(window.source or ())

    def has_room(self, window: Prompt) -> bool:
        """True when the model can read this window."""
        room = self.room(window)
        return room is None or len(window.text if self._source_counts else window.tokens) <= room

    def slid(self, window: Prompt) -> Prompt:
        """The last half of what has room."""
        room = self.room(window)
        return window if room is None else window.end(max(1, room // 2))

    def fit(self, prompt: Prompt, overflow: Overflow, where: str) -> Prompt:
        """The prompt as the model can read it.

        "cut" leaves as many ids as have room, the last of a text and the first of a source that is answered. "slide"
        leaves of a text the last half of that.

        Raises UsageError when it has no tokens, when it has ids that the model does not know, and when it is longer
        than the context and overflow is "refuse", or no room is left for an answer.
        """
        ids = (*(prompt.source or ()), *prompt.tokens)
        if not prompt.tokens or (prompt.source == () and not prompt.joined):
            raise UsageError("the prompt has no tokens", where=where, fix="start from the token that begins a text")
        if not 0 <= min(ids) <= max(ids) < self._model.vocab_size:
            last = self._model.vocab_size - 1
            raise UsageError(f"the prompt has ids outside 0..{last}, the model's vocabulary", where=where)
        context = self._model.context
        n_source = 0 if prompt.source is None or prompt.joined else len(prompt.source)
        n_answered = n_source + (len(prompt.tokens) if self._source_counts else 0)
        if context is None or (n_answered <= context and self.has_room(prompt)):
            return prompt
        if overflow == "refuse":
            raise UsageError(
                f"the prompt has {len(ids)} tokens, but the model's context is {context}",
                where=where,
                fix="shorten it, or choose --overflow cut or slide",
            )
        if n_answered > context and prompt.source is not None:
            n_left = context - (len(prompt.tokens) if self._source_counts else 0)
            if n_left < 1:
                raise UsageError(
                    f"the answer begins with {len(prompt.tokens)} tokens, but the model's context is {context}",
                    where=where,
                    fix="shorten it",
                )
            prompt = replace(prompt, source=prompt.source[:n_left])
        room = self.room(prompt)
        if room is None or self.has_room(prompt):
            return prompt
        return self.slid(prompt) if overflow == "slide" else prompt.end(room)

    @torch.inference_mode()
    def read(
        self, last: Sequence[int], state: DecodeState | None, windows: Sequence[Prompt]
    ) -> tuple[Tensor, list[DecodeState]]:
        """Logits (B, V) of the next token of the rows of `state` and then of `windows`, and the state of each of both.

        last: the token that each row of `state` reads now. Windows are read whole.
        """
        hiddens, states = [], []
        if state is not None:
            hidden_B1D, state = self._model.advance(torch.tensor(last, device=self.device)[:, None], state)
            hiddens.append(hidden_B1D[:, -1])
            states.append(state)
        if windows:
            hidden_BD, state = self._prefill(windows)
            hiddens.append(hidden_BD)
            states.append(state)
        # In bfloat16 many logits would be equal, and rounding would choose among them.
        with torch.autocast(self.device.type, enabled=False):
            logits_BV = self._model.logits(torch.cat(hiddens)).float()
        return logits_BV.cpu() if logits_BV.device.type == "mps" else logits_BV, states  # it has no float64

    def _prefill(self, windows: Sequence[Prompt]) -> tuple[Tensor, DecodeState]:
        """Read whole windows: equal ones once, and those of one length together, so that no padding ever enters."""
        distinct = sorted(dict.fromkeys(windows), key=_lengths)
        hiddens, states = [], []
        for _, equal in groupby(distinct, key=_lengths):
            group = list(equal)
            tokens_BT = torch.tensor([window.tokens for window in group], device=self.device)
            sources = [window.source for window in group if window.source is not None]
            source_BS = torch.tensor(sources, dtype=torch.int64, device=self.device) if sources else None
            state = self._model.start(Batch(tokens_BT, source_BS=source_BS))
            hidden_BTD, state = self._model.advance(tokens_BT, state)
            hiddens.append(hidden_BTD[:, -1])
            states.append(state)
        if len(states) == 1 and len(distinct) == len(windows):
            return hiddens[0], states[0]
        index = {window: i for i, window in enumerate(distinct)}
        rows = [index[window] for window in windows]
        # samples of one prompt have little in common for long, so they do not share a line
        return torch.cat(hiddens)[torch.tensor(rows, device=self.device)], DecodeState.join(states).pick(
            rows, apart=True
        )


def _lengths(window: Prompt) -> tuple[int, int]:
    return len(window.source or ()), len(window.tokens)
