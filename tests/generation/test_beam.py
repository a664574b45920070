"""Beam search over models whose next token is known, against a plain reference."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from tests.generation.models import HistoryModel, TableModel
from tests.reference import decoding as reference
from tests.support.errors import refuses
from tests.support.generating import PROMPTS, assert_equal, search
from tests.support.scripted import SPECIAL, TEXTS, ByteTokenizer


def beams(num_beams: int, **changes: Any) -> SamplingParams:
    return SamplingParams("beam", **{"num_beams": num_beams, "num_return": num_beams, "max_new_tokens": 8} | changes)


def plain(model: HistoryModel, prompt: Sequence[int], settings: SamplingParams, **options: Any) -> Any:
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


@pytest.mark.parametrize(
    "settings",
    [
        beams(1),
        beams(2, length_penalty=0.0, early_stopping="yes"),
        beams(5, length_penalty=2.0, early_stopping="never"),
        beams(5, length_penalty=-1.0, early_stopping="never"),
        beams(2, length_penalty=0.6, early_stopping="never"),
        beams(6, groups=2, diversity=5.0),
        beams(6, groups=6, diversity=1.5),
        beams(6, groups=3, diversity=1e-6),
    ],
    ids=str,
)
def test_beam_search_equals_the_plain_reference(settings: SamplingParams) -> None:
    model = HistoryModel()
    found = search(model, PROMPTS, settings, end_ids={0, 7}, max_rows=11)
    for prompt, texts in zip(PROMPTS, found, strict=True):
        assert_equal(texts, plain(model, prompt, settings, end_ids={0, 7}))
    assert any(len(tokens) < 8 for texts in found for _, tokens in texts)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_a_wide_beam_is_an_exhaustive_search(length_penalty: float) -> None:
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


@pytest.mark.parametrize("context", [1, 7])
def test_beams_slide_as_other_texts_do(context: int) -> None:
    """All hypotheses of a beam have one length, so the window of the reference is a function of that."""
    model = HistoryModel(context=context)

    def logits_after(ids: list[int]) -> Any:
        window = ids[:1]
        for token in ids[1:]:
            window = [*window, token]
            if len(window) > context:
                window = window[-max(1, context // 2) :]
        return model.logits_after(window).tolist()

    (found,) = search(model, [[4]], beams(3, max_new_tokens=12), end_ids={0})
    assert_equal(found, reference.beam_search(logits_after, [4], k=3, max_new_tokens=12, end_ids={0}))


def test_hypotheses_end_at_stop_strings() -> None:
    model, settings = HistoryModel(ByteTokenizer.vocab_size), beams(3, max_new_tokens=9)
    stop = [*map(chr, range(0, 128, 3)), "ab"]

    def ends(written: list[int]) -> bool:
        text = bytes(token - SPECIAL for token in written)
        return any(one.encode() in text for one in stop)

    def change(scores: list[float], text: list[int], n_written: int) -> list[float]:
        return [-math.inf if token < SPECIAL else score for token, score in enumerate(scores)]

    prompts = [TEXTS.make_prompt(text) for text in ("one", "two", "three")]
    found = search(model, prompts, settings, prompt_format=TEXTS, stop=stop)
    for prompt, texts in zip(prompts, found, strict=True):
        assert_equal(texts, plain(model, prompt.tokens, settings, ends=ends, change=change))
    assert "stop" in {one.finish_reason for one in complete(model, prompts, settings, TEXTS, stop=stop)}


def test_a_tiny_vocabulary_gives_as_many_texts_as_it_has() -> None:
    model = TableModel([[0.6, 0.4], [0.5, 0.5]])
    (found,) = search(model, [[0]], beams(5, max_new_tokens=1))
    assert [tokens for _, tokens in found] == [[0], [1]]


def test_details_of_the_tokens_are_those_of_the_model() -> None:
    model = TableModel([[0.5, 0.3, 0.2]] * 3)
    for event in generate(model, [[1]], beams(2, max_new_tokens=2), banned_ids={0}, details=True):
        assert math.exp(event.logprob) == pytest.approx([0.5, 0.3, 0.2][event.id])
        assert event.rank == event.id + 1
        assert event.removed == pytest.approx(0.5)


def test_a_search_with_nothing_left_to_choose_is_an_error() -> None:
    settings = beams(2, no_repeat_ngram=1, max_new_tokens=4, min_new_tokens=4)
    with refuses("usage"):
        search(TableModel([[0.5, 0.5]] * 2), [[0]], settings, end_ids={1})


@pytest.mark.parametrize("groups", [1, 2])
def test_the_tree_of_a_search_leads_to_its_texts_with_their_scores(groups: int) -> None:
    model = HistoryModel()
    settings = beams(4, num_return=3, max_new_tokens=5, length_penalty=0.7, groups=groups, diversity=groups - 1.0)
    completions = list(complete(model, [[1, 2]], settings, end_ids=[0], details=True))
    assert all(one.tree is None for one in completions[1:])
    assert all(one.tree is None for one in complete(model, [[1, 2]], settings))
    tree = completions[0].tree or ()

    def tokens_to(index: int | None) -> list[int]:
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
