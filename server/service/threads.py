"""Threads for work that would block the event loop, mostly tokenization."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from server.errors import RETRY_SECONDS, DeadlineError, Limit, OverloadedError

T = TypeVar("T")


def check_deadline(deadline: float | None) -> None:
    """Raises ``DeadlineError`` if ``deadline`` (seconds of ``time.monotonic``) has passed."""
    if deadline is not None and deadline <= time.monotonic():
        raise DeadlineError


class Threads:
    """A bounded queue in front of a thread pool. Only the event loop's thread calls it.

    Args:
        executor: the threads.
        max_waiting: the most calls that may wait or run at a time.
    """

    def __init__(self, executor: Executor, max_waiting: int) -> None:
        self._executor = executor
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Runs ``function`` and returns its result. A cancelled caller's function never starts."""
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        finally:
            self._num_waiting -= 1

    async def run_bounded(self, function: Callable[[], T], deadline: float | None) -> T:
        """Runs ``function`` and returns its result, unless it is too late or too much waits.

        Args:
            function: blocks. It never starts for a cancelled caller.
            deadline: seconds of ``time.monotonic``; ``None`` is no deadline.

        Raises:
            DeadlineError: the deadline passed before the function started.
            OverloadedError: ``max_waiting`` functions wait or run already.
        """
        if self._num_waiting >= self._max_waiting:
            raise OverloadedError(
                "too many requests wait to be tokenized", RETRY_SECONDS, Limit.THREADS
            )

        def run_if_in_time() -> T:
            check_deadline(deadline)
            return function()

        return await self.run(run_if_in_time)
