"""Prompts that are read in chunks, between the tokens of others."""

import pytest
import torch

from lmtool.decoding.generate import requests_of
from lmtool.decoding.model_runner import ModelRunner
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.sampler import Sampler
from lmtool.decoding.settings import Greedy
from lmtool.tokenization.prompt_format import Prompt
from tests.decoding.test_batches import model_of

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
