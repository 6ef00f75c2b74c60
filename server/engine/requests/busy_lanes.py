"""Which lanes run: a lane that runs alone may use all cores."""


class BusyLanes:
    """Each lane says when it begins and ends to have work; any may ask. Thread-safe."""

    def __init__(self) -> None:
        # A set's add, discard and len are atomic; each lane touches its own index only.
        self._lanes: set[int] = set()

    def enter(self, lane: int) -> None:
        """``lane`` has work."""
        self._lanes.add(lane)

    def leave(self, lane: int) -> None:
        """``lane`` waits for work."""
        self._lanes.discard(lane)

    @property
    def is_one(self) -> bool:
        """Whether at most one lane has work: for the lane that asks, itself."""
        return len(self._lanes) <= 1
