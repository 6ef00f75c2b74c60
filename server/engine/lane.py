"""A lane: one thread that owns all mutable state of its workers. Others send it commands."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from server.engine.observer import Load, Observer
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.sequence import Job, JobUpdate

JobT_contra = TypeVar("JobT_contra", contravariant=True)


class Worker(Protocol[JobT_contra]):
    """One model in one lane. All but ``model`` is for the lane's thread alone."""

    model: str

    @property
    def has_work(self) -> bool: ...
    @property
    def load(self) -> Load: ...
    def submit(self, id_: int, job: JobT_contra) -> None: ...
    def cancel(self, id_: int, output: int | None = None) -> None: ...
    def step(self) -> list[JobUpdate]: ...

    def prepare(self) -> None:
        """Called once, before anything is submitted."""
        ...


@dataclass(frozen=True, slots=True)
class Add:
    """``instance`` from now on belongs to the lane, which knows it as ``worker``.

    ``done`` is called by the lane when it has prepared it.
    """

    worker: int
    instance: Worker[Any]
    done: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Remove:
    """For a worker without jobs. ``done`` is called by the lane when it has let go of it."""

    worker: int
    done: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Submit:
    worker: int
    id: int
    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """``output``: only this one of the job's; None is all of them."""

    worker: int
    id: int
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave at once; what is unfinished is dropped by the engine."""


Command = Add | Remove | Submit | Cancel | Stop


class Lane(threading.Thread):
    """Runs the steps of its workers, in turn, while they have work.

    Args:
        index: for reports.
        publish: takes the updates of a step; called by this thread, must not block.
        on_death: takes the exception that ended the thread.
        observer: told of every step.
        busy: told whether this lane has work.
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
        self._index = index
        self._workers: dict[int, Worker[Any]] = {}
        self._publish = publish
        self._on_death = on_death
        self._observer = observer
        self._busy = busy
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send(self, *commands: Command) -> None:
        """Hands over commands, from any thread. They are seen before the next step.

        From now on the lane has work: another that begins at this moment does not take all cores.
        """
        if any(isinstance(command, Submit) for command in commands):
            self._busy.enter(self._index)
        for command in commands:
            self._commands.put(command)

    def run(self) -> None:
        try:
            while self._take_commands():
                self._step_all()
        except BaseException as error:
            self._on_death(error)

    def _step_all(self) -> None:
        # In a frame of its own: no local of the idle thread holds a worker that is removed.
        for worker in self._workers.values():
            if worker.has_work:
                self._step(worker)

    def _step(self, worker: Worker[Any]) -> None:
        started = time.perf_counter()
        updates = worker.step()
        if updates:
            self._publish(updates)
        seconds = time.perf_counter() - started
        self._observer.on_step(worker.model, self._index, worker.load, seconds)

    def _take_commands(self) -> bool:
        """Takes all commands, waiting for one if there is no work. False: stop."""
        is_idle = not any(worker.has_work for worker in self._workers.values())
        if is_idle:
            self._busy.leave(self._index)
        while True:
            try:
                command = self._commands.get(block=is_idle)
            except queue.Empty:
                return True
            is_idle = False
            self._busy.enter(self._index)
            if isinstance(command, Stop):
                return False
            self._handle(command)

    def _handle(self, command: Add | Remove | Submit | Cancel) -> None:
        match command:
            case Add(worker, instance, done):
                instance.prepare()
                self._workers[worker] = instance
                done()
            case Remove(worker, done):
                del self._workers[worker]
                done()
            case Submit(worker, id_, job):
                self._workers[worker].submit(id_, job)
            case Cancel(worker, id_, output):
                self._workers[worker].cancel(id_, output)
