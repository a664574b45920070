"""Texts of small models: requests of each strategy, and how they are compared."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.generation.request import Token
from lmtool.model import LanguageModel

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [2, 2, 2], [3, 1], [9, 9]]
Hypotheses = Sequence[tuple[float, Sequence[int]]]


def collect(tokens: Iterable[Token], n: int = 1) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of each (prompt, sample), of n texts of each prompt."""
    results: dict[tuple[int, int], tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    finished = set()
    for token in tokens:
        text = divmod(token.request, n)
        assert text not in finished
        results[text][0].append(token.id)
        results[text][1].append(token.logprob)
        if token.completion:
            finished.add(text)
            assert token.completion.tokens == tuple(results[text][0])
    assert finished == results.keys()
    return dict(results)


def search(
    model: LanguageModel, prompts: Sequence[Any], settings: SamplingParams, **options: Any
) -> list[list[tuple[float, list[int]]]]:
    """(score, tokens) of the hypotheses of each prompt, best first."""
    found: list[list[tuple[float, list[int]]]] = [[] for _ in prompts]
    for token in generate(model, prompts, settings, **options):
        if (one := token.completion) is not None:
            assert one.request == token.request
            prompt, rank = divmod(one.request, settings.num_return)
            assert one.sample == rank == len(found[prompt])
            assert one.score is not None
            found[prompt].append((one.score, [*one.tokens]))
    return found


def assert_equal(found: Hypotheses, expected: Hypotheses) -> None:
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)
