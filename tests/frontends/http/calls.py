"""Calls of handlers without a server."""

import time
from pathlib import Path
from typing import Any, cast

from starlette.datastructures import Headers
from starlette.routing import Route

from server.config import ServerConfig
from server.frontends.http.access import Access
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Call, Context, Endpoint, Handler
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.service.caller import Caller
from server.service.service import Service


def call_of(body: Any, service: Any = None, model: str = "m") -> Call[Any]:
    """A call with ``body``. Without ``service``, it must be refused before it reaches one.

    ``model``: of paths that have one.
    """
    return Call(
        body=body,
        caller=Caller("peer:test", None),
        service=service,
        headers=Headers({}),
        path_params={"model": model},
        request_id="test",
        started=time.monotonic(),
    )


def handlers() -> dict[str, Handler]:
    """The handlers of all protocols, by path."""
    access = Access(ServerConfig(bundles=Path()))
    context = Context(Service(cast("Any", None)), HttpSettings(), access, BodyBudget(0))
    routes = [cast("Route", route) for protocol in PROTOCOLS for route in protocol(context)]
    return {route.path: cast("Endpoint", route.endpoint).handler for route in routes}
