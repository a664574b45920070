"""Speculative decoding (Leviathan et al. 2023): drafts propose tokens, which the model verifies in one pass.

If a draft is deterministic, the model chooses each token as it would without a draft, and accepts a proposed token if
it is the chosen one: the text is the same, up to the rounding of sums. If a draft samples its tokens,
`verify_draft_token` accepts them: the text has the same distribution.

Shapes: N proposed tokens, T positions of a chunk, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import common_prefix_length
from lmtool.errors import NumericalError, UsageError
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import DEFAULT_DRAFT_TOKENS
from lmtool.generation.strategy import Hypothesis, RequestState, Sampler, derive_key, uniform_random
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.runs.load import LoadedModel

NGRAM_ORDERS = range(2, 5)
"""Lengths of the n-grams that an n-gram draft looks up. A single token predicts its successor badly."""


@dataclass(frozen=True)
class Proposal:
    """Proposed tokens after a text.

    p_NV: float64 distributions of the draft from which they were sampled; None for a deterministic draft.
    """

    tokens: list[int]
    p_NV: Tensor | None = None


ProposalCoroutine = Generator[Proposal, tuple[Hypothesis, int], None]
"""A coroutine that drafts for one request. It is sent (hypothesis, n), each hypothesis longer than the one before, and
yields at most n tokens after it, none after an end token. The first proposal is empty."""


class Draft(ABC):
    """Proposes tokens, which the model verifies.

    n_tokens: maximum tokens proposed at once. loaded: the run of its model; None for n-gram look-up.
    """

    def __init__(self, n_tokens: int = DEFAULT_DRAFT_TOKENS, loaded: LoadedModel | None = None) -> None:
        if n_tokens < 1:
            raise UsageError(f"draft_tokens is {n_tokens}", fix="propose at least 1 token")
        self.n_tokens, self.loaded = n_tokens, loaded

    @abstractmethod
    def start_proposals(self, state: RequestState, sampler: Sampler, vocab_size: int) -> ProposalCoroutine:
        """Starts drafting for a request. sampler: its strategy. vocab_size: number of the model's logits."""

    def is_exact(self, sampler: Sampler) -> bool:
        """Whether texts are the same as without a draft; otherwise they have the same distribution."""
        return not sampler.params.is_random

    def to_record(self) -> dict[str, Any]:
        """Returns its run and number of tokens as JSON values. run: null for n-gram look-up."""
        return (self.loaded.to_record() if self.loaded else {"run": None}) | {"tokens": self.n_tokens}

    def describe(self) -> str:
        """Returns a short description, such as "draft n-gram look-up, 4 tokens at once"."""
        source = f"{self.loaded.run_path}, step {self.loaded.step}" if self.loaded else "n-gram look-up"
        return f"draft {source}, {self.n_tokens} tokens at once"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about its run."""
        return self.loaded.reference.warnings if self.loaded else ()

    def check_supports_model(self, model: LanguageModel, n_ids: int) -> None:
        """Raises UsageError if it cannot propose tokens for this model, whose texts have ids below `n_ids`."""
        if not ModelRunner(model).can_rewind:
            what = "a draft needs a model that can go back over tokens it rejects, and this one cannot"
            fix = "leave out draft, or name the run of a Transformer"
            raise UsageError(f"{what}: {model.description}", fix=fix)


class NGramDraft(Draft):
    """Copies the tokens after an earlier occurrence of the text's last n-gram: prompt lookup decoding (Saxena 2023).

    It looks up the longest n-gram of NGRAM_ORDERS that occurred before, at its last occurrence. The copied part may
    overlap the proposal itself, as in LZ77.
    """

    def is_exact(self, sampler: Sampler) -> bool:
        return True

    def start_proposals(self, state: RequestState, sampler: Sampler, vocab_size: int) -> ProposalCoroutine:
        text: list[int] = []
        following: dict[tuple[int, ...], int] = {}  # by n-gram: index of the token after its last occurrence
        tokens: list[int] = []
        prompt, n_written = state.request.prompt, 0
        unread = (*(prompt.source or ()), *prompt.tokens)
        while True:
            hypothesis, n = yield Proposal(tokens)
            unread += hypothesis.text[len(prompt.text) + n_written :]
            for token in unread:
                for order in NGRAM_ORDERS:
                    following[tuple(text[-order:])] = len(text)
                text.append(token)
            unread, n_written = (), hypothesis.n_generated
            suffixes = (tuple(text[-order:]) for order in reversed(NGRAM_ORDERS))
            at = next((following[suffix] for suffix in suffixes if suffix in following), None)
            tokens = []
            while at is not None and len(tokens) < n and not (tokens and tokens[-1] in sampler.end_ids):
                i = at + len(tokens)
                tokens.append(text[i] if i < len(text) else tokens[i - len(text)])


class ModelDraft(Draft):
    """Proposes the tokens that a smaller model with the same vocabulary generates by the same parameters.

    The distributions of both are those after all filters. Its vocabulary may be padded to another size. The model is
    put in evaluation mode.
    """

    def __init__(
        self, model: LanguageModel, n_tokens: int = DEFAULT_DRAFT_TOKENS, loaded: LoadedModel | None = None
    ) -> None:
        super().__init__(n_tokens, loaded)
        self.model = model.eval()
        self._runner = ModelRunner(model)

    def check_supports_model(self, model: LanguageModel, n_ids: int) -> None:
        super().check_supports_model(model, n_ids)
        if self.model.reads != model.reads:
            what = (
                f"the draft cannot continue what the model does: one reads {self.model.reads}, the other {model.reads}"
            )
            raise UsageError(what, fix="name a draft of the same kind")
        if self.model.vocab_size < n_ids:
            what = f"the draft has {self.model.vocab_size} tokens, and the model {n_ids}"
            raise UsageError(what, fix="name a draft with the same tokenizer")

    def start_proposals(self, state: RequestState, sampler: Sampler, vocab_size: int) -> ProposalCoroutine:
        runner, n_more, key = self._runner, vocab_size - self._runner.vocab_size, derive_key(state.key, "draft")
        prompt = state.request.prompt
        window, n_read, n_written = runner.fit_prompt(prompt, "slide", "the draft"), 0, 0  # within its own context
        # caches[i] has read n_read tokens of the window, then the first i of `proposed`. It goes back to these states,
        # so a draft can be of any family.
        caches: list[DecodeState] = []
        proposed: list[int] = []
        proposal = Proposal([])
        while True:
            hypothesis, n = yield proposal
            if not caches:
                caches, n_read = [runner.prefill_or_reuse_last(window)[1]], len(window.tokens)
            window = replace(window, tokens=(*window.tokens, *hypothesis.text[len(prompt.text) + n_written :]))
            n_written = hypothesis.n_generated
            slides = not runner.fits_context(window)
            if slides:  # the source is kept as it fits the draft
                window = hypothesis.window if window.joined else replace(hypothesis.window, source=window.source)
                window = window if runner.fits_context(window) else runner.slide_window(window)
            left = runner.tokens_left(window)
            n = n if left is None else min(n, left)
            tokens: list[int] = []
            proposal = Proposal(tokens)
            if not n and not slides:
                continue
            if slides:
                hidden_1TD, cache = runner.prefill_or_reuse_last(window)
            else:  # the new part of the window, at least its last token
                unread = window.tokens[n_read:]
                n_kept = common_prefix_length(proposed, unread[:-1])
                hidden_1TD, cache = runner.read_tokens([unread[n_kept:]], caches[n_kept].invalidate_continuations_())
            caches, n_read, proposed = [cache], len(window.tokens), []
            drawn_from = []
            while len(tokens) < n:
                logits_1V = F.pad(runner.compute_logits(hidden_1TD[:, -1]), (0, n_more), value=-torch.inf)
                try:
                    filtered_1V = sampler.filter_logits(logits_1V, [hypothesis])
                except (NumericalError, UsageError):  # it has no token to propose; the model may have one
                    break
                (token,) = sampler.choose_ids(filtered_1V, [uniform_random(key, hypothesis.n_generated)])
                tokens.append(token)
                drawn_from.append(filtered_1V.softmax(-1, dtype=torch.float64))
                if len(tokens) == n or token in sampler.end_ids:
                    break  # the last token is read with the next ones, if it is accepted
                hypothesis = hypothesis.with_token(token)
                hidden_1TD, cache = runner.read_tokens([[token]], cache)
                caches.append(cache)
                proposed.append(token)
            if tokens and sampler.params.is_random:
                proposal = Proposal(tokens, torch.cat(drawn_from))
