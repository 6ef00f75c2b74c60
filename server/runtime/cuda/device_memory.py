"""Slot tensors in device memory, changed by running small ONNX graphs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import onnx

from server.runtime.contract import Array, BoundGraph, Graph, Layout, Move, Tensor, any_reads_target
from server.runtime.cuda import memory_ops
from server.runtime.cuda.cudart import StridedCopy

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
        """As :attr:`server.runtime.contract.Memory.free_bytes`."""
        ...

    def load_model(self, model: onnx.ModelProto) -> Graph:
        """As :meth:`server.runtime.contract.Backend.load_model`."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Tensor:
        """Allocates a tensor of zeros on the device."""
        ...

    def copy(self, copies: Sequence[StridedCopy]) -> bool:
        """Makes copies in the device's memory, in order. Returns whether it can."""
        ...

    def to_host(self, tensor: Tensor) -> Array:
        """Copies a whole tensor that :meth:`zeros` allocated to host memory."""
        ...


class _Geometry(NamedTuple):
    """A tensor as units of ``width`` bytes: one for each token of each head of each row.

    Their order is ``(row * heads + head) * length + token``. A tensor without tokens has one unit
    per row.
    """

    heads: int
    length: int
    width: int
    has_tokens: bool

    def units(self, row: int, move: Move) -> Array:
        """Indices of the units of a move's tokens, in the rows from ``row`` on."""
        rows = np.arange(row, row + move.num_rows, dtype=np.int64)[:, None, None]
        heads = np.arange(self.heads)[:, None]
        tokens = np.arange(move.start, move.stop) if self.has_tokens else np.zeros(1, np.int64)
        return ((rows * self.heads + heads) * self.length + tokens).ravel()


class DeviceMemory:
    """Implements :class:`server.runtime.contract.Memory` with the graphs of
    :mod:`server.runtime.cuda.memory_ops`.

    Args:
        device: allocates the tensors and runs the graphs.
        layouts: the tensors to allocate, by name.
    """

    def __init__(self, device: DeviceBackend, layouts: Mapping[str, Layout]) -> None:
        self._device = device
        self._layouts = dict(layouts)
        self._tensors = {
            name: device.zeros((layout.num_rows, *layout.shape), layout.dtype)
            for name, layout in layouts.items()
        }
        self._moves: dict[tuple[str, ...], BoundGraph] = {}
        self._zeros: dict[tuple[str, ...], BoundGraph] = {}
        self._writes: dict[tuple[str, ...], BoundGraph] = {}
        self._reads: dict[str, BoundGraph] = {}

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors.values())

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
        shape = (count, *whole.shape[1:])
        offset = first * (whole.num_bytes // whole.shape[0])
        return replace(whole, shape=shape, pointer=whole.pointer + offset)

    def move(self, names: Sequence[str], moves: Sequence[Move]) -> None:
        key = tuple(names)
        if not (key and moves):
            return
        if not any_reads_target(moves) and self._device.copy(
            [self._copy_of(name, move) for name in key for move in moves]
        ):
            return
        bound = self._bound(self._moves, key, memory_ops.move_graph)
        inputs = {}
        for group, geometry in enumerate(self._groups(key)):
            source = [geometry.units(move.source, move) for move in moves]
            inputs[f"{memory_ops.FROM}.{group}"] = np.concatenate(source)
            inputs[f"{memory_ops.TO}.{group}"] = _target_units(geometry, moves)
        bound.run(inputs)

    def _copy_of(self, name: str, move: Move) -> StridedCopy:
        tensor, geometry = self._tensors[name], _geometry(self._layouts[name])
        pitch = geometry.length * geometry.width
        start, stop = (move.start, move.stop) if geometry.has_tokens else (0, 1)
        first = tensor.pointer + start * geometry.width
        row_bytes = geometry.heads * pitch
        return StridedCopy(
            first + move.source * row_bytes,
            first + move.target * row_bytes,
            (stop - start) * geometry.width,
            pitch,
            geometry.heads * move.num_rows,
        )

    def zero(self, names: Sequence[str], row: int) -> None:
        key = tuple(names)
        if not key:
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
        tensor = _as_units(self._tensors[name], _unit_bytes(layout))
        if name not in self._reads:
            _, copy_type = _copy_type(_unit_bytes(layout))
            self._reads[name] = self._device.load_model(memory_ops.read_graph(copy_type)).bind({})
        indices = np.array(rows, np.int64)
        units = self._reads[name].run({"x": tensor, memory_ops.FROM: indices})["y"]
        return units.view(layout.dtype).reshape(len(rows), *layout.shape)

    def read_all(self, name: str) -> Array:
        return self._device.to_host(self._tensors[name])

    def write(self, sources: Mapping[str, Tensor], moves: Sequence[Move]) -> None:
        key = tuple(sources)
        if not key:
            return
        bound = self._bound(self._writes, key, memory_ops.write_graph)
        inputs: dict[str, Array | Tensor] = {
            f"source.{index}": _as_units(tensor, _unit_bytes(self._layouts[name]))
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

    def _groups(self, names: tuple[str, ...]) -> dict[_Geometry, int]:
        """Numbers the distinct geometries of these tensors; equal ones share their index lists."""
        distinct = dict.fromkeys(_geometry(self._layouts[name]) for name in names)
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
            types = [_copy_type(_unit_bytes(layout))[1] for layout in layouts]
            model = build([groups[_geometry(layout)] for layout in layouts], types)
            states = {
                (f"x.{index}", f"y.{index}"): _as_units(
                    self._tensors[name], _unit_bytes(self._layouts[name])
                )
                for index, name in enumerate(names)
            }
            cache[names] = self._device.load_model(model).bind(states)
        return cache[names]


def _geometry(layout: Layout) -> _Geometry:
    if not layout.has_tokens:
        return _Geometry(1, 1, _unit_bytes(layout), has_tokens=False)
    heads, length, _ = layout.shape
    return _Geometry(heads, length, _unit_bytes(layout), has_tokens=True)


def _unit_bytes(layout: Layout) -> int:
    numbers = layout.shape[2] if layout.has_tokens else int(np.prod(layout.shape))
    return numbers * layout.dtype.itemsize


def _copy_type(unit_bytes: int) -> tuple[np.dtype[np.generic], int]:
    return next(pair for pair in _COPY_TYPES if unit_bytes % pair[0].itemsize == 0)


def _as_units(tensor: Tensor, unit_bytes: int) -> Tensor:
    """The same memory as ``[units, width]``."""
    dtype, _ = _copy_type(unit_bytes)
    shape = (tensor.num_bytes // unit_bytes, unit_bytes // dtype.itemsize)
    return replace(tensor, dtype=dtype, shape=shape)


def _target_units(geometry: _Geometry, moves: Sequence[Move]) -> Array:
    """``[units, 1]``: the indices that ``ScatterND`` writes."""
    return np.concatenate([geometry.units(move.target, move) for move in moves])[:, None]
