"""The endpoints: bodies in, answers and streams of events out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lmtool.errors import LmtoolError, NumericalError, ResourceError
from lmtool.generation.request import Token
from lmtool.printable import plain
from lmtool.search.index import Index
from lmtool.serving.answer import ClientAnswer
from lmtool.serving.errors import ApiError, BadRequest, ShuttingDown
from lmtool.serving.guard import log
from lmtool.serving.metrics import Metrics
from lmtool.serving.page import page_response
from lmtool.serving.protocol import (
    Body,
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    SearchBody,
    TextBody,
    parse,
)
from lmtool.serving.service import Service

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
    """All endpoints of one model. index: of texts to search. logs_prompts: prompts are written to the log."""

    def __init__(self, service: Service, metrics: Metrics, index: Index | None, *, logs_prompts: bool = False) -> None:
        self._service, self._metrics, self._logs_prompts = service, metrics, logs_prompts
        self._long = ThreadPoolExecutor(1, "long")  # prepares long bodies one after the other
        self._forms = ThreadPoolExecutor(1, "forms")  # the same of those that have a form
        posts: dict[str, Handler] = {
            "/v1/completions": partial(self._text, CompletionBody, service.prepare_completion),
            "/v1/chat/completions": partial(self._text, ChatBody, service.prepare_chat),
            "/v1/embeddings": partial(self._rows, EmbeddingBody, service.tokenize_texts, service.embeddings),
            "/classify": partial(self._rows, ClassifyBody, service.tokenize_rows, service.classify),
        }
        if index is not None:
            posts["/search"] = partial(
                self._rows, SearchBody, service.tokenize_texts, lambda body, rows: service.search(index, body.k, rows)
            )
        gets: dict[str, Handler] = {
            "/": self._page,
            "/v1/models": self._models,
            "/v1/models/{name}": self._model,
            "/health": self._health,
            "/metrics": self._counters,
        }
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
        self.app = make_application(routes)

    async def _text(self, kind: type[Body], read: Callable[[Any], ClientAnswer], request: Request) -> Response:
        """Generated texts, as a stream or whole. read: makes the answer to a body, without a text yet."""
        body = await self._body(request, kind)
        answer = await self._run_beside_loop(request, read, body)
        if self._logs_prompts:
            log.info("asked: %s", body.model_dump_json(exclude_none=True))
        async with AsyncExitStack() as stack:
            updates = await stack.enter_async_context(self._service.scheduler.generate(answer.requests))
            if body.stream:
                return Events(_stream_events(answer, updates), stack.pop_all())

            async def whole() -> bytes:
                async for token in updates:
                    if token.prompt:
                        await asyncio.to_thread(answer.add_token, token)
                    else:
                        answer.add_token(token)
                return await asyncio.to_thread(answer.to_json)

            return _json_response(await _unless_disconnected(request, whole()))

    async def _rows(
        self, kind: type[Body], read: Callable[[Any], Any], answer: Callable[..., Any], request: Request
    ) -> Response:
        """What is computed for texts. read: makes rows of token ids of a body. answer: of body and rows."""
        body = await self._body(request, kind)
        rows = await self._run_beside_loop(request, read, body)
        return _json_response(await _unless_disconnected(request, answer(body, rows)))

    async def _page(self, request: Request) -> Response:
        return page_response("page")

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._service.describe()]})

    async def _model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._service.describe())

    async def _health(self, request: Request) -> Response:
        if self._service.scheduler.refuses:
            raise ShuttingDown
        return JSONResponse({"status": "ok"})

    async def _counters(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _body(self, request: Request, kind: type[Body]) -> Any:
        """The body of a request. Raises BadRequest."""
        raw = await read_body(request)
        request.state.n_bytes = len(raw)
        body = await self._run_beside_loop(request, parse, kind, raw)
        self._service.check_model(body.model)
        return body

    async def _run_beside_loop(self, request: Request, call: Callable[..., Result], *arguments: Any) -> Result:
        """The result of what takes the longer, the longer the body is, and so is done beside the event loop."""
        executor = self._long if request.state.n_bytes > SHORT_BODY else None
        if isinstance(arguments[0], TextBody) and arguments[0].has_form:
            executor = self._forms
        work = asyncio.get_running_loop().run_in_executor(executor, call, *arguments)
        return await _unless_disconnected(request, work)


def make_application(routes: Sequence[Route]) -> Starlette:
    """An application whose errors are answered as clients of `serve` expect them."""
    errors = (HTTPException, ClientDisconnect, ApiError, LmtoolError, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _answer_error))


async def read_body(request: Request) -> bytes:
    """The body of a request, which says that it is JSON. Raises BadRequest."""
    media_type = request.headers.get("content-type", "")
    if media_type.partition(";")[0].strip().lower() != "application/json":
        sent = f"this one says {plain(media_type)[:100]}" if media_type else "this one has no Content-Type"
        raise BadRequest(415, f"send the body with the header Content-Type: application/json; {sent}")
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                raw += part
                if len(raw) > MAX_BODY:
                    raise BadRequest(413, f"the body has more than {MAX_BODY} bytes")
    except TimeoutError:
        raise BadRequest(408, f"the body did not come within {BODY_SECONDS} s") from None
    return bytes(raw)


def _json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    """An error as an answer. The guard logs those that are not expected."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, NumericalError | ResourceError):
        log.exception("a request failed: %s", type(error).__name__)
    answer = _as_api_error(error)
    headers = {"retry-after": "1"} if answer.status in (429, 503) else getattr(error, "headers", None)
    return JSONResponse(answer.body, answer.status, headers)


def _as_api_error(error: Exception) -> ApiError:
    """The error that a client is told."""
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=status):
            known = {404: "there is no such endpoint", 405: "this endpoint takes another method"}
            return ApiError(status, known.get(status, error.detail))
        case NumericalError() | ResourceError():
            return ApiError(500, error.what)
        case LmtoolError():
            return ApiError(400, plain(error.what))
    return ApiError(500, "the server failed; its log says why")


async def _stream_events(answer: ClientAnswer, updates: AsyncIterator[Token]) -> AsyncIterator[str]:
    """The answer as server-sent events."""
    try:
        async for token in updates:
            if token.prompt:  # a long one has many
                for line in await asyncio.to_thread(_format_events, answer, token):
                    yield line
            else:
                for line in _format_events(answer, token):
                    yield line
        if answer.wants_usage:
            yield _format_event(answer.usage_event())
        yield "data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, ShuttingDown):
            log.exception("a stream failed: %s", type(error).__name__)
        yield _format_event(_as_api_error(error).body)


def _format_events(answer: ClientAnswer, token: Token) -> list[str]:
    return [_format_event(event) for event in answer.stream_events(token)]


def _format_event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


async def _unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """The result, unless the client goes away: then the work is cancelled, and ClientDisconnect raised."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
