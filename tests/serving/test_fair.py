"""Whatever others ask for, a text goes on in each step of the batch, and no step does much else."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from lmtool.generation.constrained import MAX_FORCED_CHARACTERS, FormState, check_form_and_create_state
from lmtool.generation.engine import Engine
from lmtool.generation.forms import TextForm
from lmtool.generation.model_runner import ModelRunner
from lmtool.serving.scheduler import CHUNK_TOKENS, Scheduler
from lmtool.serving.server import ServerConfig
from lmtool.serving.service import GROUP_TOKENS
from tests.serving.harness import Served, served

VICTIM: dict[str, Any] = {"prompt": "Who saw", "max_tokens": 25, "seed": 1, "logit_bias": {"1": -100}}
"""A text that does not end before."""

N_ROWS = 8


@pytest.fixture
def watched(talker: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server, and of each of its steps the victim's tokens, those that the model read, and other computations."""
    turn, step = Scheduler._run_iteration, Engine.step
    steps = [Counter[str]()]

    def turning(self: Scheduler, call: Any) -> None:
        steps.append(Counter(calls=int(call is not None)))
        turn(self, call)

    def stepping(self: Engine) -> Any:
        limits = {id: state.request.params.max_new_tokens for id, state in self._states.items()}
        tokens = step(self)
        steps[-1]["victim"] += sum(limits[token.request] == VICTIM["max_tokens"] for token in tokens)
        return tokens

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(ModelRunner, name)

        def counting(self: ModelRunner, tokens: Sequence[Any], state: Any) -> Any:
            steps[-1]["read"] += sum(len(row) if name == "read_tokens" else 1 for row in tokens)
            return call(self, tokens, state)

        return counting

    with served(talker, ServerConfig(n_rows=N_ROWS)) as server:
        monkeypatch.setattr(Scheduler, "_run_iteration", turning)
        monkeypatch.setattr(Engine, "step", stepping)
        for name in ("read_tokens", "decode_step_"):
            monkeypatch.setattr(ModelRunner, name, counted(name))
        yield server, steps


@asynccontextmanager
async def beside(client: httpx.AsyncClient, path: str, body: Any, timeout: float) -> AsyncIterator[list[int]]:
    """A context in which three clients send a request again and again. Gives the statuses of the answers."""
    statuses: list[int] = []

    async def heavy() -> None:
        while True:
            try:
                statuses.append((await client.post(path, json=body, timeout=timeout)).status_code)
            except httpx.TimeoutException:
                statuses.append(0)

    tasks = [asyncio.create_task(heavy()) for _ in range(3)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


RECORD = {
    "type": "object",
    "properties": {f"name_{i}": {"type": "string", "maxLength": 9} for i in range(80)},
    "required": [f"name_{i}" for i in range(80)],
    "additionalProperties": False,
}
HEAVY: dict[str, tuple[dict[str, Any], int]] = {
    "a large schema": ({"guided_json": RECORD}, 200),
    "many certain characters": ({"guided_regex": "a" * 20_000}, 200),
    "an expression": ({"guided_regex": "(a{1000}){1000}"}, 400),
    "samples": ({"n": 64}, 200),
    "probabilities": ({"prompt": "Who " * 40, "n": 8, "echo": True, "logprobs": 5}, 200),
    "vectors": ({"input": ["Who saw the ball?"] * 64}, 200),
    "clients that go away": ({"n": 64, "max_tokens": 200}, 0),
}
"""What others ask for, and how that is answered."""


@pytest.mark.parametrize("kind", HEAVY)
def test_a_text_goes_on_in_each_step(watched: tuple[Served, list[Counter[str]]], kind: str) -> None:
    """From its first token to its last."""
    server, steps = watched
    body, expected = HEAVY[kind]
    path, max_read = "/v1/completions", CHUNK_TOKENS + N_ROWS
    if kind == "vectors":
        path, max_read = "/v1/embeddings", max_read + GROUP_TOKENS
    else:
        body = {"prompt": "Tom saw it", "max_tokens": 12, **body}

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=server.address) as client:
            async with beside(client, path, body, 60 if expected else 0.2) as statuses:
                while not statuses:
                    await asyncio.sleep(0.01)
                answer = await client.post("/v1/completions", json=VICTIM, timeout=120)
                assert answer.json()["usage"]["completion_tokens"] == VICTIM["max_tokens"]
            return statuses

    assert set(asyncio.run(ask())) == {expected}
    at = [i for i, step in enumerate(steps) if step["victim"]]
    of_victim = steps[at[0] : at[-1] + 1]
    assert [step["victim"] for step in of_victim] == [1] * 25
    assert max(step["calls"] for step in of_victim) <= 1
    assert max(step["read"] for step in of_victim) <= max_read


@pytest.mark.slow
def test_a_client_does_not_wait_for_all_texts_of_another(talker: str) -> None:
    ended: list[str] = []

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=server.address, timeout=120) as client:

            async def text(name: str, **fields: Any) -> None:
                await client.post("/v1/completions", json={**VICTIM, "max_tokens": 40, **fields})
                ended.append(name)

            many = asyncio.create_task(text("many", n=12))
            while not server.scheduler._texts:
                await asyncio.sleep(0.005)
            await asyncio.gather(many, text("one"))

    with served(talker, ServerConfig(n_rows=2)) as server:
        asyncio.run(ask())
    assert ended == ["one", "many"]


def test_probabilities_of_a_prompt_are_computed_once_for_all_samples(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Mock(wraps=Engine._score_next_window_tokens)
    monkeypatch.setattr(Engine, "_score_next_window_tokens", lambda self, *given: compute(self, *given))
    with server.http() as client:
        body = {"prompt": "Who saw the ball?", "n": 8, "max_tokens": 2, "echo": True, "logprobs": 2}
        answer = client.post("/v1/completions", json=body).json()
    assert compute.call_count == 1
    n_read = answer["usage"]["prompt_tokens"]  # a text may end with its first token
    prompts = [one["logprobs"]["token_logprobs"][:n_read] for one in answer["choices"]]
    assert prompts == prompts[:1] * 8
    assert len(prompts[0]) > 3


def test_forced_text_is_tokenized_only_as_far_as_it_is_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.generator.loaded.tokenizer
    vocabulary = check_form_and_create_state(TextForm("regex", "a"), tokenizer)._vocabulary
    encode = Mock(wraps=tokenizer.encode_without_prefix_space)
    monkeypatch.setattr(vocabulary, "_encode", lambda: encode)
    state = check_form_and_create_state(TextForm("grammar", f'start: x{{300}}\nx: "{"Who " * 300}"'), tokenizer)
    assert len(state.forced_tokens) > 200
    assert max(len(call.args[0]) for call in encode.call_args_list) == MAX_FORCED_CHARACTERS


def test_closing_tokens_keep_no_states_of_the_form_alive(server: Served) -> None:
    tokenizer = server.generator.loaded.tokenizer
    schema = json.dumps({"type": "string", "minLength": 300})
    state = check_form_and_create_state(TextForm("json-schema", schema, complete=True), tokenizer)
    gc.collect()
    before = sum(isinstance(one, FormState) for one in gc.get_objects())
    assert len(state.closing_tokens or ()) > 200
    assert sum(isinstance(one, FormState) for one in gc.get_objects()) <= before + 2


def test_closing_tokens_are_not_searched_for_at_every_token(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=FormState.__init__)
    monkeypatch.setattr(FormState, "__init__", lambda self, *given: made(self, *given))
    schema = {"type": "string", "minLength": 100, "maxLength": 150}
    with server.http() as client:
        body = {"prompt": "Who", "guided_json": schema, "guided_complete": True, "max_tokens": 200, "seed": 1}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert 100 <= len(json.loads(choice["text"])) <= 150
    assert choice["finish_reason"] == "stop"
    assert made.call_count < 3000  # 5,293 where each token has a search of its own
