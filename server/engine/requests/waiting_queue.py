"""What waits for a row, in the order to serve."""

import bisect
from collections.abc import Sequence

from server.engine.requests.sequence import DecodingSequence

# A step of priority is worth this much waiting: nothing waits for ever.
PRIORITY_SECONDS = 10.0


class WaitingQueue:
    """Sequences by arrival; one step of priority counts as :data:`PRIORITY_SECONDS` earlier."""

    def __init__(self) -> None:
        self._keys: list[tuple[float, int]] = []
        self._items: list[DecodingSequence] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[DecodingSequence]:
        return self._items

    def add(self, row: DecodingSequence, now: float) -> None:
        """Takes ``row``, which arrives ``now`` (seconds)."""
        key = (now - PRIORITY_SECONDS * row.job.priority, row.id)
        index = bisect.bisect(self._keys, key)
        self._keys.insert(index, key)
        self._items.insert(index, row)

    def remove(self, id_: int) -> DecodingSequence:
        """Gives the sequence back. Raises ``KeyError`` if it does not wait."""
        for index, row in enumerate(self._items):
            if row.id == id_:
                del self._keys[index]
                return self._items.pop(index)
        raise KeyError(id_)

    def discard(self, id_: int) -> bool:
        """Whether it waited, and no longer does."""
        try:
            self.remove(id_)
        except KeyError:
            return False
        return True
