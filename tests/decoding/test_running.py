"""Prompts that are read in chunks, between the tokens of others."""

import pytest
import torch

from lmtool.decoding.chain import Chain
from lmtool.decoding.generate import requests_of
from lmtool.decoding.reader import Prompt, Reader
from lmtool.decoding.running import RunningBatch
from lmtool.decoding.settings import Greedy
from tests.decoding.test_batches import model_of

CHUNK = 4


@pytest.fixture
def reader() -> Reader:
    return Reader(model_of("decoder", torch.float32))


def requests_in(reader: Reader, lengths: list[int]) -> list:
    prompts = [Prompt(tuple(5 + (i + j) % 10 for j in range(n))) for i, n in enumerate(lengths)]
    strategy = Chain(Greedy(max_new_tokens=3), frozenset(), torch.tensor([], dtype=torch.long), 0)
    return list(requests_of(prompts, strategy, 1, 3))


def test_a_short_prompt_does_not_wait_for_a_long_one(reader: Reader) -> None:
    long, *short = requests_in(reader, [20, 2, 2])
    batch = RunningBatch(reader, CHUNK)
    batch.join(long)
    assert batch.step() == []
    for request in short:
        batch.join(request)
    begun = [{event.prompt for event in batch.step()} for _ in range(10)]
    assert begun[1] == {1, 2}
    assert next(step for step, prompts in enumerate(begun) if 0 in prompts) > 3


def test_a_long_prompt_is_read_although_short_ones_keep_coming(reader: Reader) -> None:
    batch = RunningBatch(reader, CHUNK)
    long, *short = requests_in(reader, [20, *[3] * 40])
    batch.join(long)
    begun = []
    for step in range(40):
        batch.join(short[step])
        begun += [event.prompt for event in batch.step()]
        if 0 in begun:
            break
    assert step <= 20 // (CHUNK // 2)
