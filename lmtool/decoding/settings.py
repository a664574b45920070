"""How the next token is chosen, and for how long: one frozen dataclass for each strategy."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from lmtool.errors import UsageError

StrategyName = Literal["greedy", "sample", "beam", "mask-predict"]
EarlyStopping = Literal["yes", "no", "never"]
Order = Literal["confidence", "gibbs"]
LogitBias = tuple[tuple[tuple[int, ...], float], ...]
"""Sequences of ids, and what is added to the logit of the last id of each where the others stand right before it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What every strategy has. The filters here come before those of `Sample`; see `lmtool.decoding.filters`.

    max_new_tokens: most tokens written for one request, the end token included.
    min_new_tokens: before so many tokens are written the end token is not chosen.
    max_time: seconds after which a request ends with the token it is at; None for no such limit.
    seed: decides every random choice; kept with the result even where nothing is random.
    repetition_penalty: positive logits of tokens that the text holds already are divided by it, negative ones
        multiplied (Keskar et al. 2019); 1 changes nothing.
    no_repeat_ngram: no n tokens in a row come twice (Paulus et al. 2018); 0 allows all.
    logit_bias: see `LogitBias`.
    """

    name: ClassVar[StrategyName]

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    max_time: float | None = None
    seed: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    logit_bias: LogitBias = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}", fix="ask for at least 1 token")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens is {self.min_new_tokens}",
                fix=f"take a number from 0 to max_new_tokens, {self.max_new_tokens}",
            )
        if self.max_time is not None and not self.max_time > 0:
            raise UsageError(f"max_time is {self.max_time}", fix="take a number of seconds above 0")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", fix="take a seed of 0 or more")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty}", fix="take a number above 0; 1 changes nothing"
            )
        if self.no_repeat_ngram < 0:
            raise UsageError(f"no_repeat_ngram is {self.no_repeat_ngram}", fix="take a length of 1 or more; 0 is none")
        for ids, bias in self.logit_bias:
            if not ids or math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit_bias is {bias} for {len(ids)} tokens", fix="take a number, or -inf, for at least 1 token"
                )


@dataclass(frozen=True, kw_only=True)
class Greedy(Limits):
    """The most probable token each time; of equally probable ones the lowest id."""

    name = "greedy"


@dataclass(frozen=True, kw_only=True)
class Sample(Limits):
    """A random token from the model's distribution, after the filters in `lmtool.decoding.filters`.

    temperature: logits are divided by it; 0 is greedy.
    top_k: only the k most probable tokens stay (Fan et al. 2018); None keeps all.
    top_p: only the smallest set of tokens whose probability reaches p stays (Holtzman et al. 2020); None keeps all.
    min_p: only tokens at least this many times as probable as the most probable one stay (Nguyen et al. 2025).
    typical_p: only the smallest set of tokens nearest to the entropy whose probability reaches p stays (Meister et al.
        2023).
    """

    name = "sample"

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p)


@dataclass(frozen=True, kw_only=True)
class Beam(Limits):
    """The best of the texts that a search of bounded width finds (Lowerre 1976; Vijayakumar et al. 2018 for groups).

    A text's score is its log-probability divided by (number of its tokens) ** length_penalty.

    num_beams: texts that are gone on with at each step.
    length_penalty: 1 ranks by the mean log-probability of a token, 0 by the text's; above 1 favours long texts.
    early_stopping: "yes" ends the search when num_beams texts are finished; "no" when the best unfinished text scores
        no higher than the worst of them as it stands; "never" when it could not whatever followed.
    num_return: texts that come out, best first.
    groups: parts that the beams are divided into, each of which avoids the tokens that those before it chose.
    diversity: what a candidate loses for each text of an earlier group that takes the same token at this step.
    """

    name = "beam"

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "no"
    num_return: int = 1
    groups: int = 1
    diversity: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_beams < 1:
            raise UsageError(f"num_beams is {self.num_beams}", fix="take at least 1; 1 is greedy")
        if not math.isfinite(self.length_penalty):
            raise UsageError(f"length_penalty is {self.length_penalty}", fix="take a finite number; 1 is the mean")
        if not 1 <= self.num_return <= self.num_beams:
            raise UsageError(
                f"num_return is {self.num_return}, but num_beams is {self.num_beams}",
                fix="return at least 1 text and at most as many as there are beams",
            )
        if self.groups < 1 or self.num_beams % self.groups:
            raise UsageError(
                f"groups is {self.groups}, which does not divide num_beams {self.num_beams}",
                fix="let every group have as many beams",
            )
        if not (math.isfinite(self.diversity) and self.diversity >= 0):
            raise UsageError(f"diversity is {self.diversity}", fix="take a finite number of 0 or more")
        if (self.groups > 1) != (self.diversity > 0):
            raise UsageError(
                f"diversity is {self.diversity} with groups {self.groups}",
                fix="take 2 groups or more and a diversity above 0, or neither",
            )


@dataclass(frozen=True, kw_only=True)
class MaskPredict:
    """Tokens for the masks of a text, by a model that reads both sides; all other tokens stay.

    by: "confidence" takes the most probable token of every mask, then masks the least sure ones again, fewer each
        round (Ghazvininejad et al. 2019). "gibbs" draws them one at a time, each round once in a random order, from
        the distribution that all others give (Wang and Cho 2019).
    rounds: how often. By confidence 1 fills all masks at once.
    temperature, top_k, top_p, min_p, typical_p: as in `Sample`, for "gibbs".
    seed: decides every random choice.
    logit_bias: as in `Limits`, of single ids only.
    """

    name: ClassVar[StrategyName] = "mask-predict"

    by: Order = "confidence"
    rounds: int = 10
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int = 1
    logit_bias: LogitBias = ()

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"rounds is {self.rounds}", fix="take at least 1")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", fix="take a seed of 0 or more")
        _check_sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p)
        if any(len(ids) != 1 for ids, _ in self.logit_bias):
            raise UsageError(
                "logit_bias of several tokens in a row is not for mask-predict",
                fix="give a text that is one token: lmtool tokenize --show tells",
            )


Settings = Greedy | Sample | Beam | MaskPredict


def _check_sampling(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None, typical_p: float | None
) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature is {temperature}", fix="take a finite number of 0 or more; 0 is greedy")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k is {top_k}", fix="keep at least 1 token; leave top_k out to keep all")
    for name, p in (("top_p", top_p), ("min_p", min_p), ("typical_p", typical_p)):
        if p is not None and not 0 < p <= 1:
            raise UsageError(f"{name} is {p}", fix=f"take a number above 0 and at most 1; without {name} all stay")


# What each option is for. Those of no strategy are for all that write from left to right.
_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "typical_p"}
_BEAM = {"num_beams", "length_penalty", "early_stopping", "num_return", "groups", "diversity"}
_MASKS = {"by", "rounds"}
_OF = {"greedy": set(), "sample": _SAMPLING, "beam": _BEAM, "mask-predict": _MASKS | _SAMPLING}
_LEFT_TO_RIGHT = {"max_new_tokens", "min_new_tokens", "max_time", "repetition_penalty", "no_repeat_ngram"}
_KINDS: dict[StrategyName, type[Settings]] = {kind.name: kind for kind in (Greedy, Sample, Beam, MaskPredict)}


def choose(strategy: StrategyName | None = None, *, n: int = 1, seed: int | None = None, **options: Any) -> Settings:
    """The strategy that a command line asks for: the one that is named, or that its options imply, else `Sample`.

    strategy: its name. options: fields of the strategies; None where the command line says nothing.
    Without a seed one is drawn, so that the result can be had again from the seed it carries.

    Raises UsageError when a value is out of range, when options contradict the strategy or one another, and when
    several samples of a strategy without chance are asked for.
    """
    given = {name: value for name, value in options.items() if value is not None}
    seed = secrets.randbelow(2**32) if seed is None else seed
    name = strategy or _implied(given)
    if name == "greedy" and given.get("temperature") == 0:
        del given["temperature"]
    wrong = given.keys() & (_SAMPLING | _BEAM | _MASKS) - _OF[name]
    if name == "mask-predict":
        wrong |= given.keys() & _LEFT_TO_RIGHT
        given.setdefault("by", "gibbs" if given.keys() & _SAMPLING else "confidence")
        if given["by"] == "confidence":
            wrong |= given.keys() & _SAMPLING
    if wrong:
        order = [option for option in options if option in wrong]
        raise UsageError(
            f"{given['by'] if given.get('by') == 'confidence' and not wrong - _SAMPLING else name} contradicts "
            f"{', '.join(option.replace('_', '-') for option in order)}",
            fix="leave out one or the other",
        )
    if name == "beam" and given.get("diversity") and "groups" not in given:
        given["groups"] = given.get("num_beams", Beam.num_beams)  # one beam each, where the paper found most variety
    settings = _KINDS[name](seed=seed, **given)
    if n > 1 and not _has_chance(settings):
        fix = "return several with --num-return" if name == "beam" else "leave -n out, or sample above temperature 0"
        raise UsageError(f"{n} samples of a choice without chance would all be the same", fix=fix)
    return settings


def _implied(given: Mapping[str, Any]) -> StrategyName:
    beam, masks = given.keys() & _BEAM, given.keys() & _MASKS
    if beam and masks:
        names = ", ".join(option.replace("_", "-") for option in given if option in beam | masks)
        raise UsageError(f"{names} belong to different strategies", fix="keep those of one")
    return "beam" if beam else "mask-predict" if masks else "sample"


def _has_chance(settings: Settings) -> bool:
    match settings:
        case Sample() | MaskPredict(by="gibbs"):
            return settings.temperature > 0 and settings.top_k != 1
        case _:
            return False


def to_record(settings: Settings) -> dict[str, Any]:
    """The settings as plain data, with the name of the strategy."""
    return {"strategy": settings.name, **asdict(settings)}


def from_record(record: Mapping[str, Any]) -> Settings:
    """The settings of a record of `to_record`, also after JSON. Raises UsageError when it is none."""
    options = dict(record)
    try:
        kind = _KINDS[options.pop("strategy")]
        options["logit_bias"] = tuple((tuple(ids), float(bias)) for ids, bias in options.pop("logit_bias"))
        return kind(**options)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"these are no settings of this version: {error}") from None


def within(settings: Settings, steps: int) -> Settings:
    """Settings that stop after `steps` tokens, where a time limit stopped before."""
    if isinstance(settings, MaskPredict) or settings.max_time is None:
        return settings
    least = min(settings.min_new_tokens, steps)
    return replace(settings, max_time=None, max_new_tokens=steps, min_new_tokens=least)
