"""Which rows of the cache hold memory that nobody uses, and since when."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """When unused memory of the cache is given back.

    Attributes:
        row_seconds: after which a row that no sequence uses gives back what holds no tokens.
        prefix_seconds: after which a cached prefix that no prompt reuses is dropped.
        is_pressed: memory is short: unused rows give theirs back at once, and the least recently
            used half of the cached prefixes is dropped.
    """

    row_seconds: float
    prefix_seconds: float
    is_pressed: bool = False


class IdleRows:
    """Rows and cached prefixes that may give memory back: integers and times only.

    Times are seconds of one clock. A row, or prefix, is idle from the first check that finds it
    unused: callers that mark rows as used need no clock.
    """

    def __init__(self) -> None:
        # Rows that hold memory; since when they are unused, if a check has found them so.
        self._since: dict[int, float | None] = {}
        self._prefixes: dict[int, tuple[int, float]] = {}  # by row: last use, since when

    def use(self, row: int) -> None:
        """A sequence or a cached prefix writes to ``row`` now."""
        self._since[row] = None

    def expired_prefixes(
        self, last_used: Sequence[tuple[int, int]], limits: IdleLimits, now: float
    ) -> list[int]:
        """The rows whose prefixes are to be dropped.

        Args:
            last_used: ``(row, last use)`` of every cached prefix; a larger use is later.
            limits: of idleness.
            now: the time.
        """
        seen = self._prefixes
        self._prefixes = {
            row: seen[row] if row in seen and seen[row][0] == use else (use, now)
            for row, use in last_used
        }
        expired = {
            row
            for row, (_, since) in self._prefixes.items()
            if now - since >= limits.prefix_seconds
        }
        if limits.is_pressed:
            oldest = sorted(last_used, key=lambda item: item[1])
            expired |= {row for row, _ in oldest[: math.ceil(len(oldest) / 2)]}
        return sorted(expired)

    def free(self, row: int) -> None:
        """The prefix in ``row`` was dropped: the row gives its memory back at the next check."""
        self._since[row] = -math.inf

    def take_due(
        self, is_unused: Callable[[int], bool], limits: IdleLimits, now: float
    ) -> int | None:
        """A row to give back now, which then counts as given back; None if there is none."""
        for row, since in self._since.items():
            if not is_unused(row):
                self._since[row] = None
                continue
            if since is None:
                since = self._since[row] = now  # noqa: PLW2901
            if limits.is_pressed or now - since >= limits.row_seconds:
                del self._since[row]
                return row
        return None
