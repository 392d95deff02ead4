"""The application: what happens to every request, and the table of routes."""

import asyncio
import difflib
import functools
import itertools
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from firth.errors import CheckpointError, ConfigError, FirthError
from firth.progress import say
from firth.serving import admin, huggingface, kserve, learning, openai, playground, tei
from firth.serving.access import Access
from firth.serving.asking import Context, Route, ServerState, json_response, validated
from firth.serving.engine import Caller
from firth.serving.kserve import HEADER
from firth.serving.refusals import RefusalError, protocol_of
from firth.serving.strict_json import parse_json

# Tried in this order: the routes that programs use come first.
ROUTES: tuple[Route, ...] = (
    *tei.ROUTES,
    *openai.ROUTES,
    *kserve.ROUTES,
    *huggingface.ROUTES,
    *admin.ROUTES,
    *playground.ROUTES,
    *learning.ROUTES,
)
# Routes that need no key: those for load balancers, and the page in which a key can be entered. Only GET.
PUBLIC = frozenset({"/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready", "/", "/playground/{file}"})
_SECURITY = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


_PROCESS, _NUMBERS = uuid.uuid4().hex[:16], itertools.count()


def _id_of(request: Request) -> str:
    """The id that the client gave its request, or a new one, unique to this process and request."""
    return request.headers.get("x-request-id", "")[:64] or f"{_PROCESS}{next(_NUMBERS):016x}"


# Characters up to which an unknown path is compared with the known ones.
_LONGEST_PATH = 100


def make_app(state: ServerState, access: Access) -> Starlette:
    """The application of a server."""

    async def document(context: Context, body: None) -> Any:
        return interface()

    described = Route("GET", "/openapi.json", document, None, "This interface, as OpenAPI")
    routes = [
        StarletteRoute(route.path, _endpoint(state, access, route), methods=[route.method])
        for route in (*ROUTES, described)
    ]

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        near = _near(path) if error.status_code == 404 else ""
        hint = f"; did you mean {near}?" if near else ""
        refusal = RefusalError(error.status_code, "route", f"{request.method} {path}: {error.detail}{hint}")
        more = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == 405:
            # The framework reports only the first route that it found; a path may have several.
            matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
            more["allow"] = ", ".join(sorted({m for route in matching for m in route.methods or ()}))
        return _with_headers(_refused(refusal, request), {**_SECURITY, "x-request-id": _id_of(request), **more})

    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown})
    # A redirect would come before the checks of keys and hosts, and would contain the host that the client sent.
    app.router.redirect_slashes = False
    return app


def _near(path: str) -> str:
    """The path of the route that is most similar to an unknown one, with the model that it names; empty if none is."""
    if len(path) > _LONGEST_PATH:
        return ""
    named = re.match("/models/([^/]+)/", path)
    known = [route.path.replace("{model}", named[1]) if named else route.path for route in ROUTES]
    return next(iter(difflib.get_close_matches(path, known, n=1)), "")


@functools.cache
def interface() -> dict[str, Any]:
    """The OpenAPI document. FastAPI is used for nothing else: its layers would take a third of a request's time."""
    app = FastAPI(title="Firth")

    async def unused(request: Request) -> None:
        raise NotImplementedError

    for route in ROUTES:
        app.add_api_route(
            route.path,
            unused,
            methods=[route.method],
            summary=route.summary,
            operation_id=f"{route.method.lower()}{route.path}".replace("/", "_").replace("{", "").replace("}", ""),
            response_model=None,
            openapi_extra=_described(route),
        )
    return app.openapi()


# Reasons for refusing a request, by status, for OpenAPI.
_REFUSED = {
    400: "The body is empty or not JSON, or the model has not learned this task",
    401: "A key is missing or unknown",
    403: "The host name or origin is not the server's, or the server has no keys for administration",
    404: "There is no such model",
    408: "The body took too long",
    409: "The model cannot be loaded; the old one continues",
    413: "The body is too long",
    415: "The body is compressed",
    422: "A field or text is wrong",
    424: "The model's outputs are not finite",
    429: "Overloaded; the header Retry-After says when to ask again",
    500: "The server failed; its log has the request's id",
    503: "The server is loading or shutting down",
    504: "There was no answer within the time allowed",
}
_REFUSED_GET = (401, 403, 404, 422, 500, 503)


def _described(route: Route) -> dict[str, Any]:
    """Describe a route for OpenAPI: the parameters of its path, its body, and its refusals."""
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    codes = _REFUSED_GET if route.method == "GET" else tuple(_REFUSED)
    error = {"application/json": {"schema": {"type": "object", "required": ["error"]}}}
    responses = {str(code): {"description": _REFUSED[code], "content": error} for code in codes}
    responses["200"] = {"description": "The answer", "content": {route.media: {}}}
    found: dict[str, Any] = {"parameters": parameters, "responses": responses}
    if route.body is not None:
        schema = TypeAdapter(route.body).json_schema()
        schema = _in_place(schema, schema.pop("$defs", {}))
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _in_place(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace each reference in a schema by its definition, which would not be found inside a larger document."""
    if isinstance(schema, list):
        return [_in_place(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _in_place(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _in_place(value, definitions) for key, value in schema.items()}


def _endpoint(state: ServerState, access: Access, route: Route) -> Callable[[Request], Awaitable[ASGIApp]]:
    adapter = None if route.body is None else TypeAdapter(route.body)

    async def endpoint(request: Request) -> ASGIApp:
        started_s, context = time.monotonic(), None
        headers = {**_SECURITY, "x-request-id": _id_of(request)}
        try:
            context = _context(state, access, request, route, started_s, headers)
            if route.method == "GET":
                # The others report on models, which are not all loaded yet.
                if not state.started and route.path not in PUBLIC and route.answer is not admin.metrics:
                    state.check_ready()
                found = await route.answer(context, None)
            else:
                found = await _accepted(context, route, adapter)
            response = found if isinstance(found, Response) else json_response(found)
        except Exception as error:
            refusal = _refusal(error, headers["x-request-id"])
            state.engine.metrics.rejected(refusal.reason)
            response = _refused(refusal, request)
        _with_headers(response, headers)
        if context is not None and route.method == "POST":
            _tell(context, response, started_s)
        seconds = time.monotonic() - started_s
        model = context.model_name if context is not None else ""
        state.engine.metrics.request(route.path, model, response.status_code, seconds)
        if context is not None and isinstance(response, StreamingResponse):
            return _Streamed(response, context)
        return response

    return endpoint


@dataclass(frozen=True, slots=True)
class _Streamed:
    """A streamed answer. Its request ends with it, even if the client left before the first part was requested."""

    response: StreamingResponse
    context: Context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.context.at_end:
            async with aclosing(cast(AsyncGenerator[bytes], self.response.body_iterator)):
                await self.response(scope, receive, send)


def _context(
    state: ServerState, access: Access, request: Request, route: Route, started_s: float, headers: dict[str, str]
) -> Context:
    access.check_host(request.headers)
    address = request.client.host if request.client is not None else ""
    public = route.method == "GET" and route.path in PUBLIC
    client = address if public else access.client(request.headers, address)
    if route.path.startswith("/admin") and not access.keys:
        message = "administration requires a key: start the server with --key-file FILE"
        raise RefusalError(403, "key", message)
    asked = request.headers.get("x-timeout-ms", "")
    if asked and not (asked.isascii() and asked.isdigit() and int(asked[:9]) > 0):
        raise RefusalError(422, "option", f"x-timeout-ms: {asked[:40]!r}: expected milliseconds", "x-timeout-ms")
    timeout_ms = min(int(asked[:9]) if asked else state.limits.timeout_ms, state.limits.timeout_ms)
    return Context(state, Caller(client, started_s + timeout_ms / 1e3), request, headers=headers)


async def _accepted(context: Context, route: Route, adapter: TypeAdapter[Any] | None) -> Any:
    """Answer a request with a body; it is in flight until its answer has been sent or its client has left."""
    state, request = context.state, context.request
    state.check_ready()
    state.engine.in_flight += 1
    context.at_end.callback(_landed, state)
    streams = False
    try:
        if not route.path.startswith("/admin"):
            # Before the body is read: with small models, this thread has more to do than the engine.
            state.engine.check_in_flight()
        data = await _body(request, context)
        checked = None
        if adapter is not None:
            checked = await state.engine.aside(context.caller, lambda: _read(request, data, adapter))
        found = await _unless_left(request, route.answer(context, checked))
        streams = isinstance(found, StreamingResponse)
        return found
    finally:
        if not streams:
            context.at_end.close()


def _landed(state: ServerState) -> None:
    state.engine.in_flight -= 1


async def _body(request: Request, context: Context) -> bytes:
    """Read the body; RefusalError if it is compressed, longer than allowed or too slow."""
    limits, found = context.state.limits, bytearray()
    too_long = RefusalError(413, "body", f"the body is longer than {limits.body_bytes:,} bytes")
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        message = f"content-encoding: {coding[:40]!r}: expected a body that is not compressed"
        raise RefusalError(415, "body", message)
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:18]) > limits.body_bytes:
        raise too_long
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limits.body_bytes:
                    raise too_long
    except TimeoutError:
        raise RefusalError(408, "body", f"the body was not there after {limits.body_s:g} s") from None
    context.caller.body_bytes = len(found)
    return bytes(found)


def _parsed(request: Request, data: bytes) -> Any:
    """Parse the JSON of a body; what follows it, by KServe's binary extension, is stored with the request."""
    size = request.headers.get(HEADER)
    if size is not None and protocol_of(request.url.path) == "kserve":
        if not (size.isascii() and size.isdigit() and len(size) <= 18 and int(size) <= len(data)):
            raise RefusalError(422, "body", f"{HEADER}: {size[:40]!r}: expected at most {len(data)}")
        request.scope["firth.binary"] = data[int(size) :]
        data = data[: int(size)]
    if not data.strip():
        raise RefusalError(400, "empty", "the body is empty: expected a JSON object")
    return parse_json(data)


def _read(request: Request, data: bytes, adapter: TypeAdapter[Any]) -> Any:
    return validated(adapter, _parsed(request, data))


async def _unless_left(request: Request, answer: Awaitable[Any]) -> Any:
    """Wait for an answer; a client that closes the connection first cancels it."""
    work = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(_disconnected(request))
    answered = False
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        answered = work.done()
    finally:
        left.cancel()
        if not answered:
            work.cancel()
            await asyncio.wait({work})
    # A cancellation that coincides with the answer may be lost: then the answer is passed on, which ends it.
    if not answered and (work.cancelled() or work.exception() is not None):
        raise ClientDisconnect
    return work.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal(error: Exception, request_id: str) -> RefusalError:
    """The error that a client sees: our own as they are, any other without its message."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, ClientDisconnect):
        return RefusalError(499, "left", "the client closed the connection")
    if isinstance(error, CheckpointError):
        return RefusalError(424, "outputs", str(error))
    if isinstance(error, ConfigError):
        return RefusalError(422, "option", str(error))
    if isinstance(error, FirthError):
        # Something is wrong with a text or with the body.
        bad_json = str(error).startswith("the body ")
        return RefusalError(400 if bad_json else 422, "input", str(error))
    say(f"request {request_id}: {type(error).__name__}: {error}")
    return RefusalError(500, "internal", f"something went wrong; the server's log has it as request {request_id}")


def _refused(refusal: RefusalError, request: Request) -> Response:
    return json_response(refusal.body(protocol_of(request.url.path)), refusal.status, dict(refusal.headers))


def _with_headers(response: Response, headers: dict[str, str]) -> Response:
    """Add headers that a response does not have yet; ``headers.update`` would search the existing ones for each."""
    response.raw_headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return response


def _tell(context: Context, response: Response, started_s: float) -> None:
    """Add the headers of TEI: milliseconds, tokens, and whether texts were read in windows or truncated."""
    caller = context.caller
    if not caller.tokens:
        return
    _with_headers(
        response,
        {
            "x-compute-type": context.state.model(context.model_name).compute_type,
            "x-total-time": str(round((time.monotonic() - started_s) * 1e3)),
            "x-tokenization-time": str(round(caller.tokenize_s * 1e3)),
            "x-queue-time": str(round(caller.queue_s * 1e3)),
            "x-inference-time": str(round(caller.inference_s * 1e3)),
            "x-compute-characters": str(context.characters),
            "x-compute-tokens": str(caller.tokens),
            "x-windows": str(caller.windows),
            "x-truncated": str(caller.cut).lower(),
        },
    )
    context.state.engine.metrics.work(
        context.model_name, caller.tokenize_s, caller.queue_s, caller.tokens, caller.unknown, caller.cut
    )
