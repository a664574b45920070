"""Decoding settings: one frozen dataclass for each strategy.

A setting is one field, annotated with its `Help` and `Range`. The options of `lmtool generate`, their validation, and
which strategy takes which of them are derived from the fields.
"""

import math
import secrets
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

from lmtool.decoding.forms import TextForm
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from lmtool.decoding.constrained import FormState

StrategyName = Literal["greedy", "sample", "beam", "mask-predict"]
EarlyStopping = Literal["yes", "no", "never"]
Order = Literal["confidence", "gibbs"]
Overflow = Literal["refuse", "cut", "slide"]
"""What to do with a prompt longer than the context: raise an error, truncate it, or slide the window as for text that
exceeds the context during generation. See `ModelRunner.fit`."""
LogitBias = tuple[tuple[tuple[int, ...], float], ...]
"""Sequences of ids, with the bias added to the logit of the last id where the others directly precede it."""

MOST_BEAMS = 4096
"""Each takes about a millisecond a token."""

DRAFT_TOKENS = 4
"""How many tokens a draft proposes at once, by default."""


@dataclass(frozen=True)
class Help:
    """The command-line option of a setting.

    text: one sentence.
    metavar: placeholder of the value; None where the type lists all values.
    flag: the option, if not the field's name.
    default: the default to display; None for the field's own unless that is 0 or None, "" for none.
    """

    text: str
    metavar: str | None = None
    flag: str | None = None
    default: str | None = None


@dataclass(frozen=True)
class Range:
    """Valid values of a setting, besides None for optional ones.

    holds: whether a value is valid. fix: valid values, for error messages; {name} is the field's name.
    """

    holds: Callable[[Any], bool]
    fix: str


def described(kind: type) -> dict[str, tuple[Any, Help]]:
    """Type and `Help` of each setting of a strategy that is a command-line option, by name."""
    parts = {field.name: get_args(field.type) for field in fields(kind) if get_origin(field.type) is Annotated}
    return {name: (type_, help) for name, (type_, help, *_) in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Common:
    """Settings of every strategy. panel: heading of a strategy's own settings in command help.

    seed: of all randomness; recorded with the result even for deterministic strategies.
    logit_bias: see `LogitBias`.
    """

    name: ClassVar[StrategyName]
    panel: ClassVar[str] = "All strategies"

    seed: Annotated[
        int,
        Help("Makes the result reproducible; random by default.", "N", default=""),
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
    """Settings of left-to-right strategies. Its filters are applied before those of `Sampling`.

    max_new_tokens: includes the end token.
    max_time: a text ends with the first token after this time; None for no limit.
    repetition_penalty: positive logits of tokens in the text are divided by it, negative ones multiplied (Keskar et al.
        2019); 1 has no effect.
    frequency_penalty: subtracted from the logit of a token once for each of its occurrences in the new text.
    presence_penalty: subtracted once if there is any. Both as the API of OpenAI defines them; 0 has no effect.
    no_repeat_ngram: Paulus et al. 2018; 0 for no filter.
    form: what each text must be; None for anything. What follows for certain is taken whatever the filters exclude.
    """

    max_new_tokens: Annotated[
        int, Help("Maximum new tokens of each text.", "N"), Range(lambda n: n >= 1, "ask for at least 1 token")
    ] = 200
    min_new_tokens: Annotated[int, Help("Minimum new tokens before the end token.", "N")] = 0
    max_time: Annotated[
        float | None,
        Help("Time limit for each text.", "SECONDS"),
        Range(lambda seconds: seconds > 0, "take a number of seconds above 0"),
    ] = None
    repetition_penalty: Annotated[
        float,
        Help("Above 1 discourages tokens already in the text.", "X", default=""),
        Range(lambda x: 0 < x < math.inf, "take a number above 0; 1 has no effect"),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        Help("Lowers the logit of a token by X each time that it was generated.", "X"),
        Range(lambda x: abs(x) <= 100, "take a number from -100 to 100; 0 has no effect"),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        Help("Lowers the logit of a token by X once it was generated.", "X"),
        Range(lambda x: abs(x) <= 100, "take a number from -100 to 100; 0 has no effect"),
    ] = 0.0
    no_repeat_ngram: Annotated[
        int,
        Help("No n-gram of N tokens occurs twice.", "N"),
        Range(lambda n: n >= 0, "take a length of 1 or more; 0 for no filter"),
    ] = 0
    form: TextForm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form is not None and self.no_repeat_ngram:
            raise UsageError(
                "a form and no_repeat_ngram cannot be combined: a form may have to repeat itself",
                fix="leave out one of them",
            )
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            what = f"min_new_tokens is {self.min_new_tokens}"
            raise UsageError(what, fix=f"take a number from 0 to max_new_tokens, {self.max_new_tokens}")
        for ids, bias in self.logit_bias:
            if not ids or math.isnan(bias) or bias == math.inf:
                what = f"logit_bias is {bias} for {len(ids)} tokens"
                raise UsageError(what, fix="take a number, or -inf, for at least 1 token")


@dataclass(frozen=True, kw_only=True)
class Greedy(Limits):
    """The most probable token at each step; the lowest id among ties."""

    name = "greedy"


_UP_TO_1 = Range(lambda p: 0 < p <= 1, "take a number above 0 and at most 1; without {name} all are kept")

Temperature = Annotated[
    float,
    Help("Divides the logits: below 1 sharpens the distribution, above 1 flattens it, 0 is greedy.", "T"),
    Range(lambda t: 0 <= t < math.inf, "take a finite number of 0 or more; 0 is greedy"),
]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Each field is a filter of the sampling distribution; they are applied in this order. None for no filter.

    top_k: Fan et al. 2018.
    top_p: nucleus sampling (Holtzman et al. 2020).
    min_p: Nguyen et al. 2025.
    typical_p: locally typical sampling (Meister et al. 2023).
    """

    panel: ClassVar[str] = "Sampling"

    temperature: Temperature = 0.8
    top_k: Annotated[
        int | None,
        Help("Sample from the K most probable tokens.", "K"),
        Range(lambda k: k >= 1, "keep at least 1 token; leave top_k out to keep all"),
    ] = None
    top_p: Annotated[float | None, Help("Sample from the fewest tokens with probability P.", "P"), _UP_TO_1] = None
    min_p: Annotated[float | None, Help("Sample from tokens P times as probable as the top one.", "P"), _UP_TO_1] = None
    typical_p: Annotated[float | None, Help("Choose among the most typical tokens that reach P.", "P"), _UP_TO_1] = None


@dataclass(frozen=True, kw_only=True)
class Sample(Sampling, Limits):
    """A token sampled from the model's distribution, after all filters."""

    name: ClassVar[StrategyName] = "sample"


@dataclass(frozen=True, kw_only=True)
class Beam(Limits):
    """Beam search (Lowerre 1976), optionally with diverse groups (Vijayakumar et al. 2018).

    The score of a hypothesis is its log-probability divided by (number of its tokens) ** length_penalty.

    length_penalty: above 1 favours long texts.
    early_stopping: "yes" ends the search with num_beams finished hypotheses; "no" when the current score of the best
        live one is not above the worst of these; "never" when no continuation could exceed it.
    groups: each is penalised for tokens that earlier groups chose.
    diversity: penalty of a candidate for each hypothesis of an earlier group with the same token at this step.
    """

    name = "beam"
    panel = "Beam search"

    num_beams: Annotated[
        int,
        Help("Hypotheses kept at each step.", "K"),
        Range(lambda n: 1 <= n <= MOST_BEAMS, f"take 1 to {MOST_BEAMS}; 1 is greedy"),
    ] = 4
    length_penalty: Annotated[
        float,
        Help("Rank by log p / length^X; 1 is the mean, 0 the sum.", "X"),
        Range(lambda x: abs(x) <= 100, "take a number between -100 and 100; 1 is the mean"),
    ] = 1.0
    early_stopping: Annotated[
        EarlyStopping, Help("Stop at K finished hypotheses; when a better one is unlikely; or impossible.")
    ] = "no"
    num_return: Annotated[int, Help("Hypotheses returned, best first.", "N")] = 1
    groups: Annotated[
        int, Help("Groups of beams for diverse beam search.", "G", "--beam-groups", "one per beam with --diversity")
    ] = 1
    diversity: Annotated[
        float,
        Help("Penalty for tokens chosen by earlier groups.", "X"),
        Range(lambda x: 0 <= x < math.inf, "take a finite number of 0 or more"),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form is not None and self.form.complete:
            raise UsageError(
                "beam search cannot complete a form within the maximum length",
                fix="omit --complete, or choose greedy or sample",
            )
        if not 1 <= self.num_return <= self.num_beams:
            what = f"num_return is {self.num_return}, but num_beams is {self.num_beams}"
            raise UsageError(what, fix="return at least 1 hypothesis and at most as many as there are beams")
        if self.groups < 1 or self.num_beams % self.groups:
            what = f"groups is {self.groups}, which does not divide num_beams {self.num_beams}"
            raise UsageError(what, fix="choose groups of equal size")
        if (self.groups > 1) != (self.diversity > 0):
            what = f"diversity is {self.diversity} with groups {self.groups}"
            raise UsageError(what, fix="take 2 groups or more and a diversity above 0, or neither")


@dataclass(frozen=True, kw_only=True)
class MaskPredict(Sampling, Common):
    """Fills the masks of a text with a bidirectional model; all other tokens are unchanged.

    The sampling filters apply to "gibbs". Biases must be of single ids.

    by: "confidence" predicts every mask greedily, then masks the least confident tokens again, fewer each round
        (Ghazvininejad et al. 2019). "gibbs" samples them one at a time, in random order each round, conditioned on all
        others (Wang and Cho 2019).
    rounds: by confidence, 1 fills all masks at once.
    """

    name: ClassVar[StrategyName] = "mask-predict"
    panel = "Mask-predict"

    temperature: Temperature = 1.0
    by: Annotated[Order, Help("Keep the most confident tokens first, or sample one at a time.")] = "confidence"
    rounds: Annotated[int, Help("Rounds over the masks.", "N"), Range(lambda n: n >= 1, "take at least 1")] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(len(ids) != 1 for ids, _ in self.logit_bias):
            what = "mask-predict takes logit_bias of single tokens only"
            raise UsageError(what, fix="give a text of one token, as shown by lmtool tokenize --show")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options besides prompts and settings.

    n: samples of each prompt.
    first: number of the first one.
    stop: strings that end a text and are removed from it; the first complete one counts.
    prefix: forced beginning of every text.
    overflow: how to treat prompts longer than the context; see `ModelRunner.fit`. For mask-predict, "cut" fills fewer
        tokens after the prompt.
    mask: placeholder of a mask in prompts.
    length: number of masks after the prompt. Both for mask-predict.
    details: report ranks and the probability removed by filters.
    max_rows: maximum batch size; with 1 not even rounding depends on other requests.
    novel: sampled texts that are lines of the training data are drawn again; None where the run knows these.
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
    novel: bool | None = None

    def __post_init__(self) -> None:
        if not all(self.stop):
            raise UsageError("a stop string is empty", fix="give it at least one character")
        if self.length < 0 or min(self.n, self.max_rows) < 1:
            what = f"length is {self.length}, n is {self.n}, max_rows is {self.max_rows}"
            raise UsageError(what, fix="ask for at least 1 of each")


@dataclass(frozen=True, kw_only=True)
class TokenOptions(Options):
    """Options of generating token ids.

    end_ids: tokens that end a request; they are events too.
    banned_ids: tokens that are never generated.
    ends: of a beam search, the stopping criterion, given the prompt's index and the generated ids.
    form: the beginning of the form that each text has; None for anything.
    stopped: (prompt, sample) of cancelled requests, no more events of which follow; the caller adds to them, where the
        last event was just returned or the request has not begun.
    """

    end_ids: Collection[int] = ()
    banned_ids: Collection[int] = ()
    ends: Callable[[int, Sequence[int]], bool] | None = None
    form: "FormState | None" = None
    stopped: Container[tuple[int, int]] = ()


TOKEN_OPTIONS = TokenOptions()

Settings = Greedy | Sample | Beam | MaskPredict
STRATEGIES: dict[StrategyName, type[Settings]] = {kind.name: kind for kind in (Greedy, Sample, Beam, MaskPredict)}

_TAKES = {name: {field.name for field in fields(kind)} for name, kind in STRATEGIES.items()}
_ORDER = [*dict.fromkeys(name for kind in STRATEGIES.values() for name in described(kind)), "form"]


def choose(
    strategy: StrategyName | None = None,
    *,
    masked: bool = False,
    reads_both: bool = False,
    n: int = 1,
    seed: int | None = None,
    **options: Any,
) -> Settings:
    """The settings given on a command line, for the strategy that is named or implied, else `Sample`.

    strategy: its name.
    masked: masks are requested, which implies mask-predict.
    reads_both: the model is bidirectional, with mask-predict by default.
    n: samples of each prompt. options: fields of strategies; None if not given. Without a seed a random one is drawn
        and recorded, so that the result is reproducible.

    Raises UsageError when a value is out of range, when options contradict the strategy or one another, and when
    several samples of a deterministic strategy are requested.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    seed = secrets.randbelow(2**32) if seed is None else seed
    name: StrategyName | None = strategy or ("mask-predict" if masked else _implied(chosen))
    if name is None:
        name = "mask-predict" if reads_both else "sample"
    if name == "greedy" and chosen.get("temperature") == 0:
        del chosen["temperature"]
    wrong, contradicted = chosen.keys() - _TAKES[name], str(name)
    filters = chosen.keys() & described(Sampling)
    if name == "mask-predict" and chosen.setdefault("by", "gibbs" if filters else "confidence") == "confidence":
        wrong, contradicted = wrong | filters, name if wrong else "confidence"
    if wrong:
        raise UsageError(f"{contradicted} contradicts {_listed(wrong)}", fix="leave out one or the other")
    if name == "beam" and chosen.get("diversity") and "groups" not in chosen:
        chosen["groups"] = chosen.get("num_beams", Beam.num_beams)  # one beam each, the most diverse in the paper
    settings = STRATEGIES[name](seed=seed, **chosen)
    if n > 1 and not has_chance(settings):
        fix = "return several with --num-return" if name == "beam" else "omit -n, or sample above temperature 0"
        raise UsageError(f"{n} samples of a deterministic strategy would all be the same", fix=fix)
    return settings


def _implied(chosen: Mapping[str, Any]) -> StrategyName | None:
    """The strategy implied by a setting that only it has."""
    takers = {option: [name for name, taken in _TAKES.items() if option in taken] for option in chosen}
    alone = {option: names[0] for option, names in takers.items() if len(names) == 1}
    if len(set(alone.values())) > 1:
        raise UsageError(f"{_listed(alone)} belong to different strategies", fix="keep those of one")
    return next(iter(alone.values()), None)


def _listed(names: Collection[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in sorted(names, key=_ORDER.index))


def has_chance(settings: Limits | MaskPredict) -> bool:
    """Whether what is generated depends on random numbers."""
    match settings:
        case Sample() | MaskPredict(by="gibbs"):
            return settings.temperature > 0 and settings.top_k != 1
        case _:
            return False


def refuse_draft(settings: Settings) -> None:
    """Raise UsageError for a strategy whose tokens no draft can propose."""
    if not isinstance(settings, Greedy | Sample):
        raise UsageError(f"{settings.name} contradicts draft", fix="leave out one or the other")


def to_record(settings: Settings) -> dict[str, Any]:
    """The settings as plain data, with the name of the strategy."""
    return {"strategy": settings.name, **asdict(settings)}
