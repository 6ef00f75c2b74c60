"""Schedules Python's garbage collection: young objects often, all objects when the server is idle.

A full collection holds the interpreter lock while it visits every object: up to 220 ms if large
requests are in flight. Requests leave few cycles, so full collections can be rare.
"""

import gc
import time

# Thresholds of generations 0 (allocations) and 1 (collections of generation 0). Each collection
# pauses for about 10 ms at most.
_YOUNG_ALLOCATIONS = 3_000
_YOUNG_COLLECTIONS = 4
_NO_AUTOMATIC_FULL_COLLECTION = 1_000_000_000
MAX_SECONDS_BETWEEN_COLLECTIONS = 600.0


def freeze_loaded_objects() -> None:
    """Exempts all current objects from collection, and disables automatic full collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_ALLOCATIONS, _YOUNG_COLLECTIONS, _NO_AUTOMATIC_FULL_COLLECTION)


class FullCollections:
    """Collects all garbage when the server becomes idle, and at least every ten minutes."""

    def __init__(self) -> None:
        self._collected_at = time.monotonic()
        self._is_due = True

    def collect(self, *, is_idle: bool) -> None:
        """Collects if a collection is due. Call this regularly."""
        now = time.monotonic()
        is_overdue = now - self._collected_at > MAX_SECONDS_BETWEEN_COLLECTIONS
        if is_overdue or (is_idle and self._is_due):
            gc.collect()
            self._collected_at, self._is_due = now, False
        if not is_idle:
            self._is_due = True
