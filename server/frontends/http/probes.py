"""Health probes and metrics: ``/livez``, ``/readyz``, ``/health``, ``/v2/health``, ``/metrics``."""

from collections.abc import Callable

from starlette.responses import Response
from starlette.routing import BaseRoute

from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure
from server.telemetry.metrics import Metrics


def error_response(failure: Failure) -> Response:
    """The shape of errors outside of any protocol."""
    return json_response({"error": failure.message})


def routes(context: Context, metrics: Metrics, is_serving: Callable[[], bool]) -> list[BaseRoute]:
    """The routes. Only ``/metrics`` needs a token, as it names the models.

    Args:
        context: what all endpoints share.
        metrics: the server's metrics.
        is_serving: whether calls are accepted: models are loaded, the server is not draining.
    """
    api = Api(context=context, error=error_response)

    async def live(_: Call[None]) -> Response:
        return json_response({"status": "ok"})

    async def ready(_: Call[None]) -> Response:
        if is_serving():
            return json_response({"status": "ok"})
        return json_response({"status": "unavailable"}, 503)

    async def expose(_: Call[None]) -> Response:
        return Response(metrics.exposition(), media_type=metrics.content_type)

    return [
        api.get("/livez", live, is_public=True),
        api.get("/readyz", ready, is_public=True),
        api.get("/health", ready, is_public=True),
        api.get("/v2/health/live", live, is_public=True),
        api.get("/v2/health/ready", ready, is_public=True),
        api.get("/metrics", expose),
    ]
