"""The EmbedStream call: any number of Embed requests in one call, with flow control."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from server.errors import ServeError
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.embed import embed
from server.service.embedding import EmbedRequest, EmbedResult

# Maximum work in progress per stream. Many texts include some of similar length, whose batches need
# little padding.
MAX_STREAM_TEXTS = 512
MAX_STREAM_REQUESTS = 64
MAX_STREAM_CHARACTERS = 1 << 22


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One request of a stream. ``id`` is chosen by the client and returned with the result.

    ``request`` is an error if the front end could not decode the item. The stream ends with this
    error, after the results of earlier items.
    """

    id: int
    request: EmbedRequest | ServeError


async def embed_stream(
    items: AsyncIterator[BulkItem], context: ServiceContext, caller: Caller
) -> AsyncGenerator[tuple[int, EmbedResult], None]:
    """Embeds the items. Yields the id and the result of each, in order.

    At most :data:`MAX_STREAM_REQUESTS` items are in progress. The next item is read only while
    these have fewer than :data:`MAX_STREAM_TEXTS` texts and :data:`MAX_STREAM_CHARACTERS`
    characters, so that the transport's flow control slows the client down. An item waits if the
    engine's queue is full.

    Args:
        items: the requests.
        context: the server's components.
        caller: the client and its deadline.

    Raises:
        ServeError: the error of the first item that failed.
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
    """The items in progress: one task each, in the order of the stream."""

    def __init__(self, context: ServiceContext, caller: Caller) -> None:
        self.tasks: deque[asyncio.Task[tuple[int, EmbedResult]]] = deque()
        self._context = context
        self._caller = caller
        self._sizes: deque[tuple[int, int]] = deque()  # texts and characters of each item

    @property
    def has_room(self) -> bool:
        return (
            len(self.tasks) < MAX_STREAM_REQUESTS
            and sum(num_texts for num_texts, _ in self._sizes) < MAX_STREAM_TEXTS
            and sum(size for _, size in self._sizes) < MAX_STREAM_CHARACTERS
        )

    def start(self, item: BulkItem) -> None:
        request, sizes = item.request, []
        if isinstance(request, EmbedRequest):
            sizes = [len(each) for each in (*request.inputs, *request.images)]
        self._sizes.append((len(sizes), sum(sizes)))
        self.tasks.append(asyncio.create_task(self._embed(item)))

    def pop(self) -> tuple[int, EmbedResult]:
        """Removes the first item, whose task is done. Returns its id and result, or raises."""
        self._sizes.popleft()
        return self.tasks.popleft().result()

    async def _embed(self, item: BulkItem) -> tuple[int, EmbedResult]:
        """Embeds one item. Waits while the engine's queue is full."""
        request = item.request
        if isinstance(request, ServeError):
            raise request
        with self._context.catalog.calls.of(request.model):
            return item.id, await embed(request, self._context, self._caller, is_bulk=True)


def _next(items: AsyncIterator[BulkItem]) -> "asyncio.Future[BulkItem | None]":
    return asyncio.ensure_future(anext(items, None))
