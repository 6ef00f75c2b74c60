"""The slope of a series with a confidence interval (Theil-Sen)."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MAX_BLOCKS = 40
Z_95 = 1.96


@dataclass(frozen=True)
class Slope:
    """A slope; ``low`` and ``high`` are its 95 % confidence interval in the same unit."""

    value: float
    low: float
    high: float

    def over(self, unit: float) -> "Slope":
        """The slope in a larger unit."""
        return Slope(self.value / unit, self.low / unit, self.high / unit)


def theil_sen(times: Sequence[float], values: Sequence[float]) -> Slope:
    """The slope of ``values`` over ``times`` (Theil 1950) with its interval (Sen 1968).

    Adjacent memory samples are correlated, which would make the interval too narrow. So samples
    are first reduced to the medians of at most ``MAX_BLOCKS`` blocks.

    Args:
        times: at least 3, in ascending order; any monotonic quantity will do.
        values: one for each time.

    Raises:
        ValueError: too few samples, or all at one time.
    """
    if len(times) < 3:
        raise ValueError(f"{len(times)} samples: at least 3 are needed")
    size = math.ceil(len(times) / MAX_BLOCKS)
    blocks = [slice(start, start + size) for start in range(0, len(times), size)]
    points = [(statistics.median(times[b]), statistics.median(values[b])) for b in blocks]
    slopes = sorted(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 < x2
    )
    if not slopes:
        raise ValueError("all samples have the same time")
    count = len(points)
    spread = Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Slope(statistics.median(slopes), slopes[low], slopes[high])
