"""Records which lanes have work. A lane may use all cores while it is the only busy one."""


class BusyLanes:
    """The set of lanes that have work. Thread-safe."""

    def __init__(self) -> None:
        # A set's add, discard and len are atomic, and each lane changes only its own index.
        self._lanes: set[int] = set()

    def enter(self, lane: int) -> None:
        """Marks ``lane`` as busy."""
        self._lanes.add(lane)

    def leave(self, lane: int) -> None:
        """Marks ``lane`` as idle."""
        self._lanes.discard(lane)

    @property
    def is_idle(self) -> bool:
        """Whether no lane has work."""
        return not self._lanes

    @property
    def has_at_most_one(self) -> bool:
        """Whether at most one lane has work: True tells a busy lane that no other lane has any."""
        return len(self._lanes) <= 1
