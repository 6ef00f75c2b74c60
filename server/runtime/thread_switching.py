"""A graph loaded twice: with one thread for each of several lanes, and with all for a lone one.

What each is good for was measured: docs/decisions/0008-lanes.md.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from server.runtime.contract import Array, Backend, Block, BoundGraph, Graph, Layout, Memory

log = logging.getLogger(__name__)


class ThreadSwitchingBackend:
    """Implements :class:`server.runtime.contract.Backend`.

    Args:
        narrow: for runs side by side.
        wide: for a run that has the cores to itself.
        is_alone: asked before each run, by the thread that runs.
        max_bytes: of a graph's weights that are held twice; with more it is narrow only.
    """

    def __init__(
        self, narrow: Backend, wide: Backend, is_alone: Callable[[], bool], max_bytes: int
    ) -> None:
        self._narrow = narrow
        self._wide = wide
        self._is_alone = is_alone
        self._max_bytes = max_bytes

    @property
    def version(self) -> str:
        return self._narrow.version

    def load(
        self, path: Path, disabled_optimizers: tuple[str, ...], *, repeats: bool = False
    ) -> Graph:
        narrow = self._narrow.load(path, disabled_optimizers, repeats=repeats)
        if self._narrow.own_bytes(path) > self._max_bytes:
            label = "/".join(path.parts[-3:])
            log.info("%s is too large to hold twice: a lone run has one lane's threads", label)
            return narrow
        wide = self._wide.load(path, disabled_optimizers, repeats=repeats)
        return _PairedGraph(narrow, wide, self._is_alone)

    def own_bytes(self, path: Path) -> int:
        return self._narrow.own_bytes(path)

    def load_model(self, model: onnx.ModelProto) -> Graph:
        narrow, wide = self._narrow.load_model(model), self._wide.load_model(model)
        return _PairedGraph(narrow, wide, self._is_alone)

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return self._narrow.memory(layouts)


def sides(graph: Graph) -> tuple[Graph, ...]:
    """A pair's two graphs, either of which may be the next to run; any other graph alone."""
    return (graph.narrow, graph.wide) if isinstance(graph, _PairedGraph) else (graph,)


@dataclass(frozen=True, slots=True)
class _PairedGraph:
    narrow: Graph
    wide: Graph
    is_alone: Callable[[], bool]

    def bind(
        self, states: Mapping[tuple[str, str], Block], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        return _PairedBoundGraph(self, states, outputs)


class _PairedBoundGraph:
    """Both are bound to the same memory, so that runs may alternate; each when it first runs."""

    def __init__(
        self,
        graph: _PairedGraph,
        states: Mapping[tuple[str, str], Block],
        outputs: Collection[str] | None,
    ) -> None:
        self._graph = graph
        self._arguments = (states, outputs)
        self._narrow: BoundGraph | None = None
        self._wide: BoundGraph | None = None

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        return self._side().run(inputs)

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        return self._side().run_kept(inputs)

    def run_into(
        self,
        inputs: Mapping[str, Array | Block],
        outputs: Mapping[str, Block],
        *,
        repeats: bool = False,
    ) -> bool:
        return self._side().run_into(inputs, outputs, repeats=repeats)

    def _side(self) -> BoundGraph:
        if self._graph.is_alone():
            self._wide = self._wide or self._graph.wide.bind(*self._arguments)
            return self._wide
        self._narrow = self._narrow or self._graph.narrow.bind(*self._arguments)
        return self._narrow
