"""Logits of a run, wherever they are: whole rows come to the host only if they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from server.engine.gpu.sampler_graph import LOGITS, ROWS
from server.runtime.contract import Array, Block, BoundGraph

Floats = npt.NDArray[np.float32]


class Logits(Protocol):
    """``[rows, vocabulary]``, valid until their rows run again, which is in another step."""

    @property
    def block(self) -> Block:
        """All of them, where they are."""
        ...

    def rows(self, indices: Sequence[int]) -> Floats:
        """Some of them on the host, ``[len(indices), vocabulary]``: at least one; they ascend."""
        ...

    def row(self, index: int) -> Floats:
        """One of them on the host, valid as long, whatever is asked for meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class HostLogits:
    """Implements :class:`Logits` by a contiguous array; neighbouring rows are no copy."""

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
    """Implements :class:`Logits` by memory of a device.

    ``take``: :func:`server.engine.gpu.sampler_graph.build_take`'s graph, which runs there.
    """

    block: Block
    take: BoundGraph

    def rows(self, indices: Sequence[int]) -> Floats:
        return self.take.run({LOGITS: self.block, ROWS: np.array(indices, np.int64)})["taken"]

    def row(self, index: int) -> Floats:
        row: Floats = self.rows([index])[0].copy()
        return row
