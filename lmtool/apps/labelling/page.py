"""The labelling page: its requests, and its server."""

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmtool.apps.labelling.labelling import ActiveLearningSession
from lmtool.serving.application import make_application, read_json_body
from lmtool.serving.guard import AccessAndLoggingMiddleware, AccessPolicy
from lmtool.serving.metrics import Metrics
from lmtool.serving.page import page_response
from lmtool.serving.protocol import parse_body
from lmtool.serving.server import ServerConfig, serve_until_signal

HOST = "127.0.0.1"

ShortText = Annotated[str, Field(max_length=1000)]


class LabellingRequest(BaseModel, extra="forbid"):
    """A request of the page. window: its name. row, version, labels: an answer. text: words to search for."""

    window: Annotated[str, Field(min_length=1, max_length=64)]
    row: int = -1
    version: int = -1
    labels: Annotated[list[ShortText], Field(max_length=500)] | None = None
    text: ShortText = ""


def build_labelling_app(labelling: ActiveLearningSession, api_key: str) -> AccessAndLoggingMiddleware:
    """Builds the application of the page; `key` is its API key."""
    calls: dict[str, Callable[[LabellingRequest], dict[str, Any]]] = {
        "/next": lambda body: labelling.assign_next_row(body.window),
        "/answer": lambda body: labelling.save_answer_and_assign_next(body.window, body.row, body.version, body.labels),
        "/find": lambda body: {"rows": labelling.find_rows_with_all_words(body.text)},
        "/progress": lambda body: labelling.progress_with_doubted_answers(),
    }

    async def post(request: Request) -> Response:
        body = parse_body(LabellingRequest, await read_json_body(request))
        return JSONResponse(await run_in_threadpool(calls[request.url.path], body))

    async def page(request: Request) -> Response:
        return page_response("label")

    routes = [Route("/", page), *(Route(path, post, methods=["POST"]) for path in calls)]
    return AccessAndLoggingMiddleware(make_application(routes), AccessPolicy(HOST, api_key), Metrics())


def serve_labelling_until_signal(labelling: ActiveLearningSession, port: int, print_line: Callable[[str], None]) -> int:
    """Serves the labelling page until a signal. Returns the number of the signal.

    print_line: prints the progress, and the address with a secret key.
    Raises ResourceError if it cannot listen on the port.
    """
    key = secrets.token_urlsafe(16)
    serving = ServerConfig(HOST, port, grace=5.0, logs_requests=False, suffix=f"/#{key}")
    return serve_until_signal(build_labelling_app(labelling, key), labelling, serving, print_line)
