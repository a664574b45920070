"""Drafts, which propose tokens that the model verifies in one pass: speculative decoding (Leviathan et al. 2023).

Where a draft is certain, the model chooses each token as without a draft, and a proposed token is accepted if it is the
one chosen: so the text is the same, up to the rounding of sums. Where the draft has drawn its tokens, they are accepted
by `verify`: so the text has the same distribution.

Shapes: N proposed tokens, T positions of a chunk, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import n_shared
from lmtool.errors import NumericalError, UsageError
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import DRAFT_TOKENS
from lmtool.generation.strategy import Hypothesis, RequestState, Sampler, derive_key, uniform
from lmtool.model.language_model import DecodeState, LanguageModel

NGRAM_ORDERS = range(2, 5)
"""Numbers of tokens that an n-gram draft looks up; what followed a single token seldom follows it again."""


@dataclass(frozen=True)
class Proposal:
    """Tokens that may follow a text.

    p_NV: float64, the draft's distribution at each, which it was drawn from; None where none was drawn, so that the
        draft is certain of each.
    """

    tokens: list[int]
    p_NV: Tensor | None = None


Proposals = Generator[Proposal, tuple[Hypothesis, int], None]
"""A draft beside one request. It is sent hypotheses, each with more tokens than the one before, and numbers of tokens,
and yields at most so many tokens after them, none after an end; the first proposal is empty."""


class Draft(ABC):
    """Proposes tokens, which the model verifies. n_tokens: maximum number of tokens at once."""

    def __init__(self, n_tokens: int = DRAFT_TOKENS) -> None:
        if n_tokens < 1:
            raise UsageError(f"draft_tokens is {n_tokens}", fix="propose at least 1 token")
        self.n_tokens = n_tokens

    @abstractmethod
    def propose(self, state: RequestState, sampler: Sampler, vocab_size: int) -> Proposals:
        """What proposes tokens for a request. sampler: its strategy. vocab_size: number of the model's logits."""

    def keeps_texts(self, sampler: Sampler) -> bool:
        """Whether a sampler's texts are those without a draft; else they have the same distribution."""
        return not sampler.params.is_random

    def check(self, model: LanguageModel, n_ids: int) -> None:
        """Raises UsageError when it cannot propose tokens for this model, whose texts have ids below `n_ids`."""
        if not ModelRunner(model).goes_back:
            what = "a draft needs a model that can go back over tokens it rejects, and this one cannot"
            fix = "leave out draft, or name the run of a Transformer"
            raise UsageError(f"{what}: {model.description}", fix=fix)


class NGramDraft(Draft):
    """Proposes what followed when the text ended like this before: prompt lookup decoding (Saxena 2023).

    The longest suffix of the text, of NGRAM_ORDERS tokens, that stood before; of several places the last one. What is
    copied may reach into what is proposed, as in LZ77.
    """

    def keeps_texts(self, sampler: Sampler) -> bool:
        return True

    def propose(self, state: RequestState, sampler: Sampler, vocab_size: int) -> Proposals:
        text: list[int] = []
        following: dict[tuple[int, ...], int] = {}  # by n-gram: where the token after it stood last
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
    """Proposes the tokens that a smaller model writes, of the same vocabulary and by the same settings.

    The distributions of both are those after all filters. Its vocabulary may be padded to another size. It is put in
    evaluation mode.
    """

    def __init__(self, model: LanguageModel, n_tokens: int = DRAFT_TOKENS) -> None:
        super().__init__(n_tokens)
        self.model = model.eval()
        self._runner = ModelRunner(model)

    def check(self, model: LanguageModel, n_ids: int) -> None:
        super().check(model, n_ids)
        if self.model.reads != model.reads:
            what = (
                f"the draft cannot continue what the model does: one reads {self.model.reads}, the other {model.reads}"
            )
            raise UsageError(what, fix="name a draft of the same kind")
        if self.model.vocab_size < n_ids:
            what = f"the draft has {self.model.vocab_size} tokens, and the model {n_ids}"
            raise UsageError(what, fix="name a draft with the same tokenizer")

    def propose(self, state: RequestState, sampler: Sampler, vocab_size: int) -> Proposals:
        runner, n_more, key = self._runner, vocab_size - self._runner.vocab_size, derive_key(state.key, "draft")
        prompt = state.request.prompt
        window, n_read, n_written = runner.fit_prompt(prompt, "slide", "the draft"), 0, 0  # within its own context
        # caches[i] has read n_read tokens of the window, then the first i of `proposed`. These are the states that it
        # may go back to, so a draft can be of any family.
        caches: list[DecodeState] = []
        proposed: list[int] = []
        proposal = Proposal([])
        while True:
            hypothesis, n = yield proposal
            if not caches:
                caches, n_read = [runner.read_prompt(window)[1]], len(window.tokens)
            window = replace(window, tokens=(*window.tokens, *hypothesis.text[len(prompt.text) + n_written :]))
            n_written = hypothesis.n_generated
            slides = not runner.fits_context(window)
            if slides:  # the source stays the one that fits the draft
                window = hypothesis.window if window.joined else replace(hypothesis.window, source=window.source)
                window = window if runner.fits_context(window) else runner.slide(window)
            left = runner.tokens_left(window)
            n = n if left is None else min(n, left)
            tokens: list[int] = []
            proposal = Proposal(tokens)
            if not n and not slides:
                continue
            if slides:
                hidden_1TD, cache = runner.read_prompt(window)
            else:  # what the window has more, at least its last token
                unread = window.tokens[n_read:]
                n_kept = n_shared(proposed, unread[:-1])
                hidden_1TD, cache = runner.advance([unread[n_kept:]], caches[n_kept].reclaimed())
            caches, n_read, proposed = [cache], len(window.tokens), []
            drawn_from = []
            while len(tokens) < n:
                logits_1V = F.pad(runner.logits(hidden_1TD[:, -1]), (0, n_more), value=-torch.inf)
                try:
                    filtered_1V = sampler.filter(logits_1V, [hypothesis])
                except (NumericalError, UsageError):  # it has no token to propose; the model may have one
                    break
                (token,) = sampler.choose(filtered_1V, [uniform(key, hypothesis.n_generated)])
                tokens.append(token)
                drawn_from.append(filtered_1V.softmax(-1, dtype=torch.float64))
                if len(tokens) == n or token in sampler.end_ids:
                    break  # the last token is read with what follows, if it is accepted
                hypothesis = hypothesis.plus(token)
                hidden_1TD, cache = runner.advance([[token]], cache)
                caches.append(cache)
                proposed.append(token)
            if tokens and sampler.params.is_random:
                proposal = Proposal(tokens, torch.cat(drawn_from))
