"""Filters of the next token's scores, against a plain reference and Transformers."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TopPLogitsWarper

from lmtool.generation import filters, params
from lmtool.generation.params import FILTERS, SamplingParams, apply_sampling_filters
from tests.reference import decoding as reference
from tests.reference.transformer import softmax


def random_logits(n_rows: int = 20, vocab_size: int = 200) -> torch.Tensor:
    return torch.randn(n_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize(("p", "scale"), [(0.05, 5), (0.6, 2), (0.9, 0.01), (0.999, 2)])
def test_top_p_of_a_large_vocabulary_equals_transformers(p: float, scale: float) -> None:
    logits_BV = random_logits(3, 10_000).double() * scale
    assert torch.equal(params.top_p(logits_BV, p), TopPLogitsWarper(p)(None, logits_BV))


@given(
    # Few different values, so that ties are common.
    scores=st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12),
    t=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    k=st.none() | st.integers(1, 14),
    p=st.none() | st.floats(0.01, 1),
)
@settings(deadline=None)
def test_sampling_filters_equal_the_plain_reference(scores: list[float], t: float, k: int | None, p: Any) -> None:
    expected = reference.temperature(scores, t)
    expected = reference.top_k(expected, k) if k is not None else expected
    # The sets differ where rounding moves a sum across p; so exclude a p that is a sum.
    sums = torch.tensor(softmax(expected)).sort(descending=True).values.cumsum(0)
    if p is not None and (sums - p).abs().min() < 1e-6:
        p = None
    expected = reference.top_p(expected, p) if p is not None else expected
    result = apply_sampling_filters(torch.tensor([scores]), SamplingParams(temperature=t, top_k=k, top_p=p))
    torch.testing.assert_close(result.softmax(-1)[0], torch.tensor(softmax(expected)))


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_setting_filters_each_row_as_if_it_were_alone(name: str) -> None:
    logits_BV, value = random_logits(60, 30).round(), 2 if name == "top_k" else 0.5
    before = logits_BV.clone()
    filtered = FILTERS[name](logits_BV, value)
    assert torch.equal(filtered, torch.cat([FILTERS[name](row_1V, value) for row_1V in torch.split(logits_BV, 1)]))
    assert not torch.equal(filtered, logits_BV)
    given: Any = {"temperature": 1.0, name: value}
    found = apply_sampling_filters(logits_BV, SamplingParams(**given))
    torch.testing.assert_close(found.softmax(-1), filtered.softmax(-1))
    assert torch.equal(logits_BV, before)


def test_equal_logits_in_a_large_vocabulary_give_the_lowest_id() -> None:
    logits_BV = torch.zeros(2, 50_000)
    for result in (params.temperature(logits_BV, 0), params.top_k(logits_BV, 1), params.top_p(logits_BV, 1e-9)):
        assert result.isfinite().nonzero().tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("t", [1e-6, 1e-45, 5e-324])
def test_temperature_goes_to_greedy(t: float) -> None:
    logits_BV = random_logits()
    expected = torch.nn.functional.one_hot(logits_BV.argmax(-1), 200).float()
    torch.testing.assert_close(params.temperature(logits_BV, t).softmax(-1), expected)


def test_draw_inverts_the_distribution_function() -> None:
    p = [0.1, 0.0, 0.4, 0.5, 0.0]
    logits_BV = torch.tensor([p], dtype=torch.float64).log()
    numbers = [0.0, 0.05, 0.0999999, 0.1000001, 0.3, 0.4999999, 0.5000001, 0.99, 1 - 2**-53]
    drawn = filters.sample_ids(logits_BV.expand(len(numbers), -1), torch.tensor(numbers, dtype=torch.float64))
    assert drawn.tolist() == [0, 0, 0, 2, 2, 2, 3, 3, 3]
    assert drawn.tolist() == [reference.inverse_cdf(p, u) for u in numbers]
    at_boundaries_BV = torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]).log()
    for u, ids in ((0.0, [1, 0]), (0.5, [2, 2])):
        assert filters.sample_ids(at_boundaries_BV, torch.full((2,), u, dtype=torch.float64)).tolist() == ids


def test_draw_never_takes_a_removed_token() -> None:
    logits_BV = params.top_k(random_logits(50, 1000), 3)
    for u in (0.0, 1e-300, 0.5, 1 - 2**-53):
        drawn = filters.sample_ids(logits_BV, torch.full((50,), u, dtype=torch.float64))
        assert all(math.isfinite(x) for x in logits_BV.gather(-1, drawn[:, None])[:, 0].tolist())


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.25), (0.5, 0.0), (0.0, 0.25)])
def test_penalties_count_the_new_text_alone(frequency: float, presence: float) -> None:
    settings = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
    logits_BV = filters.apply_logits_processors(torch.zeros(2, 4), settings, [[1, 1, 2, 3, 2], [1, 2]], [3, 0], ())
    assert logits_BV.tolist() == [[0, 0, -2 * frequency - presence, -frequency - presence], [0, 0, 0, 0]]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on tensors."""

    n: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [1, 2])
def test_many_biases_of_many_rows_take_no_more_operations_than_a_few_of_one(length: int) -> None:
    def counted(n_biases: int, n_rows: int) -> int:
        logits_BV = torch.zeros(n_rows, 2000)
        biases = tuple(((7,) * (length - 1) + (i,), 1.0) for i in range(n_biases))
        filters.add_logit_bias(logits_BV, biases, [[1, 2]] * n_rows)
        with Operations() as operations:  # type: ignore[no-untyped-call]
            biased_BV = filters.add_logit_bias(logits_BV, biases, [[1, 2]] * n_rows)
        assert biased_BV.sum() == (n_biases * n_rows if length == 1 else 0)
        return int(operations.n)

    assert counted(1024, 64) <= 2 * counted(2, 1)


def test_equal_biases_add_up() -> None:
    biases = (((1,), 1.0), ((0, 2), 1.0), ((1,), 2.0), ((0, 2), 0.5))
    assert filters.add_logit_bias(torch.zeros(2, 3), biases, [[5, 0], [0, 5]]).tolist() == [[0, 3, 1.5], [0, 3, 0]]
    assert filters.add_logit_bias(torch.zeros(1, 3), biases).tolist() == [[0, 3, 0]]


@given(
    scores=st.lists(st.floats(-9, 9), min_size=2, max_size=8),
    text=st.lists(st.integers(0, 1), max_size=8),
    p=st.floats(0.01, 0.99),
    n=st.integers(1, 4),
)
def test_further_filters_equal_the_plain_reference(scores: list[float], text: list[int], p: float, n: int) -> None:
    logits_BV = torch.tensor([scores], dtype=torch.float64)
    biases = (((0,), 1.5), ((1, 0), -2.0), ((0, 0, 1), -torch.inf))
    pairs = [
        (params.min_p(logits_BV, p), reference.min_p(scores, p)),
        (filters.apply_repetition_penalty(logits_BV, 1.7, [text]), reference.repetition_penalty(scores, 1.7, text)),
        (filters.apply_count_penalties(logits_BV, p, -n, [text]), reference.apply_count_penalties(scores, p, -n, text)),
        (filters.exclude_repeated_ngrams(logits_BV, n, [text]), reference.no_repeat_ngram(scores, n, text)),
        (filters.add_logit_bias(logits_BV, biases, [text]), reference.logit_bias(scores, biases, text)),
    ]
    for result, expected in pairs:
        torch.testing.assert_close(result[0], torch.tensor(expected, dtype=torch.float64))


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8, unique=True), st.floats(0.01, 0.99))
def test_typical_p_equals_the_plain_reference(weights: list[int], p: float) -> None:
    scores = [math.log(weight) for weight in weights]
    result = params.typical_p(torch.tensor([scores], dtype=torch.float64), p)
    expected = torch.tensor(reference.typical_p(scores, p), dtype=torch.float64)
    if not torch.equal(result[0].isinf(), expected.isinf()):  # unless rounding decides on the first or the last token
        entropy = -sum(q * math.log(q) for q in softmax(scores))
        near = sorted((abs(-math.log(q) - entropy), q) for q in softmax(scores))
        masses: Any = itertools.accumulate(q for _, q in near)
        assert (
            min(b - a for (a, _), (b, _) in itertools.pairwise(near)) < 1e-9 or min(abs(m - p) for m in masses) < 1e-9
        )
