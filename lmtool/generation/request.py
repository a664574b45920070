"""Inputs and outputs of the engine: requests, tokens, completions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lmtool.generation.params import SamplingParams
from lmtool.tokenization.prompt_format import Prompt, PromptFormat

FinishReason = Literal["end", "stop", "length", "time", "filled"]

DETAIL_ALTERNATIVES = 5
"""Alternatives that details list for each generated token."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to generate.

    params: the decoding strategy, with the seed and the form of the text.
    draw: sample number; samples of the same prompt with different numbers use different random numbers.
    prompt_format: detokenizes the text and knows its end tokens; None if tokens have no text.
    stop: strings that end the text and are removed from it; the first complete one counts.
    prefix: text at the end of the prompt that the generated text begins with.
    end_ids: tokens that end the text, if there is no format.
    banned_ids: tokens that are never generated, besides special tokens and ids that the tokenizer lacks.
    n_alternatives: most probable tokens that each token lists, with its rank and the probability that filters
        removed; 0 for tokens without these details.
    prompt_logprobs: whether the first token has the tokens of the prompt; for models without a source.
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
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Alternative:
    """A token that could have been generated. id, logprob: as in `Token`. kept: whether filters left it."""

    id: int
    logprob: float
    kept: bool


@dataclass(frozen=True)
class BeamNode:
    """A live or finished hypothesis of a beam search, as a node of the search tree.

    parent: index of the hypothesis that it extends by `token`; None for the prompt.
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
    prompt: the text of the prompt.
    sample: number of the sample of its prompt, from 0; for beam search the rank of the hypothesis.
    draw: sample number that seeds randomness; it continues over equal prompts.
    text: the generated text, without special tokens, up to a stop string; it begins with the prefix. For mask-predict
        the whole text, prompt included.
    tokens: all generated ids, including an end token and those of a stop string; for mask-predict those of the masks.
    logprobs, ranks, removed, alternatives, constrained: as in `Token`, one per token.
    tree: all hypotheses of a beam search, with its best completion, if details are requested; else None.
    score: for beam search, the score of the hypothesis; else None.
    steps: number of decoding steps, or of forward passes for mask-predict.
    seed: as in the parameters.
    proposed, accepted: tokens that a draft proposed, and how many of them were accepted.
    finish_reason: "end" for an end token, "stop" for a stop string or a complete form, "length" for max_new_tokens,
        "time" for max_time, "filled" for masks.
    """

    request: int
    sample: int
    draw: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    steps: int
    seed: int
    finish_reason: FinishReason
    prompt: str = ""
    text: str = ""
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
    """A generated token and its probability.

    logprob: natural log-probability under the model's distribution, before temperature and filters.
    rank: rank of the token in that distribution, from 1.
    removed: total probability of the tokens that filters excluded.
    alternatives: most probable tokens of the distribution, most probable first. All three are None unless requested.
    constrained: log-probability among the tokens that the form of the text allows; None without a form.
    text: text that the token adds: whole characters, and never part of a possible stop string.
    request: id of its request.
    sample: for beam search, the rank of the hypothesis.
    prompt: tokens of the prompt from the second one on, if requested; only in the first token of a text.
    n_reused: tokens of the prompt that were in the prefix cache; only in the first token.
    completion: the complete text; only in its last token.
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
        """Why the text ends with this token; None if it goes on."""
        return None if self.completion is None else self.completion.finish_reason


def build_requests(prompts: Sequence[Prompt], n: int = 1, first_draw: int = 0, **fields: Any) -> Iterator[Request]:
    """Yields n requests for each prompt, in order. fields: other fields of all requests. See `number_samples`."""
    texts = [(*(prompt.source or ()), *prompt.tokens) for prompt in prompts]
    for one in number_samples(texts, n, first_draw):
        yield Request(prompt=prompts[one.text], draw=one.draw, **fields)


class SampleNumbers(NamedTuple):
    """A sample of a text. text: index of the text. sample: its number for this text. draw: see `Request`."""

    text: int
    sample: int
    draw: int


def number_samples(texts: Sequence[tuple[int, ...]], n: int, first_draw: int) -> Iterator[SampleNumbers]:
    """Numbers n samples of each text. Draws begin with `first_draw` and continue over equal texts."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i, ids in enumerate(texts):
        yield from (SampleNumbers(i, sample, first_draw + seen[ids] + sample) for sample in range(n))
        seen[ids] += n


def build_completion(tokens: Sequence[Token], **fields: Any) -> Completion:
    """Builds a completion from its tokens. fields: its fields that are not lists of a value per token."""
    columns: dict[str, str] = {"tokens": "id", "logprobs": "logprob"}
    if tokens[0].rank is not None:
        columns |= {"ranks": "rank", "removed": "removed", "alternatives": "alternatives"}
    if tokens[0].constrained is not None:
        columns["constrained"] = "constrained"
    for name, field in columns.items():
        fields[name] = tuple(getattr(token, field) for token in tokens)
    return Completion(**fields)
