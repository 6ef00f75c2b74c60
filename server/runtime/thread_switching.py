"""Loads each graph twice: with one lane's share of the threads, and with all cores.

A long run uses all cores while only one lane is active; any other run uses its lane's share. ONNX
Runtime fixes the number of threads when it loads a graph, hence the two copies.
Measurements: docs/decisions/0008-lanes.md.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from server.runtime.contract import (
    Backend,
    BoundGraph,
    Graph,
    KernelNodes,
    RepeatedRun,
    StepGraphs,
)
from server.runtime.memory import Array, Layout, Memory, Tensor
from server.runtime.rewriting.graph_inputs import TOKENS

log = logging.getLogger(__name__)

# With one thread, a run of up to this many tokens takes as long as reading its weights.
_TOKENS_PER_READ = 20
# One thread reads this many bytes of weights in 0.4 ms. Shorter runs lose more by waiting for other
# threads than they gain.
_MIN_BYTES = 8_000_000


def is_long(weight_bytes: int | None, num_tokens: int) -> bool:
    """Whether several threads make a run faster.

    Args:
        weight_bytes: the graph's :meth:`server.runtime.contract.Backend.weight_bytes`.
        num_tokens: the number of tokens in the batch.
    """
    if weight_bytes is None:
        return True
    return weight_bytes * max(1.0, num_tokens / _TOKENS_PER_READ) >= _MIN_BYTES


class ThreadSwitchingBackend:
    """Implements :class:`server.runtime.contract.Backend`.

    Args:
        per_lane: runs graphs with the threads of one lane.
        all_cores: runs graphs with all threads.
        is_alone: whether only one lane is active. Called before each run, on the lane's thread.
        max_bytes: a graph whose second copy would add more bytes of weights than this is loaded
            only by ``per_lane``.
    """

    def __init__(
        self,
        per_lane: Backend,
        all_cores: Backend,
        is_alone: Callable[[], bool],
        max_bytes: int,
    ) -> None:
        self._per_lane = per_lane
        self._all_cores = all_cores
        self._is_alone = is_alone
        self._max_bytes = max_bytes

    @property
    def version(self) -> str:
        return self._per_lane.version

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> Graph:
        options: dict[str, Any] = {
            "repeats": repeats,
            "takes_candidates": takes_candidates,
            "suppressed": suppressed,
        }
        per_lane = self._per_lane.load(path, disabled_optimizers, **options)
        num_bytes = self._per_lane.unshared_bytes(path, takes_candidates=takes_candidates)
        if num_bytes > self._max_bytes:
            label = "/".join(path.parts[-3:])
            log.info("%s is too large to load twice: every run uses one lane's threads", label)
            return per_lane
        all_cores = self._all_cores.load(path, disabled_optimizers, **options)
        weight_bytes = self.weight_bytes(path, takes_candidates=takes_candidates)
        return _ThreadSwitchingGraph(per_lane, all_cores, self._is_alone, weight_bytes)

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        return self._per_lane.load_steps(path, disabled_optimizers, suppressed)

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        return self._per_lane.unshared_bytes(path, takes_candidates=takes_candidates)

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        return self._per_lane.weight_bytes(path, takes_candidates=takes_candidates)

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> Graph:
        del repeats  # on a CPU, nothing is recorded
        return _ThreadSwitchingGraph(
            self._per_lane.load_model(model), self._all_cores.load_model(model), self._is_alone
        )

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return self._per_lane.memory(layouts)


def copies_of(graph: Graph) -> tuple[Graph, ...]:
    """Returns the loaded copies of a graph, any of which may run next: two, or the graph itself."""
    if isinstance(graph, _ThreadSwitchingGraph):
        return (graph.per_lane, graph.all_cores)
    return (graph,)


@dataclass(frozen=True, slots=True)
class _ThreadSwitchingGraph:
    per_lane: Graph
    all_cores: Graph
    is_alone: Callable[[], bool]
    weight_bytes: int | None = None

    @property
    def kernel_nodes(self) -> KernelNodes:
        return self.per_lane.kernel_nodes

    @property
    def outputs(self) -> Collection[str]:
        return self.per_lane.outputs

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        return _ThreadSwitchingBoundGraph(self, states, outputs)


class _ThreadSwitchingBoundGraph:
    """Binds both copies to the same memory, each on first use, so that runs may alternate."""

    def __init__(
        self,
        graph: _ThreadSwitchingGraph,
        states: Mapping[tuple[str, str], Tensor],
        outputs: Collection[str] | None,
    ) -> None:
        self._graph = graph
        self._arguments = (states, outputs)
        self._per_lane: BoundGraph | None = None
        self._all_cores: BoundGraph | None = None

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        return self._select(inputs).run(inputs)

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        return self._select(inputs).run_on_device(inputs, on_host)

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        """Uses one lane's threads: only GPUs record runs, and they have no second copy."""
        bound = self._graph.per_lane.bind(*self._arguments)
        return bound.repeat_into(inputs, outputs, on_host, feeds_back=feeds_back)

    def _select(self, inputs: Mapping[str, Array | Tensor]) -> BoundGraph:
        tokens = inputs.get(TOKENS)
        num_tokens = tokens.size if isinstance(tokens, np.ndarray) else 1
        if is_long(self._graph.weight_bytes, num_tokens) and self._graph.is_alone():
            self._all_cores = self._all_cores or self._graph.all_cores.bind(*self._arguments)
            return self._all_cores
        self._per_lane = self._per_lane or self._graph.per_lane.bind(*self._arguments)
        return self._per_lane
