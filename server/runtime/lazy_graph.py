"""A graph that is loaded on first use, for tasks that few requests need."""

import threading
from collections.abc import Callable, Collection, Mapping

from model.bundle import BundleError
from server.file_changes import FileChanges
from server.runtime.contract import BoundGraph, Graph, KernelNodes
from server.runtime.memory import Tensor


class LazyGraph:
    """Implements :class:`server.runtime.contract.Graph`.

    Args:
        load: loads the graph. The first thread that needs it calls it once; other threads wait.
        changes: detects changes of the files that ``load`` reads, since they were verified.

    Raises:
        BundleError: on first use, if the files have changed: they may hold other weights.
    """

    def __init__(self, load: Callable[[], Graph], changes: FileChanges) -> None:
        self._load = load
        self._changes = changes
        self._lock = threading.Lock()
        self._graph: Graph | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the graph is loaded, or its files have not changed since they were verified."""
        return self._graph is not None or not self._changes.are_pending

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
                self._check()
                graph = self._load()
                self._check()  # the files may have changed during the load
                self._graph = graph
        return self._graph

    def _check(self) -> None:
        if self._changes.are_pending:
            raise BundleError("files have changed since the model was loaded")
