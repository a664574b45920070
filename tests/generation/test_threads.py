"""With how many threads a CPU generates."""

from collections.abc import Iterator

import pytest
import torch

from lmtool.generation import generate as generating
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.generation.replay import completion_record, replay
from lmtool.generation.request import Token
from tests.support.training import Work

PARAMS = SamplingParams("greedy", max_new_tokens=2)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The threads of each step, where the caller has two."""
    before, step, seen = torch.get_num_threads(), Engine.step, list[int]()

    def stepping(self: Engine) -> list[Token]:
        seen.append(torch.get_num_threads())
        return step(self)

    monkeypatch.setattr(Engine, "step", stepping)
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield seen
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a_small_model_and_its_replay_generate_with_one_thread(
    work: Work, monkeypatch: pytest.MonkeyPatch, inside: list[int]
) -> None:
    work.pretrain(name="run")
    run = str(work.run())

    def threads_of(generator: TextGenerator) -> tuple[list[int], list[int]]:
        """Threads in which two tokens are computed, and those of the caller between and after them."""
        inside.clear()
        outside = [torch.get_num_threads() for _ in generator.generate("a", PARAMS)]
        return list(inside), [*outside, torch.get_num_threads()]

    small = TextGenerator.open(run, device="cpu")
    assert threads_of(small) == ([1, 1], [2, 2, 2])
    told = completion_record(small, next(small.completions("a", PARAMS)), PARAMS, {})
    assert told["threads"] == 1
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        assert threads_of(TextGenerator.open(run, device="cpu")) == ([2, 2], [2, 2, 2])
    inside.clear()
    assert all(again.is_same for again in replay([told, {**told, "threads": 2}]))
    assert inside == [1, 1, 2, 2]
    monkeypatch.setattr(generating, "MAX_SINGLE_THREAD_PARAMETERS", 100)
    large = TextGenerator.open(run, device="cpu")
    assert threads_of(large) == ([2, 2], [2, 2, 2])
    torch.set_num_threads(1)  # also after loading
    assert threads_of(large) == ([1, 1], [1, 1, 1])
