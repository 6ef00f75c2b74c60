"""The caller's side of a job: a bounded queue of updates, read on the event loop."""

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from msgspec.structs import replace

from server.engine.requests.job import Cost
from server.engine.requests.update import Completion, JobUpdate
from server.errors import RETRY_SECONDS, EngineStoppedError, Limit, OverloadedError

# A job with more unread values (tokens, log-probabilities) is cancelled.
MAX_UNREAD_VALUES = 1 << 16
# At most this many updates are joined into one.
MAX_JOINED_UPDATES = 64
# While many sequences stream, a token waits at most so long for others of its stream: 25 messages a
# second are more than a person can tell apart.
JOIN_SECONDS = 0.04


class Delivery(Enum):
    """How the tokens of a job reach its reader."""

    EACH = auto()
    """Each token at once, in an update of its own."""
    STREAM = auto()
    """At once; while many sequences stream, the tokens of ``JOIN_SECONDS`` together."""
    WHOLE = auto()
    """Many at a time, for a reader that wants whole outputs."""


@dataclass(eq=False, slots=True)
class JobHandle:
    """An accepted job, or several texts to encode. Await :meth:`next` until each ``is_last``.

    Attributes:
        id: the first job's; those of the others follow.
        lane: index of the lane that runs the jobs.
        model_id: by which the lanes look up the worker.
        cost: the admitted cost of all jobs.
        delivery: how the updates are queued.
        num_jobs: texts have one update each, in the order in which they end.
        is_done: the last update was pushed, or the engine stopped.
        is_overrun: the reader was too slow; the jobs are cancelled.
    """

    id: int
    lane: int
    model_id: int
    cost: Cost
    delivery: Delivery = Delivery.EACH
    num_jobs: int = 1
    is_done: bool = False
    is_overrun: bool = False
    _num_ended: int = 0
    _first_queue_seconds: float = 0.0  # of the job that ended first
    _num_unread_values: int = 0
    _held: list[JobUpdate] = field(default_factory=list)  # to join
    _last_queued: float = -math.inf  # when an update was queued
    # Updates with the number of their values; None ends the queue.
    _updates: deque[tuple[JobUpdate, int] | None] = field(default_factory=deque)
    _reader: "asyncio.Future[None] | None" = None  # waits for an update

    @property
    def ids(self) -> range:
        return range(self.id, self.id + self.num_jobs)

    def end_one(self, completion: Completion) -> Completion | None:
        """Counts a job that ended. After the last one, the completion of all."""
        if not self._num_ended:
            self._first_queue_seconds = completion.queue_seconds
        self._num_ended += 1
        if self._num_ended < self.num_jobs:
            return None
        self.is_done = True
        later = completion.queue_seconds - self._first_queue_seconds
        return replace(
            completion,
            queue_seconds=self._first_queue_seconds,
            prefill_seconds=completion.prefill_seconds + later,
        )

    async def next(self) -> JobUpdate:
        """The next update. For one reader at a time.

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

    def push(self, update: JobUpdate, now: float, *, is_busy: bool = False) -> bool:
        """Queues an update. Called by the engine at ``now`` (``time.monotonic``, seconds).

        ``is_busy``: whether many sequences stream.

        Returns:
            Whether the engine has to cancel the job, because too many updates are unread.
        """
        if self.is_overrun:
            return False
        num_values = _num_values(update)
        self._num_unread_values += num_values
        if self._may_hold(now, is_busy=is_busy) or self._held:
            self._held.append(replace(update, token_times=(now,) * len(update.tokens)))
            is_full = len(self._held) == MAX_JOINED_UPDATES
            if is_full or update.is_last or not self._may_hold(now, is_busy=is_busy):
                self._join(now)
        else:
            self._put((update, num_values))
            self._last_queued = now
        if self._num_unread_values > MAX_UNREAD_VALUES and not update.is_last:
            self.is_overrun = True
            self.close()
            return True
        return False

    def _may_hold(self, now: float, *, is_busy: bool) -> bool:
        """Whether an update may wait for later ones."""
        if self.delivery == Delivery.STREAM:
            return is_busy and now < self._last_queued + JOIN_SECONDS
        return self.delivery == Delivery.WHOLE

    def close(self) -> None:
        """Ends the queue: after the queued updates, :meth:`next` raises."""
        self._put(None)

    def _put(self, queued: tuple[JobUpdate, int] | None) -> None:
        self._updates.append(queued)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _join(self, now: float) -> None:
        """Queues one update per output, with the tokens of those that were held."""
        outputs: dict[int, list[JobUpdate]] = {}
        for held in self._held:
            # Outputs are in the order of their latest updates.
            outputs[held.output] = [*outputs.pop(held.output, []), held]
        for parts in outputs.values():
            self._put((_joined(parts), sum(map(_num_values, parts))))
        self._held = []
        self._last_queued = now


def _joined(parts: list[JobUpdate]) -> JobUpdate:
    return replace(
        parts[-1],
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        token_times=tuple(seconds for part in parts for seconds in part.token_times),
    )


def _num_values(update: JobUpdate) -> int:
    """Approximate number of values that an update keeps in memory."""
    return 1 + len(update.tokens) + sum(1 + 2 * len(logprob.top) for logprob in update.logprobs)
