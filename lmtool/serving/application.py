"""The HTTP endpoints."""

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
from lmtool.printable import printable
from lmtool.serving.errors import ApiError, BadRequest, ShuttingDown
from lmtool.serving.guard import log
from lmtool.serving.metrics import Metrics
from lmtool.serving.page import page_response
from lmtool.serving.protocol import (
    ChatBody,
    ClassifyBody,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    RequestBody,
    SearchBody,
    parse_body,
)
from lmtool.serving.response_builder import ResponseBuilder
from lmtool.serving.service import ModelService

MAX_BODY_BYTES = 4 << 20
"""Maximum bytes of a request body."""

SHORT_BODY_BYTES = 1 << 14
"""Maximum bytes of a body that is prepared at once; longer ones wait for each other."""

BODY_TIMEOUT_SECONDS = 30
"""Time within which a client must send the body."""

Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


class EventStreamResponse(StreamingResponse):
    """A response of server-sent events. resources: closed when the stream ends, for whatever reason."""

    def __init__(self, events: AsyncIterator[str], resources: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)


class ModelEndpoints:
    """All endpoints of one model. logs_prompts: whether prompts are written to the log."""

    def __init__(self, service: ModelService, metrics: Metrics, *, logs_prompts: bool = False) -> None:
        self._service, self._metrics, self._logs_prompts = service, metrics, logs_prompts
        self._long = ThreadPoolExecutor(1, "long")  # prepares long bodies one after the other
        self._forms = ThreadPoolExecutor(1, "forms")  # the same for bodies with a form
        posts: dict[str, Handler] = {
            "/v1/completions": partial(self._handle_generation, CompletionBody, service.prepare_completion),
            "/v1/chat/completions": partial(self._handle_generation, ChatBody, service.prepare_chat),
            "/v1/embeddings": partial(
                self._handle_texts, EmbeddingBody, service.tokenize_texts, service.respond_with_embeddings
            ),
            "/classify": partial(self._handle_texts, ClassifyBody, service.tokenize_rows, service.respond_with_labels),
        }
        if service.index is not None:
            posts["/search"] = partial(
                self._handle_texts, SearchBody, service.tokenize_texts, service.respond_with_neighbours
            )
        gets: dict[str, Handler] = {
            "/": self._show_page,
            "/v1/models": self._list_models,
            "/v1/models/{name}": self._show_model,
            "/health": self._check_health,
            "/metrics": self._show_metrics,
        }
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
        self.app = make_application(routes)

    async def _handle_generation(
        self, body_type: type[RequestBody], prepare: Callable[[Any], ResponseBuilder], request: Request
    ) -> Response:
        """Responds with generated texts, as a stream or whole. prepare: checks a body and prepares its response."""
        body = await self._parse_body(request, body_type)
        answer = await self._run_in_thread(request, prepare, body)
        if self._logs_prompts:
            log.info("asked: %s", body.model_dump_json(exclude_none=True))
        async with AsyncExitStack() as stack:
            updates = await stack.enter_async_context(self._service.scheduler.generate(answer.requests))
            if body.stream:
                return EventStreamResponse(_stream_events(answer, updates), stack.pop_all())

            async def whole() -> bytes:
                async for token in updates:
                    if token.prompt:
                        await asyncio.to_thread(answer.add_token, token)
                    else:
                        answer.add_token(token)
                return await asyncio.to_thread(answer.to_json)

            return Response(await _cancel_on_disconnect(request, whole()), media_type="application/json")

    async def _handle_texts(
        self,
        body_type: type[RequestBody],
        tokenize: Callable[[Any], Any],
        compute_response: Callable[..., Any],
        request: Request,
    ) -> Response:
        """Responds with what `compute_response` makes of a body and its rows of token ids, which `tokenize` makes."""
        body = await self._parse_body(request, body_type)
        rows = await self._run_in_thread(request, tokenize, body)
        content = await _cancel_on_disconnect(request, compute_response(body, rows))
        return Response(content, media_type="application/json")

    async def _show_page(self, request: Request) -> Response:
        return page_response("page")

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._service.make_models_entry()]})

    async def _show_model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._service.make_models_entry())

    async def _check_health(self, request: Request) -> Response:
        if self._service.scheduler.is_closing:
            raise ShuttingDown
        return JSONResponse({"status": "ok"})

    async def _show_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.to_prometheus(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _parse_body(self, request: Request, body_type: type[RequestBody]) -> Any:
        """Reads and validates the body of a request. Raises BadRequest."""
        raw = await read_json_body(request)
        request.state.n_bytes = len(raw)
        body = await self._run_in_thread(request, parse_body, body_type, raw)
        self._service.check_model(body.model)
        return body

    async def _run_in_thread(self, request: Request, call: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function of the body in a thread, because it may take long. Returns its result."""
        executor = self._long if request.state.n_bytes > SHORT_BODY_BYTES else None
        if isinstance(arguments[0], GenerationBody) and arguments[0].has_form:
            executor = self._forms
        work = asyncio.get_running_loop().run_in_executor(executor, call, *arguments)
        return await _cancel_on_disconnect(request, work)


def make_application(routes: Sequence[Route]) -> Starlette:
    """Makes an application that answers errors in the format of the API."""
    errors = (HTTPException, ClientDisconnect, ApiError, LmtoolError, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _make_error_response))


async def read_json_body(request: Request) -> bytes:
    """Reads the JSON body of a request. Raises BadRequest for another type, and for one too long or too slow."""
    media_type = request.headers.get("content-type", "")
    if media_type.partition(";")[0].strip().lower() != "application/json":
        sent = f"this one says {printable(media_type)[:100]}" if media_type else "this one has no Content-Type"
        raise BadRequest(415, f"send the body with the header Content-Type: application/json; {sent}")
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for part in request.stream():
                raw += part
                if len(raw) > MAX_BODY_BYTES:
                    raise BadRequest(413, f"the body has more than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise BadRequest(408, f"the body did not come within {BODY_TIMEOUT_SECONDS} s") from None
    return bytes(raw)


async def _make_error_response(request: Request, error: Exception) -> Response:
    """Makes the response to an error. `AccessAndLoggingMiddleware` logs unexpected ones."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, NumericalError | ResourceError):
        log.exception("a request failed: %s", type(error).__name__)
    answer = _to_api_error(error)
    headers = {"retry-after": "1"} if answer.status in (429, 503) else getattr(error, "headers", None)
    return JSONResponse(answer.body, answer.status, headers)


def _to_api_error(error: Exception) -> ApiError:
    """Returns the error to report to the client."""
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=status):
            known = {404: "there is no such endpoint", 405: "this endpoint takes another method"}
            return ApiError(status, known.get(status, error.detail))
        case NumericalError() | ResourceError():
            return ApiError(500, error.what)
        case LmtoolError():
            return ApiError(400, printable(error.what))
    return ApiError(500, "the server failed; its log says why")


async def _stream_events(response_builder: ResponseBuilder, tokens: AsyncIterator[Token]) -> AsyncIterator[str]:
    """Yields the response as server-sent events."""
    try:
        async for token in tokens:
            # the first token may list a long prompt
            event = (
                await asyncio.to_thread(response_builder.add_token_and_make_event, token)
                if token.prompt
                else response_builder.add_token_and_make_event(token)
            )
            if event is not None:
                yield _format_event(event)
        if response_builder.include_usage_event:
            yield _format_event(response_builder.usage_event())
        yield "data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, ShuttingDown):
            log.exception("a stream failed: %s", type(error).__name__)
        yield _format_event(_to_api_error(error).body)


def _format_event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


async def _cancel_on_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Awaits work and returns its result. Cancels it and raises ClientDisconnect if the client disconnects."""
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
