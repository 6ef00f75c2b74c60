"""The decoder's graph, bound to the slots of the latest runs."""

from collections.abc import Callable

from server.runtime.contract import BoundGraph


class RecentBindings:
    """Keeps the graph bound to the ranges of slots that ran last.

    Each bound graph holds an array for the logits of its slots, so only some are kept.

    Args:
        bind: binds the graph to ``num_slots`` slots from ``first_slot`` on.
        max_slots: the limit of the slots of all bound graphs together; one graph may have more.
    """

    def __init__(self, bind: Callable[[int, int], BoundGraph], max_slots: int) -> None:
        self._bind, self._max_slots = bind, max_slots
        self._bound: dict[tuple[int, int], BoundGraph] = {}  # least recently used first

    def of(self, first_slot: int, num_slots: int) -> BoundGraph:
        """Returns the graph bound to ``num_slots`` slots from ``first_slot`` on."""
        key = (first_slot, num_slots)
        bound = self._bound.pop(key, None)
        if bound is None:
            left = self._max_slots - num_slots - sum(count for _, count in self._bound)
            for oldest in list(self._bound):
                if left >= 0:
                    break
                del self._bound[oldest]
                left += oldest[1]
            bound = self._bind(first_slot, num_slots)
        self._bound[key] = bound
        return bound
