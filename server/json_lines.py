"""The protocol of benchmark processes: one JSON object per line, and one reply for each.

``loadtest/peers/json_lines.py`` documents the objects.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TextIO

from model.bundle import BundleError
from server.errors import ServeError, StartupError

Message = dict[str, Any]
Handler = Callable[[Message], Awaitable[Message]]


async def serve(requests: TextIO, replies: TextIO, handlers: Mapping[str, Handler]) -> None:
    """Answers requests until the input ends. The reply to a failed request is its ``error``."""
    while line := await asyncio.to_thread(requests.readline):
        try:
            message = json.loads(line)
            reply = await handlers[message["op"]](message)
        except (BundleError, ServeError, StartupError, KeyError, ValueError, RuntimeError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
