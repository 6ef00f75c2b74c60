"""The time limit of a run; what does not fit is left for the next run."""

import time
from collections.abc import Callable


class OutOfTimeError(Exception):
    """The deadline has passed."""


class Deadline:
    """A point in time, ``seconds`` from now.

    Args:
        clock: returns seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    def remaining_seconds(self) -> float:
        """Seconds until the deadline. Raises ``OutOfTimeError`` if it has passed."""
        seconds = self._end - self._clock()
        if seconds <= 0:
            raise OutOfTimeError
        return seconds
