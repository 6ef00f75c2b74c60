"""Health probes and metrics: ``/livez``, ``/readyz``, ``/health``, ``/ping``, ``/v2/health``,
``/metrics``.
"""

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure
from server.telemetry.metrics import Metrics


def error_response(failure: Failure) -> Response:
    """The error response of routes that belong to no protocol."""
    return json_response({"error": failure.message})


def routes(context: Context, metrics: Metrics) -> list[BaseRoute]:
    """The routes. Only ``/metrics`` needs a token, because it names the models.

    Args:
        context: the objects that all endpoints use.
        metrics: the server's metrics.
    """
    api = Api(context=context, error=error_response)

    service = context.service

    async def live(_: Call[None]) -> Response:
        return _status(is_ok=service.is_live)

    async def ready(_: Call[None]) -> Response:
        return _status(is_ok=service.is_ready)

    async def server_live(_: Call[None]) -> Response:
        return json_response({"live": service.is_live}, _code(is_ok=service.is_live))

    async def server_ready(_: Call[None]) -> Response:
        return json_response({"ready": service.is_ready}, _code(is_ok=service.is_ready))

    async def expose(_: Call[None]) -> Response:
        return Response(metrics.exposition(), media_type=metrics.content_type)

    ping = api.get("/ping", ready, is_public=True)  # SageMaker's name; vLLM answers both methods
    return [
        api.get("/livez", live, is_public=True),
        api.get("/readyz", ready, is_public=True),
        api.get("/health", ready, is_public=True),
        Route(ping.path, ping.endpoint, methods=["GET", "POST"]),
        api.get("/v2/health/live", server_live, is_public=True),
        api.get("/v2/health/ready", server_ready, is_public=True),
        api.get("/metrics", expose),
    ]


def _status(*, is_ok: bool) -> Response:
    return json_response({"status": "ok" if is_ok else "unavailable"}, _code(is_ok=is_ok))


def _code(*, is_ok: bool) -> int:
    return 200 if is_ok else 503
