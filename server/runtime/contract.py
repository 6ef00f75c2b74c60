"""The runtime contract: the interface between the engine and the code that executes graphs.

A :class:`Backend` loads a graph and allocates its memory (:mod:`server.runtime.memory`).
``Graph.bind`` attaches that memory to the graph's states (key/value caches, recurrent states), and
``BoundGraph.run`` executes it. :class:`server.runtime.ort.backend.OrtBackend` implements all of it
with ONNX Runtime; :class:`server.runtime.thread_switching.ThreadSwitchingBackend` combines two
backends.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import onnx

from server.runtime.memory import Array, Layout, Memory, Tensor

SOURCE_ROWS = "source_rows"
"""An input that the kernels of :mod:`server.runtime.kernels` add to decode graphs: ``[rows]``
int32. For each row, the index of the run's first row with the same encoder source. Rows that share
a source can read its cross-attention keys and values from that row, although each has a copy."""

CANDIDATES = "candidates"
"""An input that the kernels add to decode graphs loaded with ``takes_candidates``: int32
``[rows, width]``. For each row of logits, the ids of the tokens to compute, ascending, then -1. The
graph returns logits ``[rows, width]``, -inf after the last id; with width 0, it returns all."""

BEST_TOKENS = "best_tokens"
"""An output that the kernels of a GPU add to graphs with logits: int64 ``[rows]``. For each row of
logits, the lowest id among the largest; -1 if the row is not finite. The tokens ``suppressed`` of
:meth:`Backend.load` are left out."""

TOP_TOKENS = "top_tokens"
"""The output of a graph that finds the likeliest tokens of each row of logits: float32
``[rows, 2 * count + 1]``. The columns are the tokens' logits, largest first and, if equal, lower
ids first; their ids; and the sum over the row of ``exp(logit - largest logit)``. With the input
:data:`TARGETS`, one more column has the logit of the row's target. A GPU kernel replaces the
graph."""

TARGETS = "targets"
"""An input: the tokens ``[rows]`` int64, one for each row, whose logits are returned too."""

NEXT_TOKEN_IDS, NEXT_NUM_CACHED_TOKENS = "next_token_ids", "next_num_cached_tokens"
"""Outputs that the kernels of a GPU add to graphs of decode steps: ``token_ids [rows, 1]`` int64
and ``num_cached_tokens [rows]`` int32 of the next step, over the best tokens. They may be bound to
the memory of those inputs; running the graph again then makes the next step."""

IS_LIVE = "is_live"
"""An input for computing these outputs: ``[rows]`` int32, 1 for a sequence, 0 for padding. A row of
padding keeps its position, with token 0; a row whose logits are not finite also gets token 0."""

FED_BACK = {NEXT_TOKEN_IDS: "token_ids", NEXT_NUM_CACHED_TOKENS: "num_cached_tokens"}
"""Maps each of these outputs to the input of the next step that it becomes."""

FEW_ROWS = 8
"""Decode steps of at most this many rows have a separate graph on a GPU (:class:`StepGraphs`).
Such steps are short, so the device should not wait for the host."""


class BoundGraph(Protocol):
    """A graph with memory bound to its states. For one thread at a time.

    Every ``run`` reads the bound states and updates them in place. ``inputs`` are given by name;
    inputs that the graph does not declare are ignored. Arrays are read in place during the run;
    after it, the caller may change them and pass them again.
    """

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        """Runs the graph and copies its outputs to host memory.

        Returns:
            The outputs that are not states, valid until the next run. An output ``[rows, n]`` has
            one row for each of ``logit_positions`` if the graph takes that input, else one for
            each row of the batch.
        """
        ...

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Runs the graph as :meth:`run` does, but leaves the outputs in device memory.

        ``on_host``: names of outputs that are copied to host memory.
        """
        ...

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> "RepeatedRun":
        """Prepares runs that repeat with the same tensors. Only they may use this graph then.

        Args:
            inputs: sample inputs. Their shapes, and the values of scalars, never change. Tensors
                are read in place; each run gets only the arrays.
            outputs: the tensors to write, with the shapes and types of the graph's outputs.
            on_host: the output that is copied to host memory after each run; None for none.
            feeds_back: lets a run follow another without inputs from the host, if the graph makes
                them. A run that changed states can then not be repeated.
        """
        ...


class Pending(Protocol):
    """A run that was started."""

    def wait(self) -> Array | None:
        """Waits until the run is done. Call it once.

        Returns:
            The output on the host, valid until the second run after this one starts; None if no
            output is copied to the host.

        Raises:
            Exception: the run failed.
        """
        ...

    def drop(self) -> None:
        """Discards the run: returns once it has ended, or without running it."""
        ...


class RepeatedRun(Protocol):
    """A run of a graph that repeats with fixed shapes and tensors. For one thread at a time.

    At most two runs may be in flight: started, but neither waited for nor dropped. Each begins
    after the one before it has ended.
    """

    @property
    def is_asynchronous(self) -> bool:
        """Whether runs begin when they are started; else they begin when they are waited for.

        If True, ``start`` reads ``inputs``, and the caller may change them immediately.
        """
        ...

    @property
    def feeds_back(self) -> bool:
        """Whether a run makes the inputs in :data:`FED_BACK` of the next run on the device."""
        ...

    def record(self, inputs: Mapping[str, Array]) -> bool:
        """Runs the graph a few times, so that the device records the run (CUDA graphs).

        Returns:
            Whether :meth:`start` replays a recording.
        """
        ...

    def start(self, inputs: Mapping[str, Array] | None) -> Pending:
        """Starts a run; the host may continue while a device runs it.

        Args:
            inputs: must not change until the run is waited for or dropped, unless
                :attr:`is_asynchronous`. None takes the inputs that the last started run makes.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelNodes:
    """How many of a graph's nodes each kernel of :mod:`server.runtime.kernels` computes.

    ``num_native``: nodes that the kernel computes; one may replace several of the file.
    ``num_standard``: nodes that the runtime computes, of operators that the kernel can replace.
    """

    num_native: Mapping[str, int] = field(default_factory=dict)
    num_standard: Mapping[str, int] = field(default_factory=dict)


class Graph(Protocol):
    """A loaded graph. Any thread may use it."""

    @property
    def kernel_nodes(self) -> KernelNodes:
        """The node counts; empty on a device without kernels, and before a lazy graph is loaded."""
        ...

    @property
    def outputs(self) -> Collection[str]:
        """The names of all outputs, states included."""
        ...

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        """Binds memory to the graph's states.

        Args:
            states: tensors by (input name, output name); the batch is the first axis. Each tensor
                is both the input and the output of its state, so nothing is copied.
            outputs: the outputs to compute besides the states; None computes all.
        """
        ...


class StepGraphs(NamedTuple):
    """Graphs of decode steps: exactly one token of each row, and logits for all rows in order.

    ``few``: the graph for at most :data:`FEW_ROWS` rows. ``many``: the graph for any number.
    """

    few: Graph
    many: Graph

    def for_rows(self, num_rows: int) -> Graph:
        """Returns the graph for a step of ``num_rows`` rows."""
        return self.few if num_rows <= FEW_ROWS else self.many


class Backend(Protocol):
    """Loads graphs and allocates memory on one device."""

    @property
    def version(self) -> str:
        """The runtime's version."""
        ...

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> Graph:
        """Loads an ONNX file.

        Args:
            path: the path of the file.
            disabled_optimizers: names of graph transformations that the runtime must not apply.
            repeats: whether runs will be recorded: see :meth:`BoundGraph.repeat_into`.
            takes_candidates: whether the kernels, if any, add the input :data:`CANDIDATES`.
            suppressed: tokens that are never :data:`BEST_TOKENS`.

        Raises:
            BundleError: the file cannot be loaded.
        """
        ...

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        """Loads graphs for decode steps from the file of a decode graph.

        They share the weights of matrix products with the graph that :meth:`load` returns.

        Returns:
            None if the device has no such graphs; the graph of :meth:`load` then runs steps too.

        Raises:
            BundleError: see :meth:`load`.
        """
        ...

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        """Returns the bytes of weights that every load of this file copies."""
        ...

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        """Returns the bytes of the weights that multiply each token; None if unknown."""
        ...

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> Graph:
        """Loads a graph built in memory, without optimizing it. ``repeats``: see :meth:`load`."""
        ...

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        """Allocates tensors, by name, on the device that runs the graphs."""
        ...


LoadModel = Callable[[onnx.ModelProto], Graph]
"""The type of :meth:`Backend.load_model`."""
