"""What one request of each task is, and what a client sees of its answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from client import types
from client.aio import AsyncClient
from client.errors import TriuneError
from loadtest.driver import Answer, Clock, Send
from loadtest.prompts import LengthRange, Prompts
from loadtest.statistics import TokenArrival

UNFINISHED = "UNFINISHED"
"""The status of a stream that ended well for gRPC, but without its last piece."""


class Task(StrEnum):
    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a task's requests are like, unless the caller says otherwise."""

    lengths: LengthRange
    """In tokens."""
    max_new_tokens: int | None
    ignore_eos: bool


# A trained decoder may end at once on a prompt that was cut: past the end, every request
# costs the same. A translation ends when its source is translated.
DEFAULTS = {
    Task.GENERATE: Defaults(lengths=LengthRange(8, 128), max_new_tokens=64, ignore_eos=True),
    Task.TRANSLATE: Defaults(lengths=LengthRange(5, 80), max_new_tokens=128, ignore_eos=False),
    Task.EMBED: Defaults(lengths=LengthRange(8, 128), max_new_tokens=None, ignore_eos=False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One text a request, all with the same options."""

    task: Task
    model: str
    prompts: Prompts
    max_new_tokens: int | None
    ignore_eos: bool


def sender(client: AsyncClient, workload: Workload, clock: Clock) -> Send:
    """Sends the workload's requests with ``client``; times are of ``clock``."""
    options = types.GenerationOptions(
        max_new_tokens=workload.max_new_tokens,
        ignore_eos=workload.ignore_eos,
        token_ids=True,
    )

    async def generate(text: str) -> Answer:
        return await _read(client.generate_stream(workload.model, text, **options), clock)

    async def translate(text: str) -> Answer:
        return await _read(client.translate_stream(workload.model, text, **options), clock)

    async def embed(text: str) -> Answer:
        result = await client.embed(workload.model, text)
        return Answer(input_tokens=result.usage.input_tokens)

    calls: dict[Task, Callable[[str], Awaitable[Answer]]] = {
        Task.GENERATE: generate,
        Task.TRANSLATE: translate,
        Task.EMBED: embed,
    }
    call = calls[workload.task]

    async def send(number: int) -> Answer:
        try:
            return await call(workload.prompts.text(number))
        except TriuneError as error:
            return Answer(status=error.code.name, retry_delay_seconds=error.retry_delay_seconds)

    return send


async def _read(pieces: AsyncGenerator[types.Piece, None], clock: Clock) -> Answer:
    """Follows a stream. Its last piece tells how many tokens there were in all: one that
    has no text, as the end of sequence, may have no id.
    """
    arrivals: list[TokenArrival] = []
    num_tokens = 0
    usage = None
    async for piece in pieces:
        usage = piece.usage
        total = num_tokens + len(piece.token_ids) if usage is None else usage.output_tokens
        if total > num_tokens:
            arrivals.append(TokenArrival(clock.now(), total - num_tokens))
            num_tokens = total
    if usage is None:
        return Answer(status=UNFINISHED)
    return Answer(
        arrivals=tuple(arrivals),
        input_tokens=usage.input_tokens,
        reused_tokens=usage.reused_tokens,
    )
