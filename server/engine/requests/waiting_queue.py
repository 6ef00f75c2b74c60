"""Sequences that wait for a slot, in the order to serve them."""

import bisect

from server.engine.requests.sequence import DecodingSequence

# One step of priority counts as this much waiting time, so that low priorities do not starve.
PRIORITY_SECONDS = 10.0


class WaitingQueue:
    """Sequences by arrival; one step of priority counts as :data:`PRIORITY_SECONDS` earlier.

    ``items`` is in the order to serve; callers must not change it.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[float, int]] = []
        self.items: list[DecodingSequence] = []

    def __len__(self) -> int:
        return len(self.items)

    def add(self, sequence: DecodingSequence, now: float) -> None:
        """Queues ``sequence``, which arrives at ``now`` (seconds)."""
        key = (now - PRIORITY_SECONDS * sequence.job.priority, sequence.id)
        index = bisect.bisect(self._keys, key)
        self._keys.insert(index, key)
        self.items.insert(index, sequence)

    def remove(self, id_: int) -> DecodingSequence:
        """Takes a sequence out. Raises ``KeyError`` if it does not wait."""
        for index, sequence in enumerate(self.items):
            if sequence.id == id_:
                del self._keys[index]
                return self.items.pop(index)
        raise KeyError(id_)

    def discard(self, id_: int) -> bool:
        """Takes a sequence out if it waits. Returns whether it did."""
        try:
            self.remove(id_)
        except KeyError:
            return False
        return True
