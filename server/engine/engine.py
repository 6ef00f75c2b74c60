"""The engine's interface: submit jobs, await their updates.

It belongs to the event loop's thread. Lanes only call :meth:`Engine._publish`,
:meth:`Engine._report_death` and completion callbacks, which hand over to the loop.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from server.engine.cache.idle_rows import IdleLimits
from server.engine.lane import Add, Cancel, Lane, ReleaseMemory, Remove, Stop, Submit, Worker
from server.engine.observer import Observer
from server.engine.requests.admission import Admission, AdmissionLimits, ClientBuckets, ClientRate
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Cost, EncodingJob, Job, total_cost
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.placement import Placement, count_handles, divide_texts
from server.engine.requests.update import Completion, JobUpdate
from server.engine.served_model import ServedModel
from server.engine.watchdog import StuckLaneError, Watchdog, stacks_of_threads
from server.errors import ShuttingDownError

# Handles that :meth:`Engine.submit_texts` accepts in one part: the loop takes about 20 µs for each.
HANDLES_AT_ONCE = 32
log = logging.getLogger(__name__)


class Engine:
    """Owns the lanes, each with a worker for every model. Models come and go while it runs.

    Args:
        num_lanes: the number of lanes over all devices; each lane is one thread.
        observer: receives a report of every step.
        busy: records which lanes have work.
        single_lane_max_sequences: the most sequences that one lane of a device takes while the
            other lanes of the device have none.
        on_death: called once, on the loop, when a lane has died or is stuck.
        client_rate: limits each client; None for no limit.
        num_devices: the number of devices; each has ``num_lanes / num_devices`` adjacent lanes.
        stuck_seconds: see :class:`server.engine.watchdog.Watchdog`.
        on_stuck: called once, on the watchdog's thread, before ``on_death``.
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
        stuck_seconds: float = float("inf"),
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        self._buckets = None if client_rate is None else ClientBuckets(client_rate)
        self._loop = asyncio.get_running_loop()
        self._on_death, self._on_stuck = on_death, on_stuck
        # Lanes look up workers by model id. Ids are never reused.
        self._model_ids = itertools.count()
        self._id_of_model: dict[str, int] = {}
        self._models: dict[int, ServedModel] = {}
        self._handles: dict[int, JobHandle] = {}
        self._next_id = 1
        self._placement = Placement(num_lanes, num_devices, single_lane_max_sequences)
        self._is_stopping = self._is_dead = False
        self._lanes = [
            Lane(index, self._publish, self._report_death, observer, busy)
            for index in range(num_lanes)
        ]
        for lane in self._lanes:
            lane.start()
        self._stuck_lanes: set[int] = set()
        self._watchdog = Watchdog(self._lanes, stuck_seconds, self._report_stuck)
        self._watchdog.start()

    @property
    def is_alive(self) -> bool:
        """Whether no lane has died or is stuck."""
        return not self._is_dead

    def add(self, model: str, workers: list[Worker[Any]], limits: AdmissionLimits) -> None:
        """Adds a model.

        Args:
            model: its name, unique among the models of this engine.
            workers: one for each lane, which takes ownership.
            limits: how many sequences and tokens the model accepts.
        """
        model_id = self._id_of_model[model] = next(self._model_ids)
        ready = [self._loop.create_future() for _ in self._lanes]
        self._models[model_id] = ServedModel(Admission(model, limits), asyncio.gather(*ready))
        for lane, worker, done in zip(self._lanes, workers, ready, strict=True):
            lane.send(Add(model_id, worker, self._completion_callback(done)))

    async def wait_until_ready(self, model: str) -> None:
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

    def check(
        self, model: str, num_sequences: int, client: str = "", *, is_bulk: bool = False
    ) -> None:
        """Raises if the model cannot accept ``num_sequences`` more sequences now.

        Raises:
            InvalidArgumentError: the model never accepts this many sequences at once.
            OverloadedError: the model is at its limit.
            ShuttingDownError: the engine is stopping, or a lane has died.
        """
        if self._is_stopping:
            raise ShuttingDownError
        self._models[self._id_of_model[model]].admission.check(
            Cost(num_sequences, 0), time.monotonic(), is_bulk=is_bulk, client=client
        )

    def submit(
        self,
        model: str,
        jobs: Sequence[Job],
        client: str | None = None,
    ) -> list[JobHandle]:
        """Accepts all jobs of a request, or none.

        Args:
            model: its name.
            jobs: at least one.
            client: the client to charge for the tokens; None for follow-up jobs of an accepted
                request. The jobs name it too, for their share of the slots.

        Raises:
            OverloadedError: the model or the client is at its limit, or the queue is too long for
                the deadline.
            ServeError: see :meth:`check`.
        """
        parts = self._submit(model, jobs, client, len(jobs))
        return [handle for part in parts for handle in part]

    def submit_texts(
        self, model: str, jobs: Sequence[EncodingJob], client: str
    ) -> Iterator[list[JobHandle]]:
        """Submits texts in parts: checks all of them first, then accepts one part at a time.

        Many texts share a handle, so that the loop's work for each text is small. The arguments
        and errors are those of :meth:`submit`.
        """
        return self._submit(model, jobs, client, count_handles(len(jobs), len(self._lanes)))

    def _submit(
        self,
        model: str,
        jobs: Sequence[Job],
        client: str | None,
        num_handles: int,
    ) -> Iterator[list[JobHandle]]:
        if self._is_stopping:
            raise ShuttingDownError
        model_id = self._id_of_model[model]
        admission = self._models[model_id].admission
        costs = [job.cost for job in jobs]
        cost = total_cost(costs)
        is_bulk = isinstance(jobs[0], EncodingJob) and jobs[0].is_bulk
        now = time.monotonic()
        remaining, name = jobs[0].remaining_seconds(now), client or ""
        admission.check(cost, now, remaining, is_bulk=is_bulk, client=name)
        if self._buckets is not None and client is not None:
            nanoseconds = time.monotonic_ns()
            self._buckets.check(client, cost, nanoseconds)
            self._buckets.spend(client, cost, nanoseconds)
        starts = divide_texts(len(jobs), num_handles)
        for first in range(0, num_handles, HANDLES_AT_ONCE):
            if self._is_stopping:
                raise ShuttingDownError
            handles = []
            commands: dict[int, list[Submit]] = {}
            for start, stop in itertools.pairwise(starts[first : first + HANDLES_AT_ONCE + 1]):
                own = jobs[start:stop]
                handle = self._accept(model_id, own, total_cost(costs[start:stop]))
                handles.append(handle)
                command = Submit(model_id, handle.id, own)
                commands.setdefault(handle.lane, []).append(command)
                admission.accept(handle.id, handle.cost, now, name)
            for lane, of_lane in commands.items():
                self._lanes[lane].send(*of_lane)
            yield handles

    def cancel(self, handles: Iterable[JobHandle], output: int | None = None) -> None:
        """Ends jobs, or one output of each, early. Ignores jobs that have ended."""
        for handle in handles:
            if not handle.has_ended:
                self._lanes[handle.lane].send(Cancel(handle.model_id, handle.ids, output))

    def release_memory(self, limits: IdleLimits) -> None:
        """Asks every lane to release its workers' idle memory, a part after each step."""
        for lane in self._lanes:
            lane.send(ReleaseMemory(limits))

    def stop(self) -> None:
        """Waits until all lanes but stuck ones have ended their step and stopped.

        Unfinished jobs get no more updates.
        """
        self._is_stopping = True
        for lane in self._lanes:
            lane.send(Stop())
        self._watchdog.stop()
        for index, lane in enumerate(self._lanes):
            if index not in self._stuck_lanes:
                lane.join()
        self._close_all()

    def _completion_callback(self, done: "asyncio.Future[None]") -> Callable[[], object]:
        """Returns a callback that a lane's thread calls to complete ``done`` on the loop."""
        return partial(self._loop.call_soon_threadsafe, _complete_future, done)

    def _accept(self, model_id: int, jobs: Sequence[Job], cost: Cost) -> JobHandle:
        lane = self._placement.place(model_id, jobs[0], cost.num_sequences)
        id_, self._next_id = self._next_id, self._next_id + len(jobs)
        handle = JobHandle(id_, lane, model_id, cost, len(jobs))
        self._handles.update(dict.fromkeys(handle.ids, handle))
        return handle

    def _publish(self, updates: list[JobUpdate]) -> None:
        """Hands the updates of a step to the loop in one call. Runs on a lane's thread."""
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[JobUpdate]) -> None:
        now = time.monotonic()
        for update in updates:
            handle = self._handles.get(update.id)
            if handle is None:  # the engine has stopped
                continue
            if update.completion is not None and not update.has_more:
                del self._handles[update.id]
                completion = handle.end_one(update.completion)
                if completion is not None:
                    self._release(handle, completion, now)
            if handle.push(update):
                self.cancel([handle])

    def _release(self, handle: JobHandle, completion: Completion, now: float) -> None:
        """Releases the cost of ``handle``, all of whose jobs have ended."""
        self._placement.release(handle.lane, handle.cost.num_sequences)
        served = self._models[handle.model_id]
        served.admission.release(handle.id, handle.cost, completion, now)
        if not served.admission.accepted.num_sequences:
            served.idle.set()

    def _report_death(self, error: BaseException) -> None:
        log.critical("a lane died", exc_info=error)
        self._loop.call_soon_threadsafe(self._die, error)

    def _report_stuck(self, lane: int, error: StuckLaneError) -> None:
        error.add_note(stacks_of_threads())
        log.critical("a run does not return", exc_info=error)
        self._stuck_lanes.add(lane)
        self._on_stuck()
        self._loop.call_soon_threadsafe(self._die, error)

    def _die(self, error: BaseException) -> None:
        self._close_all()
        if not self._is_dead:
            self._is_dead = self._is_stopping = True
            self._on_death(error)

    def _close_all(self) -> None:
        """Closes the handles of all unfinished jobs: they get no more updates."""
        for handle in set(self._handles.values()):
            handle.has_ended = True
            handle.close()
        self._handles.clear()


def _complete_future(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
