"""Random and malformed requests, and clients that break off: no answer of 500, no hang, no leak."""

import gc
import json
import logging
import random
import re
import threading
import time
from contextlib import suppress
from itertools import product
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tests.serving.harness import Served, samples, served, until

FIELDS = [
    *("model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop"),
    *("logit_bias", "stream", "stream_options", "logprobs", "echo", "best_of", "suffix", "messages"),
    *("role", "content", "input", "encoding_format", "frequency_penalty", "top_logprobs", "user"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(FIELDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=4),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text(max_size=30) | st.lists(st.integers(-1, 400), max_size=9) | st.lists(st.text(), max_size=3),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": st.text(max_size=9)}
            ),
            max_size=3,
        ),
        "input": st.text(max_size=30) | st.lists(st.text(max_size=9), max_size=3),
        "max_tokens": st.integers(-1, 6),
        "temperature": st.floats(-1, 200),
        "top_p": st.floats(0, 1.1),
        "n": st.integers(0, 3),
        "seed": st.integers(-1, 2**64),
        "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=2),
        "logit_bias": st.dictionaries(st.integers(-1, 400).map(str), st.floats(-101, 101), max_size=2),
        "logprobs": st.integers(-1, 21) | st.booleans(),
        "echo": st.booleans(),
        "stream": st.booleans(),
        "repetition_penalty": st.floats(0, 11),
        "frequency_penalty": st.floats(-3, 3),
        "presence_penalty": st.floats(-3, 3),
    },
)
PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/classify"])
BODIES = JSON.map(json.dumps).map(str.encode) | NEARLY.map(json.dumps).map(str.encode) | st.binary(max_size=50)


@pytest.mark.slow
def test_ten_thousand_random_requests_leave_nothing_behind(server: Served) -> None:
    process, memory = psutil.Process(), []
    with server.http() as client:

        @settings(max_examples=2_500, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(PATHS, BODIES)
        def run(path: str, body: bytes) -> None:
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400, 404), (answer.status_code, path, body)
            if answer.status_code != 200:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert answer.text.endswith("data: [DONE]\n\n")
                assert '"error"' not in answer.text

        for _ in range(4):
            run()
            gc.collect()
            memory.append(process.memory_info().rss)
    assert memory[3] <= 1.05 * memory[1], memory


def test_a_text_that_a_tokenizer_panics_on_is_the_clients_fault(talker: str) -> None:
    with served(talker) as found, found.http() as client:
        tokenizer = found.generator.loaded.tokenizer
        tokenizer._inner.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
        answer = client.post("/v1/completions", json={"prompt": "a" * 40 + "b", "max_tokens": 2})
        assert answer.status_code == 400
        assert "fails on this text" in answer.json()["error"]["message"]
        assert client.post("/v1/completions", json={"prompt": "Who", "max_tokens": 2}).status_code == 200


HOST = "Host: 127.0.0.1\r\n"
JSON_TYPE = "Content-Type: application/json\r\n"
SECOND = f"GET /second HTTP/1.1\r\n{HOST}\r\n"
CHUNKED = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}Transfer-Encoding: chunked\r\n"
BODY = '{"prompt": "Who", "max_tokens": 3}'
CHUNKS = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"


def whole_answer(server: Served, *parts: str, pause: float = 0.02) -> bytes:
    """What comes back until the connection is closed, for bytes that are sent in these parts."""
    answer = b""
    with server.connect() as connection, suppress(ConnectionError):
        for i, part in enumerate(parts):
            time.sleep(pause * bool(i))
            connection.sendall(part.encode("latin-1"))
        while more := connection.recv(65536):
            answer += more
    return answer


def statuses(answer: bytes) -> list[str]:
    return re.findall(r"HTTP/1\.1 (\d+) ", answer.decode("latin-1"))


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.exc_info or "Traceback" in one.getMessage()]


TWO_LENGTHS = [
    ("1.1", "Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n"),
    ("1.1", "transfer-encoding: chunked\r\ncontent-length: 0\r\n"),
    ("1.1", "Transfer-Encoding:\tCHUNKED\r\nContent-Length: {n}, {n}\r\n"),
    ("1.1", "Content-Length: 1\r\nContent-Length: {n}\r\n"),
    ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    ("1.1", "Transfer-Encoding: gzip, chunked\r\n"),
    ("1.1", "Transfer-Encoding: identity\r\n"),
    ("1.1", "Content-Length: +{n}\r\n"),
    ("1.0", "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n"),
]


@pytest.mark.parametrize(
    ("path", "is_apart"), [("/v1/completions", False), ("/v1/completions", True), ("/health", True)]
)
def test_a_body_of_two_lengths_is_refused_and_what_follows_it_is_no_request(
    server: Served, caplog: pytest.LogCaptureFixture, path: str, is_apart: bool
) -> None:
    caplog.set_level(logging.INFO)
    for version, lengths in TWO_LENGTHS:
        head = f"POST {path} HTTP/{version}\r\n{HOST}{JSON_TYPE}{lengths.format(n=len(CHUNKS))}\r\n"
        sent = (head, CHUNKS + SECOND) if is_apart else (head + CHUNKS + SECOND,)
        assert statuses(whole_answer(server, *sent)) == ["400"], lengths
    assert "/second" not in caplog.text
    assert tracebacks(caplog) == []


@pytest.mark.parametrize(
    "body", ["zz\r\n", "5\r\nabcdefgh\r\n", "-1\r\n\r\n", "f" * 40, "1\r\na\r\n0\r\n\x00: y\r\n\r\n"]
)
def test_a_malformed_body_ends_the_connection_alone(
    server: Served, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    heads = [CHUNKED, CHUNKED.replace("application/json", "text/plain"), CHUNKED + "Expect: 100-continue\r\n"]
    heads += [CHUNKED.replace("/v1/completions", "/nothing"), CHUNKED.replace("127.0.0.1", "evil.example")]
    heads += [CHUNKED.replace("POST /v1/completions", "GET /health")]
    for head, begun, pause in product(heads, ("", "1\r\n{\r\n"), (0.0, 0.02)):
        answer = whole_answer(server, f"{head}\r\n{begun}", body + SECOND, pause=pause)
        assert all(status.startswith(("1", "4")) or status == "200" for status in statuses(answer)), answer
        assert b"no such endpoint" not in answer or b"/nothing" in head.encode()
    assert "/second" not in caplog.text
    assert tracebacks(caplog) == []


def test_what_is_malformed_behind_a_stream_leaves_no_traceback(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    asked = json.dumps({"prompt": "Who", "max_tokens": 100, "temperature": 0, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}Content-Length: {len(asked)}\r\n"
    for end in ("\r\n", "Connection: close\r\n\r\n"):
        for garbage in ("\0\0\0\r\n\r\n", "GET / HTTP/9\r\n\r\n", SECOND + "\0\r\n\r\n"):
            answer = whole_answer(server, head + end + asked, garbage)
            assert statuses(answer)[:1] in (["200"], ["400"])
    assert tracebacks(caplog) == []


REQUEST_LINES = [
    *("CONNECT localhost:80 HTTP/1.1", "CONNECT / HTTP/1.1", "OPTIONS * HTTP/1.1", "TRACE / HTTP/1.1"),
    *("GET http://[::1 HTTP/1.1", "GET //evil.example/%2e%2e HTTP/1.1", "GET /%ff%00%0a HTTP/1.1", "G@T / HTTP/1.1"),
    *("GET /health HTTP/2.0", "GET /health", "\x16\x03\x01\x02", "GET /%s HTTP/1.1" % ("a" * 70_000)),
    *("POST / HTTP/1.1", "HEAD /v1/models HTTP/1.1", "PRI * HTTP/2.0"),
]
HEADERS = [
    *(HOST, "", f"{HOST}{HOST}", "Host: [::1\r\n", f"{HOST}Upgrade: websocket\r\nConnection: Upgrade\r\n"),
    *(f"{HOST}Authorization: \xff\r\n", f"{HOST} folded\r\n", f"{HOST}X\x00: y\r\n"),
    f"{HOST}Content-Length: 9e9\r\n",
]


def test_no_malformed_request_leaves_a_traceback(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    for request_line, headers in product(REQUEST_LINES, HEADERS):
        answer = whole_answer(server, f"{request_line}\r\n{headers}Connection: close\r\n\r\n", pause=0)
        assert all(status[0] in "24" for status in statuses(answer)), (request_line, headers, answer)
    assert tracebacks(caplog) == []


def broken_off(address: str, seed: int, problems: list[Any]) -> None:
    """A client that goes away at some moment."""
    rng = random.Random(seed)
    asked: dict[str, Any] = {"prompt": "Who saw", "max_tokens": 4000, "seed": seed, "n": rng.choice((1, 2))}
    asked["stream"] = rng.random() < 0.7
    try:
        timeout = httpx.Timeout(60, read=rng.choice((0.001, 0.05, 0.2, 60)))
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=timeout) as answer:
            if not asked["stream"]:
                return
            for _, _line in zip(range(rng.randrange(20)), answer.iter_lines(), strict=False):
                pass
    except httpx.TimeoutException:
        pass
    except Exception as error:
        problems.append(error)


def test_clients_that_break_off_leave_nothing_behind(talker: str) -> None:
    problems: list[Any] = []
    with served(talker) as found, found.http() as client:
        threads = [threading.Thread(target=broken_off, args=(found.address, i, problems)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        unfinished = ("lmtool_running_texts", "lmtool_waiting_requests")
        assert until(lambda: not any(samples(client.get("/metrics").text)[name] for name in unfinished))
        assert client.post("/v1/completions", json={"prompt": "Who", "max_tokens": 3}).status_code == 200


def test_a_reader_that_stops_reading_stalls_nobody(server: Served) -> None:
    body = json.dumps({"prompt": "Who", "max_tokens": 4000, "stream": True, "logprobs": 20, "n": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}"
    with server.connect() as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        with server.http() as client:
            for seed in range(5):
                asked = {"prompt": "Who", "max_tokens": 5, "seed": seed}
                assert client.post("/v1/completions", json=asked).status_code == 200
