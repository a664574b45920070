"""How the next token is chosen, and for how long: one frozen dataclass for each strategy."""

import math
import secrets
from dataclasses import dataclass

from lmtool.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What every strategy has.

    max_new_tokens: most tokens written for one request, the end token included.
    seed: decides every random choice; kept with the result even where nothing is random.
    """

    max_new_tokens: int = 200
    seed: int = 1

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}", fix="ask for at least 1 token")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", fix="take a seed of 0 or more")


@dataclass(frozen=True, kw_only=True)
class Greedy(Limits):
    """The most probable token each time; of equally probable ones the lowest id."""


@dataclass(frozen=True, kw_only=True)
class Sample(Limits):
    """A random token from the model's distribution, after the filters in `lmtool.decoding.filters`.

    temperature: logits are divided by it; 0 is greedy.
    top_k: only the k most probable tokens stay (Fan et al. 2018); None keeps all.
    top_p: only the smallest set of tokens whose probability reaches p stays (Holtzman et al. 2020); None keeps all.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature is {self.temperature}", fix="take a finite number of 0 or more; 0 is greedy")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k}", fix="keep at least 1 token; leave top_k out to keep all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}", fix="take a number above 0 and at most 1; 1 keeps all tokens")


Settings = Greedy | Sample


def choose(
    *,
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = Limits.max_new_tokens,
    seed: int | None = None,
    n: int = 1,
) -> Settings:
    """The strategy that a command line asks for; None where it says nothing.

    Without a seed one is drawn, so that the result can be had again from the seed it carries.

    Raises UsageError when a value is out of range, when `greedy` comes with a sampling option, and when several
    samples of a strategy without chance are asked for.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in given.items() if value is not None}
    seed = secrets.randbelow(2**32) if seed is None else seed
    sample = Sample(max_new_tokens=max_new_tokens, seed=seed, **given)  # type: ignore[arg-type]
    if n > 1 and (greedy or sample.temperature == 0 or top_k == 1):
        raise UsageError(
            f"{n} samples of a greedy choice would all be the same",
            fix="leave -n out, or sample with a temperature above 0",
        )
    if not greedy:
        return sample
    if given not in ({}, {"temperature": 0}):
        raise UsageError(
            f"greedy contradicts {', '.join(name.replace('_', '-') for name in given)}",
            fix="leave out one or the other",
        )
    return Greedy(max_new_tokens=max_new_tokens, seed=seed)
