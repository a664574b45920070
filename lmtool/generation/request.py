"""What goes into the engine and what comes out: requests, tokens, completions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmtool.generation.params import SamplingParams
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

FinishReason = Literal["end", "stop", "length", "time", "filled"]

N_ALTERNATIVES = 5
"""Most probable tokens that details list for each generated one."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to generate.

    prompt: what it continues.
    params: how its tokens are chosen, with the seed and the form of the text.
    draw: number of the sample, which makes its random numbers others than those of the same prompt's other samples.
    prompt_format: of its text and its end; None where tokens have no text.
    stop: strings that end the text and are removed from it; the first complete one counts.
    prefix: what the prompt ends with and the text begins with.
    end_ids: tokens that end it, where there is no format.
    banned_ids: tokens that are never generated, beside special tokens and what the tokenizer does not have.
    n_alternatives: how many of the most probable tokens each token lists, with its rank and the probability that
        filters removed; 0 for tokens without these details.
    wants_prompt: the first token has those of the prompt; for models without a source.
    """

    prompt: Prompt
    params: SamplingParams
    draw: int = 0
    prompt_format: PromptFormat | None = None
    stop: tuple[str, ...] = ()
    prefix: str = ""
    end_ids: frozenset[int] = frozenset()
    banned_ids: frozenset[int] = frozenset()
    n_alternatives: int = 0
    wants_prompt: bool = False


@dataclass(frozen=True)
class Alternative:
    """A token that could have been generated. id, logprob: as in `Token`. kept: no filter excluded it."""

    id: int
    logprob: float
    kept: bool


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of a beam search that was live or finished; together they are the tree that was searched.

    parent: index of the hypothesis that it extends by `token`, None for the prompt.
    total: sum of its log-probabilities, after filters.
    finish: why it ended, None while live.
    score: of a finished one.
    rank: among those that are returned, from 0; None for all others.
    """

    parent: int | None
    token: int
    total: float
    finish: FinishReason | None = None
    score: float | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A complete text.

    request: as in `Token`.
    prompt: its text.
    sample: number of the sample of its prompt, from 0; for beam search the rank of the hypothesis.
    draw: sample number used to seed randomness, which continues over equal prompts.
    text: the generated text, without special tokens, up to a stop string; it begins with the prefix. For mask-predict
        the whole text, prompt included.
    tokens: all generated ids, including an end token and those of a stop string; for mask-predict those of the masks.
    logprobs, ranks, removed, alternatives, constrained: as in `Token`, of each.
    tree: all hypotheses of a beam search, for the best one, if details are requested; else None.
    score: for beam search, the score of the hypothesis; else None.
    steps: number of decoding steps, or of forward passes for mask-predict.
    seed: as in the parameters.
    proposed, accepted: with a draft, tokens that it proposed, and those of them in the text; else 0.
    finish_reason: "end" for an end token, "stop" for a stop string or a complete form, "length" for max_new_tokens,
        "time" for max_time, "filled" for masks.
    """

    request: int
    prompt: str
    sample: int
    draw: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    steps: int
    seed: int
    finish_reason: FinishReason
    ranks: tuple[int, ...] | None = None
    removed: tuple[float, ...] | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] | None = None
    constrained: tuple[float, ...] | None = None
    score: float | None = None
    tree: tuple[BeamNode, ...] | None = None
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Token:
    """A token of a text, and how probable it was.

    id: in the vocabulary.
    logprob: its natural log-probability under the model's distribution, before temperature and filters.
    rank: of the token in that distribution, from 1.
    removed: its total probability of tokens excluded by filters.
    alternatives: its most probable tokens, most probable first. All three None unless requested.
    constrained: the log-probability among the tokens that the form of the text allows; None without a form.
    text: what it adds to the text: whole characters, and never part of a possible stop string.
    request: the id of its request.
    sample: for beam search the rank of the hypothesis.
    prompt: those of the prompt, from the second one on, with the first token of a text, if requested.
    n_reused: with the first token, how many of the prompt were not read, because keys and values of them were kept.
    completion: the complete text, with its last token.
    """

    id: int
    logprob: float
    rank: int | None = None
    removed: float | None = None
    alternatives: tuple[Alternative, ...] | None = None
    constrained: float | None = None
    text: str = ""
    request: int = 0
    sample: int = 0
    prompt: tuple["Token", ...] = ()
    n_reused: int = 0
    completion: Completion | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ends with this token; None where it goes on."""
        return None if self.completion is None else self.completion.finish_reason


def requests_for(prompts: Sequence[Prompt], n: int = 1, first: int = 0, **fields: Any) -> Iterator[Request]:
    """The n requests of each prompt, in order; draws are numbered on over equal prompts. fields: of each request."""
    texts = [(*(prompt.source or ()), *prompt.tokens) for prompt in prompts]
    for i, _, draw in number_draws(texts, n, first):
        yield Request(prompt=prompts[i], draw=draw, **fields)


def number_draws(texts: Sequence[tuple[int, ...]], n: int, first: int) -> Iterator[tuple[int, int, int]]:
    """(index of the text, sample, draw) of n samples of each text; draws are numbered on over equal texts."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, ids in enumerate(texts):
        yield from ((i, sample, first + seen[ids] + sample) for sample in range(n))
        seen[ids] += n


def completion_of(tokens: Sequence[Token], **fields: Any) -> Completion:
    """The completion of these tokens. fields: those that have one value for the whole text."""
    columns: dict[str, str] = {"tokens": "id", "logprobs": "logprob"}
    if tokens[0].rank is not None:
        columns |= {"ranks": "rank", "removed": "removed", "alternatives": "alternatives"}
    if tokens[0].constrained is not None:
        columns["constrained"] = "constrained"
    for name, of_one in columns.items():
        fields[name] = tuple(getattr(token, of_one) for token in tokens)
    return Completion(**fields)
