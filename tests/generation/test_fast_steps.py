"""Steps with caches of fixed size give what growing caches give; on a GPU, graphs too."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lmtool.compute.kernels import gpu
from lmtool.generation import fast_steps as module
from lmtool.generation.fast_steps import FastStepsByShape, FixedShapeStep
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel, fixed
from lmtool.tokenization.prompt_format import Prompt
from tests.support import tiny
from tests.support.tiny import FAMILIES

CPU = torch.device("cpu")
MORE: dict[str, Any] = {"n": 2, "max_rows": 3, "end_ids": {0, 4}, "banned_ids": {1}}
GREEDY = SamplingParams("greedy", max_new_tokens=60)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each step that is taken with a cache of fixed size, on a CPU too."""
    monkeypatch.setattr(gpu, "GRAPH_DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(fixed, "MIN_SLOTS", 16)
    monkeypatch.setattr(fixed, "SOURCE_LENGTH_MULTIPLE", 4)
    monkeypatch.setattr(module, "STEPS_BEFORE_CAPTURE", 2)
    rows: list[int] = []
    call = FixedShapeStep.__call__

    def noted(self: FixedShapeStep, tokens_B1: torch.Tensor, state: Any) -> Any:
        rows.append(len(tokens_B1))
        return call(self, tokens_B1, state)

    monkeypatch.setattr(FixedShapeStep, "__call__", noted)
    return rows


def prompts_for(model: LanguageModel, lengths: Sequence[int]) -> list[Prompt]:
    source = tuple(tiny.tokens(4, seed=5).tolist()) if model.reads == "source" else None
    return [Prompt(tuple(tiny.tokens(n, seed=n).tolist()), source) for n in lengths]


def events(model: LanguageModel, settings: Any, lengths: Sequence[int] = (3, 6, 2), **more: Any) -> dict[Any, Any]:
    found: dict[Any, list[tuple[int, float]]] = {}
    for event in generate(model, prompts_for(model, lengths), settings, **more):
        found.setdefault((event.request, event.sample), []).append((event.id, event.logprob))
    return found


def assert_same(found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, pairs in found.items():
        assert [token for token, _ in pairs] == [token for token, _ in wanted[key]]
        assert [logprob for _, logprob in pairs] == pytest.approx([logprob for _, logprob in wanted[key]], abs=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("family", ["gpt2", "n-grams", "t5"])
def test_captured_steps_give_the_tokens_of_plain_ones(taken: list[int], family: str, device: str) -> None:
    """Of prompts of several lengths, that slide at the end of the context, and that join and leave."""
    model = tiny.model(**FAMILIES[family]).to(device)
    settings = SamplingParams(max_new_tokens=30, min_new_tokens=9, top_k=9, temperature=0.8, repetition_penalty=1.2)
    found = events(model, settings, **MORE)
    assert {1, 2, 3} >= set(taken)
    assert len(taken) > 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "GRAPH_DEVICES", ())
        assert_same(found, events(model, settings, **MORE))


def test_each_shape_is_captured_once(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Mock(wraps=gpu.capture_cuda_graph)
    monkeypatch.setattr(gpu, "capture_cuda_graph", capture)
    model = tiny.model(**FAMILIES["alibi"], context=200)
    events(model, GREEDY, [3] * 4, max_rows=1)
    assert capture.call_count == 3  # of 16, 32 and 64 slots
    monkeypatch.setattr(module, "MAX_GRAPHS", 1)
    events(model, GREEDY, [3], max_rows=1)
    assert capture.call_count == 4


def test_a_short_text_waits_for_no_capture(taken: list[int]) -> None:
    events(tiny.model(**FAMILIES["gpt2"]), SamplingParams("greedy", max_new_tokens=module.STEPS_BEFORE_CAPTURE + 1))
    assert not taken


def test_what_cannot_be_captured_is_computed_as_before(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(**FAMILIES["alibi"], context=200)
    capture_cuda_graph, left = gpu.capture_cuda_graph, [1, 0]

    def fails(*of: Any) -> Any:
        if not left.pop(0):
            raise RuntimeError("operation not permitted when stream is capturing")
        return capture_cuda_graph(*of)

    monkeypatch.setattr(gpu, "capture_cuda_graph", fails)
    found = events(model, GREEDY, [3])
    assert taken
    assert not left
    monkeypatch.setattr(gpu, "GRAPH_DEVICES", ())
    assert_same(found, events(model, GREEDY, [3]))


@pytest.mark.parametrize("family", ["lstm", "gru luong", "3-gram"])
def test_families_without_a_fixed_cache_take_no_fast_steps(taken: list[int], family: str) -> None:
    events(tiny.model(**FAMILIES[family]), SamplingParams("greedy", max_new_tokens=12), max_rows=2)
    assert not taken


def test_unknown_mixers_many_rows_and_beams_take_no_fast_steps(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(**FAMILIES["gpt2"])
    events(model, SamplingParams("greedy", max_new_tokens=12), [2] * (module.MAX_GRAPH_ROWS + 1))
    events(model, SamplingParams("beam", num_beams=3, max_new_tokens=12), [4])
    # a beam of one text starts from a line that is not shared yet
    assert set(taken) <= {3}
    monkeypatch.setattr(module, "NATIVE_MIXERS", ())
    assert FastStepsByShape(model, CPU).find_or_capture_step(tiny.start(model, 1)) is None


@pytest.mark.gpu
def test_captured_steps_under_autocast(taken: list[int]) -> None:
    """Weights that autocast casts are cast anew in each replay, also when its cache is gone."""
    model = tiny.model(dtype=torch.float32, **FAMILIES["gpt2"]).cuda()

    def written() -> dict[Any, Any]:
        found: dict[Any, list[tuple[int, float]]] = {}
        iterator = generate(model, prompts_for(model, [3, 5]), SamplingParams("greedy", max_new_tokens=15))
        while True:
            with torch.autocast("cuda", torch.bfloat16):
                event = next(iterator, None)
            if event is None:
                return found
            torch.randn(1000, 1000, device="cuda")
            found.setdefault(event.request, []).append((event.id, event.logprob))

    found = written()
    assert taken
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "GRAPH_DEVICES", ())
        wanted = written()
    for prompt, pairs in found.items():
        # a near tie may be decided by rounding; until then the texts are the same
        same = [a[0] == b[0] for a, b in zip(pairs, wanted[prompt], strict=True)]
        n = same.index(False) if False in same else len(same)
        assert n > 3
        assert [p for _, p in pairs[:n]] == pytest.approx([p for _, p in wanted[prompt][:n]], abs=0.1)
