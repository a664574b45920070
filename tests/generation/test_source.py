"""Requests with a source: targets, and texts that continue it."""

import pytest
from pydantic import TypeAdapter

from lmtool.errors import UsageError
from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from lmtool.recipe.load import load
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from tests.generation.models import SPECIAL, AnswerModel, ByteTokenizer, HistoryModel, PrefixModel
from tests.generation.results import assert_equal, collect, search
from tests.reference import decoding as reference

ANSWERS = [Prompt((1,), (4, 5, 6)), Prompt((1, 2), (7,)), Prompt((1,), (7,)), Prompt((1,), (3, 3, 3, 8, 9, 10))]
JOINED = [Prompt((6,), (4, 5), joined=True), Prompt((7,), (), joined=True), Prompt((3,), (9, 8, 7, 6, 5), joined=True)]
STRATEGIES = [
    SamplingParams("greedy", max_new_tokens=12),
    SamplingParams(max_new_tokens=12, temperature=1.2),
    SamplingParams("beam", max_new_tokens=8, num_beams=3),
]


def after(model, prompt):
    """Logits after the tokens of a target, preceded by its source."""
    before = [*prompt.source, 99] if isinstance(model, AnswerModel) else list(prompt.source)
    return lambda ids: model.logits_after([*before, *ids]).tolist()


def plain(model, prompt, settings):
    logits_after = after(model, prompt)
    if settings.strategy == "beam":
        found = reference.beam_search(logits_after, prompt.tokens, k=3, max_new_tokens=8, end_ids={0})
        return found[0][1]
    number = settings.seed
    return reference.continuation(
        logits_after,
        prompt.tokens,
        max_new_tokens=12,
        end_ids={0},
        greedy=(settings.strategy == "greedy"),
        t=1.2,
        seed=number,
        read=[*prompt.source, *prompt.tokens],
    )[0]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("settings", STRATEGIES, ids=lambda settings: settings.strategy)
@pytest.mark.parametrize(
    ("model", "prompts"), [(AnswerModel(), ANSWERS), (PrefixModel(), ANSWERS), (PrefixModel(), JOINED)]
)
@pytest.mark.parametrize("max_rows", [1, 3, 64])
def test_answers_equal_the_plain_reference(model, prompts, settings, max_rows):
    results = collect(generate(model, prompts, settings, end_ids={0}, max_rows=max_rows))
    for i, prompt in enumerate(prompts):
        assert results[i, 0][0] == plain(model, prompt, settings)


def test_an_answer_longer_than_the_context_slides_and_keeps_its_source():
    model = AnswerModel(context=6)
    (tokens, _) = collect(generate(model, [ANSWERS[0]], SamplingParams("greedy", max_new_tokens=20)))[0, 0]
    logits_after = after(model, ANSWERS[0])
    assert tokens == reference.continuation(logits_after, [1], max_new_tokens=20, context=6, greedy=True)[0]


def test_a_source_that_takes_up_the_context_leaves_the_rest_to_the_answer():
    model = PrefixModel(context=9)
    (tokens, _) = collect(generate(model, [ANSWERS[0]], SamplingParams("greedy", max_new_tokens=20)))[0, 0]
    logits_after = after(model, ANSWERS[0])
    assert tokens == reference.continuation(logits_after, [1], max_new_tokens=20, context=6, greedy=True)[0]


def test_a_text_cut_in_two_slides_like_any_other():
    settings = SamplingParams("greedy", max_new_tokens=20)
    joined = collect(generate(PrefixModel(context=7), JOINED, settings))
    whole = collect(generate(HistoryModel(context=7), [prompt.text for prompt in JOINED], settings))
    assert joined == whole


def test_beams_answer_each_with_its_own_source():
    model = AnswerModel()
    settings = SamplingParams("beam", num_beams=4, num_return=4, max_new_tokens=7)
    for prompt, texts in zip(ANSWERS, search(model, ANSWERS, settings, end_ids={0}), strict=True):
        assert_equal(
            texts, reference.beam_search(after(model, prompt), prompt.tokens, k=4, max_new_tokens=7, end_ids={0})
        )


@pytest.mark.parametrize("model", [AnswerModel(context=4), PrefixModel(context=4)])
def test_sources_longer_than_the_context_are_refused_or_lose_their_end(model):
    long = Prompt((1,), (4, 5, 6, 7, 8))
    with pytest.raises(UsageError, match="6 tokens, but the model's context is 4"):
        generate(model, [long], SamplingParams("greedy"))
    n_left = 4 if isinstance(model, AnswerModel) else 3
    settings = SamplingParams("greedy", max_new_tokens=1)
    for overflow in ("cut", "slide"):
        cut = collect(generate(model, [long], settings, overflow=overflow))
        assert cut == collect(generate(model, [Prompt((1,), long.source[:n_left])], settings))


def test_a_joined_text_longer_than_the_context_loses_its_beginning():
    settings = SamplingParams("greedy", max_new_tokens=3)
    long = Prompt((9,), (1, 2, 3, 4, 5, 6, 7, 8), joined=True)
    for overflow, n in (("cut", 6), ("slide", 3)):
        cut = collect(generate(PrefixModel(context=6), [long], settings, overflow=overflow))
        assert cut == collect(generate(HistoryModel(context=6), [long.text[-n:]], settings))


def test_no_room_for_an_answer_is_an_error():
    with pytest.raises(UsageError, match="target begins with 5 tokens"):
        generate(PrefixModel(context=4), [Prompt((1, 2, 3, 4, 5), (6,))], SamplingParams("greedy"), overflow="cut")
    with pytest.raises(UsageError, match="no tokens"):
        generate(AnswerModel(), [Prompt((1,), ())], SamplingParams("greedy"))


def ids(text):
    return tuple(SPECIAL + byte for byte in text.encode())


@pytest.mark.parametrize(
    ("prompt_format", "prefix", "expected"),
    [
        ({"reads": "past"}, "", Prompt(ids("hi"))),
        ({"reads": "past", "opening": (1,), "documents": True}, "!", Prompt((1, *ids("hi!")))),
        ({"reads": "source", "opening": (1,), "documents": True}, "", Prompt(ids("i"), (1, *ids("h")), joined=True)),
        ({"reads": "source", "answers": True}, "", Prompt((1,), ids("hi"))),
        ({"reads": "source", "answers": True}, "so", Prompt((1, *ids("so")), ids("hi"))),
    ],
)
def test_a_prompt_is_framed_as_in_training(prompt_format, prefix, expected):
    assert PromptFormat(ByteTokenizer(), **prompt_format).make_prompt("hi", prefix) == expected


def test_an_empty_prompt_starts_from_a_token_that_begins_or_ends_a_text():
    assert PromptFormat(ByteTokenizer(), "past").make_prompt("") == Prompt((1,))
    assert PromptFormat(ByteTokenizer(), "source").make_prompt("") == Prompt((1,), (), joined=True)
    assert PromptFormat(ByteTokenizer(), "source", answers=True).make_prompt("") == Prompt((1,), (2,))


TRANSFORMER = {"kind": "transformer", "n_layers": 1, "d_model": 8, "n_heads": 2, "context": 8}


@pytest.mark.parametrize(
    ("model", "objective", "documents", "expected"),
    [
        ({"shape": "decoder"}, "causal", True, (True, False)),
        ({"shape": "decoder"}, "causal", False, (False, False)),
        ({"shape": "prefix"}, "prefix", True, (True, False)),
        ({"shape": "prefix"}, "seq2seq", True, (False, True)),
        ({"shape": "encoder-decoder"}, "prefix", False, (False, True)),
        ({"shape": "encoder"}, "masked", True, (True, False)),
    ],
)
def test_the_framing_follows_from_the_recipe(model, objective, documents, expected):
    recipe = load("tiny").recipe
    spec = type(recipe.model).model_validate(TRANSFORMER | model)
    learns = type(recipe).model_fields["objective"]
    learnt = TypeAdapter(learns.annotation).validate_python({"kind": objective})
    data = recipe.data.model_copy(update={"split": "document" if documents else "slice"})
    prompt_format = PromptFormat.from_recipe(
        recipe.model_copy(update={"model": spec, "objective": learnt, "data": data}), ByteTokenizer()
    )
    assert (prompt_format.documents and not prompt_format.answers, prompt_format.answers) == expected


def test_an_answer_begins_with_the_prefix():
    model, prompt_format = AnswerModel(ByteTokenizer.vocab_size), PromptFormat(ByteTokenizer(), "source", answers=True)
    (completion,) = complete(model, ["hi"], SamplingParams("greedy", max_new_tokens=4), prompt_format, prefix="so")
    assert completion.text.startswith("so")
    assert len(completion.tokens) <= 4
