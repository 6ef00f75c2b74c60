"""An accepted job as its caller sees it: a queue of news, bounded, in the event loop."""

import asyncio
from dataclasses import dataclass, field, replace

from server.engine.sequence import Cost, Progress
from server.errors import RETRY_SECONDS, EngineStoppedError, Limit, OverloadedError

# Numbers of one job's news (tokens, log-probabilities) that wait for its reader.
MAX_UNREAD = 1 << 16
# News of a patient reader's job that are told together.
PORTION = 64


@dataclass(eq=False, slots=True)
class Ticket:
    """One accepted job. Await its news until one ``is_last``; then it is done.

    ``is_patient``: its reader wants whole outputs, so that it is woken once for many tokens.
    """

    id: int
    lane: int
    model: int
    cost: Cost
    is_patient: bool = False
    is_done: bool = False
    is_overrun: bool = False
    _num_unread: int = 0
    _held: list[Progress] = field(default_factory=list)
    # News and the numbers in it; None: there will be no more.
    _news: "asyncio.Queue[tuple[Progress, int] | None]" = field(default_factory=asyncio.Queue)

    async def next(self) -> Progress:
        """The next news.

        Raises:
            EngineStoppedError: the engine died.
            OverloadedError: more news waited than is kept; the job was cancelled.
        """
        told = await self._news.get()
        if told is not None:
            self._num_unread -= told[1]
            return told[0]
        if self.is_overrun:
            raise OverloadedError(
                "the stream was read too slowly", RETRY_SECONDS, Limit.SLOW_READER
            )
        raise EngineStoppedError

    def tell(self, progress: Progress, now: float) -> bool:
        """Called by the engine. ``now``: seconds of ``time.monotonic``.

        Returns:
            Whether it is to be cancelled, because more news waits than is kept.
        """
        if self.is_overrun:
            return False
        size = _size(progress)
        self._num_unread += size
        if self.is_patient:
            self._hold(replace(progress, moments=(now,) * len(progress.tokens)))
        else:
            self._news.put_nowait((progress, size))
        if self._num_unread > MAX_UNREAD and not progress.is_last:
            self.is_overrun = True
            self.abandon()
            return True
        return False

    def abandon(self) -> None:
        """There will be no more news."""
        self._news.put_nowait(None)

    def _hold(self, progress: Progress) -> None:
        """Tells all that is held with the last, or when it is enough: each output's in one."""
        self._held.append(progress)
        if not progress.is_last and len(self._held) < PORTION:
            return
        outputs: dict[int, list[Progress]] = {}
        for held in self._held:
            # In the order in which their last came.
            outputs[held.output] = [*outputs.pop(held.output, []), held]
        for parts in outputs.values():
            self._news.put_nowait((_whole(parts), sum(map(_size, parts))))
        self._held = []


def _whole(parts: list[Progress]) -> Progress:
    return replace(
        parts[-1],
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=tuple(row for part in parts for row in part.logprobs),
        moments=tuple(moment for part in parts for moment in part.moments),
    )


def _size(progress: Progress) -> int:
    """Of the news of generated tokens, about how many numbers are kept."""
    return 1 + len(progress.tokens) + sum(1 + 2 * len(row.top) for row in progress.logprobs)
