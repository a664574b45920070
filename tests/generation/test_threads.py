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


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_of(generator: TextGenerator) -> tuple[list[int], list[int]]:
    """Threads in which two tokens are computed, and those of the caller between and after them."""
    inside: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, inside)
        outside = [torch.get_num_threads() for _ in generator.generate("a", SamplingParams("greedy", max_new_tokens=2))]
    return inside, [*outside, torch.get_num_threads()]


def watch(patch: pytest.MonkeyPatch, seen: list[int]) -> None:
    """Note the threads of each step."""
    step = Engine.step

    def stepping(self: Engine) -> list[Token]:
        seen.append(torch.get_num_threads())
        return step(self)

    patch.setattr(Engine, "step", stepping)


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_small_model_generates_with_one_thread(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(name="run")
    assert threads_of(TextGenerator.open(str(work.run()), device="cpu")) == ([1, 1], [2, 2, 2])
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        assert threads_of(TextGenerator.open(str(work.run()), device="cpu")) == ([2, 2], [2, 2, 2])
    monkeypatch.setattr(generating, "MAX_SINGLE_THREAD_PARAMETERS", 100)
    large = TextGenerator.open(str(work.run()), device="cpu")
    assert threads_of(large) == ([2, 2], [2, 2, 2])
    torch.set_num_threads(1)  # also after loading
    assert threads_of(large) == ([1, 1], [1, 1, 1])


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_replay_takes_the_threads_of_the_record(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(name="run")
    generator = TextGenerator.open(str(work.run()), device="cpu")
    params = SamplingParams("greedy", max_new_tokens=4)
    (completion,) = generator.completions("a", params)
    told = completion_record(generator, completion, params, {})
    assert told["threads"] == 1
    seen: list[int] = []
    watch(monkeypatch, seen)
    assert all(again.is_same for again in replay([told, {**told, "threads": 2}]))
    assert set(seen[: len(seen) // 2]) == {1}
    assert set(seen[len(seen) // 2 :]) == {2}
    assert torch.get_num_threads() == 2
