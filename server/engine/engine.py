"""The engine as request handlers see it: submit jobs, await their updates.

All of it runs on the event loop's thread; only :meth:`Engine._publish` is called
by lanes.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from server.engine.lane import Add, Cancel, Lane, Remove, Stop, Submit, Worker
from server.engine.observer import Observer
from server.engine.requests.admission import Admission, AdmissionLimits, ClientBuckets, ClientRate
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.placement import choose_lane
from server.engine.requests.sequence import Cost, EncodingJob, GenerationJob, Job, JobUpdate
from server.errors import ShuttingDownError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Served:
    """``idle`` is set when nothing is accepted any more, ``ready`` when all lanes are."""

    admission: Admission
    ready: "asyncio.Future[list[None]]"
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Lanes, each with a worker for every model. Models come and go while it runs.

    Args:
        num_lanes: threads, of all devices.
        observer: told of runs and steps.
        busy: told which lanes have work.
        single_lane_max_sequences: up to this many, one lane of a device runs all sequences.
        on_death: called on the loop, once, when a lane died.
        client_rate: of each client; None is no limit.
        num_devices: each with as many lanes, which stand together.
    """

    def __init__(
        self,
        num_lanes: int,
        observer: Observer,
        busy: BusyLanes,
        single_lane_max_sequences: int,
        on_death: Callable[[BaseException], None],
        client_rate: ClientRate | None = None,
        num_devices: int = 1,
    ) -> None:
        self._num_devices = num_devices
        self._buckets = None if client_rate is None else ClientBuckets(client_rate)
        self._gather_rows = single_lane_max_sequences
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        # A number for each model that ever came, which its workers are known by in the lanes.
        self._numbers = itertools.count()
        self._index: dict[str, int] = {}
        self._served: dict[int, _Served] = {}
        self._tickets: dict[int, JobHandle] = {}
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

    def add(self, model: str, workers: list[Worker[Any]], room: AdmissionLimits) -> None:
        """Takes a model.

        Args:
            model: unique among all that were added.
            workers: one for each lane, whose they are from now on.
            room: what of it is accepted at a time.
        """
        number = self._index[model] = next(self._numbers)
        ready = [self._loop.create_future() for _ in self._lanes]
        self._served[number] = _Served(Admission(model, room), asyncio.gather(*ready))
        for lane, worker, done in zip(self._lanes, workers, ready, strict=True):
            lane.send(Add(number, worker, self._completion_callback(done)))

    async def prepared(self, model: str) -> None:
        """Waits until the lanes have prepared their workers for a model."""
        await asyncio.shield(self._served[self._index[model]].ready)

    async def remove(self, model: str) -> None:
        """Gives a model up: waits for the jobs it has, then until no lane holds its worker.

        Nothing may be submitted to it any more.
        """
        number = self._index.pop(model)
        served = self._served[number]
        if served.admission.accepted.num_rows:
            served.idle.clear()
            await served.idle.wait()
        del self._served[number]
        gone = [self._loop.create_future() for _ in self._lanes]
        for lane, done in zip(self._lanes, gone, strict=True):
            lane.send(Remove(number, self._completion_callback(done)))
        await asyncio.gather(*gone)

    def check(self, model: str, num_rows: int, *, is_bulk: bool = False) -> None:
        """Refuses a request for so many rows before any work, if :meth:`submit` would.

        Raises:
            RequestTooLargeError: more than could ever be accepted at once.
            OverloadedError: no room for them now.
            ShuttingDownError: the engine stops, or died.
        """
        if self._is_closed:
            raise ShuttingDownError
        self._served[self._index[model]].admission.check(Cost(num_rows, 0), is_bulk=is_bulk)

    def submit(
        self,
        model: str,
        jobs: Sequence[Job],
        client: str | None = None,
        *,
        coalesce_updates: bool = False,
    ) -> list[JobHandle]:
        """Accepts all jobs of a request, or none.

        Args:
            model: that does them.
            jobs: at least one.
            client: whose limit counts; None for what belongs to a request that was accepted.
            coalesce_updates: see :class:`server.engine.requests.job_handle.Ticket`.

        Raises:
            RequestTooLargeError: more than could ever be accepted at once.
            OverloadedError: no room for them now, or the queue is longer than the caller waits.
            ShuttingDownError: the engine stops, or died.
        """
        if self._is_closed:
            raise ShuttingDownError
        index = self._index[model]
        admission = self._served[index].admission
        cost = sum((job.cost for job in jobs), Cost(0, 0))
        is_bulk = isinstance(jobs[0], EncodingJob) and jobs[0].is_bulk
        admission.check(cost, self._remaining_seconds(jobs[0]), is_bulk=is_bulk)
        if self._buckets is not None and client is not None:
            now = time.monotonic_ns()
            self._buckets.check(client, cost, now)
            self._buckets.take(client, cost, now)
        admission.take(cost)
        return [self._accept(index, job, coalesce_updates=coalesce_updates) for job in jobs]

    def _remaining_seconds(self, job: Job) -> float | None:
        """Until the caller gives up; None too for one who may overtake what waits."""
        may_overtake = isinstance(job, GenerationJob) and job.priority > 0
        if job.deadline is None or may_overtake:
            return None
        return job.deadline - time.monotonic()

    def cancel(self, tickets: Iterable[JobHandle], output: int | None = None) -> None:
        """Ends jobs, or one output of each, early. Those that are done are left as they are."""
        for ticket in tickets:
            if not ticket.is_done:
                self._lanes[ticket.lane].send(Cancel(ticket.model, ticket.id, output))

    def stop(self) -> None:
        """Ends the lanes after the steps they are in. Unfinished jobs get no more updates."""
        self._is_closed = True
        for lane in self._lanes:
            lane.send(Stop())
        for lane in self._lanes:
            lane.join()
        self._abandon()

    def _completion_callback(self, done: "asyncio.Future[None]") -> Callable[[], object]:
        """What a lane calls to set a future of the loop."""
        return partial(self._loop.call_soon_threadsafe, _set, done)

    def _accept(self, model: int, job: Job, *, coalesce_updates: bool) -> JobHandle:
        lane = choose_lane(self._lane_load, self._num_devices, job.num_rows, self._gather_rows)
        self._lane_load[lane] += job.num_rows
        ticket = JobHandle(next(self._ids), lane, model, job.cost, coalesce_updates)
        self._tickets[ticket.id] = ticket
        self._lanes[lane].send(Submit(model, ticket.id, job))
        return ticket

    def _publish(self, updates: list[JobUpdate]) -> None:
        """Called by lanes: one wake-up of the loop for the updates of a step."""
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[JobUpdate]) -> None:
        now = time.monotonic()
        for progress in updates:
            ticket = self._tickets.get(progress.id)
            if ticket is None:  # abandoned: the engine stops
                continue
            if progress.is_last:
                self._close(ticket, progress)
            if ticket.tell(progress, now):
                self.cancel([ticket])

    def _close(self, ticket: JobHandle, last: JobUpdate) -> None:
        ticket.is_done = True
        del self._tickets[ticket.id]
        self._lane_load[ticket.lane] -= ticket.cost.num_rows
        served = self._served[ticket.model]
        served.admission.give_back(ticket.cost, last.completion)
        if not served.admission.accepted.num_rows:
            served.idle.set()

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
            ticket.abandon()
        self._tickets.clear()


def _set(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
