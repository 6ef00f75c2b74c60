"""Slot tensors in device memory, changed by copies of the device.

Copies allocate nothing, so they succeed when no memory is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx

from server.byte_sizes import in_units
from server.out_of_memory import is_out_of_memory
from server.runtime.contract import BoundGraph, Graph
from server.runtime.cuda import memory_ops
from server.runtime.cuda.moves import Parts, independent, moves_in_order
from server.runtime.memory import Array, Layout, Move, Tensor

# Element types that copy the bits of a row: the widest that divides the row's bytes.
_COPY_TYPES = (
    (np.dtype(np.float32), int(onnx.TensorProto.FLOAT)),
    (np.dtype(np.float16), int(onnx.TensorProto.FLOAT16)),
    (np.dtype(np.uint8), int(onnx.TensorProto.UINT8)),
)


class DeviceBackend(Protocol):
    """The methods of a backend that :class:`DeviceMemory` uses."""

    @property
    def free_bytes(self) -> int | None:
        """As :attr:`server.runtime.memory.Memory.free_bytes`."""
        ...

    def load_model(self, model: onnx.ModelProto) -> Graph:
        """As :meth:`server.runtime.contract.Backend.load_model`."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Tensor:
        """Allocates a tensor of zeros on the device."""
        ...

    def copy(self, groups: Sequence[Array]) -> None:
        """Makes copies in the device's memory, as :func:`server.runtime.cuda.copies.copy`."""
        ...

    def clear(self, parts: Sequence[tuple[int, int]]) -> None:
        """Zeroes parts of the device's memory, an address and bytes each."""
        ...


class DeviceMemory:
    """Implements :class:`server.runtime.memory.Memory`.

    Args:
        device: allocates the tensors, and copies, clears and reads them.
        layouts: the tensors to allocate, by name.

    Raises:
        MemoryError: the device has not enough memory; the message says how much is needed.
    """

    def __init__(self, device: DeviceBackend, layouts: Mapping[str, Layout]) -> None:
        self._device = device
        self._layouts = dict(layouts)
        free = device.free_bytes
        try:
            self._tensors = self._allocate(self._layouts)
            # A row more of each, to move rows in a cycle.
            moving = {n: each for n, each in self._layouts.items() if each.num_rows > 1}
            self._spare = self._allocate(moving, 1)
        except Exception as error:
            if is_out_of_memory(error):
                needed = sum(_row_bytes(layout) * layout.num_rows for layout in layouts.values())
                raise MemoryError(_no_memory(needed, free)) from error
            raise
        self._reads: dict[str, BoundGraph] = {}
        self._parts: dict[tuple[str, ...], Parts] = {}

    def _allocate(
        self, layouts: Mapping[str, Layout], num_rows: int | None = None
    ) -> dict[str, Tensor]:
        """``num_rows``: of each tensor; None: its layout's."""
        return {
            name: self._device.zeros((num_rows or layout.num_rows, *layout.shape), layout.dtype)
            for name, layout in layouts.items()
        }

    @property
    def resident_bytes(self) -> int | None:
        return None

    def release(self, row: int, first_token: int = 0) -> None:
        """Does nothing: the device's memory stays allocated."""

    @property
    def free_bytes(self) -> int | None:
        return self._device.free_bytes

    def rows(self, name: str, first: int, count: int) -> Tensor:
        whole = self._tensors[name]
        place, shape = (whole.device_kind, whole.device_number), (count, *whole.shape[1:])
        pointer = whole.pointer + first * (whole.num_bytes // whole.shape[0])
        return Tensor(*place, whole.dtype, shape, pointer, whole.owner)

    def move(self, names: Sequence[str], moves: Sequence[Move]) -> None:
        key = tuple(names)
        if key and moves:
            groups = independent(moves_in_order(moves))
            self._device.copy([self._parts_of(key).copies(group) for group in groups])

    def _parts_of(self, names: tuple[str, ...]) -> Parts:
        if names not in self._parts:
            self._parts[names] = Parts.of(
                (self._layouts[name], tensor, self._spare.get(name, tensor))
                for name, tensor in ((name, self._tensors[name]) for name in names)
            )
        return self._parts[names]

    def zero(self, names: Sequence[str], row: int) -> None:
        if names:
            sizes = {name: _row_bytes(self._layouts[name]) for name in names}
            self._device.clear(
                [(self._tensors[name].pointer + row * size, size) for name, size in sizes.items()]
            )

    def read(self, name: str, rows: Sequence[int]) -> Array:
        if self._layouts[name].has_tokens:
            raise ValueError(f"{name!r} has tokens")
        return self._read(name, rows)

    def read_all(self, name: str) -> Array:
        return self._read(name, range(self._layouts[name].num_rows))

    def _read(self, name: str, rows: Sequence[int]) -> Array:
        """``[len(rows), *shape]``, in host memory."""
        layout, size = self._layouts[name], _row_bytes(self._layouts[name])
        dtype, type_ = next(pair for pair in _COPY_TYPES if size % pair[0].itemsize == 0)
        if name not in self._reads:
            self._reads[name] = self._device.load_model(memory_ops.read_graph(type_)).bind({})
        shape = (layout.num_rows, size // dtype.itemsize)
        x = replace(self._tensors[name], dtype=dtype, shape=shape)
        found = self._reads[name].run({"x": x, "indices": np.array(rows, np.int64)})["y"]
        return found.view(layout.dtype).reshape(len(rows), *layout.shape)

    def write(self, sources: Mapping[str, Tensor], moves: Sequence[Move]) -> None:
        key = tuple(sources)
        if not key:
            return
        layouts = [replace(self._layouts[name], shape=sources[name].shape[1:]) for name in key]
        read = Parts.of(
            (layout, tensor, tensor)  # no move reads a spare row of a source
            for layout, tensor in zip(layouts, sources.values(), strict=True)
        )
        self._device.copy([self._parts_of(key).copies(moves, read)])


def _row_bytes(layout: Layout) -> int:
    return int(np.prod(layout.shape)) * layout.dtype.itemsize


def _no_memory(needed: int, free: int | None) -> str:
    rest = "" if free is None else f", but {in_units(free)} of the device are free"
    return f"the slots need {in_units(needed)} of memory{rest}: use fewer --slots"
