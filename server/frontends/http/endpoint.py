"""Endpoints: the parts of an HTTP call that are the same in all protocols."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from server.errors import (
    RETRY_SECONDS,
    InvalidArgumentError,
    Limit,
    OverloadedError,
    ServeError,
    ShuttingDownError,
    UnauthenticatedError,
)
from server.frontends.http.access import Access
from server.frontends.http.body import (
    BodyBudget,
    BodyLimits,
    ClientGoneError,
    check_encoding,
    check_length,
    json_decoder,
    read_body,
)
from server.frontends.http.deadline import deadline_of
from server.frontends.http.event_stream import EventStream
from server.frontends.http.exchange import ID_HEADER, Errors, Exchange, request_id_of
from server.frontends.http.failures import BodyTooLargeError, Failure
from server.frontends.http.form import with_query
from server.frontends.http.json_size import MAX_VALUES
from server.frontends.http.settings import HttpSettings
from server.service.caller import Caller
from server.service.service import Service

Body = TypeVar("Body")
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"
# Larger bodies are decoded in a thread.
MIN_THREADED_BYTES = 1 << 16
_BYTES_PER_VALUE = 8  # that take as long to decode as a value of a reply to build
# Maximum size of a body that may contain its token, and is received before the token is known.
MAX_ANONYMOUS_BYTES = 1 << 20


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with ``value`` (msgspec structs, dataclasses, dicts, lists) as JSON."""
    return Response(_encode(value), status, headers, _JSON)


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """One request. It arrived at ``started``, in seconds of ``time.monotonic``."""

    body: Body
    caller: Caller
    service: Service
    headers: Headers
    path_params: Mapping[str, str]
    request_id: str
    started: float


Handler = Callable[[Call[Any]], Awaitable[Response | EventStream]]
Decode = Callable[[bytes, Headers], Any]
Names = Mapping[str, str] | Callable[[Any], Mapping[str, str]]
"""The protocol's names of service fields, where they differ; or a function from body to names."""


@dataclass(frozen=True, slots=True)
class Context:
    """Objects that the endpoints of all protocols use."""

    service: Service
    settings: HttpSettings
    access: Access
    budget: BodyBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Makes the routes of one protocol.

    ``error`` makes the response of an error; the endpoint adds status and headers.
    ``body_token`` returns the token in a body, for protocols that send it there; such bodies are
    read before the token is checked. ``status_of`` returns the HTTP status of an error.
    ``id_headers`` name the headers of responses with the request's id.
    """

    context: Context
    error: Callable[[Failure], Response]
    status_of: Callable[[Failure], int] = lambda failure: failure.status
    body_token: Callable[[Any], str | None] | None = None
    id_headers: Sequence[str] = (ID_HEADER,)

    @property
    def errors(self) -> Errors:
        """How errors are sent."""
        return Errors(self.error, self.status_of)

    def post(
        self,
        path: str,
        body: type[Any] | Decode,
        handler: Handler,
        *,
        names: Names | None = None,
        model_of: Callable[[Call[Any]], str] | None = None,
        limits: BodyLimits | None = None,
        max_values: int = MAX_VALUES,
        reads_query: bool = False,
    ) -> Route:
        """Makes a route that reads a body.

        Args:
            path: the path, with ``{parameters}``. It labels the call in the metrics.
            body: the msgspec struct of the JSON body; or a function that decodes the raw body and
                the headers for the handler, and raises ``InvalidArgumentError``.
            handler: answers the call.
            names: the protocol's names of the service's fields, for errors.
            model_of: returns the model that the call uses, which stays loaded until the call ends.
                By default the field ``model`` of the body.
            limits: limits of the body that override those of the settings.
            max_values: the maximum number of values in the JSON body, token ids included.
            reads_query: whether the fields may be query parameters instead.
        """
        decode = _json_decode(body, max_values) if isinstance(body, type) else body
        endpoint = Endpoint(
            self,
            path,
            handler,
            decode=decode,
            names=names or {},
            model_of=model_of or _body_model,
            limits=limits,
            reads_query=reads_query,
        )
        return Route(path, endpoint, methods=["POST"])

    def get(
        self,
        path: str,
        handler: Handler,
        *,
        names: Mapping[str, str] | None = None,
        is_public: bool = False,
        decode: Decode | None = None,
    ) -> Route:
        """Makes a route without a body, whose handler receives ``None``.

        If ``is_public``, the route needs no token. ``decode`` decodes the body of protocols that
        send a token in the body even here.
        """
        endpoint = Endpoint(
            self, path, handler, decode=decode, names=names or {}, is_public=is_public
        )
        return Route(path, endpoint, methods=["GET"])


def _json_decode(kind: type[Any], max_values: int) -> Decode:
    decode: Callable[[bytes], Any] = json_decoder(kind, max_values)
    return lambda data, _: decode(data)


def _body_model(call: Call[Any]) -> str:
    return getattr(call.body, "model", None) or ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The ASGI application of one route: decodes, authenticates, answers, and maps errors."""

    api: Api
    path: str
    handler: Handler
    decode: Decode | None = None
    names: Names = field(default_factory=dict)
    model_of: Callable[[Call[Any]], str] = lambda _: ""
    is_public: bool = False
    limits: BodyLimits | None = None
    reads_query: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        connection = scope.get("triune.connection")
        exchange = Exchange(scope, send, request_id, self.api.errors, self.api.id_headers)
        task = asyncio.current_task()
        assert task is not None
        if connection is not None:
            connection.on_lost = task.cancel
        try:
            try:
                call = await self._call(scope, receive, headers, request_id, started)
            except UnauthenticatedError:
                raise
            except ServeError:
                async with self.api.context.service.track_call(self.path):  # so that it is counted
                    raise
            exchange.names = partial(self._names_in, call.body)
            if self.is_public:  # health probes
                await self._answer(call, exchange)
                return
            async with call.service.track_call(self.path, self.model_of(call)):
                await self._answer(call, exchange)
        except ServeError as error:
            await exchange.fail(error)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if exchange.is_gone:
                return
            await exchange.fail(ShuttingDownError())

    async def _read(
        self, scope: Scope, receive: Receive, headers: Headers, *, is_anonymous: bool
    ) -> bytes:
        settings, budget = self.api.context.settings, self.api.context.budget
        max_bytes = settings.max_body_bytes if self.limits is None else self.limits.max_bytes
        check_length(headers, max_bytes)
        check_encoding(headers)
        if is_anonymous:
            try:
                return await read_body(receive, MAX_ANONYMOUS_BYTES, budget)
            except BodyTooLargeError:
                hint = ": send its key as a bearer token"
                raise BodyTooLargeError(MAX_ANONYMOUS_BYTES, hint) from None
        if self.limits is not None and "triune.connection" in scope:
            scope["triune.connection"].extend_body(self.limits.seconds)
        return await read_body(receive, max_bytes, budget)

    def _names_in(self, body: Any) -> Mapping[str, str]:
        return self.names(body) if callable(self.names) else self.names

    async def _answer(self, call: Call[Any], exchange: Exchange) -> None:
        try:
            await exchange.answer(await self.handler(call))
        except asyncio.CancelledError:
            if exchange.is_stalled:
                raise OverloadedError(
                    "the response was not read", RETRY_SECONDS, Limit.SLOW_READER
                ) from None
            raise

    async def _call(
        self,
        scope: Scope,
        receive: Receive,
        headers: Headers,
        request_id: str,
        started: float,
    ) -> Call[Any]:
        context = self.api.context
        access, body_token = context.access, self.api.body_token
        if self.is_public or access.is_identified(scope):
            body_token = None
        is_anonymous = body_token is not None  # until the token is read from the body
        identity = "public"
        if not self.is_public:
            identity = access.peer(scope) if is_anonymous else access.identity(scope)
        body = None
        if self.decode is not None:
            data = await self._read(scope, receive, headers, is_anonymous=is_anonymous)
            form = headers
            if self.reads_query:
                data, form = with_query(scope.get("query_string", b""), data, headers)
            try:
                body = await self._decoded(data, form, identity)
            except InvalidArgumentError:
                if is_anonymous:  # callers without a token must not learn what is wrong
                    access.identity(scope)
                raise
        if body_token is not None:
            identity = access.identity(scope, body_token(body))
        streams = bool(getattr(body, "stream", False))
        return Call(
            body=body,
            caller=Caller(identity, deadline_of(headers, started, is_stream=streams)),
            service=context.service,
            headers=headers,
            path_params=scope.get("path_params", {}),
            request_id=request_id,
            started=started,
        )

    async def _decoded(self, data: bytes, headers: Headers, identity: str) -> Any:
        assert self.decode is not None
        if len(data) < MIN_THREADED_BYTES:
            return self.decode(data, headers)
        context, num_values = self.api.context, len(data) // _BYTES_PER_VALUE
        decode = partial(self.decode, data, headers)
        context.budget.take(len(data))  # as long as it waits for a thread
        try:
            return await context.service.build(num_values, decode, Caller(identity, None))
        finally:
            context.budget.give_back(len(data))
