"""Requests that begin alike: the same tokens as without a cache of prefixes, fewer of them read, in bounded memory."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lmtool.generation.drafts import ModelDraft, NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request
from lmtool.generation.strategy import RequestState
from lmtool.model import LanguageModel
from lmtool.model.language_model import DecodeState
from lmtool.model.packed import pack_weights_
from lmtool.tokenization.prompt_format import Prompt
from tests.generation.models import HistoryModel
from tests.support import tiny

ROOM = 1 << 20
SETTINGS = [SamplingParams("greedy", max_new_tokens=9), SamplingParams(max_new_tokens=14, temperature=1.2, seed=3)]
Written = tuple[list[int], list[float]]


def greedy(n: int) -> SamplingParams:
    return SamplingParams("greedy", max_new_tokens=n)


def request_for(engine: Engine, text: Sequence[int], params: SamplingParams, **fields: Any) -> RequestState:
    return engine.create_request_state(Request(prompt=Prompt(tuple(text)), params=params, **fields))


def finished(engine: Engine, *states: RequestState) -> list[Written]:
    """(tokens, log-probabilities) of requests that are added now."""
    found: dict[int, Written] = {engine.add(state): ([], []) for state in states}
    while not engine.is_idle:
        for token in engine.step():
            found[token.request][0].append(token.id)
            found[token.request][1].append(token.logprob)
    return list(found.values())


def alone(model: LanguageModel, text: Sequence[int], settings: SamplingParams) -> Written:
    """The same by `generate`."""
    events = list(generate(model, [list(text)], settings))
    return [event.id for event in events], [event.logprob for event in events]


def reused(engine: Engine, text: Sequence[int], settings: SamplingParams) -> int:
    """How many tokens of a request are known; its answer is that of `generate`."""
    request = request_for(engine, text, settings)
    assert finished(engine, request) == [alone(HistoryModel(), text, settings)]
    return request.n_reused


def tensors_of(cache: PrefixCache) -> list[Any]:
    return [t for _, state in cache._blocks.values() for layer in state.layers for t in layer]


def n_bytes(cache: PrefixCache) -> int:
    """Of the memory that its tensors keep."""
    return sum(t.untyped_storage().nbytes() for t in tensors_of(cache))


def is_whole(cache: PrefixCache) -> bool:
    """Whether each block stands after one that is kept, which was used no earlier."""
    order = {0: len(cache._blocks)} | {number: i for i, (number, _) in enumerate(cache._blocks.values())}
    return all(order.get(before, -1) > i for i, (before, _) in enumerate(cache._blocks))


@pytest.mark.parametrize(
    ("kind", "draft"),
    [
        *(("disentangled", ""), ("n-grams", ""), ("full layers among windows", ""), ("shared layers", "")),
        *(("gpt2", "ngram"), ("gpt2", "itself")),
    ],
)
def test_conversations_that_begin_alike_are_answered_as_without(kind: str, draft: str) -> None:
    """They join at any time, some are given up, each turn begins with the one before; texts also slide.

    Texts that are alone have a draft: greedy ones any, and sampled ones one that only looks up.
    """
    model = tiny.model(**tiny.TRANSFORMERS[kind])
    cache, rng = PrefixCache(ROOM, n_block=3), random.Random(len(kind))
    drafting = ModelDraft(model, 3) if draft == "itself" else NGramDraft(3) if draft else None
    engine = Engine(model, chunk=5, prefixes=cache, draft=drafting, only_exact_drafts=True)
    n_proposed = {"greedy": 0, "sample": 0}
    system = [rng.randrange(tiny.VOCAB) for _ in range(7)]
    waiting = [(system[: rng.choice((3, 7))] + [rng.randrange(tiny.VOCAB)] * (1 + i % 3), 3) for i in range(8)]
    asked: dict[int, Any] = {}
    answers: dict[int, Written] = {}
    n_reused = n_prompts = 0
    while waiting or not engine.is_idle:
        if waiting and rng.random() < (0.4 if not draft or engine.is_idle else 0.04):
            (text, turns), settings = waiting.pop(), rng.choice(SETTINGS)
            request = request_for(engine, text, settings)
            asked[engine.add(request)] = text, turns, settings, request, rng.random() < 0.2
            answers[request.id] = ([], [])
        for event in engine.step():
            answers[event.request][0].append(event.id)
            answers[event.request][1].append(event.logprob)
            text, turns, _, request, is_short = asked[event.request]
            if event.finish_reason:
                n_reused, n_prompts = n_reused + request.n_reused, n_prompts + len(text)
                follows = [*text, *answers[event.request][0], rng.randrange(tiny.VOCAB)]
                if turns > 1 and len(follows) <= (model.context or 0):
                    waiting.append((follows, turns - 1))
            elif is_short and len(answers[event.request][0]) == 3:
                engine.cancel(event.request)
        assert is_whole(cache)
    assert len(asked) > 8
    assert 0.3 * n_prompts < n_reused < n_prompts
    for number, (text, _, settings, request, _) in asked.items():
        tokens, logprobs = alone(model, text, settings)
        n = len(answers[number][0])
        assert answers[number][0] == tokens[:n]
        assert answers[number][1] == pytest.approx(logprobs[:n], abs=1e-5)
        n_proposed[settings.strategy] += request.proposed
    assert (n_proposed["greedy"] > 0, n_proposed["sample"] > 0) == (bool(draft), draft == "ngram")
    assert sum(n_proposed.values()) == engine.n_proposed >= engine.n_accepted


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_a_prompt_after_kept_blocks_has_the_sums_of_one_read_in_such_chunks(precision: Any) -> None:
    """Bit for bit, in every precision."""
    model = tiny.model(dtype=torch.float32, **tiny.TRANSFORMERS["rotary"])
    if precision == "int8":
        pack_weights_(model, precision, torch.device("cpu"))
    text = tiny.tokens(18).tolist()
    cache = PrefixCache(ROOM, n_block=4)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        engine = Engine(model, chunk=4)
        (plainly,) = finished(engine, request_for(engine, text, SETTINGS[1]))
        for n_reused in (0, 16):
            engine = Engine(model, chunk=4, prefixes=cache)
            request = request_for(engine, text, SETTINGS[1])
            assert finished(engine, request) == [plainly]
            assert request.n_reused == n_reused
    kinds = {t.dtype for t in tensors_of(cache)}
    assert kinds == {torch.bfloat16 if precision == "bfloat16" else torch.float32}


def test_cached_blocks_are_not_read_again() -> None:
    model, cache = HistoryModel(), PrefixCache(ROOM, n_block=4)
    engine = Engine(model, chunk=64, prefixes=cache)
    text, settings = list(range(11)), greedy(6)
    ((answer, _),) = finished(engine, request_for(engine, text, settings))
    assert model.read == 11 + 5
    # the blocks of the text and its answer, but for its last token, which was not read
    follows = [*text, *answer, 3, 4]
    model.read = 0
    assert (reused(engine, follows, settings), model.read) == (16, 3 + 5)
    # another text, of which two blocks are known; its last token is always read
    for same, n_reused in ((8, 8), (9, 8), (7, 4), (3, 0)):
        assert reused(engine, [*text[:same], 10], settings) == n_reused
    assert reused(engine, text[:8], settings) == 4


def test_a_prompt_that_waits_begins_after_what_another_has_read_meanwhile() -> None:
    model, cache = HistoryModel(), PrefixCache(ROOM, n_block=4)
    engine, settings = Engine(model, chunk=8, prefixes=cache), greedy(2)
    texts = [[*range(10), *range(10), *ending] for ending in ([1], [2, 3], [3, 4, 5], [4, 5, 6, 7])]
    requests = [request_for(engine, text, settings) for text in texts]
    assert finished(engine, *requests) == [alone(HistoryModel(), text, settings) for text in texts]
    assert sorted(request.n_reused for request in requests)[2:] == [20, 20]


def test_probabilities_of_a_prompt_are_those_of_all_its_tokens() -> None:
    model = tiny.model(**tiny.TRANSFORMERS["rotary"])
    engine = Engine(model, chunk=4, prefixes=PrefixCache(ROOM, n_block=4))
    text = tiny.tokens(14).tolist()
    read = []
    for wants in (True, False, True):
        request = request_for(engine, text, SETTINGS[0], prompt_logprobs=wants)
        finished(engine, request)
        assert request.n_reused == (0 if wants else 12)
        read.append([(choice.id, choice.logprob) for choice in request.prompt])
    assert read[0] == read[2]
    assert len(read[0]) == len(text) - 1


def test_memory_is_bounded_whatever_is_asked() -> None:
    model = tiny.model(**tiny.TRANSFORMERS["n-grams"])
    block = PrefixCache(ROOM, n_block=2)
    engine = Engine(model, chunk=4, prefixes=block)
    finished(engine, request_for(engine, [1, 2], greedy(1)))
    size = n_bytes(block)
    assert size > 0
    for n_blocks in (0, 7, 20):
        cache = PrefixCache(n_blocks * size + size // 2, n_block=2)
        engine, rng = Engine(model, chunk=4, prefixes=cache), random.Random(n_blocks)
        for i in range(9):
            text = [rng.randrange(tiny.VOCAB) for _ in range(rng.randrange(1, 20))]
            engine.add(request_for(engine, text, greedy(1 + i)))
            for _ in range(rng.randrange(6)):
                engine.step()
                assert n_bytes(cache) <= n_blocks * size
                assert is_whole(cache)
        while not engine.is_idle:
            engine.step()
        assert n_bytes(cache) == n_blocks * size


def test_the_least_recently_used_block_is_evicted_leaves_of_the_tree_first() -> None:
    model, settings = HistoryModel(), greedy(1)
    cache = PrefixCache(5 * 2 * 4 * 2, n_block=2)  # five blocks of keys and values of two positions
    engine = Engine(model, chunk=64, prefixes=cache)

    def known(*text: int) -> int:
        return cache.n_cached_tokens([text])

    for text in ([1, 1, 2, 2], [1, 1, 3, 3], [4, 4, 5, 5]):
        finished(engine, request_for(engine, text, settings))
    assert known(1, 1, 2, 2) == known(1, 1, 3, 3) == known(4, 4, 5, 5) == 4
    finished(engine, request_for(engine, [1, 1, 2, 2, 0], settings))  # uses the first again
    finished(engine, request_for(engine, [6, 6], settings))
    assert (known(1, 1, 2, 2), known(1, 1, 3, 3), known(4, 4, 5, 5), known(6, 6)) == (4, 2, 4, 2)
    finished(engine, request_for(engine, [7, 7], settings))
    assert (known(1, 1, 2, 2), known(4, 4, 5, 5), known(6, 6), known(7, 7)) == (4, 2, 2, 2)
    finished(engine, request_for(engine, [8] * 20, settings))  # of a text that is too long, the beginning
    assert (known(*[8] * 20), known(1, 1)) == (10, 0)


def test_a_cancelled_prompt_leaves_its_blocks_in_the_cache() -> None:
    model, cache = HistoryModel(), PrefixCache(ROOM, n_block=2)
    engine, settings = Engine(model, chunk=4, prefixes=cache), greedy(4)
    text = list(range(11))
    gone = request_for(engine, text, settings)
    engine.add(gone)
    assert engine.step() == engine.step() == []
    engine.cancel(gone.id)
    assert reused(engine, text, settings) == 8


@pytest.mark.parametrize("fault", ["reading", "keeping"])
def test_an_error_ends_one_request_and_spoils_nothing_that_is_kept(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins with [1, 2, 3, 4] fails after that, or while blocks of it are kept."""
    model = tiny.model(**tiny.TRANSFORMERS["rotary"])
    cache = PrefixCache(ROOM, n_block=2)
    engine = Engine(model, chunk=6, prefixes=cache, isolate_failures=True)
    runner = engine.runner
    advance, part, n_parts = runner.read_tokens, DecodeState.copy_positions, 0

    def advancing(tokens: Any, state: DecodeState) -> Any:
        if any(9 in ids for ids in tokens):
            raise ZeroDivisionError
        return advance(tokens, state)

    def cutting(*given: Any) -> Any:
        nonlocal n_parts
        n_parts += 1
        if n_parts == 3:
            raise ZeroDivisionError
        return part(*given)

    with monkeypatch.context() as patch:
        if fault == "reading":
            patch.setattr(runner, "read_tokens", advancing)
        else:
            patch.setattr(DecodeState, "copy_positions", cutting)
        finished(engine, request_for(engine, [1, 2, 3, 4, 5, 6, 9, 5], SETTINGS[0]))
    assert is_whole(cache)
    assert cache.n_cached_tokens([[1, 2, 3, 4, 5, 6]]) == (6 if fault == "reading" else 4)
    texts = [[1, 2, 3, 4, i, 5, i] for i in (5, 7, 9)]
    requests = [request_for(engine, text, SETTINGS[0]) for text in texts]
    for text, (tokens, logprobs) in zip(texts, finished(engine, *requests), strict=True):
        expected = alone(model, text, SETTINGS[0])
        assert tokens == expected[0]
        assert logprobs == pytest.approx(expected[1], abs=1e-5)
    assert [request.n_reused for request in requests] == [4, 4, 4]
