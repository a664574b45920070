"""The endpoints: bodies in, answers and streams of events out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lmtool.errors import LmtoolError, NumericalError, ResourceError
from lmtool.printable import plain
from lmtool.serving.guard import log
from lmtool.serving.metrics import Metrics
from lmtool.serving.page import POLICY, as_page
from lmtool.serving.protocol import (
    Body,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    Refused,
    error_object,
    parse,
)
from lmtool.serving.scheduler import Busy, Closing, Progress
from lmtool.serving.service import Asked, ClientAnswer, Service

MAX_BODY = 4 << 20
"""Maximum bytes of a body."""

SHORT_BODY = 1 << 14
"""Maximum bytes of a body whose preparation waits for no other."""

BODY_SECONDS = 30
"""Time in which a body must come."""

Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


class Events(StreamingResponse):
    """Server-sent events. kept: closed when they end, for whatever reason."""

    def __init__(self, events: AsyncIterator[str], kept: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._kept:
            await super().__call__(scope, receive, send)


class Application:
    """All endpoints of one model. logs_prompts: prompts are written to the log."""

    def __init__(self, service: Service, metrics: Metrics, *, logs_prompts: bool = False) -> None:
        self._service, self._metrics, self._logs_prompts = service, metrics, logs_prompts
        self._long = ThreadPoolExecutor(1, "long")  # prepares long bodies one after the other
        posts: dict[str, Handler] = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/v1/embeddings": self._embeddings,
            "/classify": self._classify,
        }
        gets: dict[str, Handler] = {
            "/": self._page,
            "/v1/models": self._models,
            "/v1/models/{name}": self._model,
            "/health": self._health,
            "/metrics": self._counters,
        }
        routes = [Route(path, _explained(handler), methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, _explained(handler), methods=["GET"]) for path, handler in gets.items()]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such})

    async def _completions(self, request: Request) -> Response:
        return await self._text(request, CompletionBody, self._service.completion)

    async def _chat(self, request: Request) -> Response:
        return await self._text(request, ChatBody, self._service.conversation)

    async def _text(self, request: Request, kind: type[Body], ask: Callable[[Any], Asked]) -> Response:
        body = await self._body(request, kind)
        asked = await self._prepared(request, ask, body)
        if self._logs_prompts:
            log.info("asked: %s", body.model_dump_json(exclude_none=True))
        answer = ClientAnswer(self._service, asked)
        async with AsyncExitStack() as stack:
            updates = await stack.enter_async_context(self._service.scheduler.generate(asked.generating))
            if asked.streams:
                return Events(_lines(answer, asked, updates), stack.pop_all())

            async def whole() -> bytes:
                async for progress in updates:
                    answer.add(progress)
                return await asyncio.to_thread(answer.whole)

            return _encoded(await _while_connected(request, whole()))

    async def _embeddings(self, request: Request) -> Response:
        body = await self._body(request, EmbeddingBody)
        rows = await self._prepared(request, self._service.text_rows, body)
        return _encoded(await _while_connected(request, self._service.embeddings(body, rows)))

    async def _classify(self, request: Request) -> Response:
        body = await self._body(request, ClassifyBody)
        rows = await self._prepared(request, self._service.table_rows, body)
        return _encoded(await _while_connected(request, self._service.classify(rows)))

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(as_page(), headers={"content-security-policy": POLICY, "referrer-policy": "no-referrer"})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._service.describe()]})

    async def _model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._service.describe())

    async def _health(self, request: Request) -> Response:
        if self._service.scheduler.refuses:
            raise Closing
        return JSONResponse({"status": "ok"})

    async def _counters(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _body(self, request: Request, kind: type[Body]) -> Any:
        """The body of a request. Raises Refused."""
        media_type = request.headers.get("content-type", "")
        if media_type.partition(";")[0].strip().lower() != "application/json":
            sent = f"this one says {plain(media_type)[:100]}" if media_type else "this one has no Content-Type"
            raise Refused(415, f"send the body with the header Content-Type: application/json; {sent}")
        raw = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    raw += part
                    if len(raw) > MAX_BODY:
                        raise Refused(413, f"the body has more than {MAX_BODY} bytes")
        except TimeoutError:
            raise Refused(408, f"the body did not come within {BODY_SECONDS} s") from None
        request.state.n_bytes = len(raw)
        body = await self._prepared(request, parse, kind, bytes(raw))
        self._service.check_model(body.model)
        return body

    async def _prepared(self, request: Request, call: Callable[..., Result], *arguments: Any) -> Result:
        """The result of what takes the longer, the longer the body is, and so is done beside the event loop."""
        executor = self._long if request.state.n_bytes > SHORT_BODY else None

        async def beside() -> Result:
            return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)

        return await _while_connected(request, beside())


def _encoded(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _explained(handler: Handler) -> Handler:
    """A handler whose errors are answers."""

    async def explaining(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            if isinstance(error, ClientDisconnect):
                return Response(status_code=499)  # nobody reads it
            status, body = _explanation(error)
            if status >= 500 and not isinstance(error, Closing):
                log.exception("a request failed: %s", type(error).__name__)
            return JSONResponse(body, status, {"retry-after": "1"} if status in (429, 503) else None)

    return explaining


def _explanation(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and error object."""
    match error:
        case Refused():
            return error.status, error.body
        case Busy():
            return 429, error_object(429, "too many requests wait already; try again later", code="queue_full")
        case Closing():
            return 503, error_object(503, "the server is about to end")
        case NumericalError() | ResourceError():
            return 500, error_object(500, error.what)
        case LmtoolError():
            return 400, error_object(400, plain(error.what))
    return 500, error_object(500, "the server failed; its log says why")


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "there is no such endpoint", 405: "this endpoint takes another method"}.get(error.status_code, "")
    return JSONResponse(error_object(error.status_code, message or error.detail), error.status_code, error.headers)


async def _lines(answer: ClientAnswer, asked: Asked, updates: AsyncIterator[Progress]) -> AsyncIterator[str]:
    """The answer as server-sent events."""
    try:
        async for progress in updates:
            for event in answer.events(progress):
                yield _event(event)
        if asked.counts:
            yield _event(answer.last())
        yield "data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, Closing):
            log.exception("a stream failed: %s", type(error).__name__)
        yield _event(_explanation(error)[1])


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


async def _while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result, unless the client goes away: then the work is cancelled, and ClientDisconnect raised."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
