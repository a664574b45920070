"""Inputs of decoding: prompts, windows that fit the context, prefill and decoding steps.

Shapes: B rows, T positions of a window, S positions of a source, D model width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from lmtool.batch import Batch, padded
from lmtool.errors import UsageError
from lmtool.generation.params import Overflow
from lmtool.generation.steps import Steps
from lmtool.model.language_model import DecodeState, KeyValue, LanguageModel
from lmtool.tokenization.prompt_format import Prompt


class ModelRunner:
    """A model as used by decoding: windows that fit its context, and states that advance.

    vocab_size: number of logits.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.vocab_size = model.vocab_size
        self.device = next(chain(model.parameters(), model.buffers())).device
        self._steps = Steps(model, self.device)
        self._last_read: tuple[Prompt, tuple[Tensor, DecodeState]] | None = None

    @cached_property
    @torch.inference_mode()
    def _smallest(self) -> DecodeState:
        """The state of one row before its tokens; after a source of one token, if the model has sources."""
        one_11 = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self._model.start(Batch(one_11, source_BS=one_11 if self._model.reads == "source" else None))

    @property
    def _source_counts(self) -> bool:
        """Whether source and tokens share the context, as in a prefix LM."""
        return self._model.reads == "source" and self._smallest.length > 0

    @property
    def goes_back(self) -> bool:
        """Whether a state can be had again after more tokens were read; see `DecodeState.upto`."""
        return self._smallest.goes_back

    @property
    def keeps_prefixes(self) -> bool:
        """Whether keys and values of what texts begin with can be kept for others; see `PrefixCache`."""
        has_keys = any(isinstance(layer, KeyValue) for layer in self._smallest.layers)
        return has_keys and self._model.reads == "past" and self.goes_back

    def max_length(self, window: Prompt) -> int | None:
        """Maximum length of `tokens`, or of `text` if joined; None for no limit."""
        if self._model.context is None or window.joined or not self._source_counts:
            return self._model.context
        return self._model.context - len(window.source or ())

    def tokens_left(self, window: Prompt) -> int | None:
        """How many more tokens fit the context, below 0 for a window that does not; None for no limit."""
        room = self.max_length(window)
        return None if room is None else room - len(window.text if self._source_counts else window.tokens)

    def fits_context(self, window: Prompt) -> bool:
        """Whether the window fits the context."""
        left = self.tokens_left(window)
        return left is None or left >= 0

    def slide(self, window: Prompt) -> Prompt:
        """The last half of the available context."""
        room = self.max_length(window)
        return window if room is None else window.keep_last(max(1, room // 2))

    def fit_prompt(self, prompt: Prompt, overflow: Overflow, where: str) -> Prompt:
        """The prompt, fitted to the context.

        "cut" keeps as many ids as fit, the last ones of a text or the first ones of a source. "slide" keeps the last
        half of the context of a text.

        Raises UsageError when it has no tokens, when it has ids outside the vocabulary, and when it is longer than the
        context and overflow is "refuse", or no room is left for a target.
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
        if context is None or (n_answered <= context and self.fits_context(prompt)):
            return prompt
        if overflow == "refuse":
            what = f"the prompt has {len(ids)} tokens, but the model's context is {context}"
            raise UsageError(what, where=where, fix="shorten it, or choose --overflow cut or slide")
        if n_answered > context and prompt.source is not None:
            n_left = context - (len(prompt.tokens) if self._source_counts else 0)
            if n_left < 1:
                what = f"the target begins with {len(prompt.tokens)} tokens, but the model's context is {context}"
                raise UsageError(what, where=where, fix="shorten it")
            prompt = replace(prompt, source=prompt.source[:n_left])
        room = self.max_length(prompt)
        if room is None or self.fits_context(prompt):
            return prompt
        return self.slide(prompt) if overflow == "slide" else prompt.keep_last(room)

    @torch.inference_mode()
    def start(self, windows: Sequence[Prompt]) -> DecodeState:
        """The state before the tokens of windows; reads their sources, which are of equal lengths."""
        tokens_BT = self._padded([window.tokens for window in windows])
        sources = [window.source for window in windows if window.source is not None]
        source_BS = torch.tensor(sources, dtype=torch.int64, device=self.device) if sources else None
        return self._model.start(Batch(tokens_BT, source_BS=source_BS))

    @torch.inference_mode()
    def advance(self, tokens: Sequence[Sequence[int]], state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Hidden states (B, T, D) of T more tokens of each row, or fewer and then any, and the new state."""
        return self._model.advance(self._padded(tokens), state)

    def read_prompt(self, window: Prompt) -> tuple[Tensor, DecodeState]:
        """Hidden states (1, T, D) and the state after a window, in one pass. They stay valid.

        A window that comes again directly after itself, for another sample, is not read again.
        """
        if self._last_read is None or self._last_read[0] != window:
            self._last_read = window, self.advance([window.tokens], self.start([window]))
        return self._last_read[1]

    def _padded(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        return padded([np.array(one, dtype=np.int64) for one in tokens], 0)[0].to(self.device)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], state: DecodeState) -> tuple[Tensor, DecodeState]:
        """The same for one token of each row: hidden states (B, D), and the new state.

        Both are valid until the next step, and the state that was given is not valid any more; see `Steps`.
        """
        tokens_B1 = torch.tensor(tokens, device=self.device)[:, None]
        if (stepped := self._steps(tokens_B1, state)) is not None:
            return stepped
        hidden_B1D, state = self._model.advance(tokens_B1, state.growing())
        return hidden_B1D[:, -1], state

    @torch.inference_mode()
    def logits(self, hidden_BD: Tensor) -> Tensor:
        """Next-token logits (B, V)."""
        if len(hidden_BD) == 1:
            _ = self._steps.native  # before the first of one row, so that all of these are computed alike
        # In bfloat16 many logits would tie, and rounding would choose among them.
        with torch.autocast(self.device.type, enabled=False):
            logits_BV = self._model.logits(hidden_BD).float()
        return logits_BV.cpu() if logits_BV.device.type == "mps" else logits_BV  # no float64
