"""The engine's interface: submit jobs, await their updates.

It belongs to the event loop's thread. Lanes only call :meth:`Engine._publish`,
:meth:`Engine._report_death` and completion callbacks, which hand over to the loop.
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
from server.engine.requests.job import Cost, EncodingJob, GenerationJob, Job
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.placement import choose_lane
from server.engine.requests.update import JobUpdate
from server.errors import ShuttingDownError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Served:
    """A model that was added.

    ``ready`` is done when all lanes have prepared their workers. ``idle`` is set when the last
    accepted job ends.
    """

    admission: Admission
    ready: "asyncio.Future[list[None]]"
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Lanes, each with a worker for every model. Models are added and removed while it runs.

    Args:
        num_lanes: threads of all devices together.
        observer: gets reports of runs and steps.
        busy: learns which lanes have work.
        single_lane_max_sequences: the most sequences that one lane of a device takes on its own.
        on_death: called on the loop, once, when a lane died.
        client_rate: limit of each client; None is no limit.
        num_devices: lanes are divided among them evenly, neighbours on the same device.
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
        self._single_lane_max_sequences = single_lane_max_sequences
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        # Lanes know workers by the number of their model, which is never reused.
        self._numbers = itertools.count()
        self._index: dict[str, int] = {}
        self._served: dict[int, _Served] = {}
        self._handles: dict[int, JobHandle] = {}
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

    def add(self, model: str, workers: list[Worker[Any]], limits: AdmissionLimits) -> None:
        """Adds a model.

        Args:
            model: unique among all that were added.
            workers: one for each lane, which owns it from now on.
            limits: of the jobs that are accepted at a time.
        """
        number = self._index[model] = next(self._numbers)
        ready = [self._loop.create_future() for _ in self._lanes]
        self._served[number] = _Served(Admission(model, limits), asyncio.gather(*ready))
        for lane, worker, done in zip(self._lanes, workers, ready, strict=True):
            lane.send(Add(number, worker, self._completion_callback(done)))

    async def prepared(self, model: str) -> None:
        """Waits until the lanes have prepared their workers for a model."""
        await asyncio.shield(self._served[self._index[model]].ready)

    async def remove(self, model: str) -> None:
        """Removes a model: waits for its jobs, then until no lane holds its worker.

        Nothing can be submitted to it any more.
        """
        number = self._index.pop(model)
        served = self._served[number]
        if served.admission.accepted.num_sequences:
            served.idle.clear()
            await served.idle.wait()
        del self._served[number]
        removed = [self._loop.create_future() for _ in self._lanes]
        for lane, done in zip(self._lanes, removed, strict=True):
            lane.send(Remove(number, self._completion_callback(done)))
        await asyncio.gather(*removed)

    def check(self, model: str, num_sequences: int, *, is_bulk: bool = False) -> None:
        """Rejects a request of ``num_sequences`` before any work, if :meth:`submit` would.

        Raises:
            RequestTooLargeError: it exceeds what can ever be accepted at once.
            OverloadedError: the model is at its limit.
            ShuttingDownError: the engine stops, or died.
        """
        if self._is_closed:
            raise ShuttingDownError
        self._served[self._index[model]].admission.check(Cost(num_sequences, 0), is_bulk=is_bulk)

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
            model: its name.
            jobs: at least one.
            client: charged for the tokens; None for follow-up jobs of an accepted request.
            coalesce_updates: see :class:`server.engine.requests.job_handle.JobHandle`.

        Raises:
            RequestTooLargeError: it exceeds what can ever be accepted at once.
            OverloadedError: the model or the client is at its limit, or the queue is longer than
                the deadline.
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
            self._buckets.spend(client, cost, now)
        admission.accept(cost)
        return [self._accept(index, job, coalesce_updates=coalesce_updates) for job in jobs]

    def _remaining_seconds(self, job: Job) -> float | None:
        """Until the deadline; None if there is none, or if the job may overtake others."""
        may_overtake = isinstance(job, GenerationJob) and job.priority > 0
        if job.deadline is None or may_overtake:
            return None
        return job.deadline - time.monotonic()

    def cancel(self, handles: Iterable[JobHandle], output: int | None = None) -> None:
        """Ends jobs, or one output of each, early. Jobs that are done stay as they are."""
        for handle in handles:
            if not handle.is_done:
                self._lanes[handle.lane].send(Cancel(handle.model, handle.id, output))

    def stop(self) -> None:
        """Stops the lanes after their current steps. Unfinished jobs get no more updates."""
        self._is_closed = True
        for lane in self._lanes:
            lane.send(Stop())
        for lane in self._lanes:
            lane.join()
        self._close_all()

    def _completion_callback(self, done: "asyncio.Future[None]") -> Callable[[], object]:
        """A callback that completes a future of the loop from a lane's thread."""
        return partial(self._loop.call_soon_threadsafe, _set, done)

    def _accept(self, model: int, job: Job, *, coalesce_updates: bool) -> JobHandle:
        lane = choose_lane(
            self._lane_load, self._num_devices, job.num_sequences, self._single_lane_max_sequences
        )
        self._lane_load[lane] += job.num_sequences
        handle = JobHandle(next(self._ids), lane, model, job.cost, coalesce_updates)
        self._handles[handle.id] = handle
        self._lanes[lane].send(Submit(model, handle.id, job))
        return handle

    def _publish(self, updates: list[JobUpdate]) -> None:
        """Called by lanes: wakes the loop once for all updates of a step."""
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[JobUpdate]) -> None:
        now = time.monotonic()
        for update in updates:
            handle = self._handles.get(update.id)
            if handle is None:  # closed: the engine stops
                continue
            if update.is_last:
                self._complete(handle, update)
            if handle.push(update, now):
                self.cancel([handle])

    def _complete(self, handle: JobHandle, last: JobUpdate) -> None:
        handle.is_done = True
        del self._handles[handle.id]
        self._lane_load[handle.lane] -= handle.cost.num_sequences
        served = self._served[handle.model]
        served.admission.release(handle.cost, last.completion)
        if not served.admission.accepted.num_sequences:
            served.idle.set()

    def _report_death(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._die, error)

    def _die(self, error: BaseException) -> None:
        log.critical("a lane died", exc_info=error)
        self._close_all()
        if not self._is_dead:
            self._is_dead = self._is_closed = True
            self._on_death(error)

    def _close_all(self) -> None:
        """Unfinished jobs get no more updates."""
        for handle in self._handles.values():
            handle.is_done = True
            handle.close()
        self._handles.clear()


def _set(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
