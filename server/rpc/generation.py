"""Generate and Translate, unary and streaming: from jobs to pieces of text."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from protos.triune.v1 import common_pb2
from server.engine.engine import Engine, Ticket
from server.engine.lifecycle import Outcome
from server.engine.sequence import End
from server.errors import DeadlineError, InternalError, ServeError
from server.metrics import Metrics
from server.rpc.context import Services
from server.rpc.prepare import Prepared
from server.text.stop_strings import StopStrings

FINISH_REASONS = {
    Outcome.STOP: common_pb2.FINISH_REASON_STOP,
    Outcome.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    Outcome.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Finish:
    """What is known of an output when it ended."""

    reason: "common_pb2.FinishReason.ValueType"
    usage: common_pb2.Usage
    end: End


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of one output; ``finish`` on its last."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None = None


async def generate(prepared: Prepared, services: Services) -> AsyncGenerator[Piece, None]:
    """Runs the jobs of a request and yields pieces of its outputs as they become known.

    Leaving early cancels what is unfinished. Raises ``ServeError``.
    """
    tickets = services.engine.submit(prepared.model.key, prepared.jobs)
    try:
        streams = [
            _pieces(prepared, index, ticket, services) for index, ticket in enumerate(tickets)
        ]
        async with contextlib.aclosing(_merge(streams)) as merged:
            async for piece in merged:
                yield piece
    finally:
        services.engine.cancel(tickets)


def timing(prepared: Prepared, ends: list[End]) -> common_pb2.Timing:
    """Of a request: each phase's longest among its outputs."""
    return common_pb2.Timing(
        queue_seconds=max(end.queue_seconds for end in ends),
        tokenize_seconds=prepared.tokenize_seconds,
        prefill_seconds=max(end.prefill_seconds for end in ends),
        decode_seconds=max(end.decode_seconds for end in ends),
        total_seconds=time.monotonic() - prepared.started,
    )


def total_usage(usages: list[common_pb2.Usage]) -> common_pb2.Usage:
    """The sum over a request's outputs."""
    return common_pb2.Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        reused_tokens=sum(usage.reused_tokens for usage in usages),
    )


def failure_of(end: End) -> ServeError | None:
    """The error that a caller gets for an outcome that is none of success."""
    match end.outcome:
        case Outcome.FAILED:
            return InternalError(end.failure)
        case Outcome.DEADLINE:
            return DeadlineError()
        case _:
            return None


async def _pieces(
    prepared: Prepared, index: int, ticket: Ticket, services: Services
) -> AsyncGenerator[Piece, None]:
    """One output: token ids to text, up to the end or a stop string."""
    clock = _TokenClock(prepared, services.metrics)
    stream = prepared.model.tokenizer.stream()
    stops = StopStrings(prepared.stop_strings)
    while True:
        progress = await ticket.next()
        text = ""
        for token in progress.tokens:
            clock.tick()
            text += stops.push(stream.push(token))
        end = progress.end
        if stops.is_matched:
            end = end or await _cancel(services.engine, ticket)
        elif end is not None:
            failure = failure_of(end)
            if failure is not None:
                raise failure
            text += stops.push(stream.finish())
            text += stops.finish()
        if end is not None:
            yield Piece(
                index,
                text,
                progress.tokens,
                _finish(prepared, index, clock.num_tokens, end, stops, services.metrics),
            )
            return
        if text or prepared.wants_token_ids:
            yield Piece(index, text, progress.tokens)


async def _cancel(engine: Engine, ticket: Ticket) -> End:
    """Ends a sequence whose text is complete; what it still generates is dropped."""
    engine.cancel([ticket])
    while True:
        progress = await ticket.next()
        if progress.end is not None:
            return progress.end


def _finish(
    prepared: Prepared, index: int, num_tokens: int, end: End, stops: StopStrings, metrics: Metrics
) -> Finish:
    name = prepared.model.manifest.name
    job = prepared.jobs[index]
    usage = common_pb2.Usage(
        input_tokens=len(job.source) or len(job.prompt), output_tokens=num_tokens
    )
    metrics.on_phases(name, end.queue_seconds, end.prefill_seconds, end.decode_seconds)
    metrics.on_tokens(name, usage.input_tokens, usage.output_tokens)
    reason = (
        common_pb2.FINISH_REASON_STOP_STRING if stops.is_matched else FINISH_REASONS[end.outcome]
    )
    return Finish(reason, usage, end)


class _TokenClock:
    """Counts the tokens of one output and reports the time between them."""

    def __init__(self, prepared: Prepared, metrics: Metrics) -> None:
        self.num_tokens = 0
        self._model = prepared.model.manifest.name
        self._metrics = metrics
        self._last = prepared.started

    def tick(self) -> None:
        now = time.monotonic()
        report = self._metrics.on_next_token if self.num_tokens else self._metrics.on_first_token
        report(self._model, now - self._last)
        self.num_tokens += 1
        self._last = now


async def _merge(streams: list[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """Pieces of several outputs in the order they come."""
    if len(streams) == 1:
        async for piece in streams[0]:
            yield piece
        return
    pieces: asyncio.Queue[Piece | None] = asyncio.Queue()

    async def forward(stream: AsyncIterator[Piece]) -> None:
        try:
            async for piece in stream:
                pieces.put_nowait(piece)
        finally:
            pieces.put_nowait(None)

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            news = await pieces.get()
            if news is not None:
                yield news
                continue
            num_open -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
