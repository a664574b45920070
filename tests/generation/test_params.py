import pytest

from lmtool.errors import UsageError
from lmtool.generation.params import (
    STRATEGIES,
    MaskPredict,
    SamplingParams,
    choose_params,
    default_value,
    strategy_options,
)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"num_beams": 10**20},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_by_name(values):
    (name,) = values
    with pytest.raises(UsageError, match=name):
        choose_params(**values)


VALUES = {
    name: default_value(strategy, name) or 1  # which each of them may have
    for strategy in STRATEGIES
    for name in strategy_options(strategy)
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"seed", "diversity"}))
def test_a_strategy_takes_its_own_fields_and_no_others(strategy, name):
    asked = {name: VALUES[name]}
    if name in strategy_options(strategy):
        assert getattr(choose_params(strategy, **asked), name) == VALUES[name]
    else:
        with pytest.raises(UsageError, match=f"{strategy} contradicts {name.replace('_', '-')}"):
            choose_params(strategy, **asked)


def test_a_setting_of_one_strategy_implies_it():
    assert choose_params(num_return=2).strategy == "beam"
    assert choose_params(rounds=2).strategy == "mask-predict"
    assert choose_params(top_k=2).strategy == "sample"
    assert choose_params(top_k=2, seed=1, is_bidirectional=True) == MaskPredict(by="gibbs", top_k=2)
    assert choose_params(seed=1, masked=True) == MaskPredict()


def test_choose_keeps_what_is_given_and_the_defaults_of_the_rest():
    assert choose_params(seed=3) == SamplingParams(seed=3)
    assert choose_params(temperature=0.5, top_k=4, top_p=0.9, max_new_tokens=7, seed=0) == SamplingParams(
        temperature=0.5, top_k=4, top_p=0.9, max_new_tokens=7, seed=0
    )
    assert choose_params("greedy", temperature=0, max_new_tokens=7, seed=2) == SamplingParams(
        "greedy", max_new_tokens=7, seed=2
    )
    assert choose_params(temperature=0, top_k=40, seed=1) == SamplingParams(temperature=0, top_k=40, seed=1)


def test_without_a_seed_each_choice_has_another():
    assert choose_params().seed != choose_params().seed


@pytest.mark.parametrize("values", [{"strategy": "greedy"}, {"temperature": 0}, {"top_k": 1}], ids=str)
def test_several_samples_need_chance(values):
    with pytest.raises(UsageError, match="3 samples"):
        choose_params(n=3, **values)
    choose_params(n=1, **values)
