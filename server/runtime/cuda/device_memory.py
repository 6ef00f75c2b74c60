"""Slot tensors in device memory, changed by copies of the device, or small ONNX graphs.

Copies allocate nothing, so they succeed when no memory is left; graphs are for what copies cannot
do, and for devices without them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx

from server.byte_sizes import in_units
from server.out_of_memory import is_out_of_memory
from server.runtime.contract import BoundGraph, Graph
from server.runtime.cuda import memory_ops
from server.runtime.cuda.moves import (
    Geometry,
    Parts,
    geometry_of,
    independent,
    moves_in_order,
    unit_bytes,
)
from server.runtime.memory import Array, Layout, Move, Tensor

# Element types that copy the bits of a unit: the widest that divides the unit's bytes.
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

    def copy(self, groups: Sequence[Array]) -> bool:
        """Makes copies in the device's memory, as :func:`server.runtime.cuda.copies.copy`.

        Returns whether it can.
        """
        ...

    def clear(self, parts: Sequence[tuple[int, int]]) -> bool:
        """Zeroes parts of the device's memory, an address and bytes each. Returns whether it can.

        It can if it can :meth:`copy`.
        """
        ...


class DeviceMemory:
    """Implements :class:`server.runtime.memory.Memory` with copies of the device, or the graphs of
    :mod:`server.runtime.cuda.memory_ops`.

    Args:
        device: allocates the tensors and runs the graphs.
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
            self._copies = device.copy([])
            moving = {n: each for n, each in self._layouts.items() if each.num_rows > 1}
            self._spare = self._allocate(moving, 1) if self._copies else {}
        except Exception as error:
            if is_out_of_memory(error):
                needed = sum(_row_bytes(layout) * layout.num_rows for layout in layouts.values())
                raise MemoryError(_no_memory(needed, free)) from error
            raise
        self._moves: dict[tuple[str, ...], BoundGraph] = {}
        self._zeros: dict[tuple[str, ...], BoundGraph] = {}
        self._writes: dict[tuple[str, ...], BoundGraph] = {}
        self._reads: dict[str, BoundGraph] = {}
        self._parts: dict[tuple[str, ...], Parts] = {}

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in (*self._tensors.values(), *self._spare.values()))

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
        if not (key and moves):
            return
        in_order = moves_in_order(moves) if self._copies else None
        if in_order is not None and self._device.copy(
            [self._parts_of(key).copies(group) for group in independent(in_order)]
        ):
            return
        bound = self._bound(self._moves, key, memory_ops.move_graph)
        inputs = {}
        for group, geometry in enumerate(self._groups(key)):
            source = [geometry.units(move.source, move) for move in moves]
            inputs[f"{memory_ops.FROM}.{group}"] = np.concatenate(source)
            inputs[f"{memory_ops.TO}.{group}"] = _target_units(geometry, moves)
        bound.run(inputs)

    def _parts_of(self, names: tuple[str, ...]) -> Parts:
        if names not in self._parts:
            self._parts[names] = Parts.of(
                (geometry_of(self._layouts[name]), tensor, self._spare.get(name, tensor))
                for name, tensor in ((name, self._tensors[name]) for name in names)
            )
        return self._parts[names]

    def zero(self, names: Sequence[str], row: int) -> None:
        key = tuple(names)
        if not key:
            return
        sizes = {name: _row_bytes(self._layouts[name]) for name in key}
        parts = [(self._tensors[name].pointer + row * size, size) for name, size in sizes.items()]
        if self._device.clear(parts):
            return
        bound = self._bound(self._zeros, key, memory_ops.zero_graph)
        bound.run(
            {
                f"{memory_ops.TO}.{group}": _target_units(
                    geometry, [Move(row, row, 0, geometry.length)]
                )
                for group, geometry in enumerate(self._groups(key))
            }
        )

    def read(self, name: str, rows: Sequence[int]) -> Array:
        layout = self._layouts[name]
        if layout.has_tokens:
            raise ValueError(f"{name!r} has tokens")
        return self._read(name, np.array(rows, np.int64)).reshape(len(rows), *layout.shape)

    def read_all(self, name: str) -> Array:
        tensor = self._tensors[name]
        units = np.arange(tensor.num_bytes // unit_bytes(self._layouts[name]))
        return self._read(name, units).reshape(tensor.shape)

    def _read(self, name: str, indices: Array) -> Array:
        """Units of a tensor, in host memory."""
        layout = self._layouts[name]
        tensor = _as_units(self._tensors[name], unit_bytes(layout))
        if name not in self._reads:
            _, copy_type = _copy_type(unit_bytes(layout))
            self._reads[name] = self._device.load_model(memory_ops.read_graph(copy_type)).bind({})
        units = self._reads[name].run({"x": tensor, memory_ops.FROM: indices})["y"]
        return units.view(layout.dtype)

    def write(self, sources: Mapping[str, Tensor], moves: Sequence[Move]) -> None:
        key = tuple(sources)
        if not key:
            return
        if self._copies:
            layouts = [replace(self._layouts[name], shape=sources[name].shape[1:]) for name in key]
            read = Parts.of(
                (geometry_of(layout), tensor, tensor)  # no move reads a spare row of a source
                for layout, tensor in zip(layouts, sources.values(), strict=True)
            )
            if self._device.copy([self._parts_of(key).copies(moves, read)]):
                return
        bound = self._bound(self._writes, key, memory_ops.write_graph)
        inputs: dict[str, Array | Tensor] = {
            f"source.{index}": _as_units(tensor, unit_bytes(self._layouts[name]))
            for index, (name, tensor) in enumerate(sources.items())
        }
        lengths = [t.shape[2] for name, t in sources.items() if self._layouts[name].has_tokens]
        for group, geometry in enumerate(self._groups(key)):
            # All sources with tokens have the same length: they are outputs of one run.
            source = geometry
            if geometry.has_tokens:
                source = geometry._replace(length=lengths[0])
            units = [source.units(move.source, move) for move in moves]
            inputs[f"{memory_ops.FROM}.{group}"] = np.concatenate(units)
            inputs[f"{memory_ops.TO}.{group}"] = _target_units(geometry, moves)
        bound.run(inputs)

    def _groups(self, names: tuple[str, ...]) -> dict[Geometry, int]:
        """Numbers the distinct geometries of these tensors; equal ones share their index lists."""
        distinct = dict.fromkeys(geometry_of(self._layouts[name]) for name in names)
        return {geometry: number for number, geometry in enumerate(distinct)}

    def _bound(
        self,
        cache: dict[tuple[str, ...], BoundGraph],
        names: tuple[str, ...],
        build: Callable[[Sequence[int], Sequence[int]], onnx.ModelProto],
    ) -> BoundGraph:
        """The graph that ``build`` makes for these tensors, bound to them; loaded once."""
        if names not in cache:
            layouts, groups = [self._layouts[name] for name in names], self._groups(names)
            types = [_copy_type(unit_bytes(layout))[1] for layout in layouts]
            model = build([groups[geometry_of(layout)] for layout in layouts], types)
            states = {
                (f"x.{index}", f"y.{index}"): _as_units(
                    self._tensors[name], unit_bytes(self._layouts[name])
                )
                for index, name in enumerate(names)
            }
            cache[names] = self._device.load_model(model).bind(states)
        return cache[names]


def _row_bytes(layout: Layout) -> int:
    return int(np.prod(layout.shape)) * layout.dtype.itemsize


def _no_memory(needed: int, free: int | None) -> str:
    rest = "" if free is None else f", but {in_units(free)} of the device are free"
    return f"the slots need {in_units(needed)} of memory{rest}: use fewer --slots"


def _copy_type(width: int) -> tuple[np.dtype[np.generic], int]:
    return next(pair for pair in _COPY_TYPES if width % pair[0].itemsize == 0)


def _as_units(tensor: Tensor, width: int) -> Tensor:
    """The same memory as ``[units, width]``."""
    dtype, _ = _copy_type(width)
    shape = (tensor.num_bytes // width, width // dtype.itemsize)
    return replace(tensor, dtype=dtype, shape=shape)


def _target_units(geometry: Geometry, moves: Sequence[Move]) -> Array:
    """``[units, 1]``: the indices that ``ScatterND`` writes."""
    return np.concatenate([geometry.units(move.target, move) for move in moves])[:, None]
