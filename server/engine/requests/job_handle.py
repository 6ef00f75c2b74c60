"""An accepted job as its caller sees it: a queue of updates, bounded, in the event loop."""

import asyncio
from dataclasses import dataclass, field, replace

from server.engine.requests.sequence import Cost, JobUpdate
from server.errors import RETRY_SECONDS, EngineStoppedError, Limit, OverloadedError

# Numbers of one job's updates (tokens, log-probabilities) that wait for its reader.
MAX_UNREAD = 1 << 16
# News of a patient reader's job that are told together.
PORTION = 64


@dataclass(eq=False, slots=True)
class JobHandle:
    """One accepted job. Await its updates until one ``is_last``; then it is done.

    ``coalesce_updates``: its reader wants whole outputs, so that it is woken once for many tokens.
    """

    id: int
    lane: int
    model: int
    cost: Cost
    coalesce_updates: bool = False
    is_done: bool = False
    is_overrun: bool = False
    _num_unread: int = 0
    _held: list[JobUpdate] = field(default_factory=list)
    # News and the numbers in it; None: there will be no more.
    _updates: "asyncio.Queue[tuple[JobUpdate, int] | None]" = field(default_factory=asyncio.Queue)

    async def next(self) -> JobUpdate:
        """The next updates.

        Raises:
            EngineStoppedError: the engine died.
            OverloadedError: more updates waited than is kept; the job was cancelled.
        """
        told = await self._updates.get()
        if told is not None:
            self._num_unread -= told[1]
            return told[0]
        if self.is_overrun:
            raise OverloadedError(
                "the stream was read too slowly", RETRY_SECONDS, Limit.SLOW_READER
            )
        raise EngineStoppedError

    def tell(self, progress: JobUpdate, now: float) -> bool:
        """Called by the engine. ``now``: seconds of ``time.monotonic``.

        Returns:
            Whether it is to be cancelled, because more updates waits than is kept.
        """
        if self.is_overrun:
            return False
        size = _size(progress)
        self._num_unread += size
        if self.coalesce_updates:
            self._hold(replace(progress, token_times=(now,) * len(progress.tokens)))
        else:
            self._updates.put_nowait((progress, size))
        if self._num_unread > MAX_UNREAD and not progress.is_last:
            self.is_overrun = True
            self.abandon()
            return True
        return False

    def abandon(self) -> None:
        """There will be no more updates."""
        self._updates.put_nowait(None)

    def _hold(self, progress: JobUpdate) -> None:
        """Tells all that is held with the last, or when it is enough: each output's in one."""
        self._held.append(progress)
        if not progress.is_last and len(self._held) < PORTION:
            return
        outputs: dict[int, list[JobUpdate]] = {}
        for held in self._held:
            # In the order in which their last came.
            outputs[held.output] = [*outputs.pop(held.output, []), held]
        for parts in outputs.values():
            self._updates.put_nowait((_whole(parts), sum(map(_size, parts))))
        self._held = []


def _whole(parts: list[JobUpdate]) -> JobUpdate:
    return replace(
        parts[-1],
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=tuple(row for part in parts for row in part.logprobs),
        token_times=tuple(moment for part in parts for moment in part.token_times),
    )


def _size(progress: JobUpdate) -> int:
    """Of the updates of generated tokens, about how many numbers are kept."""
    return 1 + len(progress.tokens) + sum(1 + 2 * len(row.top) for row in progress.logprobs)
