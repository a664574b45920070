"""Requests with a source: targets, and texts that continue it."""

from typing import Any

import pytest

from lmtool.errors import UsageError
from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from tests.generation.models import AnswerModel, HistoryModel, PrefixModel
from tests.reference import decoding as reference
from tests.support.cases import nightly_but
from tests.support.generating import collect
from tests.support.scripted import ByteTokenizer

ANSWERS = [Prompt((1,), (4, 5, 6)), Prompt((1, 2), (7,)), Prompt((1,), (7,)), Prompt((1,), (3, 3, 3, 8, 9, 10))]
JOINED = [Prompt((6,), (4, 5), joined=True), Prompt((7,), (), joined=True), Prompt((3,), (9, 8, 7, 6, 5), joined=True)]
STRATEGIES = [
    SamplingParams("greedy", max_new_tokens=12),
    SamplingParams(max_new_tokens=12, temperature=1.2),
    SamplingParams("beam", max_new_tokens=8, num_beams=3),
]


def after(model: Any, prompt: Any) -> Any:
    """Logits after the tokens of a target, preceded by its source."""
    before = [*prompt.source, 99] if isinstance(model, AnswerModel) else list(prompt.source)
    return lambda ids: model.logits_after([*before, *ids]).tolist()


def plain(model: Any, prompt: Any, settings: SamplingParams) -> Any:
    logits_after = after(model, prompt)
    if settings.strategy == "beam":
        found = reference.beam_search(logits_after, prompt.tokens, k=3, max_new_tokens=8, end_ids={0})
        return found[0][1]
    options = {"greedy": settings.strategy == "greedy", "t": 1.2, "seed": settings.seed}
    read = [*prompt.source, *prompt.tokens]
    return reference.continuation(logits_after, prompt.tokens, max_new_tokens=12, end_ids={0}, read=read, **options)[0]


@pytest.mark.parametrize("settings", STRATEGIES, ids=lambda settings: settings.strategy)
@pytest.mark.parametrize(
    ("model", "prompts"),
    nightly_but([(AnswerModel(), ANSWERS), (PrefixModel(), ANSWERS), (PrefixModel(), JOINED)], 0, 1, unpack=True),
)
@pytest.mark.parametrize("max_rows", nightly_but([1, 3, 64], 0))
def test_answers_equal_the_plain_reference(model: Any, prompts: Any, settings: SamplingParams, max_rows: Any) -> None:
    results = collect(generate(model, prompts, settings, end_ids={0}, max_rows=max_rows))
    for i, prompt in enumerate(prompts):
        assert results[i, 0][0] == plain(model, prompt, settings)


@pytest.mark.parametrize("model", [AnswerModel(context=6), PrefixModel(context=9)])
def test_a_long_answer_slides_and_keeps_its_source(model: Any) -> None:
    """Which takes up context of a prefix LM alone."""
    (tokens, _) = collect(generate(model, [ANSWERS[0]], SamplingParams("greedy", max_new_tokens=20)))[0, 0]
    logits_after = after(model, ANSWERS[0])
    assert tokens == reference.continuation(logits_after, [1], max_new_tokens=20, context=6, greedy=True)[0]


def test_a_text_cut_in_two_slides_like_any_other() -> None:
    settings = SamplingParams("greedy", max_new_tokens=20)
    joined = collect(generate(PrefixModel(context=7), JOINED, settings))
    whole = collect(generate(HistoryModel(context=7), [prompt.text for prompt in JOINED], settings))
    assert joined == whole


@pytest.mark.parametrize("model", [AnswerModel(context=4), PrefixModel(context=4)])
def test_sources_longer_than_the_context_are_refused_or_lose_their_end(model: Any) -> None:
    long = Prompt((1,), (4, 5, 6, 7, 8))
    with pytest.raises(UsageError, match="6 tokens, but the model's context is 4"):
        generate(model, [long], SamplingParams("greedy"))
    n_left = 4 if isinstance(model, AnswerModel) else 3
    settings = SamplingParams("greedy", max_new_tokens=1)
    for overflow in ("cut", "slide"):
        cut = collect(generate(model, [long], settings, overflow=overflow))
        assert cut == collect(generate(model, [Prompt((1,), long.source[:n_left])], settings))


def test_a_joined_text_longer_than_the_context_loses_its_beginning() -> None:
    settings = SamplingParams("greedy", max_new_tokens=3)
    long = Prompt((9,), (1, 2, 3, 4, 5, 6, 7, 8), joined=True)
    for overflow, n in (("cut", 6), ("slide", 3)):
        cut = collect(generate(PrefixModel(context=6), [long], settings, overflow=overflow))
        assert cut == collect(generate(HistoryModel(context=6), [long.text[-n:]], settings))


def test_no_room_for_an_answer_is_an_error() -> None:
    with pytest.raises(UsageError, match="target begins with 5 tokens"):
        generate(PrefixModel(context=4), [Prompt((1, 2, 3, 4, 5), (6,))], SamplingParams("greedy"), overflow="cut")
    with pytest.raises(UsageError, match="no tokens"):
        generate(AnswerModel(), [Prompt((1,), ())], SamplingParams("greedy"))


def test_an_answer_begins_with_the_prefix() -> None:
    model, prompt_format = AnswerModel(ByteTokenizer.vocab_size), PromptFormat(ByteTokenizer(), "source", answers=True)
    (completion,) = complete(model, ["hi"], SamplingParams("greedy", max_new_tokens=4), prompt_format, prefix="so")
    assert completion.text.startswith("so")
    assert len(completion.tokens) <= 4
