"""Nobody waits for the work that others make: it is done beside the event loop, and beside the model."""

import asyncio
import functools
import gc
import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from lmtool.generation import engine
from lmtool.generation.forms import TextForm
from lmtool.generation.params import SamplingParams
from lmtool.generation.request import Request
from lmtool.serving import protocol, response_builder, service
from lmtool.serving.application import SHORT_BODY_BYTES
from lmtool.serving.protocol import MAX_VALUES
from lmtool.serving.scheduler import Scheduler
from lmtool.tokenization.tokenizer import Tokenizer
from tests.serving.harness import Served, served

WORK: list[tuple[Any, str]] = [
    *((Tokenizer, name) for name in ("encode", "encode_many", "encode_with_offsets", "display_token")),
    (engine, "request_key"),
    (protocol, "parse_body"),
    (response_builder, "encode_json_list"),
    (service, "encode_json_list"),
    (service, "check_form_and_create_state"),
    (TextForm, "__post_init__"),
]
"""What takes the longer, the longer a request or its answer is."""


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Where each kind of work is done: in the event loop, on the thread of the model, or beside them."""
    found: dict[str, set[str]] = {}

    def watched(name: str, working: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(working)
        def call(*given: Any, **options: Any) -> Any:
            try:
                asyncio.get_running_loop()
                thread = "event loop"
            except RuntimeError:
                thread = "model" if threading.current_thread().name == "model" else "beside"
            found.setdefault(name, set()).add(thread)
            return working(*given, **options)

        return call

    for owner, name in WORK:
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    monkeypatch.setattr("lmtool.serving.application.parse_body", protocol.parse_body)
    return found


REQUESTS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "completion": (
        "/v1/completions",
        {"prompt": ["Who", "saw"], "n": 2, "max_tokens": 3, "logprobs": 3, "echo": True, "seed": 1},
        {"encode", "display_token", "request_key", "encode_json_list"},
    ),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Who?"}],
            "max_tokens": 3,
            "logprobs": True,
            "top_logprobs": 3,
            "seed": 1,  # whose first token is not the end
        },
        {"display_token", "request_key", "encode_json_list"},
    ),
    "form": (
        "/v1/completions",
        {"prompt": "Who", "max_tokens": 3, "guided_regex": "[ab]+"},
        {"encode", "check_form_and_create_state", "__post_init__"},
    ),
    "embeddings": ("/v1/embeddings", {"input": ["Who", "saw it?"]}, {"encode", "encode_json_list"}),
    "embeddings of a long text": ("/v1/embeddings", {"input": ["Who " * 2000]}, {"encode"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_work_is_done_beside_the_event_loop_and_the_model(
    server: Served, where: dict[str, set[str]], name: str
) -> None:
    path, asked, kinds = REQUESTS[name]
    with server.http() as client:
        assert client.post(path, json=asked).status_code in (200, 400)
    assert {"parse_body", *kinds} <= where.keys()
    assert all(threads == {"beside"} for threads in where.values())


def test_classes_are_judged_of_texts_that_are_encoded_beside(classifier: str, where: dict[str, set[str]]) -> None:
    with served(classifier) as found, found.http() as client:
        where.clear()
        assert client.post("/classify", json={"input": ["the cat sat"] * 20}).status_code == 200
    assert where == {kind: {"beside"} for kind in ("parse_body", "encode_many", "encode_json_list")}


def test_a_short_request_does_not_wait_for_a_long_one(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    long, released, begun = "Who " * SHORT_BODY_BYTES, threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def waiting(self: Tokenizer, text: str) -> list[int]:
        if len(text) >= len(long):
            begun.set()
            assert released.wait(60)
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", waiting)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with server.http() as client:
            answers.append(client.post("/v1/embeddings", json={"input": long}))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        assert begun.wait(60)
        with server.http() as client:
            assert client.post("/v1/embeddings", json={"input": "Who"}).status_code == 200
            assert client.post("/v1/completions", json={"prompt": "Who", "max_tokens": 2}).status_code == 200
            assert client.get("/health").status_code == 200
        assert not answers
    finally:
        released.set()
        for thread in threads:
            thread.join()
    assert {answer.status_code for answer in answers} == {400}


MANY_VALUES = {
    "lists": b'{"prompt": [' + b"[1]," * MAX_VALUES + b"[1]]}",
    "numbers": b'{"prompt": [' + b"1," * 2 * MAX_VALUES + b"1]}",
    "fields": b"{" + b",".join(b'"%d":1' % i for i in range(MAX_VALUES)) + b"}",
    "strings": b'{"messages": [' + b'"",' * MAX_VALUES + b'""]}',
}


@pytest.mark.parametrize("body", MANY_VALUES.values(), ids=MANY_VALUES)
def test_a_body_of_too_many_values_is_not_read(server: Served, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda raw: pytest.fail("it was read"))
    with server.http() as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/classify"):
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 413
            assert f"more than {MAX_VALUES} values".encode() in answer.content


def test_commas_and_brackets_in_texts_are_no_values_and_many_wrong_fields_are_counted(server: Served) -> None:
    with server.http() as client:
        for text in ('[{,"\\' * (MAX_VALUES // 2), "{" * MAX_VALUES * 2):
            answer = client.post("/v1/completions", json={"prompt": text})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        many = client.post("/v1/completions", json={f"field {i}": 1 for i in range(5000)})
    assert many.status_code == 400
    assert "5000" in many.json()["error"]["message"], "they are not listed one by one"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify"])
def test_no_computation_of_a_text_is_long(
    server: Served, classifier: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(service, "GROUP_TOKENS", 20)
    steps: list[int] = []
    compute = Scheduler.run_between_steps

    async def counted(self: Scheduler, call: Any) -> Any:
        steps.append(sum(len(row.tokens) for row in call.args[0]))
        return await compute(self, call)

    monkeypatch.setattr(Scheduler, "run_between_steps", counted)
    with served(classifier) if path == "/classify" else nullcontext(server) as found, found.http() as client:
        answer = client.post(path, json={"input": [*["cat"] * 20, "the cat sat on the mat", "a", "dog"]})
    assert answer.status_code == 200
    assert [one["index"] for one in answer.json()["data"]] == list(range(23))
    assert 1 < len(steps) < 23
    longest = len("the cat sat on the mat") + 2
    assert max(steps) < 20 + longest


def test_a_model_without_a_context_embeds_no_very_long_text(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_EMBEDDED_TOKENS", 40)
    monkeypatch.setattr(server.generator.loaded.model, "context", None)
    with server.http() as client:
        assert client.post("/v1/embeddings", json={"input": ["a", "cat"]}).status_code == 200
        refused = client.post("/v1/embeddings", json={"input": ["a", "the cat sat on the mat " * 20]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("input: text 2 has ")


def test_the_model_is_not_searched_for_garbage(talker: str) -> None:
    """That would stop all threads for long, whenever an answer has many parts."""
    before = gc.get_freeze_count()
    with served(talker) as found:
        spec = found.generator.loaded.recipe
        assert gc.get_freeze_count() > before
        assert not any(one is spec.__dict__ or one is found.generator for one in gc.get_objects())
    assert gc.get_freeze_count() == 0


def test_a_backlog_of_one_stream_leaves_others_their_turn(server: Served) -> None:
    """Tokens that wait for a reader are not handed over in one go."""

    async def read() -> list[int]:
        scheduler, turns, at = server.scheduler, 0, list[int]()
        prompt_format = server.generator.loaded.prompt_format

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        params = SamplingParams(seed=1, temperature=0.0, max_new_tokens=30)
        asked = Request(prompt=prompt_format.make_prompt("Who"), params=params, prompt_format=prompt_format)
        async with scheduler.generate([asked]) as updates:
            async for token in updates:
                if not at:
                    while scheduler._texts:
                        await asyncio.sleep(0.01)
                    counting = asyncio.create_task(count())
                    await asyncio.sleep(0.01)
                at.append(turns)
                assert token.text is not None
        counting.cancel()
        return at

    assert server.scheduler._loop is not None
    at = asyncio.run_coroutine_threadsafe(read(), server.scheduler._loop).result()
    assert len(at) == len(set(at)) == 30
