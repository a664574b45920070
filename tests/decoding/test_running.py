"""Prompts that are read in chunks, between the tokens of others; and texts that have a draft while they are alone."""

import random

import pytest
import torch

from lmtool.decoding.generate import generate, requests_of
from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.prefixes import PrefixCache
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.settings import Greedy, Sample
from lmtool.decoding.speculative import ModelDraft, NGramDraft
from lmtool.tokenization.prompt_format import Prompt
from tests.decoding.models import HistoryModel
from tests.decoding.test_batches import model_of, prompts_of
from tests.decoding.test_speculative import Repeating, transformer

CHUNK = 4


@pytest.fixture
def runner() -> ModelRunner:
    return ModelRunner(model_of("decoder", torch.float32))


def requests_in(runner: ModelRunner, lengths: list[int]) -> list:
    prompts = [Prompt(tuple(5 + (i + j) % 10 for j in range(n))) for i, n in enumerate(lengths)]
    strategy = Sampler(Greedy(max_new_tokens=3), frozenset(), torch.tensor([], dtype=torch.long), 0)
    return list(requests_of(prompts, strategy, 1, 3))


def test_a_short_prompt_does_not_wait_for_a_long_one(runner: ModelRunner) -> None:
    long, *short = requests_in(runner, [20, 2, 2])
    batch = RunningBatch(runner, CHUNK)
    batch.join(long)
    assert batch.step() == []
    for request in short:
        batch.join(request)
    begun = [{event.prompt for event in batch.step()} for _ in range(10)]
    assert begun[1] == {1, 2}
    assert next(step for step, prompts in enumerate(begun) if 0 in prompts) > 3


def test_a_long_prompt_is_read_although_short_ones_keep_coming(runner: ModelRunner) -> None:
    batch = RunningBatch(runner, CHUNK)
    long, *short = requests_in(runner, [20, *[3] * 40])
    batch.join(long)
    begun = []
    for step in range(40):
        batch.join(short[step])
        begun += [event.prompt for event in batch.step()]
        if 0 in begun:
            break
    assert step <= 20 // (CHUNK // 2)


DRAFTS = {
    "ngram": lambda model: NGramDraft(3),
    "itself": lambda model: ModelDraft(model, 3),
    "small": lambda model: ModelDraft(
        transformer(seed=9, n_layers=1, d_model=8, context=10, shape=SHAPES[model.reads])
    ),
}
SHAPES = {"past": "decoder", "source": "prefix"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("shape", ["decoder", "prefix", "encoder-decoder"])
def test_texts_are_the_same_with_a_draft_while_others_join_and_leave(shape: str, draft: str) -> None:
    """Greedy ones with every draft, and sampled ones as well, which only look-up drafts for. They also slide."""
    model, rng = transformer(shape=shape), random.Random(draft)
    prefixes = PrefixCache(1 << 20 if shape == "decoder" else 0, n_block=3)
    batch = RunningBatch(ModelRunner(model), CHUNK, prefixes, DRAFTS[draft](model))
    choices = [Greedy(max_new_tokens=25), Sample(max_new_tokens=30, temperature=1.1, top_k=5, seed=2)]
    waiting = [(prompt, rng.choice(choices), rng.random() < 0.2) for prompt in prompts_of(model, 14)]
    asked, answers = [], []
    while waiting or batch.requests:
        if waiting and rng.random() < (0.04 if batch.requests else 0.5):
            prompt, settings, is_short = waiting.pop()
            strategy = Sampler(settings, frozenset(), torch.tensor([], dtype=torch.long), 0)
            (request,) = requests_of([prompt], strategy, settings.seed, settings.max_new_tokens)
            request.prompt = len(asked)
            asked.append((prompt, settings, is_short, request))
            answers.append(([], []))
            batch.join(request)
        for event in batch.step():
            answers[event.prompt][0].append(event.token)
            answers[event.prompt][1].append(event.logprob)
            _, _, is_short, request = asked[event.prompt]
            if is_short and event.steps == 4:
                batch.leave(request)
    n_proposed = {Greedy: 0, Sample: 0}
    for (prompt, settings, is_short, request), (tokens, logprobs) in zip(asked, answers, strict=True):
        events = list(generate(model, [prompt], settings))
        n = len(tokens)
        assert n == len(events) or is_short
        assert tokens == [event.token for event in events][:n]
        assert logprobs == pytest.approx([event.logprob for event in events][:n], abs=1e-5)
        assert 0 <= request.accepted <= request.proposed
        n_proposed[type(settings)] += request.proposed
    assert n_proposed[Greedy] > 0
    assert (n_proposed[Sample] > 0) is (draft == "ngram")


def test_a_text_that_is_alone_takes_fewer_passes_and_one_beside_others_has_no_draft() -> None:
    model = Repeating()
    batch = RunningBatch(ModelRunner(model), 64, PrefixCache(1 << 20, n_block=4), NGramDraft(4))
    settings = Greedy(max_new_tokens=50)
    strategy = Sampler(settings, frozenset(), torch.tensor([], dtype=torch.long), 0)
    first, second = requests_of([Prompt((0, 1, 2, 0, 1)), Prompt((1, 2, 0, 1))], strategy, 1, 50)
    batch.join(first)
    assert [len(batch.step()) for _ in range(4)] == [1, 5, 5, 5]
    assert model.read == 5 + 15  # each position once
    batch.join(second)
    assert [len(batch.step()) for _ in range(4)] == [2] * 4
    assert (first.proposed, first.accepted, second.proposed) == (12, 12, 0)
    batch.leave(second)
    assert [len(batch.step()) for _ in range(6)] == [5] * 6
    assert batch.step() == batch.requests == []
    # what was accepted is kept like all that is read
    follows = [0, 1, 2] * 18
    assert batch._prefixes.n_known([follows]) == 52


def test_a_proposal_that_fails_ends_its_own_text_alone() -> None:
    model = HistoryModel()
    draft = NGramDraft(3)
    draft.beside = lambda *given: 1 // 0
    batch = RunningBatch(ModelRunner(model), 64, draft=draft, isolates=True)
    first, second = requests_in(ModelRunner(model), [3, 4])
    batch.join(first)
    batch.step()
    assert batch.step() == []
    assert [(request, type(error)) for request, error in batch.failures] == [(first, ZeroDivisionError)]
    batch.join(second)
    assert [event.prompt for event in batch.step()] == [1]
