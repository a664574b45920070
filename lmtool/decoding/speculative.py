"""Speculative decoding (Leviathan et al. 2023): a draft proposes tokens, and the model verifies them in one pass.

Shapes: N proposed tokens, T positions of a chunk, D model width, V vocabulary.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.decoding import filters
from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.request import Hypothesis, Request, RequestBatch, TokenEvent, n_shared, uniform
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.settings import DRAFT_TOKENS
from lmtool.errors import NumericalError, UsageError
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.tokenization.prompt_format import Prompt

ORDERS = range(2, 5)
"""Numbers of tokens that an n-gram draft looks up; what followed a single token seldom follows it again."""

WindowReader = Callable[[Prompt], tuple[Tensor, DecodeState]]
"""Hidden states (1, T, D) and the state after a window, in one pass. They stay valid."""


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
    def beside(self, request: Request, sampler: Sampler, vocab_size: int) -> Proposals:
        """What proposes tokens for a request. sampler: its strategy. vocab_size: number of the model's logits."""

    def keeps(self, sampler: Sampler) -> bool:
        """Whether a sampler's texts are those without a draft; else they have the same distribution."""
        return not sampler.samples

    def check(self, model: LanguageModel, n_ids: int) -> None:
        """Raises UsageError when it cannot propose tokens for this model, whose texts have ids below `n_ids`."""
        if not ModelRunner(model).goes_back:
            what = "a draft needs a model that can go back over tokens it rejects, and this one cannot"
            fix = "leave out draft, or name the run of a Transformer"
            raise UsageError(f"{what}: {model.description}", fix=fix)


class NGramDraft(Draft):
    """Proposes what followed when the text ended like this before: prompt lookup decoding (Saxena 2023).

    The longest suffix of the text, of ORDERS tokens, that stood before; of several places the last one. What is copied
    may reach into what is proposed, as in LZ77.
    """

    def keeps(self, sampler: Sampler) -> bool:
        return True

    def beside(self, request: Request, sampler: Sampler, vocab_size: int) -> Proposals:
        text: list[int] = []
        following: dict[tuple[int, ...], int] = {}  # by n-gram: where the token after it stood last
        tokens: list[int] = []
        unread, n_written = (*(request.start.source or ()), *request.start.tokens), 0
        while True:
            hypothesis, n = yield Proposal(tokens)
            unread += hypothesis.text[len(request.start.text) + n_written :]
            for token in unread:
                for order in ORDERS:
                    following[tuple(text[-order:])] = len(text)
                text.append(token)
            unread, n_written = (), hypothesis.n_written
            suffixes = (tuple(text[-order:]) for order in reversed(ORDERS))
            at = next((following[suffix] for suffix in suffixes if suffix in following), None)
            tokens = []
            while at is not None and len(tokens) < n and not (tokens and sampler.ends(tokens[-1])):
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
        self._prompt = _prompts(self._runner)

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

    def beside(self, request: Request, sampler: Sampler, vocab_size: int) -> Proposals:
        runner, n_more, key = self._runner, vocab_size - self._runner.vocab_size, derived(request.key, "draft")
        window, n_read, n_written = runner.fit(request.start, "slide", "the draft"), 0, 0  # within its own context
        # states[i] has read n_read tokens of the window, then the first i of `proposed`. These are the states that it
        # may go back to, so a draft can be of any family.
        states: list[DecodeState] = []
        proposed: list[int] = []
        proposal = Proposal([])
        while True:
            hypothesis, n = yield proposal
            if not states:
                states, n_read = [self._prompt(window)[1]], len(window.tokens)
            window = replace(window, tokens=(*window.tokens, *hypothesis.text[len(request.start.text) + n_written :]))
            n_written = hypothesis.n_written
            slides = not runner.has_room(window)
            if slides:  # the source stays the one that fits the draft
                window = hypothesis.window if window.joined else replace(hypothesis.window, source=window.source)
                window = window if runner.has_room(window) else runner.slid(window)
            left = runner.left(window)
            n = n if left is None else min(n, left)
            tokens: list[int] = []
            proposal = Proposal(tokens)
            if not n and not slides:
                continue
            if slides:
                hidden_1TD, state = self._prompt(window)
            else:  # what the window has more, at least its last token
                unread = window.tokens[n_read:]
                n_kept = n_shared(proposed, unread[:-1])
                hidden_1TD, state = runner.advance([unread[n_kept:]], states[n_kept].reclaimed())
            states, n_read, proposed = [state], len(window.tokens), []
            drawn_from = []
            while len(tokens) < n:
                logits_1V = F.pad(runner.logits(hidden_1TD[:, -1]), (0, n_more), value=-torch.inf)
                try:
                    filtered_1V = sampler.filtered(logits_1V, [hypothesis])
                except (NumericalError, UsageError):  # it has no token to propose; the model may have one
                    break
                (token,) = sampler.choose(filtered_1V, [uniform(key, hypothesis.n_written)])
                tokens.append(token)
                drawn_from.append(filtered_1V.softmax(-1, dtype=torch.float64))
                if len(tokens) == n or sampler.ends(token):
                    break  # the last token is read with what follows, if it is accepted
                hypothesis = hypothesis.plus(token)
                hidden_1TD, state = runner.advance([[token]], state)
                states.append(state)
                proposed.append(token)
            if tokens and sampler.samples:
                proposal = Proposal(tokens, torch.cat(drawn_from))


def _prompts(runner: ModelRunner) -> WindowReader:
    """Reads windows; one that comes again directly after itself, for another sample, is not read again."""
    return lru_cache(maxsize=1)(lambda window: runner.advance([window.tokens], runner.start([window])))


class Speculation:
    """Steps of one text at a time, of several tokens each: a draft proposes them, and the model verifies.

    Where the draft is certain, the model chooses each token as without a draft, and a proposed token is accepted if it
    is the one chosen: so the text is the same, up to the rounding of sums. Where the draft has drawn its tokens, they
    are accepted by `verify`: so the text has the same distribution.
    """

    def __init__(self, runner: ModelRunner, draft: Draft) -> None:
        self._runner, self._draft = runner, draft
        self._beside: tuple[Request, Proposals] | None = None  # of the last request

    def keeps(self, request: Request) -> bool:
        """Whether the text of a request is the one without a draft."""
        return isinstance(request.strategy, Sampler) and self._draft.keeps(request.strategy)

    @torch.inference_mode()
    def step(self, request: Request, state: DecodeState) -> tuple[list[TokenEvent], DecodeState]:
        """The events of the proposed tokens that are accepted, and of one more; and the new state.

        state: after all but the last token of the window, which fits the context; it is not valid any more.
        Raises as `RunningBatch.step` does.
        """
        (hypothesis,) = request.hypotheses
        left = self._runner.left(hypothesis.window)
        # not limited by max_new_tokens, so that a longer text begins with the shorter one
        n = self._draft.n_tokens if left is None else min(self._draft.n_tokens, left)
        forced = () if hypothesis.form is None else hypothesis.form.forced[:left]
        proposal = Proposal([*forced]) if forced else self._proposals(request).send((hypothesis, n))
        tokens = [hypothesis.window.tokens[-1], *proposal.tokens]
        return self.verified(request, proposal, *self._runner.advance([tokens], state.growing()))

    def _proposals(self, request: Request) -> Proposals:
        if self._beside is None or self._beside[0] is not request:
            assert isinstance(request.strategy, Sampler)
            self._beside = request, self._draft.beside(request, request.strategy, self._runner.vocab_size)
            next(self._beside[1])
        return self._beside[1]

    @torch.inference_mode()
    def verified(
        self, request: Request, proposal: Proposal, hidden_1TD: Tensor, state: DecodeState
    ) -> tuple[list[TokenEvent], DecodeState]:
        """As of `step`. hidden_1TD, state: of the text up to the end of what is proposed."""
        sampler, n = request.strategy, len(proposal.tokens)
        assert isinstance(sampler, Sampler)
        logits_TV = self._runner.logits(hidden_1TD[0, -n - 1 :])
        form = request.hypotheses[0].form
        is_drafted = form is None or not form.forced
        request.proposed += n * is_drafted
        events: list[TokenEvent] = []
        for i in range(n + 1):
            filtered_1V = sampler.filtered(logits_TV[i : i + 1], request.hypotheses)
            number = uniform(request.key, request.n_steps)
            if proposal.p_NV is None or i == n:
                (token,) = sampler.choose(filtered_1V, [number])
                accepted = i < n and token == proposal.tokens[i]
            else:
                p_V = filtered_1V[0].softmax(-1, dtype=torch.float64)
                numbers = uniform(derived(request.key, "accept"), request.n_steps), number
                token, accepted = verify(p_V, proposal.p_NV[i], proposal.tokens[i], *numbers)
            in_time = sampler.in_time(request, token)
            token, accepted = in_time, accepted and token == in_time
            request.accepted += accepted and is_drafted
            events += sampler.extend([request], [token], logits_TV[i : i + 1], filtered_1V)
            if not accepted or events[-1].finish:
                break
        kept = state.upto(state.length - (n + 1 - len(events)))
        assert kept is not None
        return events, kept.reclaimed()


class SpeculativeBatch(RequestBatch):
    """Requests that are decoded one after the other, with a draft: see `Speculation`."""

    def __init__(self, runner: ModelRunner, draft: Draft) -> None:
        super().__init__()
        self._runner, self._speculation = runner, Speculation(runner, draft)
        self._prompt = _prompts(runner)
        self._active: tuple[Request, DecodeState] | None = None  # after all but the last token of its window

    def step(self) -> list[TokenEvent]:
        """Generate tokens of the first request; raises as `RunningBatch.step` does.

        A window that begins, or slides at the end of the context, is read as without a draft, and nothing is proposed:
        so the model computes the same sums.
        """
        self._waiting = self.requests
        if not self._waiting:
            return []
        request = self._waiting[0]
        (hypothesis,) = request.hypotheses
        has_room = self._runner.has_room(hypothesis.window)
        if has_room and self._active is not None and self._active[0] is request:
            events, state = self._speculation.step(*self._active)
        else:
            window = hypothesis.window if has_room else self._runner.slid(hypothesis.window)
            request.hypotheses = [replace(hypothesis, window=window)]
            events, state = self._speculation.verified(request, Proposal([]), *self._prompt(window))
        self._active = request, state
        return events


def verify(p_V: Tensor, q_V: Tensor, token: int, acceptance: float, number: float) -> tuple[int, bool]:
    """The next token, and whether it is the proposed one: Leviathan et al. 2023, Algorithm 1.

    A token drawn from q is accepted with probability min(1, p / q); otherwise the next token is drawn from the
    normalized positive part of p - q. So it has the distribution p.

    p_V, q_V: probabilities under the model and the draft. acceptance, number: independent, uniform in [0, 1).
    """
    if acceptance * q_V[token] < p_V[token]:
        return token, True
    rest_V = (p_V - q_V).clamp(min=0)
    if not rest_V.any():  # p and q differ by rounding only
        rest_V = p_V
    return int(filters.draw(rest_V.log()[None], rest_V.new_tensor([number]))), False


def derived(key: bytes, name: str) -> bytes:
    """The seed of further random numbers of a request: SHA-256 of its own and a name."""
    return hashlib.sha256(key + name.encode()).digest()
