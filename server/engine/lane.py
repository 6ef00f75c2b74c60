"""A lane: one thread that owns all mutable state of its workers. Other threads send commands."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from server.engine.cache.idle_rows import IdleLimits
from server.engine.observer import Observer, WorkerStats, total_stats
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Job
from server.engine.requests.lifecycle import Ending, Outcome
from server.engine.requests.update import JobTimes, JobUpdate
from server.engine.watchdog import Progress
from server.niceness import Niceness, add_niceness

log = logging.getLogger(__name__)

REFUSED_JOB = Ending(Outcome.FAILED, "the job could not be started")

JobT_contra = TypeVar("JobT_contra", contravariant=True)


def never() -> bool:
    """Returns False: as ``may_continue``, it limits a step to one decode run."""
    return False


class Worker(Protocol[JobT_contra]):
    """Runs one model in one lane. Only the lane's thread uses it.

    Any thread may read ``model`` and ``progress``.
    """

    model: str
    progress: Progress

    @property
    def has_work(self) -> bool: ...
    @property
    def stats(self) -> WorkerStats: ...
    def submit(self, id_: int, job: JobT_contra) -> None: ...
    def cancel(self, id_: int, output: int | None = None) -> None: ...
    def step(self, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
        """Runs one step; it may make further decode runs while ``may_continue()``.

        ``may_continue``: returns whether the lane has no other work.

        Returns:
            The updates of all jobs, in order.
        """
        ...

    def prepare(self) -> None:
        """Prepares the worker. The lane calls it once, before it submits a job."""
        ...

    def release_memory(self, limits: IdleLimits) -> bool:
        """Releases a bounded part of its idle memory. Returns whether there may be more."""
        ...


@dataclass(frozen=True, slots=True)
class Add:
    """Gives the lane a model's worker. The lane prepares it, then calls ``done``."""

    model_id: int
    worker: Worker[Any]
    done: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a worker that has no jobs. The lane drops its reference, then calls ``done``."""

    model_id: int
    done: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Submit:
    """Hands jobs to a worker. Their ids are ``first_id``, ``first_id + 1``, …"""

    model_id: int
    first_id: int
    jobs: Sequence[Job]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends jobs early, or one ``output`` of each."""

    model_id: int
    ids: range
    output: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseMemory:
    """Releases idle memory of all workers, a part after each step."""

    limits: IdleLimits


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the thread. The engine closes unfinished jobs."""


Command = Add | Remove | Submit | Cancel | ReleaseMemory | Stop


class Lane(threading.Thread):
    """Runs the steps of its workers, in turn, while they have work.

    Args:
        index: the lane's index, for its name and reports.
        publish: called on this thread with the updates of a step; must not block.
        on_death: called with the exception that ended the thread.
        observer: receives a report of every step.
        busy: records whether this lane has work.

    Attributes:
        progress: the progress of the worker that runs now, for the watchdog; None if none runs.
    """

    def __init__(
        self,
        index: int,
        publish: Callable[[list[JobUpdate]], None],
        on_death: Callable[[BaseException], None],
        observer: Observer,
        busy: BusyLanes,
    ) -> None:
        super().__init__(name=f"lane-{index}", daemon=True)
        self.progress: Progress | None = None
        self._index = index
        # In the order in which they get their next step.
        self._workers: dict[int, Worker[Any]] = {}
        self._publish = publish
        self._on_death = on_death
        self._observer = observer
        self._busy = busy
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        # Models whose workers may have more memory to release.
        self._releasing: dict[int, IdleLimits] = {}

    def send(self, *commands: Command) -> None:
        """Sends commands, from any thread. The lane handles them before its next step.

        A lane with a new job counts as busy at once, so that a lane that starts a step at the same
        moment does not take all cores.
        """
        if any(isinstance(command, Submit) for command in commands):
            self._busy.enter(self._index)
        for command in commands:
            self._commands.put(command)

    def run(self) -> None:
        add_niceness(Niceness.LANE)
        try:
            while self._take_commands():
                self._step_next()
                self._release_memory()
        except BaseException as error:
            self._on_death(error)

    def _step_next(self) -> None:
        """Steps the first worker that has work, and moves it to the end of the order."""
        # A separate method: no local variable of an idle thread keeps a removed worker alive.
        for model_id, worker in self._workers.items():
            if worker.has_work:
                self._workers[model_id] = self._workers.pop(model_id)
                self._step(worker)
                return

    def _release_memory(self) -> None:
        for model_id, limits in tuple(self._releasing.items()):
            if not self._workers[model_id].release_memory(limits):
                del self._releasing[model_id]

    def _step(self, worker: Worker[Any]) -> None:
        started = time.perf_counter()
        self._watch(worker)
        is_alone = not self._releasing and sum(w.has_work for w in self._workers.values()) == 1
        updates = worker.step(self._commands.empty if is_alone else never)
        self._unwatch(worker)
        if updates:
            self._publish(updates)
        self._observer.on_step(worker.model, time.perf_counter() - started)
        self._report_stats(worker.model)

    def _report_stats(self, model: str) -> None:
        """Reports the stats of a model's versions, which have the same name, if there are any."""
        stats = [worker.stats for worker in self._workers.values() if worker.model == model]
        if stats:
            self._observer.on_stats(model, self._index, total_stats(stats))

    def _watch(self, worker: Worker[Any]) -> None:
        """Lets the watchdog see the worker's progress, until :meth:`_unwatch`."""
        worker.progress.begin()
        self.progress = worker.progress

    def _unwatch(self, worker: Worker[Any]) -> None:
        """Hides the worker's progress. Not called after an error, which ends this thread."""
        self.progress = None
        worker.progress.end()

    def _take_commands(self) -> bool:
        """Handles all queued commands; without work, waits for one. Returns False on ``Stop``."""
        is_idle = not any(worker.has_work for worker in self._workers.values())
        if is_idle:
            self._busy.leave(self._index)
        waits = is_idle and not self._releasing
        while waits or not self._commands.empty():  # only this thread takes commands
            command = self._commands.get()
            waits = False
            if isinstance(command, ReleaseMemory):
                self._releasing = dict.fromkeys(self._workers, command.limits)
                continue
            self._busy.enter(self._index)
            if isinstance(command, Stop):
                return False
            self._handle(command)
        return True

    def _handle(self, command: Add | Remove | Submit | Cancel) -> None:
        match command:
            case Add(model_id, worker, done):
                self._watch(worker)
                worker.prepare()
                self._unwatch(worker)
                self._workers[model_id] = worker
                self._report_stats(worker.model)
                done()
            case Remove(model_id, done):
                model = self._workers.pop(model_id).model
                self._releasing.pop(model_id, None)
                self._report_stats(model)
                done()
            case Submit(model_id, first_id, jobs):
                for id_, job in enumerate(jobs, first_id):
                    self._submit(self._workers[model_id], id_, job)
            case Cancel(model_id, ids, output):
                for id_ in ids:
                    self._workers[model_id].cancel(id_, output)

    def _submit(self, worker: Worker[Any], id_: int, job: Any) -> None:
        """Hands a job to its worker. If the worker refuses it, only this job fails."""
        try:
            worker.submit(id_, job)
        except Exception:
            log.exception("%s: a job was refused", worker.model)
            now = time.monotonic()
            completion = JobTimes(now).complete(REFUSED_JOB, now)
            self._publish([JobUpdate(id_, completion=completion)])
