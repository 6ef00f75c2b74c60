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
from server.engine.requests.placement import PrefixLanes, choose_lane
from server.engine.requests.update import Completion, JobUpdate
from server.errors import ShuttingDownError

# Jobs that are submitted without a pause for other tasks: about 3 ms of work.
SUBMITTED_AT_ONCE = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ServedModel:
    """A model that the lanes serve.

    ``ready`` completes when all lanes have prepared their workers. ``idle`` is set when the last
    accepted job ends.
    """

    admission: Admission
    ready: "asyncio.Future[list[None]]"
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Lanes, each with a worker for every model. Models are added and removed while it runs.

    Args:
        num_lanes: over all devices; each lane is one thread.
        observer: receives a report of every step.
        busy: records which lanes have work.
        single_lane_max_sequences: the most sequences that one lane of a device takes on its own.
        on_death: called once, on the loop, when a lane has died.
        client_rate: limits each client; None for no limit.
        num_devices: each has ``num_lanes / num_devices`` adjacent lanes.
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
        # Lanes look up workers by model id. Ids are never reused.
        self._model_ids = itertools.count()
        self._id_of_model: dict[str, int] = {}
        self._models: dict[int, _ServedModel] = {}
        self._handles: dict[int, JobHandle] = {}
        self._ids = itertools.count(1)
        self._lane_load = [0] * num_lanes
        self._prefix_lanes = PrefixLanes() if num_lanes > 1 else None
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
            model: its name, never used for another model of this engine.
            workers: one for each lane, which takes ownership.
            limits: of the accepted jobs.
        """
        model_id = self._id_of_model[model] = next(self._model_ids)
        ready = [self._loop.create_future() for _ in self._lanes]
        self._models[model_id] = _ServedModel(Admission(model, limits), asyncio.gather(*ready))
        for lane, worker, done in zip(self._lanes, workers, ready, strict=True):
            lane.send(Add(model_id, worker, self._completion_callback(done)))

    async def prepared(self, model: str) -> None:
        """Waits until all lanes have prepared their workers for a model."""
        await asyncio.shield(self._models[self._id_of_model[model]].ready)

    async def remove(self, model: str) -> None:
        """Removes a model: waits for its jobs to end, then for every lane to drop its worker.

        New jobs for it fail from now on.
        """
        model_id = self._id_of_model.pop(model)
        served = self._models[model_id]
        if served.admission.accepted.num_sequences:
            served.idle.clear()
            await served.idle.wait()
        del self._models[model_id]
        removed = [self._loop.create_future() for _ in self._lanes]
        for lane, done in zip(self._lanes, removed, strict=True):
            lane.send(Remove(model_id, self._completion_callback(done)))
        await asyncio.gather(*removed)

    def check(self, model: str, num_sequences: int, *, is_bulk: bool = False) -> None:
        """Raises if the model cannot accept ``num_sequences`` more sequences now.

        Raises:
            RequestTooLargeError: it exceeds what can ever be accepted at once.
            OverloadedError: the model is at its limit.
            ShuttingDownError: the engine is stopping, or a lane has died.
        """
        if self._is_closed:
            raise ShuttingDownError
        self._models[self._id_of_model[model]].admission.check(
            Cost(num_sequences, 0), is_bulk=is_bulk
        )

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
            ShuttingDownError: the engine is stopping, or a lane has died.
        """
        model_id = self._admit(model, jobs, client)
        return [self._accept(model_id, job, coalesce_updates=coalesce_updates) for job in jobs]

    async def submit_many(
        self, model: str, jobs: Sequence[Job], client: str | None = None
    ) -> list[JobHandle]:
        """As :meth:`submit`; other tasks run between each :data:`SUBMITTED_AT_ONCE` jobs.

        If the caller is cancelled, so are the jobs.
        """
        model_id = self._admit(model, jobs, client)
        handles: list[JobHandle] = []
        try:
            for start in range(0, len(jobs), SUBMITTED_AT_ONCE):
                if start:
                    await asyncio.sleep(0)
                if self._is_closed:
                    raise ShuttingDownError
                for job in jobs[start : start + SUBMITTED_AT_ONCE]:
                    handles.append(self._accept(model_id, job, coalesce_updates=False))
        except BaseException:
            self.cancel(handles)
            for job in jobs[len(handles) :]:
                self._release(model_id, job.cost)
            raise
        return handles

    def _admit(self, model: str, jobs: Sequence[Job], client: str | None) -> int:
        """Counts all jobs of a request as accepted; returns the id of the model."""
        if self._is_closed:
            raise ShuttingDownError
        model_id = self._id_of_model[model]
        admission = self._models[model_id].admission
        cost = sum((job.cost for job in jobs), Cost(0, 0))
        is_bulk = isinstance(jobs[0], EncodingJob) and jobs[0].is_bulk
        admission.check(cost, self._remaining_seconds(jobs[0]), is_bulk=is_bulk)
        if self._buckets is not None and client is not None:
            now = time.monotonic_ns()
            self._buckets.check(client, cost, now)
            self._buckets.spend(client, cost, now)
        admission.accept(cost)
        return model_id

    def _remaining_seconds(self, job: Job) -> float | None:
        """Seconds until the deadline; None if there is none, or if the job may skip the queue."""
        may_skip_queue = isinstance(job, GenerationJob) and job.priority > 0
        if job.deadline is None or may_skip_queue:
            return None
        return job.deadline - time.monotonic()

    def cancel(self, handles: Iterable[JobHandle], output: int | None = None) -> None:
        """Ends jobs, or one output of each, early. Jobs that are done stay as they are."""
        for handle in handles:
            if not handle.is_done:
                self._lanes[handle.lane].send(Cancel(handle.model_id, handle.id, output))

    def stop(self) -> None:
        """Stops the lanes after their current steps. Unfinished jobs get no more updates."""
        self._is_closed = True
        for lane in self._lanes:
            lane.send(Stop())
        for lane in self._lanes:
            lane.join()
        self._close_all()

    def _completion_callback(self, done: "asyncio.Future[None]") -> Callable[[], object]:
        """Returns a callback that a lane's thread calls to complete ``done`` on the loop."""
        return partial(self._loop.call_soon_threadsafe, _complete_future, done)

    def _accept(self, model_id: int, job: Job, *, coalesce_updates: bool) -> JobHandle:
        lane = self._choose_lane(model_id, job)
        self._lane_load[lane] += job.num_sequences
        handle = JobHandle(next(self._ids), lane, model_id, job.cost, coalesce_updates)
        self._handles[handle.id] = handle
        self._lanes[lane].send(Submit(model_id, handle.id, job))
        return handle

    def _choose_lane(self, model_id: int, job: Job) -> int:
        preferred = None
        key = (model_id, job.cache_scope, job.prompt) if isinstance(job, GenerationJob) else None
        if self._prefix_lanes is not None and key is not None:
            preferred = self._prefix_lanes.find(*key)
        lane = choose_lane(
            self._lane_load,
            self._num_devices,
            job.num_sequences,
            self._single_lane_max_sequences,
            preferred,
        )
        if self._prefix_lanes is not None and key is not None:
            self._prefix_lanes.record(*key, lane)
        return lane

    def _publish(self, updates: list[JobUpdate]) -> None:
        """Hands the updates of a step to the loop in one call. Runs on a lane's thread."""
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[JobUpdate]) -> None:
        now = time.monotonic()
        for update in updates:
            handle = self._handles.get(update.id)
            if handle is None:  # the engine has stopped
                continue
            if update.is_last:
                self._complete(handle, update)
            if handle.push(update, now):
                self.cancel([handle])

    def _complete(self, handle: JobHandle, last: JobUpdate) -> None:
        handle.is_done = True
        del self._handles[handle.id]
        self._lane_load[handle.lane] -= handle.cost.num_sequences
        self._release(handle.model_id, handle.cost, last.completion)

    def _release(self, model_id: int, cost: Cost, completion: Completion | None = None) -> None:
        served = self._models[model_id]
        served.admission.release(cost, completion)
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


def _complete_future(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
