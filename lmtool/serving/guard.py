"""What stands before the application: who may ask, from where, and what becomes of all that goes wrong."""

import hashlib
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmtool.errors import UsageError
from lmtool.printable import plain
from lmtool.serving.errors import ApiError
from lmtool.serving.metrics import Metrics

log = logging.getLogger("lmtool.serving")

OPEN_PATHS = frozenset(("/", "/health"))
"""What is answered without a key: the page, which asks for it, and whether the server lives."""

LEAST_KEY = 16
"""Minimum characters of an API key."""


def read_key(path: Path) -> str:
    """The API key in a file. Raises UsageError where it is missing, short, or not ASCII."""
    where, fix = plain(str(path)), f"write a line of at least {LEAST_KEY} ASCII characters into it"
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise UsageError(f"the API key cannot be read: {reason}", where=where, fix=fix) from None
    if len(key) < LEAST_KEY or not key.isprintable() or " " in key:
        raise UsageError("the file holds no API key", where=where, fix=fix)
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """Who may use the server.

    A page elsewhere can make its visitor's browser send requests here. It says so in Origin, and where it rebinds its
    own name to this address, in Host: so both must name this server, by an address or a known name.
    """

    def __init__(self, host: str, key: str | None, names: Collection[str] = ()) -> None:
        """host: the address that is listened on. key: None for all. names: other names of this machine."""
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), *(name.lower() for name in names)}

    def knows_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.removesuffix(".") in self._names
        return True

    def takes(self, authorization: str) -> bool:
        """Whether an Authorization header holds the key, compared in constant time."""
        if self._digest is None:
            return True
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest) and scheme.lower() == "bearer"


class Guard:
    """The application behind access control; logs and counts what is answered, never what is asked.

    n_open: requests that are answered at the moment.
    """

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics) -> None:
        self._app, self._access, self._metrics = app, access, metrics
        self.n_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
            await send(message)

        self.n_open += 1
        try:
            refusal = self._refusal(scope)
            await (self._app if refusal is None else refusal)(scope, receive, sending)
        except Exception as error:
            log.exception("a request failed: %s", type(error).__name__)
            if not status:
                await _refused(500, "the server failed; its log says why")(scope, receive, sending)
        finally:
            self.n_open -= 1
            self._metrics.requests.labels(str(status or "gone")).inc()
            seconds, client = time.perf_counter() - began, (scope.get("client") or ("?",))[0]
            path = plain(scope["path"])[:100]
            log.info("%s %s %s %s %.3f s", client, scope["method"], path, status or "gone", seconds)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            # where a proxy in front reads the other length, what is a body to one is a request to the other
            return _refused(400, "the length of the body is ambiguous", connection="close")
        if len(hosts) != 1 or not self._access.knows_host(hosts[0]):
            return _refused(403, "this is not the server that Host names; see --allow-host")
        if origins and (len(origins) > 1 or not _is_same(origins[0], hosts[0])):
            return _refused(403, "pages of other origins may not use this server")
        if scope["path"] not in OPEN_PATHS and not self._access.takes(headers.get("authorization", "")):
            return _refused(401, "this server asks for its API key", "invalid_api_key", www_authenticate="Bearer")
        return None


def _is_same(origin: str, host: str) -> bool:
    parts = origin.partition("://")
    return parts[0] in ("http", "https") and parts[2].lower() == host.lower()


def _refused(status: int, message: str, code: str | None = None, **headers: str) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(ApiError(status, message, code=code).body, status, named)
