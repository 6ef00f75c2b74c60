"""The caller's side of a job: a bounded queue of updates, read on the event loop."""

import asyncio
from dataclasses import dataclass, field, replace

from server.engine.requests.job import Cost
from server.engine.requests.update import JobUpdate
from server.errors import RETRY_SECONDS, EngineStoppedError, Limit, OverloadedError

# A job with more unread values (tokens, log-probabilities) is cancelled.
MAX_UNREAD_VALUES = 1 << 16
# At most this many updates are coalesced at a time.
MAX_COALESCED_UPDATES = 64


@dataclass(eq=False, slots=True)
class JobHandle:
    """One accepted job. Await :meth:`next` until an update ``is_last``.

    Attributes:
        id: the job's.
        lane: index of the lane that runs the job.
        model_id: by which the lanes look up the worker.
        cost: the admitted cost.
        coalesce_updates: joins many updates into one, for a reader that wants whole outputs.
        is_done: the last update was pushed, or the engine stopped.
        is_overrun: the reader was too slow; the job is cancelled.
    """

    id: int
    lane: int
    model_id: int
    cost: Cost
    coalesce_updates: bool = False
    is_done: bool = False
    is_overrun: bool = False
    _num_unread_values: int = 0
    _held: list[JobUpdate] = field(default_factory=list)  # to coalesce
    # Updates with the number of their values; None ends the queue.
    _updates: "asyncio.Queue[tuple[JobUpdate, int] | None]" = field(default_factory=asyncio.Queue)

    async def next(self) -> JobUpdate:
        """The next update.

        Raises:
            EngineStoppedError: the engine stopped before the job ended.
            OverloadedError: too many updates were unread, and the job was cancelled.
        """
        queued = await self._updates.get()
        if queued is not None:
            update, num_values = queued
            self._num_unread_values -= num_values
            return update
        if self.is_overrun:
            raise OverloadedError(
                "the stream was read too slowly", RETRY_SECONDS, Limit.SLOW_READER
            )
        raise EngineStoppedError

    def push(self, update: JobUpdate, now: float) -> bool:
        """Queues an update. Called by the engine at ``now`` (``time.monotonic``, seconds).

        Returns:
            Whether the engine has to cancel the job, because too many updates are unread.
        """
        if self.is_overrun:
            return False
        num_values = _num_values(update)
        self._num_unread_values += num_values
        if self.coalesce_updates:
            self._coalesce(replace(update, token_times=(now,) * len(update.tokens)))
        else:
            self._updates.put_nowait((update, num_values))
        if self._num_unread_values > MAX_UNREAD_VALUES and not update.is_last:
            self.is_overrun = True
            self.close()
            return True
        return False

    def close(self) -> None:
        """Ends the queue: after the queued updates, :meth:`next` raises."""
        self._updates.put_nowait(None)

    def _coalesce(self, update: JobUpdate) -> None:
        """Holds updates until the last, or enough of them; then queues one update per output."""
        self._held.append(update)
        if not update.is_last and len(self._held) < MAX_COALESCED_UPDATES:
            return
        outputs: dict[int, list[JobUpdate]] = {}
        for held in self._held:
            # Outputs are in the order of their latest updates.
            outputs[held.output] = [*outputs.pop(held.output, []), held]
        for parts in outputs.values():
            self._updates.put_nowait((_joined(parts), sum(map(_num_values, parts))))
        self._held = []


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
