"""Runs the jobs of a request, and yields their text in chunks or as whole outputs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from server.engine.requests.job import Delivery
from server.engine.requests.job_handle import JobHandle
from server.service.context import ServiceContext
from server.service.generation_request import TextChunk
from server.service.job_outputs import JobOutputs, parts_of
from server.service.join_sentences import join_sentences
from server.service.merge_streams import merge
from server.service.prepared_request import PreparedRequest
from server.service.reasoning import separate_reasoning
from server.service.tool_calls import separate_calls


def stream(prepared: PreparedRequest, context: ServiceContext) -> AsyncGenerator[TextChunk, None]:
    """Runs the jobs of a request and yields chunks as soon as their text is final.

    Closing the generator early cancels unfinished jobs.

    Args:
        prepared: the request.
        context: the server's components.

    Raises:
        ServeError: the first failure of any job.
    """
    chunks = _run_jobs(prepared, context)
    if prepared.sentences is not None:
        return join_sentences(chunks, prepared.sentences)
    if prepared.separates_reasoning:
        chunks = separate_reasoning(chunks, is_open=prepared.begins_with_reasoning)
    return separate_calls(chunks, prepared.chat) if prepared.chat.offered else chunks


async def holding(
    chunks: AsyncGenerator[TextChunk, None], resources: contextlib.ExitStack
) -> AsyncGenerator[TextChunk, None]:
    """Yields ``chunks``; releases ``resources`` when the stream ends or is closed."""
    with resources:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk


async def _run_jobs(
    prepared: PreparedRequest, context: ServiceContext
) -> AsyncGenerator[TextChunk, None]:
    """Yields the chunks of all jobs; their ``index`` is that of the job."""
    jobs, order = prepared.jobs, list(range(len(prepared.jobs)))
    is_whole = jobs[0].delivery is Delivery.WHOLE
    if is_whole:  # longest first: no long job runs alone at the end, and the encoder pads little
        order.sort(key=lambda index: -len(jobs[index].source))
    ordered = [jobs[index] for index in order]
    handles = context.engine.submit(prepared.model.key, ordered, prepared.client)
    outputs = [JobOutputs(prepared, index, context) for index in order]
    try:
        if len(jobs) == 1:
            merging = _chunks(outputs[0], handles[0])
        elif is_whole and prepared.attention is None:
            merging = _as_they_end(outputs, handles)
        else:  # attention needs another run for each output; these run concurrently
            merging = merge(list(map(_chunks, outputs, handles)))
        async with contextlib.aclosing(merging) as merged:
            async for chunk in merged:
                yield chunk
    finally:
        context.engine.cancel(handles)
        for output in outputs:
            output.close()


async def _chunks(outputs: JobOutputs, handle: JobHandle) -> AsyncGenerator[TextChunk, None]:
    """Yields the chunks of one job."""
    is_last = False
    while not is_last:
        update = await handle.next()
        for part in parts_of(update):
            chunk = await outputs.chunk(part, handle)
            if chunk is not None:
                yield chunk
        is_last = update.is_last


async def _as_they_end(
    outputs: Sequence[JobOutputs], handles: Sequence[JobHandle]
) -> AsyncGenerator[TextChunk, None]:
    """Yields the chunks of jobs with whole outputs, in the order in which the outputs end.

    Unlike ``merge``, this needs no task per job.
    """
    arrived: asyncio.Queue[int] = asyncio.Queue()
    for index, handle in enumerate(handles):
        handle.on_update = partial(arrived.put_nowait, index)
    num_open = len(handles)
    while num_open:
        index = await arrived.get()
        update = await handles[index].next()
        chunk = await outputs[index].chunk(update, handles[index])
        if chunk is not None:
            yield chunk
        num_open -= update.is_last
