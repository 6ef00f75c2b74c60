"""Turns moves of slots in device memory into copies."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from server.runtime.cuda.copies import FIELDS
from server.runtime.memory import Array, Layout, Move, Tensor, late_moves

SPARE_ROW = -1
"""A row number in a move that means the spare row, which is no slot."""


class Parts(NamedTuple):
    """Describes tensors for copies: each field is a column ``[tensors, 1]``.

    A row of a tensor has ``num_parts`` parts of ``pitch`` bytes, which hold tokens of ``width``
    bytes. A tensor without tokens has one part per row. ``spare``: the address of the spare row.
    """

    pointer: Array
    spare: Array
    num_parts: Array
    pitch: Array
    width: Array
    has_tokens: Array

    @classmethod
    def of(cls, tensors: Iterable[tuple[Layout, Tensor, Tensor]]) -> "Parts":
        """Describes ``tensors``, each given as its layout, its rows and its spare row."""
        rows = []
        for layout, tensor, spare in tensors:
            has_tokens = layout.has_tokens
            heads, length, width = layout.shape if has_tokens else (1, 1, math.prod(layout.shape))
            token_bytes = width * layout.dtype.itemsize
            numbers = (heads, length * token_bytes, token_bytes, has_tokens)
            rows.append((tensor.pointer, spare.pointer, *numbers))
        return cls(*np.array(rows, np.int64).T[:, :, None])

    def copies(self, moves: Sequence[Move], sources: "Parts | None" = None) -> Array:
        """Returns copies ``[tensors * moves, fields]`` for :mod:`server.runtime.cuda.copies`.

        ``sources``: the tensors to read; None reads these.
        """
        source, target, start, stop, num_rows = np.array(moves, np.int64).T
        read = self if sources is None else sources
        copies = np.empty((len(self.pointer), len(moves), len(FIELDS)), np.int64)
        fields = (
            *(read._addresses(source, start), self._addresses(target, start)),
            np.where(self.has_tokens, stop - start, 1) * self.width,
            *(read.pitch, self.pitch, self.num_parts * num_rows),
        )
        for index, field in enumerate(fields):
            copies[..., index] = field
        return copies.reshape(-1, len(FIELDS))

    def _addresses(self, rows: Array, start: Array) -> Array:
        in_slots = self.pointer + rows * self.num_parts * self.pitch
        first = start * self.width * self.has_tokens
        addresses: Array = np.where(rows == SPARE_ROW, self.spare, in_slots) + first
        return addresses


def moves_in_order(moves: Sequence[Move]) -> list[Move]:
    """Returns moves with the same result as ``moves`` that can be made one after the other.

    If one of ``moves`` reads a row that an earlier one writes, the row is first copied to
    :data:`SPARE_ROW`.

    Raises:
        ValueError: several moves do, or that move has several rows.
    """
    late = late_moves(moves)
    if not late:
        return list(moves)
    if sum(moves[index].num_rows for index in late) > 1:
        raise ValueError("more than one row is read after it is written")
    move = moves[late[0]]
    in_order = [move._replace(target=SPARE_ROW), *moves]
    in_order[1 + late[0]] = move._replace(source=SPARE_ROW)
    return in_order


def independent(moves: Sequence[Move]) -> list[list[Move]]:
    """Divides moves into groups to make in order. The moves of a group may be made in any order."""
    groups: list[list[Move]] = []
    read: set[int] = set()
    written: set[int] = set()
    for move in moves:
        source, target = _rows(move.source, move), _rows(move.target, move)
        is_free = (
            written.isdisjoint(source) and read.isdisjoint(target) and written.isdisjoint(target)
        )
        if not (groups and is_free):
            groups.append([])
            read, written = set(), set()
        groups[-1].append(move)
        read.update(source)
        written.update(target)
    return groups


def _rows(first: int, move: Move) -> range:
    return range(first, first + move.num_rows)
