"""Divides a time budget among the items to measure. Pure except for its clock."""

import itertools
import math
import time
from collections.abc import Callable, Sequence

Clock = Callable[[], float]


class TimeBudget:
    """Divides the remaining time among the remaining items, in proportion to their costs.

    An item that takes less than its share leaves the rest to the following items.

    Args:
        budget_seconds: for all items; ``None`` is no limit.
        costs: expected cost of each item, in order, in any unit.
        clock: returns seconds.
    """

    def __init__(
        self, budget_seconds: float | None, costs: Sequence[float], clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self._started = clock()
        self._end = math.inf if budget_seconds is None else self._started + budget_seconds
        self._costs = list(costs)
        self._left = list(itertools.accumulate(reversed(costs)))

    @property
    def is_spent(self) -> bool:
        return self._clock() >= self._end

    def begin_item(self) -> float:
        """Starts the next item. Returns the time of the clock by which it should end."""
        now, cost, left = self._clock(), self._costs.pop(0), self._left.pop()
        return now + (self._end - now) * (cost / left)

    def has_time(self, seconds: float, until: float) -> bool:
        """Whether ``seconds`` from now are before ``until``."""
        return self._clock() + seconds <= until

    def now(self) -> float:
        """The time of the clock, in seconds."""
        return self._clock()

    def progress(self) -> str:
        """Time used so far, as in ``1:05 of 9:30``."""
        passed = _minutes(self._clock() - self._started)
        if math.isinf(self._end):
            return passed
        return f"{passed} of {_minutes(self._end - self._started)}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
