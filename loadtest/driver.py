"""Sends requests in a closed loop (a number of clients) or in an open loop (at given times)."""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from loadtest.statistics import OK, Sample, TokenArrival

FAILURE_PAUSE_SECONDS = 0.05
"""Pause of a closed loop's client after a failure without a retry delay of the server."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the start of the run."""

    async def sleep_until(self, at_seconds: float) -> None:
        """Returns at once if that time has passed."""


class MonotonicClock:
    """The run starts when the clock is created."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def sleep_until(self, at_seconds: float) -> None:
        await asyncio.sleep(max(0.0, at_seconds - self.now()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """The response to one request, as far as it is measured. A failed one may have a delay."""

    status: str = OK
    arrivals: tuple[TokenArrival, ...] = ()
    input_tokens: int = 0
    reused_tokens: int = 0
    retry_delay_seconds: float | None = None


Send = Callable[[int], Awaitable[Response]]
"""Sends the request of this number and waits for its end. A failure is a status, no exception."""

Record = Callable[[Sample], None]


@dataclass(slots=True, kw_only=True)
class Window:
    """The part of a run that is measured: ``duration_seconds`` after a warm-up.

    ``start_seconds`` is infinite until the loop sets it, once.
    """

    warmup_seconds: float
    duration_seconds: float
    start_seconds: float = math.inf

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.duration_seconds


async def closed_loop(
    send: Send, record: Record, clock: Clock, window: Window, *, concurrency: int
) -> None:
    """Runs ``concurrency`` clients until the window ends; each sends when it has its response.

    The window starts when the warm-up time has passed and, if that is more than 0, a first
    response has arrived: so even with a slow server a request is due in the window. A client
    pauses after a failure; otherwise a server that refuses at once would be flooded.
    """
    numbers = itertools.count()
    if window.warmup_seconds == 0:
        window.start_seconds = 0.0

    async def client() -> None:
        while clock.now() < window.end_seconds:
            response = await _send(send, record, clock, next(numbers), due_seconds=clock.now())
            if window.start_seconds == math.inf:
                window.start_seconds = max(window.warmup_seconds, clock.now())
            if response.status != OK:
                pause = response.retry_delay_seconds or FAILURE_PAUSE_SECONDS
                await clock.sleep_until(clock.now() + pause)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_loop(
    send: Send,
    record: Record,
    clock: Clock,
    window: Window,
    *,
    due_seconds: Iterable[float],
    max_in_flight: int | None,
) -> None:
    """Sends a request at each of ``due_seconds``, whether or not earlier ones have finished.

    The window starts when the warm-up time has passed. With ``max_in_flight``, requests above
    that number wait; the wait is part of their latency.
    """
    window.start_seconds = window.warmup_seconds
    in_flight = None if max_in_flight is None else asyncio.Semaphore(max_in_flight)

    async def request(number: int, due: float) -> None:
        await _send(send, record, clock, number, due_seconds=due)
        if in_flight is not None:
            in_flight.release()

    async with asyncio.TaskGroup() as group:
        for number, due in enumerate(due_seconds):
            await clock.sleep_until(due)
            if in_flight is not None:
                await in_flight.acquire()
            group.create_task(request(number, due))


async def _send(
    send: Send, record: Record, clock: Clock, number: int, *, due_seconds: float
) -> Response:
    sent_seconds = clock.now()
    response = await send(number)
    record(
        Sample(
            due_seconds=due_seconds,
            sent_seconds=sent_seconds,
            finished_seconds=clock.now(),
            status=response.status,
            arrivals=response.arrivals,
            input_tokens=response.input_tokens,
            reused_tokens=response.reused_tokens,
        )
    )
    return response
