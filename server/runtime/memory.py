"""The memory interface of a device: named state tensors, and the operations on them.

:class:`server.runtime.host_memory.HostMemory` and
:class:`server.runtime.cuda.device_memory.DeviceMemory` implement :class:`Memory`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A contiguous tensor in the memory of a device, described as by DLPack's ``DLTensor``.

    ``device_kind`` and ``device_number`` are those of :class:`server.runtime.devices.Device`.
    ``owner`` keeps the memory alive; for a tensor in host memory it is the NumPy array itself.
    """

    device_kind: str
    device_number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pointer: int
    owner: object

    @classmethod
    def of(cls, array: Array) -> "Tensor":
        """Wraps an array in host memory. Raises ``ValueError`` if it is not contiguous."""
        if not array.flags.c_contiguous:
            raise ValueError("the array is not contiguous")
        return cls("cpu", 0, array.dtype, array.shape, array.ctypes.data, array)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and type of a tensor ``[num_rows, *shape]``.

    ``has_tokens``: ``shape`` is ``(heads, length, width)``, with one vector per head and token.
    """

    num_rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    has_tokens: bool


class Move(NamedTuple):
    """Copies tokens ``start … stop-1`` of ``num_rows`` rows, from row ``source`` on.

    They go to the same positions of the rows from ``target`` on. In a tensor without tokens,
    whole rows are copied, and ``start`` and ``stop`` are ignored. The rows from ``source`` on are
    others than those from ``target`` on.
    """

    source: int
    target: int
    start: int = 0
    stop: int = 0
    num_rows: int = 1


def late_moves(moves: Sequence[Move]) -> list[int]:
    """Returns the indices of moves that read a row that an earlier move writes.

    If there are none, the moves can be made in order.
    """
    late = []
    written: set[int] = set()
    for index, move in enumerate(moves):
        if not written.isdisjoint(range(move.source, move.source + move.num_rows)):
            late.append(index)
        written.update(range(move.target, move.target + move.num_rows))
    return late


class Memory(Protocol):
    """Named tensors on one device: initially zero, bound by pointer, changed in place.

    For one thread at a time.
    """

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        ...

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of the tensors that are resident in host memory now; None on another device.

        Any thread may read it.
        """
        ...

    def rows(self, name: str, first: int, count: int) -> Tensor:
        """Returns a view ``[count, *shape]`` of a tensor's rows, to bind to a graph."""
        ...

    def release(self, row: int, first_token: int = 0) -> None:
        """Releases memory of an unused row to the operating system, if the device supports it.

        The values of tokens ``first_token`` and later become undefined: zero, or unchanged; so do
        those of tensors without tokens if ``first_token`` is 0.
        """
        ...

    def move(self, names: Sequence[str], moves: Sequence[Move]) -> None:
        """Applies all moves to each tensor, as if every source were read before any write.

        Args:
            names: of the tensors.
            moves: at most one, of a single row, reads a row that one before it writes.
        """
        ...

    def zero(self, names: Sequence[str], row: int) -> None:
        """Zeroes one row of each tensor."""
        ...

    def read(self, name: str, rows: Sequence[int]) -> Array:
        """Returns ``[len(rows), *shape]`` in host memory. The tensor must have no tokens.

        In host memory the result may be a view.
        """
        ...

    def read_all(self, name: str) -> Array:
        """Returns a whole tensor in host memory. The result may be a view."""
        ...

    def write(self, sources: Mapping[str, Tensor], moves: Sequence[Move]) -> None:
        """Copies as :meth:`move` does, but from other tensors.

        Args:
            sources: the tensor to read, by the name of the tensor to write: ``[rows, heads, any
                length, width]`` for one with tokens, else ``[rows, *shape]``.
            moves: ``source`` is a row of the tensor to read.
        """
        ...


MakeMemory = Callable[[Mapping[str, Layout]], Memory]
"""The type of :meth:`server.runtime.contract.Backend.memory`."""
