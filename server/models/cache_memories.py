"""The tensors that the workers of one model have allocated, to measure what they take."""

import weakref
from collections.abc import Mapping

from server.runtime.memory import Layout, MakeMemory, Memory


class CacheMemories:
    """Counts what a model's slots take. It does not keep their memory. Any thread may ask.

    Attributes:
        resident_bytes: of the host's memory that the tensors took at the last :meth:`measure`; 0
            on other devices.
    """

    def __init__(self) -> None:
        self.resident_bytes = 0
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()

    def tracking(self, make: MakeMemory) -> MakeMemory:
        """``make``, which also counts what it allocates."""

        def make_counted(layouts: Mapping[str, Layout]) -> Memory:
            memory = make(layouts)
            self._memories.add(memory)
            return memory

        return make_counted

    def measure(self) -> int:
        """Sets and returns ``resident_bytes``. It visits every page: call it in a thread."""
        self.resident_bytes = sum(memory.resident_bytes or 0 for memory in tuple(self._memories))
        return self.resident_bytes
