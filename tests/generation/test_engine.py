"""Requests that are added and cancelled between steps, prompts read in chunks, and drafts of texts that are alone."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lmtool.generation.drafts import NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request, Token
from lmtool.model.language_model import LanguageModel
from lmtool.tokenization.prompt_format import Prompt
from tests.generation.models import HistoryModel
from tests.support.errors import refuses
from tests.support.writers import Repeating, model_of

CHUNK = 4
GREEDY = SamplingParams("greedy", max_new_tokens=3)


@pytest.fixture
def model() -> LanguageModel:
    return model_of("decoder", torch.float32)


def requests_of(lengths: list[int], params: SamplingParams = GREEDY) -> list[Request]:
    prompts = [Prompt(tuple(5 + (i + j) % 10 for j in range(n))) for i, n in enumerate(lengths)]
    return [Request(prompt=prompt, params=params) for prompt in prompts]


def finish(engine: Engine) -> list[Token]:
    tokens: list[Token] = []
    while not engine.is_idle:
        tokens += engine.step()
    return tokens


def test_an_engine_is_idle_until_a_request_is_added_and_after_its_last_token(model: LanguageModel) -> None:
    engine = Engine(model)
    assert engine.is_idle
    assert engine.step() == []
    with refuses("usage"):
        engine.add(Request(prompt=Prompt((1,)), params=GREEDY, stop=("a", "")))
    ids = [engine.add(request) for request in requests_of([3, 5])]
    assert len(set(ids)) == len(engine) == 2
    tokens = finish(engine)
    assert [token.request for token in tokens if token.completion] == ids
    for token in tokens:
        if token.completion is not None:
            own = [one for one in tokens if one.request == token.request]
            assert token.completion.tokens == tuple(one.id for one in own)
            assert token.completion.logprobs == tuple(one.logprob for one in own)
    assert engine.step() == []


@pytest.mark.parametrize("strategy", ["greedy", "beam"])
@pytest.mark.parametrize("n_steps", [0, 1, 8], ids=["before", "within the prompt", "later"])
def test_a_cancelled_request_gives_no_more_tokens_and_its_rows_are_free(
    model: LanguageModel, strategy: Any, n_steps: int
) -> None:
    params = SamplingParams(strategy, max_new_tokens=12)
    first, second = requests_of([11, 9], params)
    engine = Engine(model, chunk=CHUNK)
    ids = [engine.add(first), engine.add(second)]
    for _ in range(n_steps):
        engine.step()
    engine.cancel(ids[0])
    engine.cancel(ids[0])  # again, which changes nothing
    assert len(engine) == 1
    tokens = finish(engine)
    assert {token.request for token in tokens} == {ids[1]}
    assert tokens[-1].completion is not None
    alone = list(generate(model, [second.prompt], params))
    assert tokens[-1].completion.tokens == tuple(token.id for token in alone)
    engine.add(first)
    engine.cancel(next(iter(engine._states)))
    assert engine.is_idle
    assert not engine._caches


def test_a_short_prompt_does_not_wait_for_a_long_one(model: LanguageModel) -> None:
    engine = Engine(model, chunk=CHUNK)
    long, *short = requests_of([20, 2, 2])
    engine.add(long)
    assert engine.step() == []
    for request in short:
        engine.add(request)
    begun = [{token.request for token in engine.step()} for _ in range(10)]
    assert begun[1] == {1, 2}
    assert next(step for step, ids in enumerate(begun) if 0 in ids) > 3


def test_a_long_prompt_is_read_although_short_ones_keep_coming(model: LanguageModel) -> None:
    engine = Engine(model, chunk=CHUNK)
    long, *short = requests_of([20, *[3] * 40])
    engine.add(long)
    begun = []
    for step in range(40):
        engine.add(short[step])
        begun += [token.request for token in engine.step()]
        if 0 in begun:
            break
    assert step <= 20 // (CHUNK // 2)


def test_a_text_that_is_alone_takes_fewer_passes_and_one_beside_others_has_no_draft() -> None:
    model = Repeating()
    prefixes = PrefixCache(1 << 20, n_block=4)
    engine = Engine(model, chunk=64, prefixes=prefixes, draft=NGramDraft(4), only_exact_drafts=True)
    params = SamplingParams("greedy", max_new_tokens=50)
    first, second = (
        engine.create_request_state(Request(prompt=Prompt(ids), params=params))
        for ids in ((0, 1, 2, 0, 1), (1, 2, 0, 1))
    )
    engine.add(first)
    assert [len(engine.step()) for _ in range(4)] == [1, 5, 5, 5]
    assert model.read == 5 + 15  # each position once
    engine.add(second)
    assert [len(engine.step()) for _ in range(4)] == [2] * 4
    assert (first.proposed, first.accepted, second.proposed) == (12, 12, 0)
    engine.cancel(second.id)
    assert [len(engine.step()) for _ in range(6)] == [5] * 6
    assert engine.is_idle
    assert engine.step() == []
    # what was accepted is kept like all that is read
    follows = [0, 1, 2] * 18
    assert prefixes.n_cached_tokens([follows]) == 52


def test_a_proposal_that_fails_ends_its_own_text_alone() -> None:
    draft = NGramDraft(3)
    draft.start_proposals = Mock(side_effect=ZeroDivisionError)  # type: ignore[method-assign]
    engine = Engine(HistoryModel(), chunk=64, draft=draft, only_exact_drafts=True, isolate_failures=True)
    first, second = requests_of([3, 4])
    id = engine.add(first)
    engine.step()
    assert engine.step() == []
    assert [(failed, type(error)) for failed, error in engine.failures] == [(id, ZeroDivisionError)]
    engine.add(second)
    assert [token.request for token in engine.step()] == [1]
