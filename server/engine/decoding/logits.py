"""Logits of a run, on the host or on a device: rows are copied to the host only on demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server.constraint import Floats
from server.engine.gpu.sampler_graph import LOGITS, ROWS
from server.runtime.contract import Array, Block, BoundGraph


class Logits(Protocol):
    """Logits ``[rows, vocabulary]``, one row for each sequence of the run."""

    @property
    def block(self) -> Block:
        """All rows, where they are. Valid until the next run."""
        ...

    def rows(self, indices: Sequence[int]) -> Floats:
        """Rows on the host, ``[len(indices), vocabulary]``, valid until the next run.

        ``indices``: at least one, ascending.
        """
        ...

    def row(self, index: int) -> Floats:
        """One row on the host, valid until its sequence runs again, in another step."""
        ...


@dataclass(frozen=True, slots=True)
class HostLogits:
    """Implements :class:`Logits` over a contiguous array; neighbouring rows are a view."""

    array: Array

    @property
    def block(self) -> Block:
        return Block.of(self.array)

    def rows(self, indices: Sequence[int]) -> Floats:
        first, last = indices[0], indices[-1]
        are_neighbours = last - first + 1 == len(indices)
        chosen = self.array[first : last + 1] if are_neighbours else self.array[list(indices)]
        return chosen.astype(np.float32, copy=False)

    def row(self, index: int) -> Floats:
        row: Floats = self.rows([index])[0]
        return row


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """Implements :class:`Logits` over device memory.

    ``take``: the graph of :func:`server.engine.gpu.sampler_graph.build_take`, on the same device.
    """

    block: Block
    take: BoundGraph

    def rows(self, indices: Sequence[int]) -> Floats:
        return self.take.run({LOGITS: self.block, ROWS: np.array(indices, np.int64)})["taken"]

    def row(self, index: int) -> Floats:
        row: Floats = self.rows([index])[0].copy()
        return row
