"""A graph that is loaded when it is first used, for what few requests need."""

import threading
from collections.abc import Callable, Collection, Mapping

from server.runtime.contract import Block, BoundGraph, Graph


class LazyGraph:
    """Implements :class:`server.runtime.contract.Graph`.

    Args:
        load: called once, by the first thread that binds; the others wait for it.
    """

    def __init__(self, load: Callable[[], Graph]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._graph: Graph | None = None

    def bind(
        self, states: Mapping[tuple[str, str], Block], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        with self._lock:
            if self._graph is None:
                self._graph = self._load()
        return self._graph.bind(states, outputs)
