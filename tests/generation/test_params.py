"""Which strategy options ask for, and which of them contradict it."""

from typing import Any

import pytest

from lmtool.errors import UsageError
from lmtool.generation.forms import TextForm
from lmtool.generation.params import (
    STRATEGIES,
    MaskPredict,
    SamplingParams,
    StrategyName,
    choose_params,
    default_value,
    get_strategy_options,
    option_flag,
)
from tests.support.errors import refuses


@pytest.mark.parametrize(
    "values",
    [{"temperature": float("inf")}, {"top_k": 0}, {"top_p": float("nan")}, {"num_beams": 10**20}],
    ids=str,
)
def test_values_out_of_range_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        choose_params(**values)


VALUES: dict[str, Any] = {
    name: default_value(strategy, name) or 1  # which each of them may have
    for strategy in STRATEGIES
    for name in get_strategy_options(strategy)
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_takes_its_own_fields_and_no_others(strategy: StrategyName) -> None:
    for name in sorted(VALUES.keys() - {"seed", "diversity"}):
        asked = {name: VALUES[name]}
        if name in get_strategy_options(strategy):
            assert getattr(choose_params(strategy, **asked), name) == VALUES[name]
        else:
            with pytest.raises(UsageError, match=rf"--strategy {strategy} contradicts {option_flag(name)}\n"):
                choose_params(strategy, **asked)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"num_beams": 4, "temperature": 0.5}, "--num-beams contradicts --temperature"),
        ({"groups": 2, "top_k": 5}, "--beam-groups contradicts --top-k"),
        ({"strategy": "beam", "top_p": 0.5, "temperature": 0.5}, "--strategy beam contradicts --temperature, --top-p"),
        ({"strategy": "greedy", "strategy_flag": "--greedy", "top_k": 5}, "--greedy contradicts --top-k"),
        ({"masked": True, "strategy_flag": "--mask", "form": TextForm("regex", "a")}, "--mask contradicts --regex"),
        ({"by": "confidence", "top_k": 5}, "--by confidence contradicts --top-k"),
        (
            {"is_bidirectional": True, "max_new_tokens": 5},
            "mask-predict, which this model needs, contradicts --max-new-tokens",
        ),
        ({"rounds": 2, "num_beams": 3}, "--num-beams, --rounds belong to different strategies"),
    ],
)
def test_contradictions_name_the_options_as_they_are_typed(given: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_params(**given)
    assert refused.value.what == what


def test_a_setting_of_one_strategy_implies_it() -> None:
    assert choose_params(num_return=2).strategy == "beam"
    assert choose_params(rounds=2).strategy == "mask-predict"
    assert choose_params(top_k=2).strategy == "sample"
    assert choose_params(top_k=2, seed=1, is_bidirectional=True) == MaskPredict(by="gibbs", top_k=2)
    assert choose_params(seed=1, masked=True) == MaskPredict()


def test_what_is_given_is_kept_with_the_defaults_of_the_rest() -> None:
    given: dict[str, Any] = {"temperature": 0, "top_k": 4, "top_p": 0.9, "max_new_tokens": 7, "seed": 0}
    assert choose_params(**given) == SamplingParams(**given)
    greedy = choose_params("greedy", temperature=0, max_new_tokens=7, seed=2)
    assert greedy == SamplingParams("greedy", max_new_tokens=7, seed=2)
    assert choose_params().seed != choose_params().seed


@pytest.mark.parametrize("values", [{"strategy": "greedy"}, {"temperature": 0}, {"top_k": 1}], ids=str)
def test_several_samples_need_chance(values: dict[str, Any]) -> None:
    with refuses("usage"):
        choose_params(n=3, **values)
    choose_params(n=1, **values)
