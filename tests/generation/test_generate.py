"""Sampling and greedy decoding over models whose next token is known, against a plain reference."""

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmtool.errors import NumericalError, UsageError
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.model import build
from lmtool.recipe.spec.words import SkipGram
from tests.generation.models import HistoryModel, TableModel
from tests.reference import decoding as reference
from tests.support.errors import refuses
from tests.support.generating import PROMPTS, collect

GREEDY = SamplingParams("greedy", max_new_tokens=20)


def plain(
    model: HistoryModel, prompt: Sequence[int], settings: SamplingParams, end_ids: Collection[int] = (), sample: int = 0
) -> tuple[list[int], list[float]]:
    found: tuple[list[int], list[float]] = reference.continuation(
        lambda ids: model.logits_after(ids).tolist(),
        prompt,
        max_new_tokens=settings.max_new_tokens,
        context=model.context,
        end_ids=end_ids,
        seed=settings.seed,
        sample=sample,
        greedy=settings.strategy == "greedy",
        t=settings.temperature,
        k=settings.top_k,
        p=settings.top_p,
    )
    return found


@pytest.mark.parametrize("context", [None, 8])
@pytest.mark.parametrize(
    "settings",
    [
        GREEDY,
        SamplingParams(max_new_tokens=20, temperature=0.6, seed=5),
        SamplingParams(max_new_tokens=20, temperature=1.5, top_p=0.7, seed=2**70),
        SamplingParams(max_new_tokens=20, temperature=2.0, top_k=6, top_p=0.8),
    ],
    ids=str,
)
def test_each_strategy_equals_the_plain_reference(settings: SamplingParams, context: int | None) -> None:
    model, n = HistoryModel(context=context), 1 if settings is GREEDY else 3
    results = collect(generate(model, PROMPTS, settings, n=n, end_ids={0}, max_rows=7), n)
    assert len(results) == len(PROMPTS) * n
    for (prompt, sample), (tokens, logprobs) in results.items():
        expected, expected_logprobs = plain(model, PROMPTS[prompt], settings, {0}, sample)
        assert tokens == expected
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-5)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_smallest_contexts_slide_too(context: int) -> None:
    model = HistoryModel(context=context)
    results = collect(generate(model, [[3], [4]], GREEDY))
    assert [results[i, 0][0] for i in (0, 1)] == [plain(model, [i], GREEDY)[0] for i in (3, 4)]


def test_temperature_0_and_top_k_1_are_greedy() -> None:
    model = HistoryModel(context=10)
    greedy = collect(generate(model, PROMPTS, GREEDY))
    changes: list[dict[str, Any]] = [{"temperature": 0, "top_k": 5, "top_p": 0.5}, {"temperature": 1.7, "top_k": 1}]
    for change in (*changes, {"temperature": 0}, {"temperature": 1e-30}, {"top_p": 1e-9}):
        assert collect(generate(model, PROMPTS, SamplingParams(max_new_tokens=20, **change))) == greedy


def test_a_request_gives_the_same_alone_in_any_batch_and_in_any_order() -> None:
    model = HistoryModel(context=9)
    settings = SamplingParams(max_new_tokens=25, temperature=1.0, seed=3)
    alone = {tuple(prompt): collect(generate(model, [prompt], settings, n=2), 2) for prompt in PROMPTS}
    for n, max_rows in ((1, 1), (2, 3), (1, 9)):
        order = random.Random(max_rows).sample(PROMPTS, len(PROMPTS))
        results = collect(generate(model, order, settings, n=n, max_rows=max_rows), n)
        for (prompt, sample), result in results.items():
            assert result == alone[tuple(order[prompt])][0, sample]


def test_a_repeated_prompt_goes_on_with_further_samples() -> None:
    model = HistoryModel()
    settings = SamplingParams(max_new_tokens=10)
    samples = collect(generate(model, [[1, 2]], settings, n=4), 4)
    repeated = collect(generate(model, [[1, 2], [3], [1, 2]], settings, n=2), 2)
    assert [repeated[0, 0], repeated[0, 1], repeated[2, 0], repeated[2, 1]] == [samples[0, i] for i in range(4)]


def test_a_prompt_is_read_once_and_rows_that_end_are_not_stepped_any_more() -> None:
    model = HistoryModel()
    settings = SamplingParams(max_new_tokens=200, temperature=1.0)
    results = collect(generate(model, PROMPTS, settings, n=3, end_ids={0}, max_rows=18), 3)
    written = sum(len(tokens) for tokens, _ in results.values())
    assert model.read == sum(map(len, PROMPTS)) + written - len(results)


class Watching(HistoryModel):
    """Notes the rows of each step, and the positions of its state."""

    most_rows = most_positions = 0

    def forward_incremental(self, tokens_BT: torch.Tensor, state: Any) -> Any:
        self.most_rows = max(self.most_rows, len(tokens_BT))
        self.most_positions = max(self.most_positions, state.length)
        assert not self.training
        assert torch.is_inference_mode_enabled()
        return super().forward_incremental(tokens_BT, state)


@pytest.mark.parametrize("params", [SamplingParams(max_new_tokens=5), SamplingParams("beam", num_beams=3)], ids=str)
def test_at_most_max_rows_are_in_work(params: SamplingParams) -> None:
    model = Watching()
    prompts = [[i % 11] for i in range(20)]
    collect(generate(model, prompts, replace(params, max_new_tokens=5), end_ids={1, 2}, max_rows=6))
    assert model.most_rows == 6


def test_the_state_keeps_no_positions_that_nobody_needs() -> None:
    model = Watching(context=12)
    prompts = [[i] * (1 + i) for i in range(11)]
    collect(generate(model, prompts, SamplingParams(max_new_tokens=60), max_rows=5))
    assert model.most_positions < 12


def test_the_model_is_in_evaluation_mode_meanwhile() -> None:
    model = Watching().train()
    for _ in generate(model, [[1]], replace(GREEDY, max_new_tokens=3)):
        assert not torch.is_inference_mode_enabled()
    assert model.training


def test_a_text_ends_at_its_end_token_or_its_length() -> None:
    model = TableModel([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    ended = [(1, None), (2, "end")]
    for n, end_ids, expected in ((5, {2}, ended), (2, {2}, ended), (3, (), [(1, None), (2, None), (0, "length")])):
        events = list(generate(model, [[0]], replace(GREEDY, max_new_tokens=n), end_ids=end_ids))
        assert [(e.id, e.finish_reason) for e in events] == expected


def test_banned_tokens_are_never_chosen_but_keep_their_probability() -> None:
    model = TableModel([[0.7, 0.2, 0.1]] * 3)
    for settings in (GREEDY, SamplingParams(max_new_tokens=50)):
        events = list(generate(model, [[1]], settings, banned_ids={0}))
        assert 0 not in {event.id for event in events}
        assert all(event.logprob == pytest.approx(model.logits_VV[0, event.id].item()) for event in events)


def test_prompts_that_the_model_cannot_read_are_refused_before_any_work() -> None:
    model = HistoryModel(context=5)
    for prompts in (PROMPTS, [[1], []], [[1] * 6], [[1, 11]], [[-1]]):
        with pytest.raises(UsageError):
            generate(model, prompts, GREEDY)
    assert model.read == 0
    cut = collect(generate(model, PROMPTS, GREEDY, overflow="cut"))
    assert cut[2, 0] == collect(generate(model, [PROMPTS[2][-5:]], GREEDY))[0, 0], "the end of the prompt"


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingParams(), SamplingParams(top_k=1, top_p=0.5)], ids=str)
def test_logits_that_are_not_finite_are_an_error(settings: SamplingParams, wrong: float) -> None:
    model = TableModel([[0.5, 0.5], [0.5, 0.5]])
    model.logits_VV[1, 0] = wrong
    with pytest.raises(NumericalError):
        list(generate(model, [[0, 0], [1]], settings))


@pytest.mark.parametrize("settings", [GREEDY, SamplingParams("beam")], ids=["greedy", "beam"])
def test_vectors_of_words_write_no_text(settings: SamplingParams) -> None:
    with refuses("usage"):
        next(generate(build(SkipGram(kind="skipgram"), 11), [[1, 2]], settings))
