"""Texts of small models: requests of each strategy, and how they are compared."""

from collections import defaultdict
from typing import Any

import pytest

from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [2, 2, 2], [3, 1], [9, 9]]


def collect(tokens: Any, n: Any = 1) -> Any:
    """Tokens and log-probabilities of each (prompt, sample), of n texts of each prompt."""
    results = defaultdict(lambda: ([], []))
    finished = {}
    for token in tokens:
        text = divmod(token.request, n)
        assert text not in finished
        results[text][0].append(token.id)
        results[text][1].append(token.logprob)
        if token.completion:
            finished[text] = token.finish_reason
            assert token.completion.tokens == tuple(results[text][0])
    assert finished.keys() == results.keys()
    return dict(results)


def search(model: Any, prompts: Any, settings: SamplingParams, **options: Any) -> Any:
    """(score, tokens) of the hypotheses of each prompt, best first."""
    found = [[] for _ in prompts]
    for token in generate(model, prompts, settings, **options):
        if (one := token.completion) is not None:
            assert one.request == token.request
            prompt, rank = divmod(one.request, settings.num_return)
            assert one.sample == rank == len(found[prompt])
            found[prompt].append((one.score, [*one.tokens]))
    return found


def assert_equal(found: Any, expected: Any) -> None:
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)
