"""Turns the engine's updates of a job into chunks of text."""

import dataclasses
from collections.abc import Iterator
from functools import partial

from msgspec import structs

from server.engine.requests.job_handle import JobHandle
from server.engine.requests.update import JobUpdate
from server.service.attention import read_attention
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import Attention, TextChunk
from server.service.output_text import OutputText
from server.service.prepared_request import PreparedRequest
from server.service.usage import error_of

# Updates with more values are converted in a thread.
MAX_INLINE_VALUES = 1024


def parts_of(update: JobUpdate) -> Iterator[JobUpdate]:
    """Yields the update. If its output failed, yields its tokens first, so their text is kept."""
    if update.tokens and update.completion is not None and error_of(update.completion):
        yield structs.replace(update, completion=None)
        update = structs.replace(update, tokens=(), logprobs=(), token_times=())
    yield update


class JobOutputs:
    """Turns the updates of one job into chunks of its outputs."""

    def __init__(self, prepared: PreparedRequest, index: int, context: ServiceContext) -> None:
        self._prepared = prepared
        self._index = index
        self._context = context
        self._caller = Caller(prepared.client, None)
        self._outputs: dict[int, OutputText] = {}

    async def chunk(self, update: JobUpdate, handle: JobHandle) -> TextChunk | None:
        """Makes the chunk for an update; None if no text is final yet.

        An output ends at its last token or at a stop string, which cancels it in the engine.

        Raises:
            ServeError: the output failed.
        """
        number = update.output
        if number not in self._outputs:
            self._outputs[number] = OutputText(
                self._prepared, self._index, number, self._context.metrics
            )
        output = self._outputs[number]
        cost = _num_values(update)
        if not output.token_ids:
            cost += len(self._prepared.prefixes[self._index].token_ids)
        push = partial(output.push, update)
        is_large = cost > MAX_INLINE_VALUES
        chunk = await self._context.build(cost, push, self._caller) if is_large else push()
        if chunk is not None and chunk.finish is not None and number == 0:
            attention = await _attention(
                self._prepared, self._index, output.token_ids, output.num_characters, self._context
            )
            if attention is not None:
                finish = dataclasses.replace(chunk.finish, attention=attention)
                chunk = dataclasses.replace(chunk, finish=finish)
        if output.is_stopped and update.completion is None:
            self._context.engine.cancel([handle], number)
        return chunk

    def close(self) -> None:
        """Counts the tokens of outputs that failed, or whose reader left before their end."""
        for output in self._outputs.values():
            output.close()


def _num_values(update: JobUpdate) -> int:
    """Number of tokens of an update to detokenize or to spell."""
    scored = (*update.logprobs, *update.prompt.logprobs)
    return len(update.tokens) + sum(1 + len(value.top) for value in scored)


async def _attention(
    prepared: PreparedRequest,
    index: int,
    token_ids: tuple[int, ...],
    num_characters: int,
    context: ServiceContext,
) -> Attention | None:
    if prepared.attention is None or not token_ids:
        return None
    job, prefix = prepared.jobs[index], prepared.prefixes[index]
    return await read_attention(
        context,
        prepared.client,
        prepared.model,
        prepared.attention,
        job,
        len(job.prompt) - len(prefix.token_ids),
        token_ids,
        prefix.source_text,
        num_characters,
    )
