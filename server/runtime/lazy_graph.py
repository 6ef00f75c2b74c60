"""A graph that is loaded on first use: for tasks that few requests ask for."""

import threading
from collections.abc import Callable, Collection, Mapping

from server.runtime.contract import BoundGraph, Graph, KernelNodes, Tensor


class LazyGraph:
    """Implements :class:`server.runtime.contract.Graph`.

    Args:
        load: loads the graph. The first thread that needs it calls it once; other threads wait.
    """

    def __init__(self, load: Callable[[], Graph]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._graph: Graph | None = None

    @property
    def kernel_nodes(self) -> KernelNodes:
        """Empty before the graph is loaded: which kernels fit depends on weights not yet read."""
        return KernelNodes() if self._graph is None else self._graph.kernel_nodes

    @property
    def outputs(self) -> Collection[str]:
        return self._loaded().outputs

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        return self._loaded().bind(states, outputs)

    def _loaded(self) -> Graph:
        with self._lock:
            if self._graph is None:
                self._graph = self._load()
        return self._graph
