"""Interceptors that refuse calls before the method lookup and the request."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio

from server.errors import ServeError
from server.frontends.grpc.calls import abort, abort_without_cycle
from server.frontends.grpc.context import Context

# Health probes are never refused: supervisors have no token and probe while the server drains.
# ``List`` is not public, because it returns the names of all models.
_PUBLIC = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    }
)


class RefusingInterceptor(grpc.aio.ServerInterceptor, ABC):
    """Ends calls for which :meth:`refusal` has an error, except probes of the server's health."""

    @abstractmethod
    def refusal(self, details: grpc.HandlerCallDetails) -> ServeError | None:
        """The error that ends a call, or ``None``. The call's handler runs in the same task."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if str(handler_call_details.method) in _PUBLIC:
            return await continuation(handler_call_details)
        error = self.refusal(handler_call_details)
        if error is None:
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(partial(_refuse, error))


async def _refuse(error: ServeError, _: Any, context: Context) -> None:
    with abort_without_cycle():
        await abort(error, context)
