"""How long a run may take; what comes too late is left for the next run."""

import time
from collections.abc import Callable


class OutOfTimeError(Exception):
    """The budget is spent."""


class Deadline:
    """Seconds from now on.

    Args:
        clock: in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    def remaining_seconds(self) -> float:
        """Seconds. Raises :class:`OutOfTimeError` where there are none."""
        seconds = self._end - self._clock()
        if seconds <= 0:
            raise OutOfTimeError
        return seconds
