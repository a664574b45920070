"""Runs a model for decoding: windows that fit the context, prefill and decoding steps.

Shapes: B rows, T positions of a window, S positions of a source, D model width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from lmtool.batch import Batch, pad_right_with_keep_mask
from lmtool.errors import UsageError
from lmtool.generation.fast_steps import FastStepsByShape
from lmtool.generation.params import Overflow
from lmtool.model.language_model import DecodeState, KeyValueCache, LanguageModel
from lmtool.tokenization.prompt_format import Prompt


class ModelRunner:
    """Fits prompts to the context of a model, and computes hidden states, decoding states and logits.

    vocab_size: number of logits.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.vocab_size = model.vocab_size
        self.device = next(chain(model.parameters(), model.buffers())).device
        self._steps = FastStepsByShape(model, self.device)
        self._last_read: tuple[Prompt, tuple[Tensor, DecodeState]] | None = None

    @cached_property
    @torch.inference_mode()
    def _one_row_state(self) -> DecodeState:
        """State of one row before its first token; after a source of one token, if the model has sources."""
        one_11 = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self._model.initial_state(Batch(one_11, source_BS=one_11 if self._model.reads == "source" else None))

    @property
    def _source_uses_context(self) -> bool:
        """Whether source and tokens share the context, as in a prefix LM."""
        return self._model.reads == "source" and self._one_row_state.length > 0

    @property
    def can_rewind(self) -> bool:
        """Whether a state can go back to fewer tokens; see `DecodeState.truncate`."""
        return self._one_row_state.can_rewind

    @property
    def supports_prefix_cache(self) -> bool:
        """Whether keys and values of a prefix can be reused by other texts; see `PrefixCache`."""
        has_keys = any(isinstance(layer, KeyValueCache) for layer in self._one_row_state.layers)
        return has_keys and self._model.reads == "past" and self.can_rewind

    def max_window_tokens(self, window: Prompt) -> int | None:
        """Returns the maximum length of `tokens`, or of `text` if joined; None for no limit."""
        if self._model.context is None or window.joined or not self._source_uses_context:
            return self._model.context
        return self._model.context - len(window.source or ())

    def tokens_left(self, window: Prompt) -> int | None:
        """Returns how many more tokens fit the context, negative if the window does not; None for no limit."""
        room = self.max_window_tokens(window)
        return None if room is None else room - len(window.text if self._source_uses_context else window.tokens)

    def fits_context(self, window: Prompt) -> bool:
        """Whether the window fits the context."""
        left = self.tokens_left(window)
        return left is None or left >= 0

    def slide_window(self, window: Prompt) -> Prompt:
        """Returns the end of the window, which fills half of the available context."""
        room = self.max_window_tokens(window)
        return window if room is None else window.keep_last_tokens(max(1, room // 2))

    def fit_prompt(self, prompt: Prompt, overflow: Overflow, where: str) -> Prompt:
        """Fits a prompt to the context.

        overflow: "cut" keeps as many ids as fit, the last ones of a text or the first ones of a source. "slide" keeps
            the last half of the context of a text.

        Raises UsageError for a prompt without tokens, with ids outside the vocabulary, without room for a target, or
        longer than the context if overflow is "refuse".
        """
        ids = (*(prompt.source or ()), *prompt.tokens)
        if not prompt.tokens or (prompt.source == () and not prompt.joined):
            raise UsageError("the prompt has no tokens", where=where, fix="start from the token that begins a text")
        if not 0 <= min(ids) <= max(ids) < self._model.vocab_size:
            last = self._model.vocab_size - 1
            raise UsageError(f"the prompt has ids outside 0..{last}, the model's vocabulary", where=where)
        context = self._model.context
        n_source = 0 if prompt.source is None or prompt.joined else len(prompt.source)
        n_answered = n_source + (len(prompt.tokens) if self._source_uses_context else 0)
        if context is None or (n_answered <= context and self.fits_context(prompt)):
            return prompt
        if overflow == "refuse":
            what = f"the prompt has {len(ids)} tokens, but the model's context is {context}"
            raise UsageError(what, where=where, fix="shorten it, or choose --overflow cut or slide")
        if n_answered > context and prompt.source is not None:
            n_left = context - (len(prompt.tokens) if self._source_uses_context else 0)
            if n_left < 1:
                what = f"the target begins with {len(prompt.tokens)} tokens, but the model's context is {context}"
                raise UsageError(what, where=where, fix="shorten it")
            prompt = replace(prompt, source=prompt.source[:n_left])
        room = self.max_window_tokens(prompt)
        if room is None or self.fits_context(prompt):
            return prompt
        return self.slide_window(prompt) if overflow == "slide" else prompt.keep_last_tokens(room)

    @torch.inference_mode()
    def create_initial_state(self, windows: Sequence[Prompt]) -> DecodeState:
        """Returns the state before the tokens of windows, after their sources, which have equal lengths."""
        tokens_BT = self._pad_tokens([window.tokens for window in windows])
        sources = [window.source for window in windows if window.source is not None]
        source_BS = torch.tensor(sources, dtype=torch.int64, device=self.device) if sources else None
        return self._model.initial_state(Batch(tokens_BT, source_BS=source_BS))

    @torch.inference_mode()
    def read_tokens(self, tokens: Sequence[Sequence[int]], state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Reads more tokens of each row, padded to the longest. Returns hidden states (B, T, D) and the new state."""
        return self._model.forward_incremental(self._pad_tokens(tokens), state)

    def prefill_or_reuse_last(self, window: Prompt) -> tuple[Tensor, DecodeState]:
        """Reads a window in one pass. Returns hidden states (1, T, D) and the state, which stay valid.

        The last window is cached for further samples of the same prompt.
        """
        if self._last_read is None or self._last_read[0] != window:
            self._last_read = window, self.read_tokens([window.tokens], self.create_initial_state([window]))
        return self._last_read[1]

    def _pad_tokens(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        return pad_right_with_keep_mask([np.array(one, dtype=np.int64) for one in tokens], 0)[0].to(self.device)

    @torch.inference_mode()
    def decode_step_(self, tokens: Sequence[int], state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Reads one token of each row. Returns hidden states (B, D) and the new state.

        Both are valid until the next step, and the given state becomes invalid; see `FastStepsByShape`.
        """
        tokens_B1 = torch.tensor(tokens, device=self.device)[:, None]
        if (stepped := self._steps(tokens_B1, state)) is not None:
            return stepped
        hidden_B1D, state = self._model.forward_incremental(tokens_B1, state.to_growable())
        return hidden_B1D[:, -1], state

    def get_ngram_contexts(self, ids: Sequence[int], n: int) -> list[Sequence[int]]:
        """Returns what `compute_logits` needs of a text up to each of its last n positions."""
        interpolation = self._model.interpolation
        return [] if interpolation is None else interpolation.get_contexts(ids, range(len(ids) - n, len(ids)))

    @torch.inference_mode()
    def compute_logits(self, hidden_BD: Tensor, ngram_contexts: Sequence[Sequence[int]] = ()) -> Tensor:
        """Returns next-token logits (B, V).

        ngram_contexts: the ids up to each position, to interpolate with an n-gram model if the model has one.
        """
        if len(hidden_BD) == 1:
            _ = (
                self._steps.native_layers
            )  # prepares the head first, so that logits of a single row are all computed alike
        # In bfloat16 many logits would tie, and rounding would choose among them.
        with torch.autocast(self.device.type, enabled=False):
            logits_BV = self._model.logits(hidden_BD).float()
        if logits_BV.device.type == "mps":
            logits_BV = logits_BV.cpu()  # no float64
        if ngram_contexts and self._model.interpolation is not None:
            return self._model.interpolation.interpolate_next_token_log_probs(logits_BV, ngram_contexts)
        return logits_BV
