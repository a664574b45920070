"""The page on which a person labels: what it asks for, and its server."""

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmtool.labelling.labelling import Labelling
from lmtool.serving.application import make_application, read_body
from lmtool.serving.guard import AccessMiddleware, AccessPolicy
from lmtool.serving.metrics import Metrics
from lmtool.serving.page import page_response
from lmtool.serving.protocol import parse_body
from lmtool.serving.server import ServerConfig, serve_until_signal

HOST = "127.0.0.1"

Short = Annotated[str, Field(max_length=1000)]


class Asked(BaseModel, extra="forbid"):
    """What a window asks for. window: its name. row, version, labels: of an answer. text: what is looked for."""

    window: Annotated[str, Field(min_length=1, max_length=64)]
    row: int = -1
    version: int = -1
    labels: Annotated[list[Short], Field(max_length=500)] | None = None
    text: Short = ""


def guard_of(labelling: Labelling, key: str) -> AccessMiddleware:
    """The application that asks a person who knows the key."""
    calls: dict[str, Callable[[Asked], dict[str, Any]]] = {
        "/next": lambda body: labelling.next(body.window),
        "/answer": lambda body: labelling.answer(body.window, body.row, body.version, body.labels),
        "/find": lambda body: {"rows": labelling.find(body.text)},
        "/progress": lambda body: labelling.progress(),
    }

    async def post(request: Request) -> Response:
        body = parse_body(Asked, await read_body(request))
        return JSONResponse(await run_in_threadpool(calls[request.url.path], body))

    async def page(request: Request) -> Response:
        return page_response("label")

    routes = [Route("/", page), *(Route(path, post, methods=["POST"]) for path in calls)]
    return AccessMiddleware(make_application(routes), AccessPolicy(HOST, key), Metrics())


def ask(labelling: Labelling, port: int, tell: Callable[[str], None]) -> int:
    """Let a person label until a signal comes. Returns the number of the signal.

    tell: of what is labelled, and of the address, with a key that others on this machine do not know.
    Raises ResourceError where the port cannot be listened on.
    """
    key = secrets.token_urlsafe(16)
    serving = ServerConfig(HOST, port, grace=5.0, logs_requests=False, suffix=f"/#{key}")
    return serve_until_signal(guard_of(labelling, key), labelling, serving, tell)
