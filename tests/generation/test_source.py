"""Requests with a source: targets, and texts that continue it."""

from typing import Any

import pytest

from lmtool.generation.generate import complete, generate
from lmtool.generation.params import Overflow, SamplingParams
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from tests.generation.models import AnswerModel, HistoryModel, PrefixModel
from tests.reference import decoding as reference
from tests.support.errors import refuses
from tests.support.generating import collect
from tests.support.scripted import BYTES, ByteTokenizer

ANSWERS = [Prompt((1,), (4, 5, 6)), Prompt((1, 2), (7,)), Prompt((1,), (7,)), Prompt((1,), (3, 3, 3, 8, 9, 10))]
JOINED = [Prompt((6,), (4, 5), joined=True), Prompt((7,), (), joined=True), Prompt((3,), (9, 8, 7, 6, 5), joined=True)]
GREEDY = SamplingParams("greedy", max_new_tokens=20)


def after(model: HistoryModel, prompt: Prompt) -> Any:
    """Logits after the tokens of a target, preceded by its source."""
    before = [*(prompt.source or ()), *((99,) if isinstance(model, AnswerModel) else ())]
    return lambda ids: model.logits_after([*before, *ids]).tolist()


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize(
    ("model", "prompts"), [(AnswerModel(), ANSWERS), (PrefixModel(), ANSWERS), (PrefixModel(), JOINED)]
)
def test_answers_equal_the_plain_reference(model: HistoryModel, prompts: list[Prompt], strategy: Any) -> None:
    changes: dict[str, Any] = {"greedy": {}, "sample": {"temperature": 1.2}, "beam": {"num_beams": 3}}
    settings = SamplingParams(strategy, max_new_tokens=9, **changes[strategy])
    results = collect(generate(model, prompts, settings, end_ids={0}, max_rows=6))
    for i, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_new_tokens": 9, "end_ids": {0}}
        if strategy == "beam":
            expected = reference.beam_search(after(model, prompt), prompt.tokens, k=3, **options)[0][1]
        else:
            options |= {"greedy": strategy == "greedy", "t": 1.2, "read": [*(prompt.source or ()), *prompt.tokens]}
            expected = reference.continuation(after(model, prompt), prompt.tokens, **options)[0]
        assert results[i, 0][0] == expected


@pytest.mark.parametrize("model", [AnswerModel(context=6), PrefixModel(context=9)])
def test_a_long_answer_slides_and_keeps_its_source(model: HistoryModel) -> None:
    """Which takes up context of a prefix LM alone."""
    (tokens, _) = collect(generate(model, [ANSWERS[0]], GREEDY))[0, 0]
    expected = reference.continuation(after(model, ANSWERS[0]), [1], max_new_tokens=20, context=6, greedy=True)
    assert tokens == expected[0]


def test_a_text_cut_in_two_slides_like_any_other() -> None:
    joined = collect(generate(PrefixModel(context=7), JOINED, GREEDY))
    assert joined == collect(generate(HistoryModel(context=7), [prompt.text for prompt in JOINED], GREEDY))


@pytest.mark.parametrize("model", [AnswerModel(context=4), PrefixModel(context=4)])
@pytest.mark.parametrize("overflow", ["cut", "slide"])
def test_sources_longer_than_the_context_are_refused_or_lose_their_end(model: HistoryModel, overflow: Overflow) -> None:
    with refuses("usage"):
        generate(model, [Prompt((1,), (4, 5, 6, 7, 8))], GREEDY)
    cut = collect(generate(model, [Prompt((1,), (4, 5, 6, 7, 8))], GREEDY, overflow=overflow))
    kept = (4, 5, 6, 7) if isinstance(model, AnswerModel) else (4, 5, 6)
    assert cut == collect(generate(model, [Prompt((1,), kept)], GREEDY))


def test_a_source_of_which_one_token_fits_keeps_it() -> None:
    cut = collect(generate(PrefixModel(context=4), [Prompt((1, 2, 3), (4, 5, 6))], GREEDY, overflow="cut"))
    assert cut == collect(generate(PrefixModel(context=4), [Prompt((1, 2, 3), (4,))], GREEDY))


@pytest.mark.parametrize(("overflow", "n"), [("cut", 6), ("slide", 3)])
def test_a_joined_text_longer_than_the_context_loses_its_beginning(overflow: Overflow, n: int) -> None:
    long = Prompt((9,), (1, 2, 3, 4, 5, 6, 7, 8), joined=True)
    cut = collect(generate(PrefixModel(context=6), [long], GREEDY, overflow=overflow))
    assert cut == collect(generate(HistoryModel(context=6), [long.text[-n:]], GREEDY))


def test_no_room_for_an_answer_is_an_error() -> None:
    for model, prompt in (
        (PrefixModel(context=4), Prompt((1, 2, 3, 4, 5), (6,))),
        (AnswerModel(), Prompt((1,), ())),
    ):
        with refuses("usage"):
            generate(model, [prompt], GREEDY, overflow="cut")


def test_an_answer_begins_with_the_prefix() -> None:
    model, prompt_format = AnswerModel(ByteTokenizer.vocab_size), PromptFormat(BYTES, "source", answers=True)
    (completion,) = complete(model, ["hi"], SamplingParams("greedy", max_new_tokens=4), prompt_format, prefix="so")
    assert completion.text.startswith("so")
    assert len(completion.tokens) <= 4
