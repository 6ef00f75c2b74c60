"""How much of a given time each thing that is measured may take. Pure but for its clock."""

import itertools
import math
import time
from collections.abc import Callable, Sequence

Clock = Callable[[], float]


class TimeBudget:
    """Shares out what is left of a time, by what each item costs.

    An item that takes less leaves its time to those that follow.

    Args:
        budget_seconds: of all items; ``None`` is no bound.
        costs: of each item, in order, in any unit.
        clock: seconds.
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

    def begin(self) -> float:
        """The next item begins. Until when, by the clock, it may go on."""
        now, cost, left = self._clock(), self._costs.pop(0), self._left.pop()
        return now + (self._end - now) * (cost / left)

    def has_time(self, seconds: float, until: float) -> bool:
        """Whether something that takes so long ends by then."""
        return self._clock() + seconds <= until

    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def progress(self) -> str:
        """How far it is: ``1:05 of 9:30``."""
        passed = _minutes(self._clock() - self._started)
        if math.isinf(self._end):
            return passed
        return f"{passed} of {_minutes(self._end - self._started)}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
