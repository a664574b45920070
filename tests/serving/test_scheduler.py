"""Each text is that of `lmtool generate` alone, whoever else joins and leaves."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch

from lmtool.errors import NumericalError
from lmtool.generation import filters
from lmtool.generation.detokenizer import IncrementalDetokenizer
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.generate import TextGenerator
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import SamplingParams
from lmtool.generation.prefix_cache import PrefixCache
from lmtool.generation.request import Request, Token, build_requests
from lmtool.generation.strategy import Sampler
from lmtool.serving import scheduler as scheduling
from lmtool.serving.errors import QueueFull, ShuttingDown
from lmtool.serving.metrics import Metrics
from lmtool.serving.scheduler import Scheduler, choose_cache_token_budget
from tests.support.training import Work

Result = TypeVar("Result")

TRANSFORMER = "kind: transformer, n_layers: 2, d_model: 16, n_heads: 2, context: 16"
FAMILIES = {
    "decoder": (f"model={{{TRANSFORMER}, position: {{kind: rotary}}}}",),
    "encoder-decoder": (f"model={{{TRANSFORMER}, shape: encoder-decoder}}", "objective.kind=prefix"),
    "lstm": ("model={kind: recurrent, n_layers: 1, d_model: 16, context: 16, cell: lstm}",),
}
PROMPTS = ("a cat", "dog sat on mat", "the", "and ran away", "mat", "cat on the m", "home", "a dog ran")
SETTINGS = (
    SamplingParams(seed=1, temperature=1.0, max_new_tokens=30),
    SamplingParams(seed=2, temperature=0.0, max_new_tokens=5),
    SamplingParams(seed=3, temperature=1.5, max_new_tokens=12, top_k=7),
    SamplingParams(seed=4, temperature=0.8, max_new_tokens=40, top_p=0.9, repetition_penalty=1.3),
    SamplingParams(seed=5, max_new_tokens=40, frequency_penalty=0.5, presence_penalty=0.5),
)
ENDLESS = SamplingParams(seed=1, temperature=1.0, max_new_tokens=100_000, min_new_tokens=100_000)


def run(test: Callable[[Scheduler], Coroutine[Any, Any, Result]], generator: TextGenerator, **options: Any) -> Result:
    """The result of a test of a scheduler, which fails where it hangs."""

    async def tested() -> Result:
        scheduler = Scheduler(generator, Metrics(), **options)
        scheduler.open(asyncio.get_running_loop())
        try:
            return await asyncio.wait_for(test(scheduler), 300)
        finally:
            scheduler.close()

    return asyncio.run(tested())


def asking(generator: TextGenerator, prompt: str, settings: SamplingParams, n: int = 1, **fields: Any) -> list[Request]:
    prompt_format = generator.loaded.prompt_format
    prompts = [prompt_format.make_prompt(prompt)]
    return [*build_requests(prompts, n, params=settings, prompt_format=prompt_format, **fields)]


async def texts_of(scheduler: Scheduler, asked: list[Request]) -> list[str]:
    """All texts of a client, put together from what streams."""
    texts = [""] * len(asked)
    async with scheduler.generate(asked) as updates:
        async for token in updates:
            texts[token.request] += token.text
            if token.completion is not None:
                assert token.completion.text == texts[token.request]
    return texts


def counted(scheduler: Scheduler, name: str) -> float:
    """The value of a counter."""
    (line,) = (line for line in scheduler._metrics.to_prometheus().splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return Work(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def decoder(made: Work) -> TextGenerator:
    return generator_of(made, "decoder")


def generator_of(made: Work, family: str) -> TextGenerator:
    """A briefly trained model, which is trained once."""
    if not made.run(family).exists():
        made.pretrain(*FAMILIES[family], "training.steps=4", name=family)
    return TextGenerator.open(str(made.run(family)), device="cpu")


@pytest.mark.parametrize(("family", "chunk"), [("decoder", 2), ("encoder-decoder", 2), ("lstm", 256)])
def test_texts_are_those_of_generate_alone(
    made: Work, family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "CHUNK_TOKENS", chunk)
    monkeypatch.setattr(scheduling, "PrefixCache", partial(PrefixCache, n_block=2))
    generator = generator_of(made, family)
    asked = [
        asking(generator, prompt, SETTINGS[i % len(SETTINGS)], n=1 + i % 2, stop=("sat",) * (i % 3 == 0))
        for i, prompt in enumerate(PROMPTS)
    ]

    async def together(scheduler: Scheduler) -> list[list[str]]:
        async def later(number: int) -> list[str]:
            await asyncio.sleep(number % 3 * 0.02)
            return await texts_of(scheduler, asked[number])

        return list(await asyncio.gather(*map(later, range(len(asked)))))

    expected = [
        generator.complete(prompt, one[0].params, n=len(one), stop=one[0].stop, max_rows=1)
        for prompt, one in zip(PROMPTS, asked, strict=True)
    ]
    assert run(together, generator, n_rows=5) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_that_were_read_are_reused_where_the_state_goes_back(
    made: Work, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "PrefixCache", partial(PrefixCache, n_block=2))
    generator = generator_of(made, family)
    asked = asking(generator, "a cat", SETTINGS[0])
    expected = generator.complete("a cat", SETTINGS[0])
    n = len(asked[0].prompt.tokens)

    async def twice(scheduler: Scheduler) -> tuple[str, float]:
        for _ in range(2):
            assert await texts_of(scheduler, asked) == expected
        return scheduler.describe(), counted(scheduler, "lmtool_reused_prompt_tokens_total")

    described, n_reused = run(twice, generator)
    assert n_reused == ((n - 1) // 2 * 2 if family == "decoder" else 0)
    assert ("GB of prefixes" in described) is (family == "decoder")
    described, n_reused = run(twice, generator, keeps_prefixes=False)
    assert ("of prefixes" in described, n_reused) == (False, 0)


@pytest.mark.parametrize("kind", ["ngram", "model"])
def test_texts_with_a_draft_are_those_without(decoder: TextGenerator, kind: str) -> None:
    """Alone and beside others; sampled ones have only a draft that looks up."""
    draft: Draft = NGramDraft(4) if kind == "ngram" else ModelDraft(decoder.loaded.model, 4)
    greedy = SamplingParams(seed=1, temperature=0.0, max_new_tokens=40)
    cases = [(prompt, settings) for prompt in PROMPTS[:2] for settings in (greedy, SETTINGS[0])]
    asked = [asking(decoder, *case) for case in cases]
    expected = [decoder.complete(*case) for case in cases]

    async def drafted(scheduler: Scheduler) -> None:
        n_proposed = 0.0
        for (_, settings), one, texts in zip(cases, asked, expected, strict=True):
            assert await texts_of(scheduler, one) == texts
            before, n_proposed = n_proposed, counted(scheduler, "lmtool_proposed_tokens_total")
            grows = n_proposed > before
            assert grows if settings is greedy else kind == "ngram" or not grows
        assert list(await asyncio.gather(*(texts_of(scheduler, one) for one in asked))) == expected
        n_accepted = counted(scheduler, "lmtool_accepted_tokens_total")
        assert 0 < n_accepted <= counted(scheduler, "lmtool_proposed_tokens_total")

    run(drafted, TextGenerator(decoder.loaded, draft))


def test_a_client_that_leaves_frees_its_rows(decoder: TextGenerator) -> None:
    async def leaving(scheduler: Scheduler) -> None:
        async with scheduler.generate(asking(decoder, "a", ENDLESS, n=6)) as updates:
            async for _ in updates:
                break
        # both rows were taken, so this one is generated only when they are free
        await texts_of(scheduler, asking(decoder, "a", replace(ENDLESS, max_new_tokens=3, min_new_tokens=3), n=2))

    run(leaving, decoder, n_rows=2)


def test_the_budget_bounds_what_is_in_flight(decoder: TextGenerator) -> None:
    asked = asking(decoder, "a", SamplingParams(seed=1, temperature=1.0, max_new_tokens=9), n=6)
    length = len(asked[0].prompt.tokens) + 9

    async def widest(scheduler: Scheduler) -> int:
        live: set[int] = set()
        most = 0
        async with scheduler.generate(asked) as updates:
            async for token in updates:
                live = live - {token.request} if token.completion else live | {token.request}
                most = max(most, len(live))
        return most

    assert run(widest, decoder, n_slots=3 * length) == 3
    assert run(widest, decoder, n_slots=3 * length - 1) == 2
    assert run(widest, decoder, n_slots=1) == 1
    assert run(widest, decoder, n_rows=4) == 4


def test_the_queue_is_bounded_and_ends(decoder: TextGenerator) -> None:
    long = asking(decoder, "a", ENDLESS)

    async def filled(scheduler: Scheduler) -> None:
        async with scheduler.generate(long) as updates:
            await anext(updates)
            async with scheduler.generate(long):
                with pytest.raises(QueueFull):
                    async with scheduler.generate(long):
                        pass
                with pytest.raises(QueueFull):
                    await scheduler.run_between_steps(lambda: 1)
            scheduler.stop_accepting()
            with pytest.raises(ShuttingDown):
                async with scheduler.generate(long):
                    pass

    run(filled, decoder, n_rows=1, n_queued=1)


FAULTS: dict[str, tuple[Any, str, Callable[..., Iterable[Sequence[int]]]]] = {
    "joining": (Engine, "add", lambda self, state: [state.request.prompt.text]),
    "reading": (ModelRunner, "create_initial_state", lambda self, windows: [window.tokens for window in windows]),
    "advancing": (ModelRunner, "read_tokens", lambda self, tokens, state: tokens),
    "filtering": (filters, "apply_logits_processors", lambda scores, params, texts, *rest: texts),
    "choosing": (Sampler, "make_step", lambda self, state, *rest: [state.hypotheses[0].text]),
    "writing": (IncrementalDetokenizer, "__init__", lambda self, request, form: [request.prompt.text]),
}
"""A part of decoding, and the texts that it is given."""


def poison_(monkeypatch: pytest.MonkeyPatch, fault: str, poison: tuple[int, ...]) -> None:
    """Make one part of decoding fail, or give no numbers, for texts that begin with these ids."""
    owner, name, texts_of = FAULTS["advancing" if fault == "nan" else fault]
    working = getattr(owner, name)

    def failing(*given: Any, **options: Any) -> Any:
        is_poisoned = [tuple(ids[: len(poison)]) == poison for ids in texts_of(*given, **options)]
        if fault != "nan":
            assert not any(is_poisoned)
            return working(*given, **options)
        hidden_BTD, after = working(*given, **options)
        hidden_BTD = hidden_BTD.clone()
        hidden_BTD[is_poisoned] = torch.nan
        return hidden_BTD, after

    monkeypatch.setattr(owner, name, failing)


async def together(scheduler: Scheduler, every: list[list[Request]]) -> list[Any]:
    """The texts of each, or the exception that ended it."""
    return await asyncio.gather(*(texts_of(scheduler, one) for one in every), return_exceptions=True)


@pytest.mark.parametrize("fault", [*FAULTS, "nan"])
def test_a_text_that_fails_ends_its_own_request_alone(
    decoder: TextGenerator, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    settings = SamplingParams(seed=1, temperature=1.0, max_new_tokens=12)
    prompts = ("a cat", "a mat", "and ran away")
    others = [asking(decoder, prompt, settings, n=2) for prompt in prompts]
    expected = [decoder.complete(prompt, settings, n=2) for prompt in prompts]
    poisoned = asking(decoder, "a dog", settings, n=2)

    async def failing(scheduler: Scheduler) -> None:
        for _ in range(2):
            *found, failed, last = await together(scheduler, [*others[:2], poisoned, others[2]])
            assert [*found, last] == expected
            assert isinstance(failed, NumericalError if fault == "nan" else AssertionError)
        assert await texts_of(scheduler, others[0]) == expected[0]

    poison_(monkeypatch, fault, poisoned[0].prompt.tokens)
    run(failing, decoder)


def test_a_text_that_fails_later_ends_its_own_request_alone(
    decoder: TextGenerator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poison = decoder.loaded.tokenizer.encode("d")[0]
    never = SamplingParams(seed=1, temperature=1.0, max_new_tokens=40, logit_bias=(((poison,), -100.0),))
    some = replace(never, logit_bias=(((poison,), 3.0),), max_new_tokens=200)
    step, advance, push = ModelRunner.decode_step_, ModelRunner.read_tokens, IncrementalDetokenizer.push

    def stepping(self: ModelRunner, tokens: Sequence[int], state: Any) -> Any:
        assert poison not in tokens
        return step(self, tokens, state)

    def advancing(self: ModelRunner, tokens: Any, state: Any) -> Any:
        assert not any(poison in ids for ids in tokens)
        return advance(self, tokens, state)

    def pushing(self: IncrementalDetokenizer, token: Token, *rest: Any) -> Any:
        assert token.id != poison
        return push(self, token, *rest)

    asked = [asking(decoder, prompt, never, n=2) for prompt in ("a cat", "the mat")]
    expected = [decoder.complete(prompt, never, n=2) for prompt in ("a cat", "the mat")]
    bad = asking(decoder, "mat", some)

    async def failing(scheduler: Scheduler) -> None:
        first, failed, last = await together(scheduler, [asked[0], bad, asked[1]])
        assert isinstance(failed, AssertionError)
        assert [first, last] == expected

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "decode_step_", stepping)
        patch.setattr(ModelRunner, "read_tokens", advancing)
        run(failing, decoder)
    assert "requests apart" in caplog.text
    monkeypatch.setattr(IncrementalDetokenizer, "push", pushing)
    run(failing, decoder)


def test_a_fault_between_tokens_is_told_to_all_in_the_batch(
    decoder: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(decoder, "a", SamplingParams(seed=1, temperature=1.0, max_new_tokens=4))
    endless = asking(decoder, "a", ENDLESS)

    def failing(*given: Any) -> None:
        raise ZeroDivisionError

    async def leaving(scheduler: Scheduler) -> None:
        async with scheduler.generate(endless) as updates:
            await anext(updates)
            with monkeypatch.context() as patch:
                patch.setattr(Engine, "cancel", failing)
                async with scheduler.generate(endless) as others:
                    await anext(others)
                with pytest.raises(ZeroDivisionError):
                    [_ async for _ in updates]
        assert await texts_of(scheduler, asked) == decoder.complete("a", asked[0].params)

    run(leaving, decoder)


def test_memory_that_is_short_for_all_together_ends_all(
    decoder: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(decoder, "a", SamplingParams(seed=1, temperature=1.0, max_new_tokens=4), n=2)

    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError

    async def failing(scheduler: Scheduler) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ModelRunner, "decode_step_", full)
            assert all(isinstance(one, torch.OutOfMemoryError) for one in await together(scheduler, [asked, asked]))
        assert await texts_of(scheduler, asked) == decoder.complete("a", asked[0].params, n=2)

    run(failing, decoder)


def test_a_computation_that_fails_raises_and_the_next_is_done(decoder: TextGenerator) -> None:
    async def failing(scheduler: Scheduler) -> None:
        with pytest.raises(ZeroDivisionError):
            await scheduler.run_between_steps(lambda: 1 // 0)
        assert await scheduler.run_between_steps(lambda: 3) == 3

    run(failing, decoder)


def test_the_default_budget() -> None:
    assert choose_cache_token_budget(0, 8, 64, 1 << 30) is None
    assert choose_cache_token_budget(1000, 8, 64, 1 << 40) == 8 * 64
    assert choose_cache_token_budget(1000, 8, 10**6, 16_000_000) == 10**6
    assert choose_cache_token_budget(1000, 8, None, 16_000_000) == 1000
    assert choose_cache_token_budget(1000, 8, 100, 16_000_000) == 800
