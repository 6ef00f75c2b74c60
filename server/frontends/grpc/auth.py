"""Bearer token authentication of every call except those that probe the server's health."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from server.errors import UnauthenticatedError
from server.frontends.grpc.calls import abort, abort_without_cycle
from server.frontends.grpc.context import Context
from server.frontends.grpc.identity import token_name
from server.service.access_tokens import AccessTokens

# Supervisors have no token. ``List`` needs one: it returns the names of all models.
PUBLIC_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    }
)


class BearerTokenInterceptor(grpc.aio.ServerInterceptor):
    """Rejects calls without a valid token before the method lookup and the request."""

    def __init__(self, tokens: AccessTokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if str(handler_call_details.method) in PUBLIC_METHODS:
            return await continuation(handler_call_details)
        headers = [
            str(value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        name = self._tokens.name_of(headers[0]) if len(headers) == 1 else None
        if name is None:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        # The handler runs in this task, after the interceptor.
        token_name.set(name)
        return await continuation(handler_call_details)


async def _refuse(_: Any, context: Context) -> None:
    with abort_without_cycle():
        await abort(UnauthenticatedError(), context)
