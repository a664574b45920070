"""Mask-predict over a model whose every conditional distribution is known."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lmtool.errors import NumericalError
from lmtool.generation.generate import complete, generate
from lmtool.generation.mask_predict import fill_masks
from lmtool.generation.params import MaskPredict, SamplingParams
from lmtool.generation.request import Completion
from lmtool.generation.strategy import request_key
from lmtool.tokenization.prompt_format import PromptFormat
from tests.generation.models import HistoryModel, SidesModel
from tests.reference import decoding as reference
from tests.support.errors import refuses
from tests.support.scripted import BYTES, SPECIAL, TEXTS, ByteTokenizer

MASK = 3
FORMAT = PromptFormat(BYTES, "both", (6,), after=(5,))
ROWS = [[1, MASK, 2, MASK, MASK], [MASK], [5, 5, MASK, 6], [MASK, MASK, MASK, MASK, 4], [0, MASK, 1, MASK, 2]]


def filled(text: Sequence[int], result: Completion) -> list[int]:
    coming = iter(result.tokens)
    return [next(coming) if token == MASK else token for token in text]


@pytest.mark.parametrize(("rounds", "max_rows"), [(1, 1), (2, 64), (3, 3), (10, 3)])
def test_unmasking_by_confidence_equals_the_plain_reference(rounds: int, max_rows: int) -> None:
    model = SidesModel()
    results = list(fill_masks(model, ROWS, MASK, MaskPredict(rounds=rounds), banned_ids={9}, max_rows=max_rows))
    assert len(results) == len(ROWS)
    for result in results:
        text = ROWS[result.request]
        assert filled(text, result) == reference.mask_predict(model.logits_of, text, MASK, rounds, banned={9, MASK})
        assert result.steps <= rounds


@pytest.mark.parametrize("max_rows", [1, 2, 64])
def test_gibbs_sampling_equals_the_plain_reference(max_rows: int) -> None:
    model, rows = SidesModel(), [*ROWS, ROWS[0]]
    settings = MaskPredict(by="gibbs", rounds=3, seed=5, temperature=0.7)
    for result in fill_masks(model, rows, MASK, settings, n=2, banned_ids={9}, max_rows=max_rows):
        text = rows[result.request // 2]
        assert result.draw == result.sample + (2 if result.request // 2 == len(ROWS) else 0)
        key = request_key(5, result.draw, text)
        assert filled(text, result) == reference.gibbs(model.logits_of, text, MASK, 3, key, {9, MASK}, 0.7)
        assert result.steps == 3 * text.count(MASK)


@pytest.mark.parametrize("change", [{"temperature": 0}, {"top_k": 1}], ids=str)
def test_gibbs_sampling_at_temperature_0_takes_the_most_probable(change: dict[str, Any]) -> None:
    model, settings = SidesModel(), MaskPredict(by="gibbs", rounds=1, **change)
    (result,) = fill_masks(model, [[1, MASK, 2]], MASK, settings, details=True)
    (best,) = fill_masks(model, [[1, MASK, 2]], MASK, MaskPredict(rounds=1))
    assert result.tokens == best.tokens
    assert result.ranks == (1,)
    assert result.removed == pytest.approx([1 - math.exp(result.logprobs[0])], abs=1e-5)


def test_a_bias_moves_the_choice() -> None:
    (result,) = fill_masks(SidesModel(), [[MASK] * 5], MASK, MaskPredict(logit_bias=(((7,), 1000.0),)))
    assert set(result.tokens) == {7}


def test_texts_models_and_strategies_that_do_not_fit_are_refused() -> None:
    for texts in ([[1, 2]], [[MASK], [MASK] * 6]):
        with refuses("usage"):
            fill_masks(SidesModel(context=5), texts, MASK, MaskPredict())
    with refuses("usage"):
        fill_masks(HistoryModel(), [[MASK]], MASK, MaskPredict())
    with refuses("usage"):
        generate(SidesModel(), [[1]], SamplingParams("greedy"))
    with refuses("usage"):
        generate(HistoryModel(300), ["a"], SamplingParams("greedy"), TEXTS, length=3)
    wrong: list[dict[str, Any]] = [{}, {"mask": "__"}, {"mask": ""}, {"mask": "a", "stop": ("x",)}]
    for options in (*wrong, {"mask": "a", "prefix": "x"}):
        with refuses("usage"):
            generate(SidesModel(ByteTokenizer.vocab_size), ["a"], MaskPredict(), FORMAT, **options)


def test_logits_that_are_not_finite_are_an_error() -> None:
    class Broken(SidesModel):
        def logits_of(self, ids: list[int]) -> list[list[float]]:
            return [[math.nan] * 11 for _ in ids]

    with pytest.raises(NumericalError):
        list(fill_masks(Broken(), [[MASK]], MASK, MaskPredict()))


@pytest.mark.parametrize(
    ("prompt", "documents", "placeholder", "n", "expected"),
    [
        ("a__b", False, "__", 0, [6, "a", 4, "b", 5]),
        ("a __ b", False, "__", 0, [6, "a", 4, " ", "b", 5]),
        ("____", True, "__", 0, [6, 1, 4, 4, 2, 5]),
        ("a", False, None, 2, [6, "a", 4, 4, 5]),
        ("[MASK]", False, None, 1, [6, *"[MASK]", 4, 5]),
    ],
)
def test_masks_stand_where_the_placeholder_stood(
    prompt: str, documents: bool, placeholder: str | None, n: int, expected: list[Any]
) -> None:
    ids = replace(FORMAT, documents=documents).encode_masked_prompt(prompt, placeholder=placeholder, n_appended_masks=n)
    assert list(ids) == [token if isinstance(token, int) else SPECIAL + ord(token) for token in expected]


def test_a_completion_is_the_whole_text() -> None:
    model = SidesModel(ByteTokenizer.vocab_size + 9)
    (completion,) = complete(model, ["ab__c"], MaskPredict(), replace(FORMAT, documents=True), mask="__", details=True)
    assert completion.text.startswith("ab")
    assert completion.text.endswith("c")
    for of_tokens in (completion.tokens, completion.ranks, completion.removed, completion.logprobs):
        assert len(of_tokens or ()) == 1
    assert completion.finish_reason == "filled"
    assert SPECIAL <= completion.tokens[0] < ByteTokenizer.vocab_size


def test_what_is_too_long_fills_less_when_it_may() -> None:
    model = SidesModel(ByteTokenizer.vocab_size, context=10)
    (completion,) = complete(model, ["abc"], MaskPredict(), FORMAT, length=50, overflow="cut")
    assert len(completion.tokens) == 5
