"""EmbedStream: any number of Embed requests as one bulk job, with flow control."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from server.errors import OverloadedError, ServeError
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.embed import EmbedRequest, EmbedResult, embed

# Per stream, in progress at a time. Many texts include some of similar length, which pad little.
MAX_STREAM_TEXTS = 512
MAX_STREAM_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One request of a stream. ``id`` is the caller's and is returned with the result.

    ``request`` is an error if the front end could not decode the item. The stream ends with this
    error after the results of earlier items.
    """

    id: int
    request: EmbedRequest | ServeError


async def embed_stream(
    items: AsyncIterator[BulkItem], context: ServiceContext, caller: Caller
) -> AsyncGenerator[tuple[int, EmbedResult], None]:
    """Embeds the items. Yields the id and the result of each, in order.

    At most :data:`MAX_STREAM_REQUESTS` items are in progress. Another item is read only while
    they have fewer than :data:`MAX_STREAM_TEXTS` texts, so that the transport's flow control
    slows down the client. An item that finds the engine's queue full is retried.

    Args:
        items: the requests.
        context: of the server.
        caller: of the stream.

    Raises:
        ServeError: of the first item that failed.
    """
    bulk = _Bulk(context, caller)
    next_item = _next(items)
    is_open = True
    try:
        while bulk.tasks or is_open:
            can_read = is_open and bulk.has_room
            awaited: list[asyncio.Future[Any]] = [next_item] if can_read else []
            if bulk.tasks:
                awaited.append(bulk.tasks[0])
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if can_read and next_item.done():
                item = next_item.result()
                is_open = item is not None
                if item is not None:
                    bulk.start(item)
                    next_item = _next(items)
            if bulk.tasks and bulk.tasks[0].done():
                yield bulk.pop()
    finally:
        unfinished: list[asyncio.Future[Any]] = [next_item, *bulk.tasks]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


class _Bulk:
    """The items in progress. ``tasks`` embed them, in the order of the stream."""

    def __init__(self, context: ServiceContext, caller: Caller) -> None:
        self.tasks: deque[asyncio.Task[tuple[int, EmbedResult]]] = deque()
        self._context = context
        self._caller = caller
        self._num_texts = 0

    @property
    def has_room(self) -> bool:
        return len(self.tasks) < MAX_STREAM_REQUESTS and self._num_texts < MAX_STREAM_TEXTS

    def start(self, item: BulkItem) -> None:
        if isinstance(item.request, EmbedRequest):
            self._num_texts += len(item.request.inputs)
        self.tasks.append(asyncio.create_task(self._embed(item)))

    def pop(self) -> tuple[int, EmbedResult]:
        """The first item's id and result; it is done. Raises its ``ServeError`` if it failed."""
        id_, result = self.tasks.popleft().result()
        self._num_texts -= len(result.outputs)
        return id_, result

    async def _embed(self, item: BulkItem) -> tuple[int, EmbedResult]:
        """Waits while the engine's queue is full: a bulk job is not urgent."""
        request = item.request
        if isinstance(request, ServeError):
            raise request
        while True:
            try:
                with self._context.catalog.calls.of(request.model):
                    result = await embed(request, self._context, self._caller, is_bulk=True)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_seconds)
                continue
            return item.id, result


def _next(items: AsyncIterator[BulkItem]) -> "asyncio.Future[BulkItem | None]":
    return asyncio.ensure_future(anext(items, None))
