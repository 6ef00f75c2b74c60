"""What the engine needs of a runtime. ``ort.py`` is the one implementation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]

SOURCE_ROWS = "source_rows"
"""An input of decode graphs that some runtimes add: ``[rows]`` int32, the row of the run whose
source each row has. Rows of one source may read it from one memory, though each has its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Contiguous memory of a device.

    ``device`` and ``index`` are as a command line names them: ``cuda:1`` is "cuda", 1.
    ``owner`` is whatever keeps the memory; of a block on the host, the array itself.
    """

    device: str
    index: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pointer: int
    owner: object

    @classmethod
    def of(cls, array: Array) -> "Block":
        """An array in host memory. Raises ``ValueError`` if it is not contiguous."""
        if not array.flags.c_contiguous:
            raise ValueError("the array is not contiguous")
        return cls("cpu", 0, array.dtype, array.shape, array.ctypes.data, array)

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class BoundGraph(Protocol):
    """A graph whose states are bound to memory. Not for two threads at once."""

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        """Runs the graph; the bound states are read and updated in place.

        Args:
            inputs: by name; one that the graph does not take is passed over.

        Returns:
            The outputs that are not bound, in host memory. They are valid until the next run.
            An output ``[rows, n]`` has a row for each of ``logit_positions`` if the graph takes
            them, else for each row of the batch.
        """
        ...

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        """As :meth:`run`, but the outputs stay in the device's memory."""
        ...

    def run_into(
        self,
        inputs: Mapping[str, Array | Block],
        outputs: Mapping[str, Block],
        *,
        repeats: bool = False,
    ) -> bool:
        """As :meth:`run`, but writes the outputs to blocks of their shapes and types.

        Args:
            repeats: a run of these shapes, scalars and blocks comes again and again, always
                from this thread; a device may record it and play it back.

        Returns:
            Whether it is recorded.
        """
        ...


class Graph(Protocol):
    """A loaded graph. ``bind`` may be called from any thread."""

    def bind(
        self, states: Mapping[tuple[str, str], Block], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        """Binds memory to states.

        Args:
            outputs: those to compute besides the states; all if None.
            states: by (input name, output name), batch in front. Each block is input and
                output at once: nothing is copied.
        """
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor ``[num_rows, *shape]``. With tokens, ``shape`` is ``(heads, length, width)``."""

    num_rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    has_tokens: bool


class Move(NamedTuple):
    """Tokens ``start … stop-1`` of ``num_rows`` rows from ``source`` go to those from ``target``.

    Of a tensor without tokens, whole rows go, whatever ``start`` and ``stop`` are.
    """

    source: int
    target: int
    start: int = 0
    stop: int = 0
    num_rows: int = 1


class Memory(Protocol):
    """Tensors of one device, by name: zero at first, bound by pointer, changed in place.

    For one thread at a time.
    """

    @property
    def free_bytes(self) -> int | None:
        """What is left of the device's memory; None where that is not told."""
        ...

    def rows(self, name: str, first: int, count: int) -> Block:
        """``[count, *shape]``: rows of a tensor, to bind."""
        ...

    def move(self, names: Sequence[str], moves: Sequence[Move]) -> None:
        """Makes all moves at once, in each of the tensors: all is read before it is written."""
        ...

    def zero(self, names: Sequence[str], row: int) -> None:
        """Zeroes a row of each of the tensors."""
        ...

    def read(self, name: str, rows: Sequence[int]) -> Array:
        """``[len(rows), *shape]`` in host memory, of a tensor without tokens.

        On the host it may be the memory itself.
        """
        ...

    def write(self, sources: Mapping[str, Block], moves: Sequence[Move]) -> None:
        """As :meth:`move`, from other blocks into the tensors of these names.

        Args:
            sources: ``[rows, heads, any length, width]`` for each tensor, which has tokens.
            moves: ``source`` is a row of the block.
        """
        ...


class Backend(Protocol):
    @property
    def version(self) -> str: ...

    def load(
        self, path: Path, disabled_optimizers: tuple[str, ...], *, repeats: bool = False
    ) -> Graph:
        """Loads an ONNX file, without some transformations of the runtime.

        ``repeats``: it has runs that repeat: see :meth:`BoundGraph.run_into`.

        Raises:
            BundleError: it cannot be loaded.
        """
        ...

    def own_bytes(self, path: Path) -> int:
        """Of the weights of a loaded file, what each graph of it holds for itself."""
        ...

    def load_model(self, model: onnx.ModelProto) -> Graph:
        """Loads a graph that was made here, as it is."""
        ...

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        """Memory of the device on which graphs run."""
        ...
