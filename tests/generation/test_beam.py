"""Beam search over models whose next token is known, against a plain reference and exhaustive enumeration."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from lmtool.errors import UsageError
from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from lmtool.tokenization.prompt_format import PromptFormat
from tests.generation.models import HistoryModel, TableModel
from tests.reference import decoding as reference
from tests.support.cases import nightly_but
from tests.support.generating import assert_equal, search
from tests.support.scripted import SPECIAL, ByteTokenizer

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [2, 2, 2], [3, 1], [9, 9]]


def plain(model: Any, prompt: Any, settings: SamplingParams, **options: Any) -> Any:
    found = reference.beam_search(
        lambda ids: model.logits_after(ids).tolist(),
        prompt,
        k=settings.num_beams,
        max_new_tokens=settings.max_new_tokens,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        groups=settings.groups,
        diversity=settings.diversity,
        **options,
    )
    return found[: settings.num_return]


@pytest.mark.parametrize("early_stopping", nightly_but(["yes", "no", "never"], "yes", "never"))
@pytest.mark.parametrize("length_penalty", nightly_but([0.0, 0.6, 1.0, 2.0, -1.0], 1, 4))
@pytest.mark.parametrize("num_beams", nightly_but([1, 2, 5], 1, 2))
def test_beam_search_equals_the_plain_reference(num_beams: Any, length_penalty: Any, early_stopping: Any) -> None:
    compare(num_beams, length_penalty=length_penalty, early_stopping=early_stopping)


@pytest.mark.parametrize(("groups", "diversity"), [(2, 0.5), (2, 5.0), (6, 1.5), (3, 1e-6)])
def test_diverse_beams_equal_the_plain_reference(groups: Any, diversity: Any) -> None:
    compare(6, groups=groups, diversity=diversity)


def compare(num_beams: Any, **changes: Any) -> None:
    model = HistoryModel()
    settings = SamplingParams("beam", num_beams=num_beams, num_return=num_beams, max_new_tokens=8, **changes)
    found = search(model, PROMPTS, settings, end_ids={0, 7}, max_rows=11)
    for prompt, texts in zip(PROMPTS, found, strict=True):
        assert_equal(texts, plain(model, prompt, settings, end_ids={0, 7}))
    assert any(len(tokens) < 8 for texts in found for _, tokens in texts)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_a_wide_beam_is_an_exhaustive_search(length_penalty: Any) -> None:
    model = HistoryModel(vocab_size=4)
    settings = SamplingParams("beam", num_beams=500, num_return=50, length_penalty=length_penalty, max_new_tokens=4)
    found = search(model, [[1], [2, 3]], settings, end_ids={0})
    for prompt, texts in zip([[1], [2, 3]], found, strict=True):
        expected = reference.all_texts(
            lambda ids: model.logits_after(ids).tolist(),
            prompt,
            max_new_tokens=4,
            length_penalty=length_penalty,
            end_ids={0},
        )
        assert_equal(texts, expected[:50])


def test_a_request_is_the_same_alone_and_in_any_batch() -> None:
    model = HistoryModel(context=12)
    generator = random.Random(3)
    prompts = [[generator.randrange(11) for _ in range(generator.randrange(1, 9))] for _ in range(20)]
    settings = SamplingParams("beam", num_beams=3, num_return=2, max_new_tokens=14)
    alone = [search(model, [prompt], settings, end_ids={0}, max_rows=1)[0] for prompt in prompts]
    for max_rows in (1, 2, 7, 64):
        assert search(model, prompts, settings, end_ids={0}, max_rows=max_rows) == alone


@pytest.mark.parametrize("context", [1, 2, 7])
def test_beams_slide_as_other_texts_do(context: Any) -> None:
    """All hypotheses of a beam have one length, so the window of the reference is a function of that."""
    model = HistoryModel(context=context)
    settings = SamplingParams("beam", num_beams=3, num_return=3, max_new_tokens=12)

    def logits_after(ids: list[int]) -> Any:
        window = ids[:1]
        for token in ids[1:]:
            window = [*window, token]
            if len(window) > context:
                window = window[-max(1, context // 2) :]
        return model.logits_after(window).tolist()

    (found,) = search(model, [[4]], settings, end_ids={0})
    assert_equal(found, reference.beam_search(logits_after, [4], k=3, max_new_tokens=12, end_ids={0}))


def test_filters_hold_in_every_beam() -> None:
    model = HistoryModel()
    settings = SamplingParams(
        "beam",
        num_beams=3,
        num_return=3,
        max_new_tokens=9,
        min_new_tokens=4,
        repetition_penalty=1.4,
        frequency_penalty=0.3,
        presence_penalty=-0.4,
        no_repeat_ngram=2,
        logit_bias=(((3,), 1.0), ((3, 4), -2.0)),
    )

    def change(scores: Any, text: Any, n_written: Any) -> Any:
        scores = [-math.inf if token == 10 else s for token, s in enumerate(scores)]
        scores = reference.logit_bias(scores, settings.logit_bias, text)
        scores = reference.repetition_penalty(scores, 1.4, text)
        scores = reference.apply_count_penalties(scores, 0.3, -0.4, list(text[len(text) - n_written :]))
        scores = reference.no_repeat_ngram(scores, 2, text)
        return [-math.inf if token == 0 and n_written < 4 else s for token, s in enumerate(scores)]

    found = search(model, PROMPTS, settings, end_ids={0}, banned_ids={10})
    for prompt, texts in zip(PROMPTS, found, strict=True):
        assert_equal(texts, plain(model, prompt, settings, end_ids={0}, change=change))


def test_hypotheses_end_at_stop_strings() -> None:
    model, prompt_format = HistoryModel(ByteTokenizer.vocab_size), PromptFormat(ByteTokenizer(), "past")
    settings = SamplingParams("beam", num_beams=3, num_return=3, max_new_tokens=9)
    stop = [*map(chr, range(0, 128, 3)), "ab"]

    def ends(written: Any) -> Any:
        text = bytes(token - SPECIAL for token in written)
        return any(one.encode() in text for one in stop)

    def change(scores: Any, text: Any, n_written: Any) -> Any:
        return [-math.inf if token < SPECIAL else score for token, score in enumerate(scores)]

    prompts = [prompt_format.make_prompt(text) for text in ("one", "two", "three")]
    found = search(model, prompts, settings, prompt_format=prompt_format, stop=stop)
    for prompt, texts in zip(prompts, found, strict=True):
        assert_equal(texts, plain(model, prompt.tokens, settings, ends=ends, change=change))
    completions = complete(model, prompts, settings, prompt_format, stop=stop)
    assert {one.finish_reason for one in completions} >= {"stop"}


def test_a_tiny_vocabulary_gives_as_many_texts_as_it_has() -> None:
    model = TableModel([[0.6, 0.4], [0.5, 0.5]])
    (found,) = search(model, [[0]], SamplingParams("beam", num_beams=5, num_return=5, max_new_tokens=1))
    assert [tokens for _, tokens in found] == [[0], [1]]


def test_details_of_the_tokens_are_those_of_the_model() -> None:
    model = TableModel([[0.5, 0.3, 0.2]] * 3)
    settings = SamplingParams("beam", num_beams=2, num_return=2, max_new_tokens=2)
    for event in generate(model, [[1]], settings, banned_ids={0}, details=True):
        assert math.exp(event.logprob) == pytest.approx([0.5, 0.3, 0.2][event.id])
        assert event.rank == event.id + 1
        assert event.removed == pytest.approx(0.5)


def test_a_search_with_nothing_left_to_choose_is_an_error() -> None:
    settings = SamplingParams("beam", num_beams=2, no_repeat_ngram=1, max_new_tokens=4, min_new_tokens=4)
    with pytest.raises(UsageError, match="filters exclude every token"):
        search(TableModel([[0.5, 0.5]] * 2), [[0]], settings, end_ids={1})


@pytest.mark.parametrize("groups", [1, 2])
def test_the_tree_of_a_search(groups: Any) -> None:
    """Its ends are the finished hypotheses, and what leads to the returned ones is in it, with the same totals."""
    model = HistoryModel()
    settings = SamplingParams("beam", num_beams=4, num_return=3, max_new_tokens=5, length_penalty=0.7)
    settings = replace(settings, groups=groups, diversity=groups - 1.0, early_stopping="no")
    completions = list(complete(model, [[1, 2]], settings, end_ids=[0], details=True))
    assert all(one.tree is None for one in completions[1:])
    tree = completions[0].tree

    def tokens_to(index: Any) -> Any:
        return [] if index is None else [*tokens_to(tree[index].parent), tree[index].token]

    returned = sorted((node.rank, i) for i, node in enumerate(tree) if node.rank is not None)
    for rank, i in returned:
        assert tuple(tokens_to(i)) == completions[rank].tokens
        assert tree[i].score == completions[rank].score
    assert [rank for rank, _ in returned] == [0, 1, 2]
    for i, node in enumerate(tree):
        ids = tokens_to(i)
        total = sum(float(model.logits_after([1, 2, *ids[:k]]).log_softmax(-1)[token]) for k, token in enumerate(ids))
        assert node.total == pytest.approx(total, abs=1e-4)
        assert (node.finish is None) == (node.score is None)
        if node.finish:
            assert node.score == pytest.approx(total / len(ids) ** 0.7, abs=1e-4)
            assert i not in {other.parent for other in tree}


def test_without_details_there_is_no_tree() -> None:
    for one in complete(HistoryModel(), [[1]], SamplingParams("beam", num_beams=3, max_new_tokens=4)):
        assert one.tree is None
        assert one.alternatives is None
