"""Runs blocking work, mostly tokenization, in slices on a few threads, fairly among clients.

The cost of work is in units of the time that a byte of text takes to tokenize, about 0.6 µs. The
cost of the work that was started is counted per client and per call. The next slice is taken from
the client with the lowest count and, among its calls, from the call with the lowest (start-time
fair queueing, Goyal et al. 1996, and least attained service). An idle client resumes with the
lowest count of the others. So a short call waits neither for other clients' long calls nor for
those of its own client.

A slice over :data:`MAX_SLICE_COST` has one text that cannot be split. It may have to wait, so that
one thread stays free for short slices.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from server.errors import RETRY_SECONDS, DeadlineError, Limit, OverloadedError
from server.service.caller import Caller

T = TypeVar("T")

# Maximum cost of a slice, unless it has one item: about 20 ms.
MAX_SLICE_COST = 1 << 15
# Fixed cost of each item.
ITEM_COST = 64
MAX_WAITING_COST = 1 << 28


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """A part of a call's work."""

    cost: int
    function: Callable[[], T]


def check_deadline(deadline: float | None) -> None:
    """Raises ``DeadlineError`` if ``deadline`` (seconds of ``time.monotonic``) has passed."""
    if deadline is not None and deadline <= time.monotonic():
        raise DeadlineError


def slices_of(costs: Iterable[int], function: Callable[[int, int], T]) -> list[Slice[T]]:
    """Divides work over items into slices of at most :data:`MAX_SLICE_COST`, or of one item.

    Args:
        costs: the cost of each item, besides :data:`ITEM_COST`.
        function: processes the items from its first argument up to its second (exclusive).
    """
    slices: list[Slice[T]] = []
    start = stop = total = 0

    def close() -> None:
        first, end = start, stop
        slices.append(Slice(total, lambda: function(first, end)))

    for own_cost in costs:
        cost = own_cost + ITEM_COST
        if stop > start and total + cost > MAX_SLICE_COST:
            close()
            start, total = stop, 0
        stop, total = stop + 1, total + cost
    if stop > start:
        close()
    return slices


@dataclass(slots=True, eq=False)
class _Client:
    """A client with calls in progress, of ``cost`` in all. ``attained``: that of started work."""

    attained: int
    num_calls: int = 0
    cost: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    """The next slice of a call. ``attained``: the cost of the call's started work."""

    client: _Client
    attained: int
    slice: Slice[Any]
    deadline: float | None
    done: "asyncio.Future[Any]"

    @property
    def is_long(self) -> bool:
        return self.slice.cost > MAX_SLICE_COST

    @property
    def order(self) -> tuple[int, int]:
        return self.client.attained, self.attained


class FairExecutor:
    """Runs slices on a thread pool. Only the event loop's thread may call it.

    Args:
        executor: a pool of ``num_threads`` threads, which runs nothing else.
        num_threads: the size of the pool.
        max_waiting: maximum number of calls in progress; each client may always have its equal
            share.
    """

    def __init__(self, executor: Executor, num_threads: int, max_waiting: int) -> None:
        self._executor = executor
        self._num_threads = num_threads
        self._max_long = max(1, num_threads - 1)
        self._max_waiting = max_waiting
        self._clients: dict[str, _Client] = {}
        self._waiting: list[_Waiting] = []
        self._num_running = self._num_long = 0

    async def run(
        self,
        slices: Iterable[Slice[T]],
        caller: Caller,
        *,
        is_admitted: bool = False,
        cost: int | None = None,
    ) -> list[T]:
        """Runs the slices of a call, one after another; returns their results.

        If the caller cancels, the slices that have not started are dropped.

        Args:
            slices: all slices of the call's work.
            caller: the client and the deadline of the call.
            is_admitted: whether the engine has accepted the call; if so, no limits apply.
            cost: the cost of all slices, if ``slices`` makes each one after the previous ran.

        Raises:
            DeadlineError: the deadline passed before a slice started.
            OverloadedError: too many calls, or too costly ones, are in progress.
        """
        if cost is None:
            slices = list(slices)
            cost = sum(part.cost for part in slices)
        client = self._enter(caller.client, cost, is_admitted=is_admitted)
        deadline = None if is_admitted else caller.deadline
        results, attained = [], 0
        try:
            for part in slices:
                results.append(
                    await self._run(
                        _Waiting(
                            client,
                            attained,
                            part,
                            deadline,
                            asyncio.get_running_loop().create_future(),
                        )
                    )
                )
                attained += part.cost
        finally:
            client.num_calls -= 1
            client.cost -= cost
            if not client.num_calls:
                del self._clients[caller.client]
        return results

    def _enter(self, name: str, cost: int, *, is_admitted: bool) -> _Client:
        client = self._clients.get(name)
        if client is None:
            least = min((other.attained for other in self._clients.values()), default=0)
            client = _Client(least)
        if not is_admitted:
            self._check_room(client, cost)
        self._clients[name] = client
        client.num_calls += 1
        client.cost += cost
        return client

    def _check_room(self, client: _Client, cost: int) -> None:
        """Raises ``OverloadedError`` if a limit is reached and the client exceeds its share."""
        clients = self._clients.values()
        num_clients = len(clients) + (not client.num_calls)
        for limit, total, own, more in (
            (self._max_waiting, sum(x.num_calls for x in clients), client.num_calls, 1),
            (MAX_WAITING_COST, sum(x.cost for x in clients), client.cost, cost),
        ):
            if total + more > limit and own + more > limit // num_clients:
                raise OverloadedError(
                    "too many requests are waiting for tokenization", RETRY_SECONDS, Limit.THREADS
                )

    async def _run(self, waiting: _Waiting) -> Any:
        self._waiting.append(waiting)
        self._start_next()
        try:
            return await waiting.done
        finally:
            if waiting in self._waiting:  # cancelled before it started
                self._waiting.remove(waiting)
            del waiting  # breaks a cycle: its error's traceback keeps this frame

    def _start_next(self) -> None:
        """Starts as many slices as there are free threads."""
        while self._num_running < self._num_threads:
            can_be_long = self._num_long < self._max_long
            ready = [one for one in self._waiting if can_be_long or not one.is_long]
            if not ready:
                return
            first = min(ready, key=lambda one: one.order)
            self._waiting.remove(first)
            if not first.done.done():
                self._start(first)

    def _start(self, waiting: _Waiting) -> None:
        try:
            check_deadline(waiting.deadline)
        except DeadlineError as error:
            waiting.done.set_exception(error)
            return
        waiting.client.attained += waiting.slice.cost
        self._num_running += 1
        self._num_long += waiting.is_long
        running = asyncio.get_running_loop().run_in_executor(self._executor, waiting.slice.function)
        running.add_done_callback(lambda ended: self._finish(waiting, ended))

    def _finish(self, waiting: _Waiting, ended: "asyncio.Future[Any]") -> None:
        self._num_running -= 1
        self._num_long -= waiting.is_long
        if ended.cancelled():
            waiting.done.cancel()
        elif not waiting.done.done():
            error = ended.exception()
            if error is None:
                waiting.done.set_result(ended.result())
            else:
                waiting.done.set_exception(error)
        else:
            ended.exception()  # marks the exception as retrieved; the caller has left
        self._start_next()
