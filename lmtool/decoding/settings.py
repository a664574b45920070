"""How the next token is chosen, and for how long: one frozen dataclass for each strategy.

A setting is one field, whose type brings along its `Help` and its `Range`. The options of `lmtool generate`, what they
refuse, and which strategy takes which of them follow from the fields.
"""

import math
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from lmtool.errors import UsageError

StrategyName = Literal["greedy", "sample", "beam", "mask-predict"]
EarlyStopping = Literal["yes", "no", "never"]
Order = Literal["confidence", "gibbs"]
Overflow = Literal["refuse", "cut", "slide"]
"""What becomes of a prompt longer than the context: it is an error; it loses what is too much; or it is read as a text
that outgrew the context while it was written. See `Reader.fit`."""
LogitBias = tuple[tuple[tuple[int, ...], float], ...]
"""Sequences of ids, and what is added to the logit of the last id of each where the others stand right before it."""


@dataclass(frozen=True)
class Help:
    """How a command line asks for a setting.

    text: one sentence. metavar: what stands for a value; None where the type lists all of them.
    flag: the option, where it is not the field's name. default: what is shown as the default; None for the field's own
        unless that is 0 or None, "" for nothing.
    """

    text: str
    metavar: str | None = None
    flag: str | None = None
    default: str | None = None


@dataclass(frozen=True)
class Range:
    """Which values a setting may have, beside None where its type has that.

    holds: whether a value is one of them. fix: which to take, for a person; {name} stands for the field's name.
    """

    holds: Callable[[Any], bool]
    fix: str


def described(kind: type) -> dict[str, tuple[Any, Help]]:
    """Type and `Help` of each setting of a strategy that a command line asks for as it is, by name."""
    parts = {field.name: get_args(field.type) for field in fields(kind) if get_origin(field.type) is Annotated}
    return {name: (type_, help) for name, (type_, help, *_) in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every strategy has. panel: the heading of a strategy's own settings in the help of a command.

    seed: decides every random choice; kept with the result even where nothing is random.
    logit_bias: see `LogitBias`.
    """

    name: ClassVar[StrategyName]
    panel: ClassVar[str] = "All strategies"

    seed: Annotated[
        int,
        Help("Makes the result repeatable; a random one when left out.", "N", default=""),
        Range(lambda seed: seed >= 0, "take a seed of 0 or more"),
    ] = 1
    logit_bias: LogitBias = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for part in get_args(field.type):
                if isinstance(part, Range) and value is not None and not part.holds(value):
                    raise UsageError(f"{field.name} is {value}", fix=part.fix.format(name=field.name))


@dataclass(frozen=True, kw_only=True)
class Limits(Common):
    """What strategies that write from left to right have. Its filters come before those of `Sampling`.

    max_new_tokens: the end token is one of them.
    max_time: a text ends with the token at which the time is over; None for no such limit.
    repetition_penalty: positive logits of tokens in the text are divided by it, negative ones multiplied (Keskar et al.
        2019); 1 changes nothing.
    no_repeat_ngram: Paulus et al. 2018; 0 allows all.
    """

    max_new_tokens: Annotated[
        int, Help("Most tokens written for each text.", "N"), Range(lambda n: n >= 1, "ask for at least 1 token")
    ] = 200
    min_new_tokens: Annotated[int, Help("No end token before so many tokens.", "N")] = 0
    max_time: Annotated[
        float | None,
        Help("End each text after this time.", "SECONDS"),
        Range(lambda seconds: seconds > 0, "take a number of seconds above 0"),
    ] = None
    repetition_penalty: Annotated[
        float,
        Help("Above 1 avoids tokens that the text holds.", "X", default=""),
        Range(lambda x: 0 < x < math.inf, "take a number above 0; 1 changes nothing"),
    ] = 1.0
    no_repeat_ngram: Annotated[
        int,
        Help("No N tokens in a row come twice.", "N"),
        Range(lambda n: n >= 0, "take a length of 1 or more; 0 is none"),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens is {self.min_new_tokens}",
                fix=f"take a number from 0 to max_new_tokens, {self.max_new_tokens}",
            )
        for ids, bias in self.logit_bias:
            if not ids or math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit_bias is {bias} for {len(ids)} tokens", fix="take a number, or -inf, for at least 1 token"
                )


@dataclass(frozen=True, kw_only=True)
class Greedy(Limits):
    """The most probable token each time; of equally probable ones the lowest id."""

    name = "greedy"


_UP_TO_1 = Range(lambda p: 0 < p <= 1, "take a number above 0 and at most 1; without {name} all stay")

Temperature = Annotated[
    float,
    Help("Divides the logits: below 1 sharpens the distribution, above 1 flattens it, 0 is greedy.", "T"),
    Range(lambda t: 0 <= t < math.inf, "take a finite number of 0 or more; 0 is greedy"),
]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Each field is a filter of the distribution that is drawn from; they are applied in this order. None is no filter.

    top_k: Fan et al. 2018. top_p: the nucleus (Holtzman et al. 2020). min_p: Nguyen et al. 2025.
    typical_p: the tokens nearest to the entropy (Meister et al. 2023).
    """

    panel: ClassVar[str] = "Sampling"

    temperature: Temperature = 0.8
    top_k: Annotated[
        int | None,
        Help("Choose among the K most probable tokens.", "K"),
        Range(lambda k: k >= 1, "keep at least 1 token; leave top_k out to keep all"),
    ] = None
    top_p: Annotated[
        float | None, Help("Choose among the fewest tokens whose probability reaches P.", "P"), _UP_TO_1
    ] = None
    min_p: Annotated[float | None, Help("Choose among tokens P times as probable as the first.", "P"), _UP_TO_1] = None
    typical_p: Annotated[float | None, Help("Choose among the most typical tokens that reach P.", "P"), _UP_TO_1] = None


@dataclass(frozen=True, kw_only=True)
class Sample(Sampling, Limits):
    """A random token from the model's distribution, after all filters."""

    name: ClassVar[StrategyName] = "sample"


@dataclass(frozen=True, kw_only=True)
class Beam(Limits):
    """The best hypotheses that a search of bounded width finds (Lowerre 1976; Vijayakumar et al. 2018 for groups).

    A hypothesis scores its log-probability divided by (number of its tokens) ** length_penalty.

    length_penalty: above 1 favours long texts.
    early_stopping: "yes" ends the search with num_beams finished hypotheses; "no" when the best unfinished one scores
        no higher than the worst of them as it stands; "never" when it could not whatever followed.
    groups: each avoids the tokens that those before it chose.
    diversity: what a candidate loses for each hypothesis of an earlier group that takes the same token at this step.
    """

    name = "beam"
    panel = "Beam search"

    num_beams: Annotated[
        int, Help("Hypotheses kept at each step.", "K"), Range(lambda n: n >= 1, "take at least 1; 1 is greedy")
    ] = 4
    length_penalty: Annotated[
        float,
        Help("Rank by log p / length^X; 1 is the mean, 0 the sum.", "X"),
        Range(math.isfinite, "take a finite number; 1 is the mean"),
    ] = 1.0
    early_stopping: Annotated[
        EarlyStopping, Help("End with K finished hypotheses; when no better one seems possible; or is.")
    ] = "no"
    num_return: Annotated[int, Help("Hypotheses returned, best first.", "N")] = 1
    groups: Annotated[
        int, Help("Groups of beams that differ from one another.", "G", "--beam-groups", "one a beam with --diversity")
    ] = 1
    diversity: Annotated[
        float,
        Help("How strongly groups avoid each other's tokens.", "X"),
        Range(lambda x: 0 <= x < math.inf, "take a finite number of 0 or more"),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_return <= self.num_beams:
            raise UsageError(
                f"num_return is {self.num_return}, but num_beams is {self.num_beams}",
                fix="return at least 1 hypothesis and at most as many as there are beams",
            )
        if self.groups < 1 or self.num_beams % self.groups:
            raise UsageError(
                f"groups is {self.groups}, which does not divide num_beams {self.num_beams}",
                fix="let every group have as many beams",
            )
        if (self.groups > 1) != (self.diversity > 0):
            raise UsageError(
                f"diversity is {self.diversity} with groups {self.groups}",
                fix="take 2 groups or more and a diversity above 0, or neither",
            )


@dataclass(frozen=True, kw_only=True)
class MaskPredict(Sampling, Common):
    """Tokens for the masks of a text, by a model that reads both sides; all other tokens stay.

    The filters of sampling are for "gibbs". A bias is of single ids only.

    by: "confidence" takes the most probable token of every mask, then masks the least probable ones again, fewer each
        round (Ghazvininejad et al. 2019). "gibbs" draws them one at a time, each round once in a random order, from
        the distribution that all others give (Wang and Cho 2019).
    rounds: by confidence 1 fills all masks at once.
    """

    name: ClassVar[StrategyName] = "mask-predict"
    panel = "Mask-predict"

    temperature: Temperature = 1.0
    by: Annotated[Order, Help("Keep the most confident tokens first, or draw one at a time.")] = "confidence"
    rounds: Annotated[int, Help("How often masks are filled.", "N"), Range(lambda n: n >= 1, "take at least 1")] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(len(ids) != 1 for ids, _ in self.logit_bias):
            raise UsageError(
                "logit_bias of several tokens in a row is not for mask-predict",
                fix="give a text that is one token: lmtool tokenize --show tells",
            )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked for beside prompts and settings.

    n: samples of each prompt. first: the number of the first one.
    stop: strings that end a text and are cut off it. The first to be complete counts.
    prefix: how every text has to begin.
    overflow: what becomes of prompts longer than the context; see `Reader.fit`. Of mask-predict, "cut" fills fewer
        tokens behind the prompt.
    mask: a text that stands for a mask in prompts. length: masks behind the prompt. Both for mask-predict.
    details: tell ranks, and what the filters removed.
    max_rows: most rows computed together; with 1 not even rounding depends on other requests.
    """

    n: int = 1
    first: int = 0
    stop: tuple[str, ...] = ()
    prefix: str = ""
    overflow: Overflow = "refuse"
    mask: str | None = None
    length: int = 0
    details: bool = False
    max_rows: int = 16

    def __post_init__(self) -> None:
        if not all(self.stop):
            raise UsageError("a stop string is empty", fix="give it at least one character")
        if self.length < 0 or self.n < 1:
            raise UsageError(f"length is {self.length}, n is {self.n}", fix="ask for at least 1 of each")


Settings = Greedy | Sample | Beam | MaskPredict
STRATEGIES: dict[StrategyName, type[Settings]] = {kind.name: kind for kind in (Greedy, Sample, Beam, MaskPredict)}

_TAKES = {name: {field.name for field in fields(kind)} for name, kind in STRATEGIES.items()}
_ORDER = list(dict.fromkeys(name for kind in STRATEGIES.values() for name in described(kind)))


def choose(
    strategy: StrategyName | None = None,
    *,
    masked: bool = False,
    reads_both: bool = False,
    n: int = 1,
    seed: int | None = None,
    **options: Any,
) -> Settings:
    """The settings that a command line asks for, of the strategy that is named or implied, else of `Sample`.

    strategy: its name. masked: masks are asked for, which implies mask-predict. reads_both: the model reads both sides,
        and does mask-predict where it would sample.
    n: samples of each prompt. options: fields of strategies; None where the command line says nothing.
    Without a seed one is drawn, so that the result can be had again from the seed it carries.

    Raises UsageError when a value is out of range, when options contradict the strategy or one another, and when
    several samples of a strategy without chance are asked for.
    """
    given = {name: value for name, value in options.items() if value is not None}
    seed = secrets.randbelow(2**32) if seed is None else seed
    name: StrategyName | None = strategy or ("mask-predict" if masked else _implied(given))
    if name is None:
        name = "mask-predict" if reads_both else "sample"
    if name == "greedy" and given.get("temperature") == 0:
        del given["temperature"]
    wrong, contradicted = given.keys() - _TAKES[name], str(name)
    filters = given.keys() & described(Sampling)
    if name == "mask-predict" and given.setdefault("by", "gibbs" if filters else "confidence") == "confidence":
        wrong, contradicted = wrong | filters, name if wrong else "confidence"
    if wrong:
        raise UsageError(f"{contradicted} contradicts {_listed(wrong)}", fix="leave out one or the other")
    if name == "beam" and given.get("diversity") and "groups" not in given:
        given["groups"] = given.get("num_beams", Beam.num_beams)  # one beam each, where the paper found most variety
    settings = STRATEGIES[name](seed=seed, **given)
    if n > 1 and not _has_chance(settings):
        fix = "return several with --num-return" if name == "beam" else "leave -n out, or sample above temperature 0"
        raise UsageError(f"{n} samples of a choice without chance would all be the same", fix=fix)
    return settings


def _implied(given: Mapping[str, Any]) -> StrategyName | None:
    """The strategy that alone has one of the settings that are given."""
    takers = {option: [name for name, taken in _TAKES.items() if option in taken] for option in given}
    alone = {option: names[0] for option, names in takers.items() if len(names) == 1}
    if len(set(alone.values())) > 1:
        raise UsageError(f"{_listed(alone)} belong to different strategies", fix="keep those of one")
    return next(iter(alone.values()), None)


def _listed(names: Collection[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in sorted(names, key=_ORDER.index))


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
        kind = STRATEGIES[options.pop("strategy")]
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
