"""The threads for what would block the event loop: tokenizing, mostly."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from server.errors import RETRY_SECONDS, DeadlineError, Limit, OverloadedError

T = TypeVar("T")


def check_deadline(deadline: float | None) -> None:
    """Raises ``DeadlineError`` if it has passed; seconds of ``time.monotonic``."""
    if deadline is not None and deadline <= time.monotonic():
        raise DeadlineError


class Threads:
    """A bounded queue before some threads. The event loop's thread alone calls it.

    Args:
        executor: the threads.
        max_waiting: calls that may wait or run.
    """

    def __init__(self, executor: Executor, max_waiting: int) -> None:
        self._executor = executor
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """What ``function`` returns; it is not begun for a caller who left."""
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        finally:
            self._num_waiting -= 1

    async def run_bounded(self, function: Callable[[], T], deadline: float | None) -> T:
        """What ``function`` returns.

        It is not begun for a caller who left (whose task is cancelled), or whose deadline
        (seconds of ``time.monotonic``) has passed.

        Raises:
            DeadlineError: the deadline passed before it began.
            OverloadedError: too much waits.
        """
        if self._num_waiting >= self._max_waiting:
            raise OverloadedError(
                "too many requests wait to be tokenized", RETRY_SECONDS, Limit.THREADS
            )

        def begin() -> T:
            check_deadline(deadline)
            return function()

        return await self.run(begin)
