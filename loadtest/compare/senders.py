"""The sender for each protocol: one connection, any number of concurrent requests.

Clients share the cores with the server that they measure, so senders do as little as possible:
they count the events of a stream and parse only its end.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import grpc.aio

from loadtest.compare import grpc_senders, http_senders, oip_sender
from loadtest.compare.errors import MalformedReplyError
from loadtest.compare.http_senders import Sender
from loadtest.compare.servers import Protocol
from loadtest.driver import Clock, Response
from loadtest.tasks import Task


@asynccontextmanager
async def connect(
    protocol: Protocol, task: Task, model: str, port: int, clock: Clock
) -> AsyncIterator[Sender]:
    """A sender for the server on ``port``. A failed request has a status and raises nothing."""
    maker = {
        Protocol.TRIUNE: grpc_senders.triune,
        Protocol.OIP: oip_sender.open_inference,
        Protocol.JSON_GRPC: grpc_senders.json_grpc,
        Protocol.LLAMA: http_senders.llama,
        Protocol.COMPLETIONS: http_senders.completions,
        Protocol.EMBEDDINGS: http_senders.embeddings,
        Protocol.TEI: http_senders.tei,
        Protocol.TRITON: http_senders.triton,
    }[protocol]
    async with maker(task, model, port, clock) as sender:

        async def safe(message: bytes) -> Response:
            try:
                return await sender.call(message)
            except grpc.aio.AioRpcError as error:
                return Response(status=f"{error.code().name}: {error.details()}"[:200])
            except (aiohttp.ClientError, TimeoutError, MalformedReplyError, LookupError) as error:
                return Response(status=f"{type(error).__name__}: {error}"[:200])

        yield replace(sender, call=safe)
