"""The engine as request handlers see it: submit jobs, await their news.

All of it runs on the event loop's thread; only :meth:`Engine._publish` is called
by lanes. Admission is decided here, by counting: what was accepted and has not
ended.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from server.engine.busy import BusyLanes
from server.engine.lane import Add, Cancel, Lane, Remove, Stop, Submit, Worker
from server.engine.observer import Observer
from server.engine.sequence import Job, Progress
from server.errors import InternalError, InvalidArgumentError, OverloadedError, ShuttingDownError

log = logging.getLogger(__name__)

_MIN_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 30.0
_SMOOTHING = 0.1


@dataclass(eq=False, slots=True)
class Ticket:
    """One accepted job. Await its news until one ``is_last``; then it is done."""

    id: int
    lane: int
    model: int
    submitted: float
    num_rows: int
    news: "asyncio.Queue[Progress | None]" = field(default_factory=asyncio.Queue)
    is_done: bool = False

    async def next(self) -> Progress:
        """The next news. Raises ``InternalError`` if the engine died."""
        progress = await self.news.get()
        if progress is None:
            raise InternalError("the engine stopped")
        return progress


@dataclass(slots=True)
class Admission:
    """Counts of one model. ``capacity``: rows accepted at a time, running or queued."""

    name: str
    capacity: int
    num_accepted: int = 0
    idle: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set when nothing is accepted any more
    seconds_per_job: float = 0.0  # between two ends, while busy; smoothed

    def retry_seconds(self) -> float:
        """When a place is likely to be free."""
        return min(max(self.seconds_per_job, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


class Engine:
    """Lanes, each with a worker for every model. Models come and go while it runs.

    Args:
        num_lanes: threads.
        observer: told of runs and steps.
        busy: told which lanes have work.
        gather_rows: up to so many rows, all work goes to one lane, which then has the cores.
        on_death: called on the loop, once, when a lane died.
    """

    def __init__(
        self,
        num_lanes: int,
        observer: Observer,
        busy: BusyLanes,
        gather_rows: int,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._gather_rows = gather_rows
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        # A number for each model that ever came, which its workers are known by in the lanes.
        self._numbers = itertools.count()
        self._index: dict[str, int] = {}
        self._admission: dict[int, Admission] = {}
        self._tickets: dict[int, Ticket] = {}
        self._ids = itertools.count(1)
        self._lane_load = [0] * num_lanes
        self._is_closed = False
        self._is_dead = False
        self._lanes = [
            Lane(index, self._publish, self._report_death, observer, busy)
            for index in range(num_lanes)
        ]
        for lane in self._lanes:
            lane.start()

    def add(self, model: str, workers: list[Worker[Any]], capacity: int) -> None:
        """Takes a model.

        Args:
            model: unique among all that were added.
            workers: one for each lane, whose they are from now on.
            capacity: the rows accepted at a time.
        """
        number = self._index[model] = next(self._numbers)
        self._admission[number] = Admission(model, capacity)
        for lane, worker in zip(self._lanes, workers, strict=True):
            lane.send(Add(number, worker))

    async def remove(self, model: str) -> None:
        """Gives a model up: waits for the jobs it has, then until no lane holds its worker.

        Nothing may be submitted to it any more.
        """
        number = self._index.pop(model)
        admission = self._admission[number]
        if admission.num_accepted:
            admission.idle.clear()
            await admission.idle.wait()
        del self._admission[number]
        gone = [self._loop.create_future() for _ in self._lanes]
        for lane, done in zip(self._lanes, gone, strict=True):
            lane.send(
                Remove(number, partial(self._loop.call_soon_threadsafe, done.set_result, None))
            )
        await asyncio.gather(*gone)

    def submit(self, model: str, jobs: Rows[Job]) -> list[Ticket]:
        """Accepts all jobs of a request, or none.

        Raises:
            InvalidArgumentError: more jobs than could ever be accepted at once.
            OverloadedError: no room for them now.
            ShuttingDownError: the engine stops, or died.
        """
        if self._is_closed:
            raise ShuttingDownError
        index = self._index[model]
        admission = self._admission[index]
        num_rows = sum(job.num_rows for job in jobs)
        if num_rows > admission.capacity:
            raise InvalidArgumentError(
                "inputs",
                f"{len(jobs)} given, which need {num_rows} places, at most "
                f"{admission.capacity} in one request",
            )
        if admission.num_accepted + num_rows > admission.capacity:
            raise OverloadedError(admission.name, admission.retry_seconds())
        admission.num_accepted += num_rows
        return [self._accept(index, job) for job in jobs]

    def cancel(self, tickets: Iterable[Ticket], output: int | None = None) -> None:
        """Ends jobs, or one output of each, early. Those that are done are left as they are."""
        for ticket in tickets:
            if not ticket.is_done:
                self._lanes[ticket.lane].send(Cancel(ticket.model, ticket.id, output))

    def stop(self) -> None:
        """Ends the lanes after the steps they are in. Unfinished jobs get no more news."""
        self._is_closed = True
        for lane in self._lanes:
            lane.send(Stop())
        for lane in self._lanes:
            lane.join()
        self._abandon()

    def _accept(self, model: int, job: Job) -> Ticket:
        lane = self._lane_for(job.num_rows)
        self._lane_load[lane] += job.num_rows
        ticket = Ticket(next(self._ids), lane, model, self._loop.time(), job.num_rows)
        self._tickets[ticket.id] = ticket
        self._lanes[lane].send(Submit(model, ticket.id, job))
        return ticket

    def _lane_for(self, num_rows: int) -> int:
        """The lane that has all the work, while that is little; else the least loaded."""
        loads = self._lane_load
        busiest = loads.index(max(loads))
        if loads[busiest] == sum(loads) and loads[busiest] + num_rows <= self._gather_rows:
            return busiest
        return loads.index(min(loads))

    def _publish(self, news: list[Progress]) -> None:
        """Called by lanes: one wake-up of the loop for the news of a step."""
        self._loop.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: list[Progress]) -> None:
        for progress in news:
            ticket = self._tickets.get(progress.id)
            if ticket is None:  # abandoned: the engine stops
                continue
            if progress.is_last:
                self._close(ticket)
            ticket.news.put_nowait(progress)

    def _close(self, ticket: Ticket) -> None:
        ticket.is_done = True
        del self._tickets[ticket.id]
        self._lane_load[ticket.lane] -= ticket.num_rows
        admission = self._admission[ticket.model]
        share = (self._loop.time() - ticket.submitted) * ticket.num_rows / admission.num_accepted
        admission.seconds_per_job += _SMOOTHING * (share - admission.seconds_per_job)
        admission.num_accepted -= ticket.num_rows
        if not admission.num_accepted:
            admission.idle.set()

    def _report_death(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._die, error)

    def _die(self, error: BaseException) -> None:
        log.critical("a lane died", exc_info=error)
        self._abandon()
        if not self._is_dead:
            self._is_dead = self._is_closed = True
            self._on_death(error)

    def _abandon(self) -> None:
        for ticket in self._tickets.values():
            ticket.is_done = True
            ticket.news.put_nowait(None)
        self._tickets.clear()
