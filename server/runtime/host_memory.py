"""Slot tensors in host memory: NumPy arrays over separately mapped pages."""

from collections.abc import Mapping, Sequence

import numpy as np

from server.runtime import pages
from server.runtime.kernels.copy_rows import Table
from server.runtime.memory import Array, Layout, Move, Tensor, late_moves


class HostMemory:
    """Implements :class:`server.runtime.memory.Memory`.

    The operating system allocates each page of 4 KiB at its first write, so the unused end of a row
    costs no memory: docs/decisions/0107-memory.md.
    """

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._layouts = dict(layouts)
        self._arrays: dict[str, Array] = {
            name: pages.zeros((layout.num_rows, *layout.shape), layout.dtype)
            for name, layout in layouts.items()
        }
        self._tables: dict[tuple[str, ...], Table] = {}

    @property
    def free_bytes(self) -> int | None:
        return None

    @property
    def resident_bytes(self) -> int | None:
        return sum(map(pages.resident_bytes, self._arrays.values()))

    def release(self, row: int, first_token: int = 0) -> None:
        if not self._arrays or self._table(tuple(self._arrays)).release(row, first_token):
            return
        for name, array in self._arrays.items():
            if not first_token:
                array[row] = 0
            elif self._layouts[name].has_tokens:
                array[row, :, first_token:] = 0

    def rows(self, name: str, first: int, count: int) -> Tensor:
        return Tensor.of(self._arrays[name][first : first + count])

    def move(self, names: Sequence[str], moves: Sequence[Move]) -> None:
        late = late_moves(moves)
        if late or (names and not self._table(tuple(names)).move(moves)):
            self._move_with_numpy(names, moves, late)

    def _table(self, names: tuple[str, ...]) -> Table:
        table = self._tables.get(names)
        if table is None:
            table = Table([(self._arrays[name], self._layouts[name]) for name in names])
            self._tables[names] = table
        return table

    def _move_with_numpy(
        self, names: Sequence[str], moves: Sequence[Move], late: Sequence[int]
    ) -> None:
        for name in names:
            array = self._arrays[name]
            sources = [self._part(name, move.source, move) for move in moves]
            for index in late:  # before an earlier move overwrites it
                sources[index] = sources[index].copy()
            for move, source in zip(moves, sources, strict=True):
                array[_slice(move.target, move, self._layouts[name])] = source

    def zero(self, names: Sequence[str], row: int) -> None:
        for name in names:
            self._arrays[name][row] = 0

    def read(self, name: str, rows: Sequence[int]) -> Array:
        array = self._arrays[name]
        if list(rows) == list(range(len(rows))):
            return array[: len(rows)]
        selected: Array = array[list(rows)]
        return selected

    def read_all(self, name: str) -> Array:
        return self._arrays[name]

    def write(self, sources: Mapping[str, Tensor], moves: Sequence[Move]) -> None:
        for name, tensor in sources.items():
            array, layout, source = self._arrays[name], self._layouts[name], tensor.owner
            if not isinstance(source, np.ndarray):
                raise TypeError(f"the source of {name!r} is not in host memory")
            for move in moves:
                array[_slice(move.target, move, layout)] = source[_slice(move.source, move, layout)]

    def _part(self, name: str, row: int, move: Move) -> Array:
        part: Array = self._arrays[name][_slice(row, move, self._layouts[name])]
        return part


def _slice(row: int, move: Move, layout: Layout) -> tuple[slice, ...]:
    rows = slice(row, row + move.num_rows)
    if not layout.has_tokens:
        return (rows,)
    return (rows, slice(None), slice(move.start, move.stop))
