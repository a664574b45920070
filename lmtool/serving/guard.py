"""Access control, logging and metrics around the application."""

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
from lmtool.printable import printable
from lmtool.serving.errors import ApiError
from lmtool.serving.metrics import Metrics

log = logging.getLogger("lmtool.serving")

PUBLIC_PATHS = frozenset(("/", "/health"))
"""Paths that need no key: the page, which asks for it, and the health check."""

MIN_KEY_CHARACTERS = 16
"""Minimum characters of an API key."""


def read_api_key(path: Path) -> str:
    """Reads the API key in a file. Raises UsageError if it is missing, short, or not ASCII."""
    where, fix = printable(str(path)), f"write a line of at least {MIN_KEY_CHARACTERS} ASCII characters into it"
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise UsageError(f"the API key cannot be read: {reason}", where=where, fix=fix) from None
    if len(key) < MIN_KEY_CHARACTERS or not key.isprintable() or " " in key:
        raise UsageError("the file holds no API key", where=where, fix=fix)
    return key


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AccessPolicy:
    """Checks who may use the server.

    A foreign page can make a browser send requests here. The browser then sends the page in Origin and, after DNS
    rebinding, its name in Host: so both must name this server, by an address or a known name.
    """

    def __init__(self, host: str, key: str | None, names: Collection[str] = ()) -> None:
        """host: the listening address. key: the API key; None for no key. names: other names of this machine."""
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), *(name.lower() for name in names)}

    def allows_host(self, host: str) -> bool:
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

    def accepts_key(self, authorization: str) -> bool:
        """Whether an Authorization header has the key, compared in constant time."""
        if self._digest is None:
            return True
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest) and scheme.lower() == "bearer"


class AccessAndLoggingMiddleware:
    """Applies an access policy to requests, and logs and counts responses. It never logs what is asked.

    n_open: requests in progress.
    """

    def __init__(self, app: ASGIApp, access: AccessPolicy, metrics: Metrics) -> None:
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
            await (self._find_rejection_response(scope) or self._app)(scope, receive, sending)
        except Exception as error:
            log.exception("a request failed: %s", type(error).__name__)
            if not status:
                await _error_response(500, "the server failed; its log says why")(scope, receive, sending)
        finally:
            self.n_open -= 1
            self._metrics.requests.labels(str(status or "gone")).inc()
            seconds, client = time.perf_counter() - began, (scope.get("client") or ("?",))[0]
            path = printable(scope["path"])[:100]
            log.info("%s %s %s %s %.3f s", client, scope["method"], path, status or "gone", seconds)

    def _find_rejection_response(self, scope: Scope) -> ASGIApp | None:
        """Returns the error response to a request that the policy rejects; None for others."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            # a proxy that reads the other length would take part of the body for a request
            return _error_response(400, "the length of the body is ambiguous", connection="close")
        if len(hosts) != 1 or not self._access.allows_host(hosts[0]):
            return _error_response(403, "the Host header does not name this server; see --allow-host")
        scheme, _, name = (*origins, "")[0].lower().partition("://")
        if origins and (len(origins) > 1 or scheme not in ("http", "https") or name != hosts[0].lower()):
            return _error_response(403, "pages of other origins may not use this server")
        if scope["path"] not in PUBLIC_PATHS and not self._access.accepts_key(headers.get("authorization", "")):
            return _error_response(401, "this server needs an API key", "invalid_api_key", www_authenticate="Bearer")
        return None


def _error_response(status: int, message: str, code: str | None = None, **headers: str) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(ApiError(status, message, code=code).body, status, named)
