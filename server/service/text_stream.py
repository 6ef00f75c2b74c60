"""Generate and Translate, unary and streaming: from jobs to pieces of text."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace

from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import Completion, JobUpdate
from server.service.accounting import failure_of
from server.service.attention import read_attention
from server.service.context import Services
from server.service.prepare import PreparedRequest
from server.telemetry.metrics import Metrics
from server.text.stop_strings import StopStrings

FINISH_REASONS = {
    Outcome.STOP: common_pb2.FINISH_REASON_STOP,
    Outcome.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    Outcome.TIME_LIMIT: common_pb2.FINISH_REASON_DEADLINE,
    Outcome.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Finish:
    """What is known of an output when it ended."""

    reason: "common_pb2.FinishReason.ValueType"
    usage: common_pb2.Usage
    end: Completion
    score: float | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    attention: pb.Attention | None = None


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Part of output ``hypothesis`` of input ``index``; ``finish`` on its last.

    ``logprobs`` are those of the generated ones among ``token_ids``, which come last.
    """

    index: int
    hypothesis: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None


async def generate(
    prepared: PreparedRequest, services: Services, *, is_streamed: bool
) -> AsyncGenerator[TextChunk, None]:
    """Runs the jobs of a request and yields pieces of its outputs as they become known.

    If it is not streamed, in portions. Leaving early cancels what is unfinished. Raises
    ``ServeError``.
    """
    tickets = services.engine.submit(
        prepared.model.key,
        prepared.jobs,
        prepared.client,
        coalesce_updates=not is_streamed and not prepared.stop_strings,
    )
    try:
        streams = [
            _pieces(prepared, index, ticket, services) for index, ticket in enumerate(tickets)
        ]
        merging = streams[0] if len(streams) == 1 else _merge(streams)
        async with contextlib.aclosing(merging) as merged:
            async for piece in merged:
                yield piece
    finally:
        services.engine.cancel(tickets)


def total_usage(usages: list[common_pb2.Usage]) -> common_pb2.Usage:
    """The sum over a request's outputs."""
    return common_pb2.Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        reused_tokens=sum(usage.reused_tokens for usage in usages),
    )


async def _pieces(
    prepared: PreparedRequest, index: int, ticket: JobHandle, services: Services
) -> AsyncGenerator[TextChunk, None]:
    """The outputs of one job: token ids to text, each up to its end or a stop string."""
    outputs: dict[int, _Output] = {}
    while True:
        progress = await ticket.next()
        number = progress.output
        if number not in outputs:
            outputs[number] = _Output(prepared, index, number, services.metrics)
        output = outputs[number]
        piece = output.push(progress)
        if piece is not None and piece.finish is not None and number == 0:
            attention = await _attention(prepared, index, output.token_ids, services)
            finish = replace(piece.finish, attention=attention)
            piece = replace(piece, finish=finish)
        if output.is_matched and progress.completion is None:
            services.engine.cancel([ticket], number)
        if piece is not None:
            yield piece
        if progress.is_last:
            return


async def _attention(
    prepared: PreparedRequest, index: int, token_ids: tuple[int, ...], services: Services
) -> pb.Attention | None:
    if prepared.attention is None or not token_ids:
        return None
    job, opening = prepared.jobs[index], prepared.openings[index]
    return await read_attention(
        services.engine,
        prepared.model,
        prepared.attention,
        job,
        len(job.prompt) - len(opening.prefix),
        token_ids,
        opening.source_text,
    )


class _Output:
    """One text as it grows."""

    def __init__(
        self, prepared: PreparedRequest, index: int, hypothesis: int, metrics: Metrics
    ) -> None:
        self._prepared = prepared
        self._index = index
        self._hypothesis = hypothesis
        self._metrics = metrics
        self._clock = _TokenClock(prepared, metrics)
        self._stream = prepared.model.tokenizer.stream()
        self._stops = StopStrings(prepared.stop_strings)
        self._is_open = False  # whether its opening was told
        self.token_ids: tuple[int, ...] = ()

    @property
    def is_matched(self) -> bool:
        """Whether its text ended with a stop string; what is still generated is dropped."""
        return self._stops.is_matched

    def push(self, progress: JobUpdate) -> TextChunk | None:
        """The next piece, unless there is nothing to tell. Raises ``ServeError``."""
        text, token_ids, logprobs = "", progress.tokens, progress.logprobs
        if self.is_matched:
            token_ids, logprobs = (), ()
        if not self._is_open:
            self._is_open = True
            opening = self._prepared.openings[self._index]
            text += opening.echo + "".join(map(self._stream.push, opening.prefix))
            token_ids = opening.prefix + token_ids
        told = progress.tokens if logprobs or token_ids else ()
        token_times = progress.token_times or itertools.repeat(time.monotonic())
        for token, moment in zip(told, token_times, strict=False):
            self._clock.tick(moment)
            text += self._stops.push(self._stream.push(token))
        self.token_ids += token_ids
        finish = None
        if progress.completion is not None:
            if not self.is_matched:
                failure = failure_of(progress.completion)
                if failure is not None:
                    raise failure
                text += self._stops.push(self._stream.finish())
                text += self._stops.finish()
            finish = self._finish(progress, progress.completion)
        elif not text and not (token_ids and self._prepared.wants_tokens):
            return None
        return TextChunk(self._index, self._hypothesis, text, token_ids, logprobs, finish)

    def _finish(self, progress: JobUpdate, end: Completion) -> Finish:
        name = self._prepared.model.manifest.name
        job = self._prepared.jobs[self._index]
        usage = common_pb2.Usage(output_tokens=self._clock.num_tokens)
        if self._hypothesis == 0:  # the outputs of a job share its input
            usage.input_tokens = len(job.source) or len(job.prompt)
            usage.reused_tokens = end.num_reused_tokens
            self._metrics.on_phases(
                name, end.queue_seconds, end.prefill_seconds, end.decode_seconds
            )
        self._metrics.on_tokens(name, usage.input_tokens, usage.output_tokens)
        reason = common_pb2.FINISH_REASON_STOP_STRING
        if not self.is_matched:
            reason = FINISH_REASONS[end.outcome]
        return Finish(reason, usage, end, progress.score, progress.prompt_logprobs)


class _TokenClock:
    """Counts the tokens of one output and reports the time between them."""

    def __init__(self, prepared: PreparedRequest, metrics: Metrics) -> None:
        self.num_tokens = 0
        self._model = prepared.model.manifest.name
        self._metrics = metrics
        self._last = prepared.started

    def tick(self, now: float) -> None:
        report = self._metrics.on_next_token if self.num_tokens else self._metrics.on_first_token
        report(self._model, now - self._last)
        self.num_tokens += 1
        self._last = now


async def _merge(streams: list[AsyncGenerator[TextChunk, None]]) -> AsyncGenerator[TextChunk, None]:
    """Pieces of several outputs in the order they come."""
    # Of a reader that is slow, updates waits in the tickets, which count it.
    room = asyncio.Semaphore(len(streams))
    pieces: asyncio.Queue[TextChunk | None] = asyncio.Queue()

    async def forward(stream: AsyncIterator[TextChunk]) -> None:
        try:
            async for piece in stream:
                await room.acquire()
                pieces.put_nowait(piece)
        finally:
            pieces.put_nowait(None)

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            updates = await pieces.get()
            if updates is not None:
                yield updates
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
