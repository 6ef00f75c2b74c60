"""Which lanes have work: a lane that is alone may use all cores."""


class BusyLanes:
    """The set of lanes that have work. Thread-safe."""

    def __init__(self) -> None:
        # A set's add, discard and len are atomic, and each lane changes only its own index.
        self._lanes: set[int] = set()

    def enter(self, lane: int) -> None:
        """``lane`` has work."""
        self._lanes.add(lane)

    def leave(self, lane: int) -> None:
        """``lane`` is idle."""
        self._lanes.discard(lane)

    @property
    def is_one(self) -> bool:
        """Whether at most one lane has work: the one that asks."""
        return len(self._lanes) <= 1
