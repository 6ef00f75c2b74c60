"""The caller's side of a job: a bounded queue of updates, read on the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from server.engine.requests.job import Cost
from server.engine.requests.update import Completion, JobUpdate
from server.errors import RETRY_SECONDS, EngineStoppedError, Limit, OverloadedError

# A job with more unread values (tokens, log-probabilities) is cancelled.
MAX_UNREAD_VALUES = 1 << 16


@dataclass(eq=False, slots=True)
class JobHandle:
    """An accepted job, or several texts to encode.

    Await :meth:`next` until it has returned an update with ``is_last`` for each job.

    Attributes:
        id: the id of the first job; the ids of the others follow it.
        lane: the index of the lane that runs the jobs.
        model_id: the id by which lanes look up the model's worker.
        cost: the admitted cost of all jobs.
        num_jobs: the number of jobs. Each text has one update, in the order in which they end.
        has_ended: whether the last update was pushed, or the engine stopped.
        is_overrun: whether the reader was too slow, so that the jobs are cancelled.
        on_update: called once for each update or error that :meth:`next` can return or raise.
    """

    id: int
    lane: int
    model_id: int
    cost: Cost
    num_jobs: int = 1
    has_ended: bool = False
    is_overrun: bool = False
    on_update: Callable[[], object] | None = None
    _num_ended: int = 0
    _first_queue_seconds: float = 0.0  # the queue time of the job that ended first
    _num_unread_values: int = 0
    # Updates with the number of their values; None ends the queue.
    _updates: deque[tuple[JobUpdate, int] | None] = field(default_factory=deque)
    _reader: "asyncio.Future[None] | None" = None  # waits for an update

    @property
    def ids(self) -> range:
        return range(self.id, self.id + self.num_jobs)

    def end_one(self, completion: Completion) -> Completion | None:
        """Counts a job that ended. Returns the completion of all jobs after the last one."""
        if not self._num_ended:
            self._first_queue_seconds = completion.queue_seconds
        self._num_ended += 1
        if self._num_ended < self.num_jobs:
            return None
        self.has_ended = True
        later = completion.queue_seconds - self._first_queue_seconds
        return replace(
            completion,
            queue_seconds=self._first_queue_seconds,
            prefill_seconds=completion.prefill_seconds + later,
        )

    async def next(self) -> JobUpdate:
        """Waits for the next update. For one reader at a time.

        Raises:
            EngineStoppedError: the engine stopped before the job ended.
            OverloadedError: too many updates were unread, and the job was cancelled.
        """
        while not self._updates:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        queued = self._updates.popleft()
        if queued is not None:
            update, num_values = queued
            self._num_unread_values -= num_values
            return update
        if self.is_overrun:
            raise OverloadedError(
                "the stream was read too slowly", RETRY_SECONDS, Limit.SLOW_READER
            )
        raise EngineStoppedError

    def push(self, update: JobUpdate) -> bool:
        """Queues an update. Called by the engine.

        Returns:
            Whether the engine has to cancel the job, because too many updates are unread.
        """
        if self.is_overrun:
            return False
        num_values = _num_values(update)
        self._num_unread_values += num_values
        self._put((update, num_values))
        # The last update of an output is as large as the request allows, and needs no cancelling.
        if self._num_unread_values > MAX_UNREAD_VALUES and update.completion is None:
            self.is_overrun = True
            self.close()
            return True
        return False

    def close(self) -> None:
        """Ends the queue: after the queued updates, :meth:`next` raises."""
        self._put(None)

    def _put(self, queued: tuple[JobUpdate, int] | None) -> None:
        self._updates.append(queued)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self.on_update is not None:
            self.on_update()


def _num_values(update: JobUpdate) -> int:
    """Returns roughly how many values an update keeps in memory."""
    return 1 + len(update.tokens) + sum(1 + 2 * len(logprob.top) for logprob in update.logprobs)
