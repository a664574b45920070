"""Who is answered, and what is told of requests that are not."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from lmtool.serving import application, server
from lmtool.serving.guard import AccessPolicy, read_api_key
from lmtool.serving.server import ServerConfig
from tests.serving import harness
from tests.serving.harness import Served, samples, served, until
from tests.support.errors import refuses

KEY = "a-key-of-some-length"
ASKED = {"prompt": "Who", "max_tokens": 2}


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with server.http() as found:
        yield found


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_hosts_are_addresses_and_known_names() -> None:
    policy = AccessPolicy("127.0.0.1", None, ["box.example"])
    known = ["localhost:8000", "127.0.0.1", "[::1]:8000", "192.168.1.5:8000", "box.example:8000", "BOX.example"]
    others = ["evil.example", "evilbox.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1"]
    assert [host for host in [*known, *others] if policy.allows_host(host)] == known


def test_a_page_elsewhere_cannot_use_the_server(client: httpx.Client, server: Served) -> None:
    own = server.address
    for origin, status in ((own, 200), ("http://evil.example", 403), ("null", 403), (own + "0", 403), ("", 403)):
        answer = client.post("/v1/completions", json=ASKED, headers={"origin": origin})
        assert answer.status_code == status, origin
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/v1/completions", content=json.dumps(ASKED)).status_code == 415


def test_a_key_is_asked_for(talker: str) -> None:
    with served(talker, ServerConfig(access=AccessPolicy("127.0.0.1", KEY))) as found, found.http() as client:
        assert client.get("/").status_code == client.get("/health").status_code == 200
        for given in ("", KEY, "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"):
            answer = client.get("/v1/models", headers={b"authorization": given.encode()})
            assert answer.status_code == 401, given
            assert error_of(answer)["code"] == "invalid_api_key"
        assert client.get("/metrics").status_code == 401
        with found.client(api_key=KEY) as official:
            assert official.models.list().data


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with refuses("usage"):
        read_api_key(file)
    for wrong in (b"", b"short", b"two words of a sentence", "é".encode() * 20):
        file.write_bytes(wrong)
        with refuses("usage"):
            read_api_key(file)
    file.write_text(f"{KEY}\n")
    assert read_api_key(file) == KEY


def test_what_is_nowhere_and_what_is_no_json(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert error_of(answer)["type"] == "invalid_request_error"
    json_type = {"content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b"[" * 100_000, b'{"prompt": "\\ud800"}'):
        answer = client.post("/v1/completions", content=body, headers=json_type)
        assert answer.status_code == 400, body
        error_of(answer)
    monkeypatch.setattr(application, "MAX_BODY_BYTES", 1000)
    assert client.post("/v1/completions", json={"prompt": "a" * 1000}).status_code == 413


HOST = b"Host: 127.0.0.1\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST
COMPLETION = (
    b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def status_of(connection: socket.socket, request: bytes) -> int:
    """The status of the answer to a request, which is read."""
    connection.sendall(request)
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def half_heads(found: Served, number: int, address: str) -> list[socket.socket]:
    """Connections of one address that have each sent half a request."""
    every = [found.connect(address) for _ in range(number)]
    for connection in every:
        with suppress(ConnectionError):
            connection.sendall(HEALTH)
    return every


def test_half_requests_of_one_client_shut_nobody_out(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_CLIENT", 4)
    with served(talker) as found, ExitStack() as stack:
        for address in ("127.0.0.1", "127.0.0.3"):
            for connection in half_heads(found, 6, address):
                stack.enter_context(connection)
        for asking in ("127.0.0.1", "127.0.0.2"):
            [connection] = half_heads(found, 1, asking)
            assert status_of(stack.enter_context(connection), b"\r\n") == 200


def test_requests_that_run_are_not_closed_for_others(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS_PER_CLIENT", 1)
    body = json.dumps(ASKED).encode()
    with served(talker) as found, found.connect() as first:
        first.sendall(COMPLETION % len(body))
        time.sleep(0.2)
        with found.connect() as second:
            assert second.recv(1) == b""
        assert status_of(first, body) == 200


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_network_of_ipv6_is_one_client(one: str, other: str, alike: bool) -> None:
    assert (server._client_network((one, 1)) == server._client_network((other, 2))) is alike


HALVES: dict[str, tuple[bytes, bytes, int]] = {
    "nothing": (b"", b"", 0),
    "nothing more": (b"", b"", 3),
    "half a line": (b"GET /heal", b"", 1),
    "a slow line": (b"GET /heal", b"l", 0),
    "a slow line later": (b"GET /heal", b"l", 3),
    "slow headers": (HEALTH + b"X: ", b"y", 1),
    "blank lines": (b"", b"\r\n", 3),
    "an unread body": (COMPLETION % 999_999, b"a", 1),
    "unread chunks": (HEALTH + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", 0),
}
"""What a client sends at the end, what it sends then again and again, and how many requests it made before."""


@pytest.mark.slow
def test_nobody_holds_a_connection_with_half_a_request(talker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, so that the waits are one."""
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)
    ended = threading.Event()

    def drip(connection: socket.socket, drips: bytes) -> None:
        with suppress(OSError):
            while drips and not ended.wait(0.02):
                connection.sendall(drips)

    with served(talker) as found, ExitStack() as held:
        connections, dripping = {}, []
        for name, (begins, drips, n_before) in HALVES.items():
            connection = connections[name] = held.enter_context(found.connect())
            for _ in range(n_before):
                assert status_of(connection, HEALTH + b"\r\n") == 200
            connection.sendall(begins)
            dripping.append(threading.Thread(target=drip, args=(connection, drips)))
            dripping[-1].start()
        try:
            for name, connection in connections.items():
                connection.settimeout(30)
                try:
                    with suppress(ConnectionResetError):
                        while connection.recv(65536):
                            pass
                except TimeoutError:
                    pytest.fail(f"{name} holds a connection")
        finally:
            ended.set()
            for thread in dripping:
                thread.join()


def test_a_body_after_a_first_answer_comes_in_time_too(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "BODY_TIMEOUT_SECONDS", 0.1)
    with server.connect() as connection:
        assert status_of(connection, HEALTH + b"\r\n") == 200
        assert status_of(connection, COMPLETION % 9 + b"{") == 408


def with_little_memory(host: str, port: int) -> socket.socket:
    """A socket that listens, whose connections hold little that is not yet read."""
    found = server.open_listener(host, port)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return found


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_that_nobody_reads_holds_no_connection(
    talker: str, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(harness, "open_listener", with_little_memory)
    asked = {"prompt": ["Who saw it? " * 14] * 16, "max_tokens": 1, "echo": True, "logprobs": 20, "stream": streams}
    body = json.dumps(asked).encode()
    with served(talker) as found, socket.socket() as connection, found.http() as client:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = found.address.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(COMPLETION % len(body) + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert until(lambda: client.get("/health").status_code == 200), "nobody else is let in"


def test_a_client_that_reads_slowly_is_not_disconnected() -> None:
    transport, loop = MagicMock(), MagicMock()
    connection = server._TimeoutAndEvictionConnection(uvicorn.Config(MagicMock()), ServerState(), {}, loop)
    transport.get_write_buffer_size.return_value = 1000
    connection.connection_made(transport)
    connection.pause_writing()
    for unsent, is_aborted in ((900, False), (400, False), (400, True)):
        transport.get_write_buffer_size.return_value = unsent
        _, call, *given = loop.call_later.call_args.args
        call(*given)
        assert transport.abort.called is is_aborted


def test_the_log_holds_no_prompts_unless_asked(talker: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for logs_prompts in (False, True):
        caplog.clear()
        with served(talker, ServerConfig(logs_prompts=logs_prompts)) as found, found.http() as client:
            for asked in ({"prompt": "Who saw secret"}, {"prompt": "Who saw secret", "secret": 1}):
                client.post("/v1/completions", json={**asked, "max_tokens": 2})
        assert "POST /v1/completions 200" in caplog.text
        assert "POST /v1/completions 400" in caplog.text
        assert ("saw secret" in caplog.text) is logs_prompts


def test_metrics_count_tokens_requests_and_waits(talker: str) -> None:
    with served(talker) as found, found.http() as client:
        n_read = len(found.generator.loaded.prompt_format.make_prompt("Who").tokens)
        answers = [client.post("/v1/completions", json={**ASKED, "n": 2, "seed": 1}).json() for _ in range(3)]
        client.get("/nothing")
        counted = samples(client.get("/metrics").text)
        assert counted["lmtool_generated_tokens_total"] == sum(one["usage"]["completion_tokens"] for one in answers)
        assert counted["lmtool_prompt_tokens_total"] == 6 * n_read
        assert counted['lmtool_requests_total{status="200"}'] == 3
        assert counted['lmtool_requests_total{status="404"}'] == 1
        assert counted["lmtool_first_token_seconds_count"] == 6
        assert counted['lmtool_first_token_seconds_bucket{le="+Inf"}'] == 6
        assert until(lambda: samples(client.get("/metrics").text)["lmtool_running_texts"] == 0)
