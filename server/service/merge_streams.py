"""Merges the streams of a request with several inputs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from server.service.generation_request import TextChunk


async def merge(streams: list[AsyncGenerator[TextChunk, None]]) -> AsyncGenerator[TextChunk, None]:
    """Yields the chunks of several streams in the order in which they arrive.

    Raises:
        ServeError: the first error of any stream. The other streams are cancelled.
    """
    # Bounds the chunks in the queue. Later updates wait in the job handles, which are bounded.
    room = asyncio.Semaphore(len(streams))
    chunks: asyncio.Queue[TextChunk | None] = asyncio.Queue()

    async def forward(source: AsyncIterator[TextChunk]) -> None:
        try:
            async for chunk in source:
                await room.acquire()
                chunks.put_nowait(chunk)
        finally:
            chunks.put_nowait(None)

    tasks = [asyncio.create_task(forward(source)) for source in streams]
    try:
        num_open = len(tasks)
        while num_open:
            chunk = await chunks.get()
            if chunk is not None:
                yield chunk
                room.release()
                continue
            num_open -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
