"""Calls of handlers without a server."""

import time
from typing import Any

from starlette.datastructures import Headers

from server.frontends.http.endpoint import Call
from server.service.caller import Caller


def call_of(body: Any, service: Any = None) -> Call[Any]:
    """A call with ``body``. Without ``service``, it must be refused before it reaches one."""
    return Call(
        body=body,
        caller=Caller("peer:test", None),
        service=service,
        headers=Headers({}),
        path_params={},
        request_id="test",
        started=time.monotonic(),
    )
