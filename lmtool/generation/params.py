"""Parameters of decoding strategies, their command-line options, and the filters of sampling.

A parameter is one field, annotated with its `CommandLineOption` and `ValidParamValues`. The options of
`lmtool generate`, their validation and the parameters of each strategy are derived from the fields. A sampling filter
is a field and the function of the same name in FILTERS.

Shapes: B rows, V vocabulary.
"""

import math
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

from lmtool.errors import UsageError
from lmtool.generation.forms import TextForm

if TYPE_CHECKING:
    from torch import Tensor

StrategyName = Literal["greedy", "sample", "beam", "mask-predict"]
EarlyStopping = Literal["yes", "no", "never"]
MaskOrder = Literal["confidence", "gibbs"]
Overflow = Literal["refuse", "cut", "slide"]
"""How to treat a prompt longer than the context: raise an error, truncate it, or slide the window as for text that
exceeds the context during generation. See `ModelRunner.fit_prompt`."""
LogitBias = tuple[tuple[tuple[int, ...], float], ...]
"""Sequences of ids, each with the bias that is added to the logit of its last id after the others."""

MAX_BEAMS = 4096
"""Maximum beam width. A beam takes about a millisecond per token."""

DEFAULT_DRAFT_TOKENS = 4
"""Tokens that a draft proposes at once by default."""

COMMON, SAMPLING, BEAMS, MASKS = "All strategies", "Sampling", "Beam search", "Mask-predict"
"""Headings of the options in the help."""

PANELS: dict[str, tuple[str, ...]] = {"greedy": (COMMON,), "sample": (COMMON, SAMPLING), "beam": (COMMON, BEAMS)}
"""The panels whose parameters each strategy of `SamplingParams` takes."""


@dataclass(frozen=True)
class CommandLineOption:
    """The command-line option of a parameter.

    text: one sentence.
    metavar: placeholder of the value; None if the type lists all values.
    flag: the option, if it differs from the field's name.
    default: the displayed default; None for the field's own unless that is 0 or None, "" for none.
    panel: the heading in the help.
    """

    text: str
    metavar: str | None = None
    flag: str | None = None
    default: str | None = None
    panel: str = COMMON


@dataclass(frozen=True)
class ValidParamValues:
    """Valid values of a parameter. None is always valid for optional ones.

    is_valid: tests a value. fix: describes the valid values in error messages; {name} is the field's name.
    """

    is_valid: Callable[[Any], bool]
    fix: str


_UP_TO_1 = ValidParamValues(lambda p: 0 < p <= 1, "take a number above 0 and at most 1; without {name} all are kept")
_PENALTY_VALUES = ValidParamValues(lambda x: abs(x) <= 100, "take a number from -100 to 100; 0 has no effect")

Seed = Annotated[
    int,
    CommandLineOption("Makes the result reproducible; random by default.", "N", default=""),
    ValidParamValues(lambda seed: seed >= 0, "take a seed of 0 or more"),
]
Temperature = Annotated[
    float,
    CommandLineOption(
        "Divides the logits: below 1 sharpens the distribution, above 1 flattens it, 0 is greedy.", "T", panel=SAMPLING
    ),
    ValidParamValues(lambda t: 0 <= t < math.inf, "take a finite number of 0 or more; 0 is greedy"),
]


@dataclass(frozen=True, kw_only=True)
class SamplingFilters:
    """The sampling filters: each applies the function of its name in FILTERS, in that order; None disables it."""

    temperature: Temperature = 0.8
    top_k: Annotated[
        int | None,
        CommandLineOption("Sample from the K most probable tokens.", "K", panel=SAMPLING),
        ValidParamValues(lambda k: k >= 1, "keep at least 1 token; leave top_k out to keep all"),
    ] = None
    top_p: Annotated[
        float | None,
        CommandLineOption("Sample from the fewest tokens with probability P.", "P", panel=SAMPLING),
        _UP_TO_1,
    ] = None
    min_p: Annotated[
        float | None,
        CommandLineOption("Sample from tokens P times as probable as the top one.", "P", panel=SAMPLING),
        _UP_TO_1,
    ] = None
    typical_p: Annotated[
        float | None,
        CommandLineOption("Choose among the most typical tokens that reach P.", "P", panel=SAMPLING),
        _UP_TO_1,
    ] = None


@dataclass(frozen=True)
class SamplingParams(SamplingFilters):
    """Parameters of left-to-right generation: greedy decoding, sampling and beam search.

    strategy: "greedy" takes the most probable token at each step, the lowest id among ties. "sample" draws from the
        model's distribution, after all filters. "beam" is beam search (Lowerre 1976), optionally with diverse groups
        (Vijayakumar et al. 2018); the score of a hypothesis is its log-probability divided by (number of its tokens)
        ** length_penalty. A strategy takes no parameters of another.
    seed: of all randomness; recorded with the result even for deterministic strategies.
    logit_bias: see `LogitBias`.
    max_new_tokens: includes the end token.
    max_time: a text ends with the first token after this time; None for no limit.
    repetition_penalty: positive logits of tokens in the text are divided by it, negative ones multiplied (Keskar et al.
        2019); 1 has no effect.
    frequency_penalty: subtracted from the logit of a token once for each of its occurrences in the new text.
    presence_penalty: subtracted once if there is any. Both as the API of OpenAI defines them; 0 has no effect.
    no_repeat_ngram: Paulus et al. 2018; 0 for no filter.
    form: constrains each text; None for no constraint. Tokens that the form forces are taken even if filters exclude
        them.
    length_penalty: above 1 favours long texts.
    early_stopping: "yes" ends the search with num_beams finished hypotheses; "no" when the current score of the best
        live one is not above the worst of these; "never" when no continuation could exceed it.
    num_return: hypotheses returned, best first.
    groups: each is penalised for tokens that earlier groups chose.
    diversity: penalty of a candidate for each hypothesis of an earlier group with the same token at this step.
    """

    strategy: Literal["greedy", "sample", "beam"] = "sample"
    _: KW_ONLY
    seed: Seed = 1
    logit_bias: LogitBias = ()
    max_new_tokens: Annotated[
        int,
        CommandLineOption("Maximum new tokens of each text.", "N"),
        ValidParamValues(lambda n: n >= 1, "ask for at least 1 token"),
    ] = 200
    min_new_tokens: Annotated[int, CommandLineOption("Minimum new tokens before the end token.", "N")] = 0
    max_time: Annotated[
        float | None,
        CommandLineOption("Time limit for each text.", "SECONDS"),
        ValidParamValues(lambda seconds: seconds > 0, "take a number of seconds above 0"),
    ] = None
    repetition_penalty: Annotated[
        float,
        CommandLineOption("Above 1 discourages tokens already in the text.", "X", default=""),
        ValidParamValues(lambda x: 0 < x < math.inf, "take a number above 0; 1 has no effect"),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        CommandLineOption("Lowers the logit of a token by X each time that it was generated.", "X"),
        _PENALTY_VALUES,
    ] = 0.0
    presence_penalty: Annotated[
        float, CommandLineOption("Lowers the logit of a token by X once it was generated.", "X"), _PENALTY_VALUES
    ] = 0.0
    no_repeat_ngram: Annotated[
        int,
        CommandLineOption("No n-gram of N tokens occurs twice.", "N"),
        ValidParamValues(lambda n: n >= 0, "take a length of 1 or more; 0 for no filter"),
    ] = 0
    form: TextForm | None = None
    num_beams: Annotated[
        int,
        CommandLineOption("Hypotheses kept at each step.", "K", panel=BEAMS),
        ValidParamValues(lambda n: 1 <= n <= MAX_BEAMS, f"take 1 to {MAX_BEAMS}; 1 is greedy"),
    ] = 4
    length_penalty: Annotated[
        float,
        CommandLineOption("Rank by log p / length^X; 1 is the mean, 0 the sum.", "X", panel=BEAMS),
        ValidParamValues(lambda x: abs(x) <= 100, "take a number between -100 and 100; 1 is the mean"),
    ] = 1.0
    early_stopping: Annotated[
        EarlyStopping,
        CommandLineOption("Stop at K finished hypotheses; when a better one is unlikely; or impossible.", panel=BEAMS),
    ] = "no"
    num_return: Annotated[int, CommandLineOption("Hypotheses returned, best first.", "N", panel=BEAMS)] = 1
    groups: Annotated[
        int,
        CommandLineOption(
            "Groups of beams for diverse beam search.",
            "G",
            "--beam-groups",
            "one per beam with --diversity",
            panel=BEAMS,
        ),
    ] = 1
    diversity: Annotated[
        float,
        CommandLineOption("Penalty for tokens chosen by earlier groups.", "X", panel=BEAMS),
        ValidParamValues(lambda x: 0 <= x < math.inf, "take a finite number of 0 or more"),
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError for a value out of its range, and for parameters that contradict one another."""
        if self.strategy not in PANELS:
            raise UsageError(f"there is no strategy {self.strategy}", fix=f"take {', '.join(PANELS)}")
        _check_values(self)
        taken = get_strategy_options(self.strategy)
        defaults = {name: getattr(type(self), name) for name in _SAMPLING_OPTIONS if name not in taken}
        if wrong := [name for name, default in defaults.items() if getattr(self, name) != default]:
            names = ", ".join(_sort_names(wrong))
            raise UsageError(f"strategy {self.strategy} contradicts {names}", fix="leave out one or the other")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            what = f"min_new_tokens is {self.min_new_tokens}"
            raise UsageError(what, fix=f"take a number from 0 to max_new_tokens, {self.max_new_tokens}")
        for ids, bias in self.logit_bias:
            if not ids or math.isnan(bias) or bias == math.inf:
                what = f"logit_bias is {bias} for {len(ids)} tokens"
                raise UsageError(what, fix="take a number, or -inf, for at least 1 token")
        if self.form is not None and self.no_repeat_ngram:
            raise UsageError(
                "a form and no_repeat_ngram cannot be combined: a form may have to repeat itself",
                fix="leave out one of them",
            )
        if self.strategy == "beam":
            self._check_beam_params()

    def _check_beam_params(self) -> None:
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

    @property
    def is_random(self) -> bool:
        """Whether the generated text depends on random numbers."""
        return self.strategy == "sample" and self.temperature > 0 and self.top_k != 1

    @property
    def max_rows(self) -> int:
        """Maximum rows of a batch that one request takes."""
        return self.num_beams if self.strategy == "beam" else 1

    @property
    def n_texts(self) -> int:
        """Maximum texts that one request returns."""
        return self.num_return if self.strategy == "beam" else 1


@dataclass(frozen=True, kw_only=True)
class MaskPredict(SamplingFilters):
    """Fills the masks of a text with a bidirectional model; all other tokens are unchanged.

    The sampling filters apply to "gibbs". Biases must be of single ids.

    by: "confidence" predicts every mask greedily, then masks the least confident tokens again, fewer each round
        (Ghazvininejad et al. 2019). "gibbs" samples them one at a time, in random order each round, conditioned on all
        others (Wang and Cho 2019).
    rounds: by confidence, 1 fills all masks at once.
    """

    strategy: ClassVar[StrategyName] = "mask-predict"

    seed: Seed = 1
    logit_bias: LogitBias = ()
    temperature: Temperature = 1.0
    by: Annotated[
        MaskOrder, CommandLineOption("Keep the most confident tokens first, or sample one at a time.", panel=MASKS)
    ] = "confidence"
    rounds: Annotated[
        int,
        CommandLineOption("Rounds over the masks.", "N", panel=MASKS),
        ValidParamValues(lambda n: n >= 1, "take at least 1"),
    ] = 10

    def __post_init__(self) -> None:
        """Raises UsageError for a value out of its range."""
        _check_values(self)
        if any(len(ids) != 1 for ids, _ in self.logit_bias):
            what = "mask-predict takes logit_bias of single tokens only"
            raise UsageError(what, fix="give a text of one token, as shown by lmtool tokenize --show")

    @property
    def is_random(self) -> bool:
        """Whether the filled tokens depend on random numbers."""
        return self.by == "gibbs" and self.temperature > 0 and self.top_k != 1


AnyParams = SamplingParams | MaskPredict


def _read_options(kind: type) -> dict[str, tuple[Any, CommandLineOption]]:
    annotations = {field.name: get_args(field.type) for field in fields(kind) if get_origin(field.type) is Annotated}
    return {name: (type_, option) for name, (type_, option, *_) in annotations.items()}


_SAMPLING_OPTIONS, _MASK_OPTIONS = _read_options(SamplingParams), _read_options(MaskPredict)
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


def get_strategy_options(strategy: StrategyName) -> dict[str, tuple[Any, CommandLineOption]]:
    """Returns the type and `CommandLineOption` of each parameter that a strategy takes and the command line has."""
    if strategy == "mask-predict":
        return _MASK_OPTIONS
    return {name: option for name, option in _SAMPLING_OPTIONS.items() if option[1].panel in PANELS[strategy]}


def default_value(strategy: StrategyName, name: str) -> Any:
    """Returns the default of a parameter of a strategy."""
    return getattr(MaskPredict if strategy == "mask-predict" else SamplingParams, name)


def _check_values(params: AnyParams) -> None:
    for field in fields(params):
        value = getattr(params, field.name)
        for part in get_args(field.type):
            if isinstance(part, ValidParamValues) and value is not None and not part.is_valid(value):
                raise UsageError(f"{field.name} is {value}", fix=part.fix.format(name=field.name))


def choose_params(
    strategy: StrategyName | None = None,
    *,
    strategy_flag: str = "",
    masked: bool = False,
    is_bidirectional: bool = False,
    n: int = 1,
    seed: int | None = None,
    **options: Any,
) -> AnyParams:
    """Builds parameters from command-line options, for the named or implied strategy, else for "sample".

    strategy_flag: the option that names the strategy, or asks for masks, as the user typed it; for messages.
    masked: masks are requested, which implies mask-predict.
    is_bidirectional: the model is bidirectional, so mask-predict is the default.
    n: samples of each prompt. options: parameters; None if not given. Without a seed a random one is drawn and
        recorded, so that the result is reproducible.

    Raises UsageError when a value is out of range, when options contradict the strategy or one another, and when
    several samples of a deterministic strategy are requested.
    """
    given = {name: value for name, value in options.items() if value is not None}
    seed = secrets.randbelow(2**32) if seed is None else seed
    name: StrategyName | None = strategy or ("mask-predict" if masked else None)
    chosen_by = strategy_flag or f"--strategy {name}"
    if name is None and (implied := _implied_strategy(given)) is not None:
        name, option = implied
        chosen_by = option_flag(option)
    if name is None:
        name = "mask-predict" if is_bidirectional else "sample"
        chosen_by = "mask-predict, which this model needs," if is_bidirectional else name
    if name == "greedy" and given.get("temperature") == 0:
        del given["temperature"]
    wrong = given.keys() - get_strategy_options(name) - _PARAMS_WITHOUT_OPTION[name]
    filters = given.keys() & FILTERS
    if name == "mask-predict" and given.setdefault("by", "gibbs" if filters else "confidence") == "confidence":
        wrong, chosen_by = wrong | filters, chosen_by if wrong else "--by confidence"
    if wrong:
        flags = _join_flags(wrong, given.get("form"))
        raise UsageError(f"{chosen_by} contradicts {flags}", fix="leave out one or the other")
    if name == "beam" and given.get("diversity") and "groups" not in given:
        given["groups"] = given.get(
            "num_beams", SamplingParams.num_beams
        )  # one beam each, the most diverse in the paper
    if name == "mask-predict":
        params: AnyParams = MaskPredict(seed=seed, **given)
    else:
        params = SamplingParams(name, seed=seed, **given)
    if n > 1 and not params.is_random:
        fix = "return several with --num-return" if name == "beam" else "omit -n, or sample above temperature 0"
        raise UsageError(f"{n} samples of a deterministic strategy would all be the same", fix=fix)
    return params


_PARAMS_WITHOUT_OPTION: dict[str, set[str]] = {
    name: {"logit_bias"} if name == "mask-predict" else {"form", "logit_bias"} for name in STRATEGIES
}


def _implied_strategy(given: Mapping[str, Any]) -> tuple[StrategyName, str] | None:
    """Returns the strategy that alone takes one of the given parameters, and that parameter; None if there is none."""
    takers = {option: [name for name in STRATEGIES if option in get_strategy_options(name)] for option in given}
    implied = {option: names[0] for option, names in takers.items() if len(names) == 1}
    if len(set(implied.values())) > 1:
        raise UsageError(f"{_join_flags(implied)} belong to different strategies", fix="keep those of one")
    return next(((name, option) for option, name in implied.items()), None)


def option_flag(name: str) -> str:
    """Returns the command-line option of a parameter."""
    _, option = (_SAMPLING_OPTIONS | _MASK_OPTIONS).get(name, (None, None))
    return option.flag if option is not None and option.flag else f"--{name.replace('_', '-')}"


def _sort_names(names: Collection[str]) -> list[str]:
    order = [*dict.fromkeys([*_SAMPLING_OPTIONS, *_MASK_OPTIONS]), "form"]
    return sorted(names, key=order.index)


def _join_flags(names: Collection[str], form: TextForm | None = None) -> str:
    """Joins the options of parameters. form: the value of `form`, whose kind is its option."""
    return ", ".join(option_flag(form.kind if name == "form" and form else name) for name in _sort_names(names))


def check_strategy_takes_draft(params: AnyParams, *, option: str = "a draft") -> None:
    """Raises UsageError for a strategy that does not support speculative decoding. option: that names the draft."""
    if params.strategy not in ("greedy", "sample"):
        what = f"{option} is for strategies greedy and sample, not for {params.strategy}"
        raise UsageError(what, fix=f"omit {option}, or take one of these strategies")


def params_to_record(params: AnyParams) -> dict[str, Any]:
    """Returns the name of the strategy and the parameters that it takes, as JSON values."""
    taken = get_strategy_options(params.strategy).keys() | _PARAMS_WITHOUT_OPTION[params.strategy]
    values = {name: value for name, value in asdict(params).items() if name in taken}
    return {"strategy": params.strategy, **values}


def apply_sampling_filters(logits_BV: "Tensor", params: AnyParams) -> "Tensor":
    """Sets the logits of tokens that sampling filters exclude to -inf, in the order of FILTERS."""
    for name, apply in FILTERS.items():
        value = getattr(params, name)
        if value is not None:
            logits_BV = apply(logits_BV, value)
    return logits_BV


def temperature(logits_BV: "Tensor", t: float) -> "Tensor":
    """Divides logits by `t` and shifts them so that the highest is 0.

    As t goes to 0 sampling becomes greedy; at 0 only the most probable token is kept, the lowest id among ties.
    """
    if t == 0:
        return logits_BV.new_full(logits_BV.shape, -math.inf).scatter(-1, logits_BV.argmax(-1, keepdim=True), 0.0)
    highest_B1 = logits_BV.amax(-1, keepdim=True)
    import torch  # the command line imports this module before it knows that it computes

    # The shift avoids inf - inf for a tiny t; a t below the dtype's smallest normal number would divide by 0.
    return (logits_BV - highest_B1) / max(t, torch.finfo(logits_BV.dtype).tiny)


def top_k(logits_BV: "Tensor", k: int) -> "Tensor":
    """Keeps exactly k of the highest logits of each row (Fan et al. 2018).

    Transformers keeps all ties with the k-th token; here only the lowest ids among them, so that k = 1 is greedy.
    """
    if k >= logits_BV.shape[-1]:
        return logits_BV
    keep_BV = _mask_of_n_highest(logits_BV, logits_BV.topk(k).values[:, -1:], k)
    return logits_BV.masked_fill(~keep_BV, -math.inf)


def top_p(logits_BV: "Tensor", p: float) -> "Tensor":
    """Keeps the nucleus: the fewest most probable tokens with total probability p (Holtzman et al. 2020)."""
    if p == 1:  # rounding would drop tokens from the tail
        return logits_BV
    mass_BV = logits_BV.double().softmax(-1)
    vocab_size = logits_BV.shape[-1]
    for n_sorted in (64, 4096, vocab_size):  # usually few suffice, and a full sort can take longer than the model
        sorted_BK = mass_BV.topk(min(n_sorted, vocab_size)).values
        total_BK = sorted_BK.cumsum(-1)
        if (total_BK[:, -1] >= p).all():
            break
    n_kept_B1 = (total_BK - sorted_BK < p).sum(-1, keepdim=True)
    keep_BV = _mask_of_n_highest(mass_BV, sorted_BK.gather(-1, n_kept_B1 - 1), n_kept_B1)
    return logits_BV.masked_fill(~keep_BV, -math.inf)


def min_p(logits_BV: "Tensor", p: float) -> "Tensor":
    """Keeps tokens at least p times as probable as the most probable one (Nguyen et al. 2025)."""
    mass_BV = logits_BV.double().softmax(-1)
    return logits_BV.masked_fill(mass_BV < p * mass_BV.amax(-1, keepdim=True), -math.inf)


def typical_p(logits_BV: "Tensor", p: float) -> "Tensor":
    """Keeps the smallest set of tokens with -log p nearest to the entropy and total probability p; never empty.

    Locally typical sampling (Meister et al. 2023). Ties are broken in favour of the lowest ids.
    """
    if p == 1:
        return logits_BV
    logprobs_BV = logits_BV.double().log_softmax(-1)
    mass_BV = logprobs_BV.exp()
    entropy_B1 = -(mass_BV * logprobs_BV).where(mass_BV > 0, 0.0).sum(-1, keepdim=True)
    near_BV, order_BV = (logprobs_BV + entropy_B1).abs().sort(dim=-1, stable=True)
    sorted_BV = mass_BV.gather(-1, order_BV)
    # A token of probability 0 is infinitely far from the entropy, so it is last.
    keep_BV = (sorted_BV.cumsum(-1) - sorted_BV < p) & near_BV.isfinite()
    return logits_BV.masked_fill(~keep_BV.scatter(-1, order_BV, keep_BV), -math.inf)


FILTERS: dict[str, "Callable[[Tensor, Any], Tensor]"] = {
    one.__name__: one for one in (temperature, top_k, top_p, min_p, typical_p)
}
"""The sampling filters by name, in the order of Hugging Face Transformers: top-p uses probabilities at the given
temperature, among the tokens that top-k kept. Ties are broken in favour of the lowest ids."""


def _mask_of_n_highest(scores_BV: "Tensor", lowest_B1: "Tensor", n: "Tensor | int") -> "Tensor":
    """Masks the n highest scores of each row, whose lowest is `lowest_B1`; lower ids first among ties."""
    above_BV = scores_BV > lowest_B1
    tied_BV = scores_BV == lowest_B1
    room_B1 = n - above_BV.sum(-1, keepdim=True)
    return above_BV | (tied_BV & (tied_BV.cumsum(-1) <= room_B1))
