"""Tracks the cache tensors that one model's workers allocate, to measure their memory."""

import weakref
from collections.abc import Mapping

from server.runtime.memory import Layout, MakeMemory, Memory


class CacheMemories:
    """Measures the memory of a model's slots, without keeping it alive. Any thread may call it.

    Attributes:
        resident_bytes: the host memory that the tensors took at the last :meth:`measure`; 0 on
            other devices.
    """

    def __init__(self) -> None:
        self.resident_bytes = 0
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()

    def tracking(self, make: MakeMemory) -> MakeMemory:
        """Wraps ``make`` so that its allocations are measured."""

        def make_counted(layouts: Mapping[str, Layout]) -> Memory:
            memory = make(layouts)
            self._memories.add(memory)
            return memory

        return make_counted

    def measure(self) -> int:
        """Sets and returns ``resident_bytes``. It visits every page: call it in a thread."""
        self.resident_bytes = sum(memory.resident_bytes or 0 for memory in tuple(self._memories))
        return self.resident_bytes
