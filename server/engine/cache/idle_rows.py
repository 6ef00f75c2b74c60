"""Tracks which rows of the cache hold unused memory, and since when."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """Limits on how long the cache keeps unused memory.

    Attributes:
        row_seconds: a row unused for this long releases its memory, except its cached prefix.
        prefix_seconds: a cached prefix that no prompt has reused for this long is dropped.
        is_pressed: whether memory is short. Then unused rows release their memory at once, and the
            least recently used half of the cached prefixes is dropped.
    """

    row_seconds: float
    prefix_seconds: float
    is_pressed: bool = False


class IdleRows:
    """Finds rows and cached prefixes whose memory can be released: integers and times only.

    Times are seconds of one clock. A row or prefix counts as idle from the first check that finds
    it unused, so callers that mark rows as used need no clock.
    """

    def __init__(self) -> None:
        # By row that holds memory: the first check that found it unused; None while it is used.
        self._since: dict[int, float | None] = {}
        self._prefixes: dict[int, tuple[int, float]] = {}  # by row: last use, when first seen

    def use(self, row: int) -> None:
        """Marks ``row`` as used: a sequence or a cached prefix writes to it now."""
        self._since[row] = None

    def expired_prefixes(
        self, last_used: Sequence[tuple[int, int]], limits: IdleLimits, now: float
    ) -> list[int]:
        """Returns the rows whose prefixes must be dropped, ascending.

        Args:
            last_used: ``(row, last use)`` of every cached prefix; a larger use is later.
            limits: how long an idle prefix is kept.
            now: the current time in seconds.
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
        """Makes ``row``, whose prefix was dropped, release its memory at the next check."""
        self._since[row] = -math.inf

    def take_due(
        self, is_unused: Callable[[int], bool], limits: IdleLimits, now: float
    ) -> int | None:
        """Returns a row whose memory to release now, and stops tracking it; None if none is due."""
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
