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
int32. For each row, the first row of the run with the same encoder source. Rows that share a
source can read its cross-attention keys and values from one place, although each has a copy."""

CANDIDATES = "candidates"
"""An input that the kernels add to decode graphs loaded with ``takes_candidates``: int32
``[rows, width]``. For each row of logits, the ids of the tokens to compute, ascending, then -1. The
graph returns logits ``[rows, width]``, -inf after the last id; with width 0, it returns all."""

BEST_TOKENS = "best_tokens"
"""An output that the kernels of a GPU add to graphs with logits: int64 ``[rows]``. For each row of
logits, the lowest id among the largest, -1 if they are not finite. It leaves out the tokens
``suppressed`` of :meth:`Backend.load`."""

TOP_TOKENS = "top_tokens"
"""The output of a graph that finds the likeliest tokens of each row of logits: float32
``[rows, 2 * count + 1]``. Their logits, the largest first, of equal ones those of lower ids; their
ids; and the sum over the row of ``exp(logit - the largest)``. With the input :data:`TARGETS`, one
more column: the logit of the row's target. A kernel of a GPU replaces the graph."""

TARGETS = "targets"
"""Tokens ``[rows]`` int64 whose logits are wanted, one of each row."""

NEXT_TOKEN_IDS, NEXT_NUM_CACHED_TOKENS = "next_token_ids", "next_num_cached_tokens"
"""Outputs that the kernels of a GPU add to graphs of decode steps: ``token_ids [rows, 1]`` int64
and ``num_cached_tokens [rows]`` int32 of the step after this one, over the best tokens. They may be
in the memory of those inputs: then running the graph again is the next step."""

IS_LIVE = "is_live"
"""The input from which they are made: ``[rows]`` int32, 1 for a sequence, 0 for padding. A row of
padding stays where it is, with token 0; so is the token of a row whose logits are not finite."""

FED_BACK = {NEXT_TOKEN_IDS: "token_ids", NEXT_NUM_CACHED_TOKENS: "num_cached_tokens"}
"""The inputs of the next step, by output."""

FEW_ROWS = 8
"""Decode steps of at most so many rows have a graph of their own on a GPU (:class:`StepGraphs`).
They are short: the device should not wait for the host."""


class BoundGraph(Protocol):
    """A graph with memory bound to its states. For one thread at a time.

    Every ``run`` reads the bound states and updates them in place. ``inputs`` are given by name;
    inputs that the graph does not declare are ignored. Arrays are read in place during the run, and
    may be changed and given again after it.
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
        """Prepares runs that write to the same tensors, again and again. Nothing else may run it.

        Args:
            inputs: as of the runs: their shapes, and the values of scalars, never change. Tensors
                are read where they are; runs are given the arrays alone.
            outputs: have the shapes and types of the graph's outputs.
            on_host: the output that is copied to host memory after each run.
            feeds_back: a run may follow another without inputs from the host, if the graph can.
                No run may then be repeated after it changed states.
        """
        ...


class Pending(Protocol):
    """A run that was started."""

    def wait(self) -> Array | None:
        """Waits until it is done. Not to be called twice.

        Returns:
            The output on the host, valid until the next run but one starts; None if there is none.

        Raises:
            Exception: the run failed.
        """
        ...

    def drop(self) -> None:
        """Returns when it no longer runs. Nobody needs its outputs, and it need not have run."""
        ...


class RepeatedRun(Protocol):
    """A run of a graph that repeats with fixed shapes and tensors. For one thread at a time.

    At most two runs may be started and neither waited for nor dropped; each begins after the one
    before it.
    """

    @property
    def is_asynchronous(self) -> bool:
        """Whether runs begin when they are started, else when they are waited for.

        Then ``inputs`` are read when a run is started, and may be changed at once.
        """
        ...

    @property
    def feeds_back(self) -> bool:
        """Whether a run makes the inputs :data:`FED_BACK` of the next one on the device."""
        ...

    def record(self, inputs: Mapping[str, Array]) -> bool:
        """Runs the graph a few times, so that the device records the run (CUDA graphs).

        Returns:
            Whether :meth:`start` replays a recording.
        """
        ...

    def start(self, inputs: Mapping[str, Array] | None) -> Pending:
        """Starts a run; a device may run it while the host goes on.

        Args:
            inputs: may be changed once it is waited for or dropped. None: those that the run
                started last makes.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelNodes:
    """The numbers of a graph's nodes, by the kernel of :mod:`server.runtime.kernels`.

    ``num_native``: nodes that the kernel computes; one may replace several of the file.
    ``num_standard``: nodes of the operators that the kernel replaces, which the runtime computes.
    """

    num_native: Mapping[str, int] = field(default_factory=dict)
    num_standard: Mapping[str, int] = field(default_factory=dict)


class Graph(Protocol):
    """A loaded graph. Any thread may use it."""

    @property
    def kernel_nodes(self) -> KernelNodes:
        """Empty on a device without kernels, and until a graph is loaded that waits for its use."""
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
            states: by (input name, output name); the batch is the first axis. Each tensor is both
                the input and the output of its state, so nothing is copied.
            outputs: the outputs to compute besides the states; None computes all.
        """
        ...


class StepGraphs(NamedTuple):
    """Graphs of decode steps: over exactly one token of each row, with logits for all in order.

    ``few``: for at most :data:`FEW_ROWS` rows. ``many``: for any number.
    """

    few: Graph
    many: Graph

    def for_rows(self, num_rows: int) -> Graph:
        """The graph for a step of ``num_rows`` rows."""
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
            path: of the file.
            disabled_optimizers: names of graph transformations that the runtime must not apply.
            repeats: the graph will have runs to record: see :meth:`BoundGraph.repeat_into`.
            takes_candidates: the kernels, if there are any, add the input :data:`CANDIDATES`.
            suppressed: tokens that are never :data:`BEST_TOKENS`.

        Raises:
            BundleError: the file cannot be loaded.
        """
        ...

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        """Loads graphs for decode steps from the file of a decode graph.

        They share the weights of products with the graph that :meth:`load` returns.

        Returns:
            None if the device has no such graphs, and :meth:`load`'s serves steps too.

        Raises:
            BundleError: as of :meth:`load`.
        """
        ...

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        """Bytes of weights of which each load of this file has its own copy."""
        ...

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        """Bytes of the weights that a token is multiplied by; None if that is not known."""
        ...

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> Graph:
        """Loads a graph built in memory, without optimizing it. ``repeats``: as of :meth:`load`."""
        ...

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        """Allocates tensors, by name, on the device that runs the graphs."""
        ...


LoadModel = Callable[[onnx.ModelProto], Graph]
""":meth:`Backend.load_model`."""
